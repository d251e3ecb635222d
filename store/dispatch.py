"""`resolve_resume`: what a task's next attempt may do now."""

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from random import random
from uuid import UUID

from sqlalchemy import bindparam, func, select, text, update
from sqlalchemy.ext.asyncio import AsyncConnection

from domain.reasons import Reason
from domain.statuses import SLEEPING, Continuity, ContinuityReason, TaskStatus, WaitKind
from domain.steps import Resolution, Resolved, ResolveInput, Timeouts
from store import leases, recording, tasks
from store.models import Attempt, Directory, Runtime, Session
from store.rows import AnyRow


@dataclass(frozen=True)
class DispatchRules:
    """Configured numbers. ``queue_expiry``: how long an offline machine is waited for."""

    queue_expiry: timedelta = timedelta(hours=2)
    max_attempts: int = 2
    timeouts: Timeouts = field(default_factory=Timeouts)


_END = Resolution(kind=Resolved.END)

#: The attempt and its task are dispatched, and the attempt answered like `_STANDING` does.
_DISPATCH = text(
    """
    with granted as (
        update attempts set dispatched_at = now() where id = :attempt_id returning *
    ), asking as (
        update tasks
        set status = :status, attempt = granted.number, max_attempts = :max_attempts,
            dispatched_at = coalesce(tasks.dispatched_at, now()), retry_at = null
        from granted where tasks.id = granted.task_id
    )
    select granted.id, granted.number, granted.runtime_id, granted.ops_queue, granted.runs_queue,
           granted.continuity, granted.continuity_reason, sessions.provider_session_id, directories.path
    from granted
    join directories on directories.id = granted.directory_id
    left join sessions on sessions.id = granted.requested_session_id
    """
)
_STANDING = (
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
        Attempt.task_id == bindparam("asking"),
        Attempt.dispatched_at.is_not(None),
        Attempt.ended_at.is_(None),
    )
)
#: Tasks held back for one quota don't all start at its reset.
_STAGGER_SECONDS = 5.0


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
    if standing is None and await _sleeps_on(conn, task):
        return Resolution(kind=Resolved.WAIT, look_again_at=task.retry_at)
    if standing is None:
        return await _ask(conn, task, rules)
    return _run(standing, rules)


async def _sleeps_on(conn: AsyncConnection, task: AnyRow) -> bool:
    """Between two attempts, and its moment has not come: a workflow that was started again asks too early."""
    return TaskStatus(task.status) in SLEEPING and not await _is_past(conn, task.retry_at)


async def _ask(conn: AsyncConnection, task: AnyRow, rules: DispatchRules) -> Resolution:
    """Ask for the leases; an attempt that is granted is dispatched."""
    await leases.lock(conn, task.workspace_id)
    answer = await leases.request(conn, task.id)
    if isinstance(answer, leases.Blocked):
        return await _wait(conn, task, answer, rules)
    rows = await conn.execute(
        _DISPATCH,
        {
            "attempt_id": answer.attempt_id,
            "status": TaskStatus.DISPATCHED,
            "max_attempts": task.max_attempts if task.attempt else rules.max_attempts,
        },
    )
    return _run(rows.one(), rules)


async def _wait(
    conn: AsyncConnection, task: AnyRow, blocked: leases.Blocked, rules: DispatchRules
) -> Resolution:
    if blocked.until is not None:
        return await _hold_back(conn, task, blocked.until)
    if blocked.refusal is not None:
        ending = tasks.failure(Reason.LOCAL_DIRECTORY_ERROR, error=blocked.refusal, evidence=blocked.refusal)
        await recording.end_unstarted(conn, task, ending)
        return _END
    look_again_at = None
    if blocked.kind is WaitKind.RUNTIME_OFFLINE and task.attempt == 0:
        look_again_at = await _expires_at(conn, task, rules)
        if look_again_at is not None and await _is_past(conn, look_again_at):
            await recording.end_unstarted(conn, task, tasks.failure(Reason.QUEUED_EXPIRED))
            return _END
    if task.status != TaskStatus.WAITING:
        await tasks.set_status(conn, task.id, TaskStatus.WAITING)
    return Resolution(kind=Resolved.WAIT, wait_kind=blocked.kind, look_again_at=look_again_at)


async def _hold_back(conn: AsyncConnection, task: AnyRow, until: datetime) -> Resolution:
    """The agent's quota is known to be used up: sleep like the task that ran into it, slightly apart."""
    at = until + timedelta(seconds=random() * _STAGGER_SECONDS)
    await tasks.set_status(conn, task.id, TaskStatus.WAITING_QUOTA, retry_at=at)
    return Resolution(kind=Resolved.WAIT, wait_kind=WaitKind.AGENT_CAPACITY, look_again_at=at)


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
        conn,
        workspace_id=task.workspace_id,
        attempt=attempt,
        lane_id=task.lane_id,
        context=task.context,
        reason=reason,
    )
    await conn.execute(
        update(Attempt)
        .where(Attempt.id == attempt.id)
        .values(
            directory_id=directory_id,
            requested_session_id=None,
            fork=False,
            continuity=Continuity.LOST,
            continuity_reason=reason,
        )
    )


async def _standing(conn: AsyncConnection, task_id: UUID) -> AnyRow | None:
    """The attempt that is dispatched and has not ended, with its pointer in the provider's words."""
    rows = await conn.execute(_STANDING, {"asking": task_id})
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
