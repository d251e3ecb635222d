"""Live event streams: one LISTEN connection a process, fanned out to any number of readers.

A notification only says *look*: a reader fetches what comes after the last number it sent, so a
lost or doubled notification changes nothing. A slow look-around covers lost ones.
"""

import asyncio
import json
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from typing import Any
from uuid import UUID

import structlog
from pydantic import BaseModel
from sqlalchemy import Row
from sse_starlette import ServerSentEvent

from domain import names
from domain.errors import NotFound, Unauthenticated
from domain.statuses import TaskStatus
from store import transcripts
from store.database import Database

log = structlog.get_logger()

LOOK_AROUND_SECONDS = 5.0
RECHECK_SECONDS = 10.0
RETRY_MILLISECONDS = 1000
KEEP_ALIVE_SECONDS = 15
CHAPTER_EVENTS = 500


class Listeners:
    """Wakes the readers of a task when events of it were stored."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._waiting: dict[UUID, set[asyncio.Event]] = defaultdict(set)
        self._task: asyncio.Task[None] | None = None

    @contextmanager
    def subscribe(self, task_id: UUID) -> Iterator[asyncio.Event]:
        """An event that is set whenever there may be something new. Listening begins with the first."""
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._listen(), name="segue-events-listener")
        wake = asyncio.Event()
        self._waiting[task_id].add(wake)
        try:
            yield wake
        finally:
            self._waiting[task_id].discard(wake)
            if not self._waiting[task_id]:
                del self._waiting[task_id]

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def _listen(self) -> None:
        try:
            async for payload in self._database.listen(names.EVENTS_CHANNEL):
                self._wake(payload)
        except Exception:
            # Readers go on with their own look-around; the next one starts a new listener.
            log.exception("events_listener_failed")

    def _wake(self, payload: str) -> None:
        """An empty payload is for everybody: the connection is new, so something may have been missed."""
        if payload:
            readers = set(self._waiting.get(UUID(payload), ()))
        else:
            readers = {wake for wakes in self._waiting.values() for wake in wakes}
        for wake in readers:
            wake.set()


async def follow(
    database: Database,
    listeners: Listeners,
    task_id: UUID,
    after: int,
    *,
    check: Callable[[], Awaitable[None]],
) -> AsyncIterator[ServerSentEvent]:
    """Everything above ``after``, then what comes, then ``end`` with the task's status.

    ``check`` raises `NotFound` or `Unauthenticated` when the caller may no longer read the task; it
    is asked again from time to time.
    """
    loop = asyncio.get_running_loop()
    checked = loop.time()
    yield ServerSentEvent(comment="events", retry=RETRY_MILLISECONDS)
    with listeners.subscribe(task_id) as wake:
        while True:
            wake.clear()
            async with database.begin() as conn:
                chapter = await transcripts.chapter(conn, task_id, after, CHAPTER_EVENTS)
            if chapter is None:
                return
            # After the read: what was written since the right was lost must not be shown.
            if loop.time() - checked > RECHECK_SECONDS:
                if not await _passes(check):
                    return
                checked = loop.time()
            for row in chapter.events:
                yield _event(row)
                after = row.seq
            if len(chapter.events) == CHAPTER_EVENTS:
                continue
            if TaskStatus(chapter.status).terminal:
                yield _end(chapter)
                return
            with suppress(TimeoutError):
                await asyncio.wait_for(wake.wait(), LOOK_AROUND_SECONDS)


async def _passes(check: Callable[[], Awaitable[None]]) -> bool:
    try:
        await check()
    except (NotFound, Unauthenticated):
        return False
    return True


class EventView(BaseModel):
    """One event of a task's transcript."""

    seq: int
    attempt: int
    type: str
    at: datetime
    data: dict[str, Any]

    @classmethod
    def of(cls, row: Row[Any]) -> "EventView":
        return cls(seq=row.seq, attempt=row.attempt, type=row.type, at=row.at, data=row.data)


def _event(row: Row[Any]) -> ServerSentEvent:
    return ServerSentEvent(id=str(row.seq), event=row.type, data=EventView.of(row).model_dump_json())


def _end(chapter: transcripts.Chapter) -> ServerSentEvent:
    """Without an id: a client that reconnects after it goes on from the last event, and ends again."""
    data = {"status": chapter.status, "reason": chapter.reason}
    return ServerSentEvent(event="end", data=json.dumps(data))
