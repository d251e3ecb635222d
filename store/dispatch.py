"""`resolve_resume`: what a task's next attempt may do now."""

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from uuid import UUID

from sqlalchemy import func, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from domain.reasons import Reason
from domain.statuses import Continuity, ContinuityReason, TaskStatus, WaitKind
from domain.steps import Resolution, Resolved, ResolveInput, Timeouts
from store import leases, tasks
from store.models import Attempt, Directory, Runtime, Session, Task
from store.rows import AnyRow


@dataclass(frozen=True)
class DispatchRules:
    """Configured numbers. ``queue_expiry``: how long an offline machine is waited for."""

    queue_expiry: timedelta = timedelta(hours=2)
    timeouts: Timeouts = field(default_factory=Timeouts)


_END = Resolution(kind=Resolved.END)


async def resolve(conn: AsyncConnection, step: ResolveInput, rules: DispatchRules) -> Resolution:
    """Grant the attempt or say what it waits for. Executed again, it answers the same."""
    task = await tasks.lock(conn, step.task_id)
    if task is None or TaskStatus(task.status).terminal:
        return _END
    if step.rejected is not None:
        await _reject(conn, task, step)
    standing = await _standing(conn, task.id) if task.attempt > 0 else None
    if standing is None and task.cancel_requested_at is not None:
        await tasks.end_unstarted(conn, task, task.cancel_reason)
        return _END
    if standing is None:
        waits = await _ask(conn, task, rules)
        if waits is not None:
            return waits
        standing = await _standing(conn, task.id)
    return _END if standing is None else _run(standing, rules)


async def _ask(conn: AsyncConnection, task: AnyRow, rules: DispatchRules) -> Resolution | None:
    """Ask for the leases. None: the attempt is granted and now dispatched."""
    await leases.lock(conn, task.workspace_id)
    answer = await leases.request(conn, task.id)
    if isinstance(answer, leases.Blocked):
        return await _wait(conn, task, answer, rules)
    await conn.execute(
        update(Attempt).where(Attempt.id == answer.attempt_id).values(dispatched_at=func.now())
    )
    await conn.execute(
        update(Task)
        .where(Task.id == task.id)
        .values(
            status=TaskStatus.DISPATCHED,
            attempt=select(Attempt.number).where(Attempt.id == answer.attempt_id).scalar_subquery(),
            dispatched_at=func.coalesce(Task.dispatched_at, func.now()),
            retry_at=None,
        )
    )
    return None


async def _wait(
    conn: AsyncConnection, task: AnyRow, blocked: leases.Blocked, rules: DispatchRules
) -> Resolution:
    look_again_at = None
    if blocked.kind is WaitKind.RUNTIME_OFFLINE and task.attempt == 0:
        look_again_at = await _expires_at(conn, task, rules)
        if look_again_at is not None and await _is_past(conn, look_again_at):
            await tasks.end_unstarted(conn, task, Reason.QUEUED_EXPIRED)
            return _END
    if task.status != TaskStatus.WAITING:
        await tasks.set_status(conn, task.id, TaskStatus.WAITING)
    return Resolution(kind=Resolved.WAIT, wait_kind=blocked.kind, look_again_at=look_again_at)


async def _expires_at(conn: AsyncConnection, task: AnyRow, rules: DispatchRules) -> datetime | None:
    """A machine may be gone for ``queue_expiry``, counted from when both it and the task waited."""
    rows = await conn.execute(
        select(
            func.greatest(func.coalesce(Runtime.offline_since, Runtime.created_at), task.created_at)
        ).where(Runtime.id == task.runtime_id)
    )
    since: datetime = rows.scalar_one()
    return since + rules.queue_expiry


async def _is_past(conn: AsyncConnection, moment: datetime) -> bool:
    """By the database's clock, which wrote the moment's parts."""
    return bool((await conn.execute(select(func.now() >= moment))).scalar_one())


async def _reject(conn: AsyncConnection, task: AnyRow, step: ResolveInput) -> None:
    """The gate could not use the directory row: replace it, and the session with it."""
    rows = await conn.execute(
        select(Attempt.__table__, Directory.path)
        .join(Directory, Directory.id == Attempt.directory_id)
        .where(Attempt.task_id == task.id, Attempt.number == step.attempt)
    )
    attempt = rows.one()
    # A directory without a path is new: this very rejection has been dealt with before.
    if attempt.started_at is not None or attempt.ended_at is not None or attempt.path is None:
        return
    reason = step.rejected or ContinuityReason.WORKDIR_GONE
    directory_id = await leases.replace_directory(
        conn, workspace_id=task.workspace_id, attempt=attempt, lane_id=task.lane_id, reason=reason
    )
    await conn.execute(
        update(Attempt)
        .where(Attempt.id == attempt.id)
        .values(
            directory_id=directory_id,
            requested_session_id=None,
            continuity=Continuity.LOST,
            continuity_reason=reason,
        )
    )


async def _standing(conn: AsyncConnection, task_id: UUID) -> AnyRow | None:
    """The attempt that is dispatched and has not ended, with its pointer in the provider's words."""
    rows = await conn.execute(
        select(
            Attempt.id,
            Attempt.number,
            Attempt.runtime_id,
            Attempt.ops_queue,
            Attempt.runs_queue,
            Attempt.continuity,
            Attempt.continuity_reason,
            Session.provider_session_id,
            Directory.path,
        )
        .join(Directory, Directory.id == Attempt.directory_id)
        .outerjoin(Session, Session.id == Attempt.requested_session_id)
        .where(
            Attempt.task_id == task_id,
            Attempt.dispatched_at.is_not(None),
            Attempt.ended_at.is_(None),
        )
    )
    return rows.one_or_none()


def _run(attempt: AnyRow, rules: DispatchRules) -> Resolution:
    return Resolution(
        kind=Resolved.RUN,
        attempt_id=attempt.id,
        attempt=attempt.number,
        runtime_id=attempt.runtime_id,
        ops_queue=attempt.ops_queue,
        runs_queue=attempt.runs_queue,
        continuity=attempt.continuity,
        continuity_reason=attempt.continuity_reason,
        session_id=attempt.provider_session_id,
        work_dir=attempt.path,
        timeouts=rules.timeouts,
    )
