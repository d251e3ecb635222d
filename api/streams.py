"""Live event streams: one LISTEN connection a process, fanned out to any number of readers.

A notification only says *look*: a reader fetches what comes after the last number it sent, so a
lost or doubled notification changes nothing. A slow look-around covers lost ones.
"""

import asyncio
import json
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

import structlog
from fastapi import Header, Query
from pydantic import BaseModel
from sqlalchemy import Row
from sse_starlette import ServerSentEvent

from domain import names
from domain.errors import NotAllowed, NotFound, Unauthenticated
from domain.permissions import Actor
from domain.statuses import TaskStatus
from store import transcripts
from store.database import Database

log = structlog.get_logger()

LOOK_AROUND_SECONDS = 5.0
RECHECK_SECONDS = 10.0
RETRY_MILLISECONDS = 1000
KEEP_ALIVE_SECONDS = 15
CHAPTER_EVENTS = 500
LARGEST_SEQ = 2**63 - 1

#: Where a stream or a transcript begins: above this number.
After = Annotated[int, Query(ge=0, le=LARGEST_SEQ)]
LastEventId = Annotated[str | None, Header(description="Goes before `after`")]


def resume_point(last_event_id: str | None, after: int) -> int:
    """A header that is no number of ours is as good as none: a browser sends it by itself."""
    if last_event_id is not None and last_event_id.isdecimal() and int(last_event_id) <= LARGEST_SEQ:
        return int(last_event_id)
    return after


class Subscription:
    """Wakes one reader; what it is woken for may change."""

    def __init__(self, readers: dict[UUID, set[asyncio.Event]]) -> None:
        self.wake = asyncio.Event()
        self._readers = readers
        self._subjects: frozenset[UUID] = frozenset()

    def follow(self, subjects: Iterable[UUID]) -> bool:
        """Be woken for these and no others.

        True when one of them is new: it may have spoken between the last look and this call.
        """
        wanted = frozenset(subjects)
        before, self._subjects = self._subjects, wanted
        for subject in before - wanted:
            self._readers[subject].discard(self.wake)
            if not self._readers[subject]:
                del self._readers[subject]
        for subject in wanted - before:
            self._readers[subject].add(self.wake)
        return not wanted <= before

    async def wait(self) -> None:
        """Until there may be something new, or it is time to look around."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self.wake.wait(), LOOK_AROUND_SECONDS)


class Listeners:
    """Wakes the readers of a task or a chat when something of it was stored."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._readers: dict[UUID, set[asyncio.Event]] = defaultdict(set)
        self._task: asyncio.Task[None] | None = None

    @contextmanager
    def subscribe(self, subject: UUID) -> Iterator[Subscription]:
        """A reader of the task or chat. Listening begins with the first."""
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._listen(), name="segue-events-listener")
        subscription = Subscription(self._readers)
        subscription.follow([subject])
        try:
            yield subscription
        finally:
            subscription.follow([])

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
            readers = set(self._readers.get(UUID(payload), ()))
        else:
            readers = {wake for wakes in self._readers.values() for wake in wakes}
        for wake in readers:
            wake.set()


class Right:
    """The caller's right to read, asked for again from time to time while the stream is open.

    ``check`` answers the caller, or raises `NotFound`, `NotAllowed` or `Unauthenticated`.
    """

    def __init__(self, check: Callable[[], Awaitable[Actor]], actor: Actor) -> None:
        self._check = check
        self._checked = asyncio.get_running_loop().time()
        self.actor = actor

    async def stands(self) -> bool:
        """Asked after each read: what was written since the right was lost must not be shown."""
        now = asyncio.get_running_loop().time()
        if now - self._checked <= RECHECK_SECONDS:
            return True
        try:
            self.actor = await self._check()
        except (NotFound, NotAllowed, Unauthenticated):
            return False
        self._checked = now
        return True


async def follow(
    database: Database, listeners: Listeners, right: Right, task_id: UUID, after: int
) -> AsyncIterator[ServerSentEvent]:
    """Everything of the task above ``after``, then what comes, then ``end`` with its status."""
    yield beginning()
    with listeners.subscribe(task_id) as subscription:
        while True:
            subscription.wake.clear()
            async with database.begin() as conn:
                chapter = await transcripts.chapter(conn, task_id, after, CHAPTER_EVENTS)
            if chapter is None or not await right.stands():
                return
            for row in chapter.events:
                yield _event(row)
                after = row.seq
            if len(chapter.events) == CHAPTER_EVENTS:
                continue
            if TaskStatus(chapter.status).terminal:
                yield _end(chapter)
                return
            await subscription.wait()


def beginning() -> ServerSentEvent:
    """Opens the stream at once, and says how soon a client may come back."""
    return ServerSentEvent(comment="events", retry=RETRY_MILLISECONDS)


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
