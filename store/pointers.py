"""What a lane, or one task, can be resumed from: the rows that `domain.pointer.resolve` decides on."""

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from sqlalchemy import and_, func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from domain.pointer import (
    DirectoryFacts,
    PointerFacts,
    PointerMode,
    ResumeDecision,
    SessionFacts,
    resolve,
)
from store.models import Attempt, Directory, LaneSession, Session
from store.rows import AnyRow, AnySelect


@dataclass(frozen=True)
class PointerQuestion:
    """Which pointer is asked for. ``source_task_id`` is set in mode TASK."""

    lane_id: UUID
    runtime_id: UUID
    provider: str
    mode: PointerMode
    source_task_id: UUID | None = None


async def decide(conn: AsyncConnection, question: PointerQuestion) -> ResumeDecision:
    """Load the facts and decide. Reads only; the caller holds the lane."""
    return resolve(await facts(conn, question))


async def facts(conn: AsyncConnection, question: PointerQuestion) -> PointerFacts:
    if question.mode is PointerMode.FRESH:
        return _facts(question, (), ())
    if question.mode is PointerMode.TASK and question.source_task_id is not None:
        found = await _of_task(conn, question, question.source_task_id)
        if found is not None:
            return found
    sessions = await conn.execute(_lane_sessions(question.lane_id))
    directories = await conn.execute(_lane_directories(question.lane_id))
    return _facts(question, sessions.all(), directories.all())


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
    sessions = await conn.execute(_sessions().where(Session.id == attempt.session_id))
    directories = await conn.execute(_directories().where(Directory.id == attempt.directory_id))
    return _facts(question, sessions.all(), directories.all())


def _sessions() -> AnySelect:
    return select(
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


def _lane_sessions(lane_id: UUID) -> AnySelect:
    """The lane's session whose last run ended last.

    One whose run was never judged (it waits for quota, or another session took its place) counts
    from when it was first seen, so that it can't stand in front of later ones for ever.
    """
    return (
        _sessions()
        .join(LaneSession, and_(LaneSession.session_id == Session.id, LaneSession.lane_id == lane_id))
        .order_by(func.coalesce(Session.last_ended_at, Session.created_at).desc(), Session.id.desc())
        .limit(1)
    )


def _directories() -> AnySelect:
    return select(
        Directory.id,
        Directory.runtime_id,
        Directory.created_at,
        Directory.path,
        Directory.gone_at,
        Directory.gone_reason,
    )


def _lane_directories(lane_id: UUID) -> AnySelect:
    """Those that something has run in, newest first. Few are enough: the newest usable one matters.

    The row of an attempt that ended before its start has no path: it must not hide the directory
    that the lane's session lives in.
    """
    return (
        _directories()
        .where(Directory.lane_id == lane_id, Directory.path.is_not(None))
        .order_by(Directory.created_at.desc(), Directory.id.desc())
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
    )


def _directory(row: AnyRow) -> DirectoryFacts:
    return DirectoryFacts(
        id=row.id,
        runtime_id=row.runtime_id,
        created_at=row.created_at,
        gone=row.gone_at is not None,
        gone_reason=row.gone_reason,
    )
