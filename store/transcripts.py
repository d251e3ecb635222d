"""Transcripts: the events of a task's runs, stored once each, in order and without a gap."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import Row, select, text
from sqlalchemy.ext.asyncio import AsyncConnection

from domain import names
from domain.errors import Conflict, NotFound, UnprocessableInput
from domain.events import NumberedEvent
from store.models import EventRow, Task

# One statement a batch: it moves the end of the task's transcript, inserts what is not there yet,
# and tells the listeners. Nothing happens when the batch would leave a gap.
_APPEND = text(
    """
    with moved as (
        update tasks set last_seq = greatest(last_seq, :last)
        where id = :task_id and last_seq >= :first - 1
        returning last_seq
    ), stored as (
        insert into events (task_id, seq, attempt, type, at, data)
        select :task_id, (event->>'seq')::bigint, :attempt, event->>'type',
               (event->>'at')::timestamptz, event->'data'
        from jsonb_array_elements(cast(:events as jsonb)) as event
        where exists (select 1 from moved)
        on conflict do nothing
    )
    select last_seq, pg_notify(:channel, :payload) from moved
    """
)


async def append(
    conn: AsyncConnection, *, task_id: UUID, attempt: int, events: Sequence[NumberedEvent]
) -> int:
    """Store events; those that are there already are left as they are. Returns the acknowledged seq.

    Raises `UnprocessableInput` when the batch itself has a gap, `Conflict` when it would leave one
    behind what is stored.
    """
    if not events:
        return await last_seq(conn, task_id)
    first, last = events[0].seq, events[-1].seq
    if [event.seq for event in events] != list(range(first, last + 1)):
        raise UnprocessableInput("events: the numbers must ascend without a gap.")
    rows = await conn.execute(
        _APPEND,
        {
            "task_id": task_id,
            "attempt": attempt,
            "first": first,
            "last": last,
            "events": _as_json(events),
            "channel": names.EVENTS_CHANNEL,
            "payload": str(task_id),
        },
    )
    row = rows.one_or_none()
    if row is None:
        stored = await last_seq(conn, task_id)
        raise Conflict(f"events: the last stored number is {stored}, so a batch can't begin at {first}.")
    acked: int = row.last_seq
    return acked


async def last_seq(conn: AsyncConnection, task_id: UUID) -> int:
    """Number of the last stored event, 0 if there is none. Raises `NotFound`."""
    seq: int | None = await conn.scalar(select(Task.last_seq).where(Task.id == task_id))
    if seq is None:
        raise NotFound("There is no such task.")
    return seq


def _as_json(events: Sequence[NumberedEvent]) -> str:
    """The batch as a JSON array that PostgreSQL takes, whatever a worker let through."""
    plain = [event.model_dump() | {"at": event.at.isoformat()} for event in events]
    dumped = json.dumps(plain)
    if "\\u0000" in dumped or "\\ud" in dumped:
        dumped = json.dumps(_clean(plain))
    return dumped


def _clean(value: Any) -> Any:
    """Without NUL and lone surrogates, which neither ``text`` nor ``jsonb`` can hold."""
    if isinstance(value, str):
        return (
            value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace").replace("\0", "\ufffd")
        )
    if isinstance(value, dict):
        return {_clean(key): _clean(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_clean(item) for item in value]
    return value


async def page(
    conn: AsyncConnection, workspace_id: UUID, task_id: UUID, after: int, limit: int
) -> Sequence[Row[Any]]:
    """Up to ``limit`` events with numbers above ``after``, oldest first.

    The caller has checked that the task may be read.
    """
    rows = await conn.execute(
        select(EventRow.seq, EventRow.attempt, EventRow.type, EventRow.at, EventRow.data)
        .join(Task, Task.id == EventRow.task_id)
        .where(Task.workspace_id == workspace_id, EventRow.task_id == task_id, EventRow.seq > after)
        .order_by(EventRow.seq)
        .limit(limit)
    )
    return rows.all()


@dataclass(frozen=True)
class Chapter:
    """A part of a transcript, and where its task stood at that very moment."""

    status: str
    reason: str | None
    ended_at: datetime | None
    events: Sequence[Row[Any]]


_CHAPTER = text(
    """
    select tasks.status, tasks.reason, tasks.ended_at,
           e.seq, e.attempt, e.type, e.at, e.data
    from tasks left join lateral (
        select seq, attempt, type, at, data from events
        where events.task_id = tasks.id and events.seq > :after order by seq limit :limit
    ) e on true
    where tasks.id = :task_id order by e.seq
    """
)


async def chapter(conn: AsyncConnection, task_id: UUID, after: int, limit: int) -> Chapter | None:
    """Events and status from one snapshot, so that an ended task's last chapter is complete.

    None: the task is gone.
    """
    rows = (await conn.execute(_CHAPTER, {"task_id": task_id, "after": after, "limit": limit})).all()
    if not rows:
        return None
    events = [row for row in rows if row.seq is not None]
    return Chapter(rows[0].status, rows[0].reason, rows[0].ended_at, events)


# In the order of the tasks as they were given.
_TEXTS = text(
    """
    select followed.task_id, e.seq, e.data->>'text' as text
    from unnest(cast(:tasks as uuid[]), cast(:afters as bigint[])) with ordinality
         as followed (task_id, after, place)
    cross join lateral (
        select seq, data from events
        where events.task_id = followed.task_id and events.seq > followed.after and events.type = 'text'
        order by seq limit :limit
    ) e
    order by followed.place, e.seq limit :limit
    """
)


async def texts(conn: AsyncConnection, heard: Mapping[UUID, int], limit: int) -> Sequence[Row[Any]]:
    """What the tasks said above the number that was heard of each: (task_id, seq, text)."""
    if not heard:
        return []
    rows = await conn.execute(_TEXTS, {"tasks": list(heard), "afters": list(heard.values()), "limit": limit})
    return rows.all()
