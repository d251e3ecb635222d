"""What a lane, or one task, can be resumed from: the rows that `domain.pointer.resolve` decides on."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from uuid import UUID

from sqlalchemy import and_, bindparam, exists, func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from domain.pointer import (
    DirectoryFacts,
    PointerFacts,
    PointerMode,
    ResumeDecision,
    SessionFacts,
    resolve,
)
from domain.statuses import ContinuityReason
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
    #: The lane's context that the task was queued in: it sees nothing of another one.
    context: int = 0
    #: Of a chat that continues a run.
    seed: "SeedTerms | None" = None


@dataclass(frozen=True)
class SeedTerms:
    """What was agreed when the chat was made: branch the seed's session off, or why there is none."""

    fork: bool
    withheld: ContinuityReason | None = None


async def decide(conn: AsyncConnection, question: PointerQuestion) -> ResumeDecision:
    """Load the facts and decide. Reads only; the caller holds the lane."""
    return resolve(await facts(conn, question))


async def facts(conn: AsyncConnection, question: PointerQuestion) -> PointerFacts:
    seed = await _seed(conn, question)
    if seed is not None and seed.kind == "local" and seed.gone_at is None:
        question = replace(question, local_directory_id=seed.home_id)
    while question.mode is PointerMode.TASK and question.source_task_id is not None:
        found = await _of_task(conn, question, question.source_task_id)
        if found is not None:
            return found
        question = await _of_unstarted(conn, question, question.source_task_id)
    if question.mode is PointerMode.FRESH:
        return _facts(question, (), ())
    own = {"lane": question.lane_id, "in_context": question.context}
    sessions = (await conn.execute(_LANE_SESSION, own)).all()
    directories = (await conn.execute(_LANE_DIRECTORIES, own)).all()
    if question.context > 0 and not directories:
        return _facts(replace(question, mode=PointerMode.FRESH), (), ())
    if seed is not None:
        return _seeded(question, seed, sessions, directories)
    found = _facts(question, sessions, directories)
    if question.local_directory_id is not None and not found.ran_before:
        # A local directory is no lane's own, so the lane's rows don't tell.
        return found.model_copy(update={"ran_before": await _has_run(conn, question.lane_id)})
    return found


async def _seed(conn: AsyncConnection, question: PointerQuestion) -> AnyRow | None:
    """The row that a continuation was made with; it counts until the first ``/new``."""
    if question.seed is None or question.context > 0:
        return None
    return (await conn.execute(_SEED, {"lane": question.lane_id})).one_or_none()


def _seeded(
    question: PointerQuestion, seed: AnyRow, sessions: Sequence[AnyRow], directories: Sequence[AnyRow]
) -> PointerFacts:
    """The chat's own session and directories; where it has none, the seed's."""
    if not sessions and seed.id is not None:
        sessions = [seed]
    found = _facts(question, sessions, directories)
    first_without = not sessions and not seed.has_run
    return found.model_copy(
        update={
            "directories": found.directories or _home(seed),
            "ran_before": seed.has_run or seed.home_id is not None,
            "withheld": question.seed.withheld if question.seed is not None and first_without else None,
        }
    )


def _home(seed: AnyRow) -> list[DirectoryFacts]:
    if seed.home_id is None:
        return []
    return [
        DirectoryFacts(
            id=seed.home_id,
            runtime_id=seed.home_runtime_id,
            created_at=seed.home_created_at,
            gone=seed.gone_at is not None,
            gone_reason=seed.gone_reason,
            local=seed.kind == "local",
        )
    ]


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
    Session.lane_id,
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
#: The lane's own session whose last run ended last, in one context. A seed is no session of its own.
#:
#: One whose run was never judged (another session took its place) counts from when it was first
#: seen, so that it can't stand in front of later ones for ever.
_LANE_SESSION = (
    _SESSIONS.join(
        LaneSession,
        and_(
            LaneSession.session_id == Session.id,
            LaneSession.lane_id == bindparam("lane"),
            LaneSession.context == bindparam("in_context"),
            LaneSession.source_task_id.is_(None),
        ),
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
#: The lane's directories that something has run in, in one context, the last used one first. Few are
#: enough: one is taken.
#:
#: After a rerun in a new directory, a retry of an older task goes back to the old one with its
#: session; the next comment goes on there too, and not where the lane's conversation is not.
#:
#: The row of an attempt that ended before its start has no path: it must not hide the directory
#: that the lane's session lives in.
_LANE_DIRECTORIES = (
    _DIRECTORIES.where(
        Directory.lane_id == bindparam("lane"),
        Directory.context == bindparam("in_context"),
        Directory.path.is_not(None),
    )
    .order_by(_last_use.desc().nulls_last(), Directory.created_at.desc(), Directory.id.desc())
    .limit(20)
)
#: The seed with its session and directory, and whether the chat itself has run since.
_SEED = (
    _SESSIONS.add_columns(
        LaneSession.directory_id.label("home_id"),
        Directory.runtime_id.label("home_runtime_id"),
        Directory.created_at.label("home_created_at"),
        Directory.kind,
        Directory.gone_at,
        Directory.gone_reason,
        exists().where(Task.lane_id == LaneSession.lane_id, Task.started_at.is_not(None)).label("has_run"),
    )
    .select_from(LaneSession)
    .outerjoin(Session, Session.id == LaneSession.session_id)
    .outerjoin(Directory, Directory.id == LaneSession.directory_id)
    .where(LaneSession.lane_id == bindparam("lane"), LaneSession.source_task_id.is_not(None))
)


def _facts(
    question: PointerQuestion, sessions: Sequence[AnyRow], directories: Sequence[AnyRow]
) -> PointerFacts:
    return PointerFacts(
        mode=question.mode,
        provider=question.provider,
        runtime_id=question.runtime_id,
        sessions=[_session(row, question.lane_id) for row in sessions],
        directories=[_directory(row) for row in directories],
        ran_before=any(row.path is not None for row in directories),
        local_directory_id=question.local_directory_id,
        fork=question.seed is not None and question.seed.fork,
    )


def _session(row: AnyRow, lane_id: UUID) -> SessionFacts:
    return SessionFacts.model_validate({**row._mapping, "foreign": row.lane_id != lane_id})


def _directory(row: AnyRow) -> DirectoryFacts:
    return DirectoryFacts(
        id=row.id,
        runtime_id=row.runtime_id,
        created_at=row.created_at,
        gone=row.gone_at is not None,
        gone_reason=row.gone_reason,
        local=row.kind == "local",
    )
