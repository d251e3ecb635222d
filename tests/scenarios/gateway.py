"""A TCP gateway in front of a server: closing it is how a test takes the server away and gives it back."""

import asyncio
import threading
from contextlib import suppress

from tests.services.ports import free_port


class Gateway:
    """Forwards connections while it is open; closed, it refuses new ones and has cut the old ones."""

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._port = free_port()
        self.address = f"127.0.0.1:{self._port}"
        self._loop = asyncio.new_event_loop()
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.open()

    def open(self) -> None:
        asyncio.run_coroutine_threadsafe(self._open(), self._loop).result(30)

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(30)

    def end(self) -> None:
        self.close()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(30)
        self._loop.close()

    async def _open(self) -> None:
        self._server = await asyncio.start_server(self._forward, "127.0.0.1", self._port)

    async def _close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        for writer in list(self._writers):
            writer.transport.abort()
        # The forwarding tasks end by themselves once their transports are gone.
        while self._writers:
            await asyncio.sleep(0.01)

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            with suppress(OSError):
                there, back = await asyncio.open_connection(*self._target)
                self._writers.add(back)
                try:
                    await asyncio.gather(_copy(reader, back), _copy(there, writer))
                finally:
                    self._writers.discard(back)
                    back.transport.abort()
        finally:
            self._writers.discard(writer)
            writer.transport.abort()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while chunk := await reader.read(65536):
            writer.write(chunk)
            await writer.drain()
    with suppress(OSError, RuntimeError):
        writer.write_eof()
