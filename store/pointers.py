"""What a lane, or one task, can be resumed from: the rows that `domain.pointer.resolve` decides on."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from uuid import UUID

from sqlalchemy import and_, bindparam, func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from domain.pointer import (
    DirectoryFacts,
    PointerFacts,
    PointerMode,
    ResumeDecision,
    SessionFacts,
    resolve,
)
from store.models import Attempt, Directory, LaneSession, Session, Task
from store.rows import AnyRow


@dataclass(frozen=True)
class PointerQuestion:
    """Which pointer is asked for. ``source_task_id`` is set in mode TASK."""

    lane_id: UUID
    runtime_id: UUID
    provider: str
    mode: PointerMode
    source_task_id: UUID | None = None
    #: The directory that the task's project prescribes on this runtime.
    local_directory_id: UUID | None = None


async def decide(conn: AsyncConnection, question: PointerQuestion) -> ResumeDecision:
    """Load the facts and decide. Reads only; the caller holds the lane."""
    return resolve(await facts(conn, question))


async def facts(conn: AsyncConnection, question: PointerQuestion) -> PointerFacts:
    while question.mode is PointerMode.TASK and question.source_task_id is not None:
        found = await _of_task(conn, question, question.source_task_id)
        if found is not None:
            return found
        question = await _of_unstarted(conn, question, question.source_task_id)
    if question.mode is PointerMode.FRESH:
        return _facts(question, (), ())
    sessions = await conn.execute(_LANE_SESSION, {"lane": question.lane_id})
    directories = await conn.execute(_LANE_DIRECTORIES, {"lane": question.lane_id})
    found = _facts(question, sessions.all(), directories.all())
    if question.local_directory_id is not None and not found.ran_before:
        # A local directory is no lane's own, so the lane's rows don't tell.
        return found.model_copy(update={"ran_before": await _has_run(conn, question.lane_id)})
    return found


async def _has_run(conn: AsyncConnection, lane_id: UUID) -> bool:
    rows = await conn.execute(
        select(Task.id).where(Task.lane_id == lane_id, Task.started_at.is_not(None)).limit(1)
    )
    return rows.first() is not None


async def _of_unstarted(conn: AsyncConnection, question: PointerQuestion, task_id: UUID) -> PointerQuestion:
    """The retry of a task that never started asks what that one would have asked."""
    rows = await conn.execute(select(Task.pointer_mode, Task.rerun_of_task_id).where(Task.id == task_id))
    row = rows.one_or_none()
    if row is None:  # a soft reference
        return replace(question, mode=PointerMode.LANE, source_task_id=None)
    return replace(question, mode=PointerMode(row.pointer_mode), source_task_id=row.rerun_of_task_id)


async def _of_task(conn: AsyncConnection, question: PointerQuestion, task_id: UUID) -> PointerFacts | None:
    """The last started attempt's own pointer; None if the task never started."""
    rows = await conn.execute(
        select(
            # A run that was stopped before it revealed a session goes on with the one it asked for.
            func.coalesce(Attempt.used_session_id, Attempt.requested_session_id).label("session_id"),
            Attempt.directory_id,
        )
        .where(Attempt.task_id == task_id, Attempt.started_at.is_not(None))
        .order_by(Attempt.number.desc())
        .limit(1)
    )
    attempt = rows.one_or_none()
    if attempt is None:
        return None
    sessions = await conn.execute(_SESSIONS.where(Session.id == attempt.session_id))
    directories = await conn.execute(_DIRECTORIES.where(Directory.id == attempt.directory_id))
    return _facts(question, sessions.all(), directories.all())


_SESSIONS = select(
    Session.id,
    Session.provider,
    Session.provider_session_id,
    Session.runtime_id,
    Session.directory_id,
    Session.last_status,
    Session.last_reason,
    Session.last_ended_at,
    Session.retired_at,
    Session.retired_reason,
)
_DIRECTORIES = select(
    Directory.id,
    Directory.runtime_id,
    Directory.kind,
    Directory.created_at,
    Directory.path,
    Directory.gone_at,
    Directory.gone_reason,
)
#: The lane's session whose last run ended last.
#:
#: One whose run was never judged (another session took its place) counts from when it was first
#: seen, so that it can't stand in front of later ones for ever.
_LANE_SESSION = (
    _SESSIONS.join(
        LaneSession, and_(LaneSession.session_id == Session.id, LaneSession.lane_id == bindparam("lane"))
    )
    .order_by(func.coalesce(Session.last_ended_at, Session.created_at).desc(), Session.id.desc())
    .limit(1)
)
_last_use = (
    select(Attempt.started_at)
    .where(Attempt.directory_id == Directory.id, Attempt.started_at.is_not(None))
    .order_by(Attempt.id.desc())
    .limit(1)
    .scalar_subquery()
)
#: The lane's directories that something has run in, the last used one first. Few are enough: one is
#: taken.
#:
#: After a rerun in a new directory, a retry of an older task goes back to the old one with its
#: session; the next comment goes on there too, and not where the lane's conversation is not.
#:
#: The row of an attempt that ended before its start has no path: it must not hide the directory
#: that the lane's session lives in.
_LANE_DIRECTORIES = (
    _DIRECTORIES.where(Directory.lane_id == bindparam("lane"), Directory.path.is_not(None))
    .order_by(_last_use.desc().nulls_last(), Directory.created_at.desc(), Directory.id.desc())
    .limit(20)
)


def _facts(
    question: PointerQuestion, sessions: Sequence[AnyRow], directories: Sequence[AnyRow]
) -> PointerFacts:
    return PointerFacts(
        mode=question.mode,
        provider=question.provider,
        runtime_id=question.runtime_id,
        sessions=[SessionFacts.model_validate(row._mapping) for row in sessions],
        directories=[_directory(row) for row in directories],
        ran_before=any(row.path is not None for row in directories),
        local_directory_id=question.local_directory_id,
    )


def _directory(row: AnyRow) -> DirectoryFacts:
    return DirectoryFacts(
        id=row.id,
        runtime_id=row.runtime_id,
        created_at=row.created_at,
        gone=row.gone_at is not None,
        gone_reason=row.gone_reason,
        local=row.kind == "local",
    )
