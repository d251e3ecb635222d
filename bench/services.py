"""PostgreSQL and Temporal as the embedded stack runs them, durable, in a folder of their own."""

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import psycopg

from domain.errors import Unavailable
from store import schema
from workers import ports, postgres, temporal
from workers.folder import Ports

_START_SECONDS = 180.0
_STOP_SECONDS = 60.0
_POLL_SECONDS = 0.1


class Services:
    """A context manager: both run inside it. Start it in the main thread, whose end the servers follow."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ports = ports.choose(Ports(), Ports(), print)
        self._postgres: subprocess.Popen[bytes] | None = None
        self._temporal: subprocess.Popen[bytes] | None = None
        self.data = folder / "pg"
        self.log = folder / "postgres.log"
        self.temporal_address = f"127.0.0.1:{self._ports.temporal}"
        self.database_url = ""

    def __enter__(self) -> Self:
        try:
            self._postgres = self._spawn("postgres", ["workers.postgres", str(self.data)])
            _until("PostgreSQL answers", self._postgres_answers)
            self.database_url = self.new_database(postgres.DATABASE)
            self.spawn_temporal()
            _until("Temporal answers", self._temporal_answers)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End both servers; their data is thrown away."""
        self.kill_temporal()
        if self._postgres is not None:
            self._postgres.terminate()
            self._postgres.wait(_STOP_SECONDS)

    @property
    def pids(self) -> dict[str, int]:
        """The servers' process ids by name."""
        running = {"postgres": self._postgres, "temporal": self._temporal}
        return {name: process.pid for name, process in running.items() if process is not None}

    def spawn_temporal(self) -> None:
        """Start the server, or start it again on the same data; it takes a moment until it answers."""
        arguments = temporal.arguments(self._folder / "temporal.db", self._ports)
        self._temporal = self._spawn("temporal", ["workers.temporal", *arguments])

    def kill_temporal(self) -> None:
        """``kill -9``: the server is away from now on."""
        if self._temporal is not None:
            self._temporal.kill()
            self._temporal.wait()

    def new_database(self, name: str) -> str:
        """Make a database with the present schema; answers its address."""
        with psycopg.connect(postgres.url(self.data, "postgres"), autocommit=True) as admin:
            admin.execute(f'create database "{name}"'.encode())
        url = postgres.url(self.data, name)
        schema.upgrade(url)
        return url

    def _spawn(self, name: str, module: list[str]) -> subprocess.Popen[bytes]:
        with (self._folder / f"{name}.log").open("ab") as log:
            command = [sys.executable, "-m", *module]
            return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def _postgres_answers(self) -> bool:
        with suppress(psycopg.OperationalError):
            psycopg.connect(postgres.url(self.data, "postgres"), connect_timeout=5).close()
            return True
        return False

    def _temporal_answers(self) -> bool:
        with suppress(Unavailable):
            asyncio.run(temporal.ready(self.temporal_address))
            return True
        return False


async def restarted(services: Services) -> None:
    """Start Temporal again from inside an event loop, in this very thread, which the server follows."""
    services.spawn_temporal()
    async with asyncio.timeout(_START_SECONDS):
        while True:
            with suppress(Unavailable):
                await temporal.ready(services.temporal_address)
                return
            await asyncio.sleep(_POLL_SECONDS)


def _until(what: str, look: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while not look():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {_START_SECONDS:.0f} s")
        time.sleep(_POLL_SECONDS)
