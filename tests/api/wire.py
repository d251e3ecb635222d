"""Server-sent events over a real connection: the application behind uvicorn, and readers of streams."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Self

import httpx
import uvicorn
from fastapi import FastAPI

from tests.api.office import API, Person

PATIENCE = 60.0  # seconds


class Server:
    """The application behind a real uvicorn in a thread of its own."""

    def __init__(self, app: FastAPI) -> None:
        config = uvicorn.Config(app, port=0, log_level="warning", lifespan="on")
        self.server = uvicorn.Server(config)
        self.thread = threading.Thread(target=self.server.run)

    def __enter__(self) -> Self:
        self.thread.start()
        while not self.server.started:
            assert self.thread.is_alive()
        port = self.server.servers[0].sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        return self

    def __exit__(self, *_: object) -> None:
        self.server.should_exit = True
        self.thread.join(PATIENCE)
        assert not self.thread.is_alive(), "open streams must not keep the server from ending"


class Reader:
    """The fields of each event of a stream, one after the other."""

    def __init__(self, response: httpx.Response) -> None:
        self.response = response
        self.lines = response.aiter_lines()

    async def next(self) -> dict[str, str]:
        """The next event; empty when the stream has ended."""
        async with asyncio.timeout(PATIENCE):
            fields: dict[str, str] = {}
            async for line in self.lines:
                name, _, value = line.partition(":")
                if name and line:
                    fields[name] = value.strip()
                elif not line and "data" in fields:
                    return fields
            return {}

    async def texts(self, count: int) -> list[str]:
        return [(await self.next())["id"] for _ in range(count)]

    async def until(self, event: str) -> list[tuple[str, dict[str, Any]]]:
        """The events up to the next one of this kind, with their data."""
        seen: list[tuple[str, dict[str, Any]]] = []
        while not seen or seen[-1][0] != event:
            fields = await self.next()
            assert fields, f"the stream ended before {event}: {seen}"
            seen.append((fields["event"], json.loads(fields["data"])))
        return seen


@asynccontextmanager
async def streaming(url: str, person: Person, path: str, **request: Any) -> AsyncIterator[Reader]:
    """The stream at the path below the API's prefix."""
    headers = {"Authorization": f"Bearer {person.token}", **request.pop("headers", {})}
    async with (
        httpx.AsyncClient(timeout=PATIENCE) as client,
        client.stream("GET", f"{url}{API}{path}", headers=headers, **request) as response,
    ):
        assert response.status_code == 200
        yield Reader(response)


@asynccontextmanager
async def reading(url: str, person: Person, task_id: str, **request: Any) -> AsyncIterator[Reader]:
    """The stream of a task's events."""
    async with streaming(url, person, f"/tasks/{task_id}/events/stream", **request) as reader:
        yield reader
