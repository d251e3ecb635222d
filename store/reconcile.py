"""What can be missing after a crash, found in the tables; the reconciler puts it right."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import and_, exists, func, or_, select, text, update
from sqlalchemy.ext.asyncio import AsyncConnection

from domain.reasons import Reason
from domain.statuses import TaskStatus, WaitKind
from store import leases, outbox, tasks, turns
from store.models import Attempt, Lease, LeaseWait, Outbox, Runtime, Task
from store.rows import AnyRow

#: Younger than this, a step is simply under way.
SETTLING = timedelta(seconds=10)
_BATCH = 20
_TERMINAL = text("tasks.status in ('completed', 'failed', 'cancelled')")
_OPEN = text("tasks.status not in ('completed', 'failed', 'cancelled')")


def _told(subject: Any) -> Any:
    """Something for this subject is still on its way to Temporal."""
    return exists().where(Outbox.subject_id == subject)


async def mark_offline(conn: AsyncConnection, offline_after: timedelta) -> Sequence[UUID]:
    """Runtimes that fell silent. Their waiting tasks are woken, so that they say what they wait for."""
    rows = await conn.execute(
        update(Runtime)
        .where(Runtime.online, Runtime.last_seen_at < func.now() - offline_after)
        .values(online=False, offline_since=Runtime.last_seen_at)
        .returning(Runtime.id)
    )
    silent = rows.scalars().all()
    if silent:
        await _wake_waiters_of(conn, silent)
    return silent


async def _wake_waiters_of(conn: AsyncConnection, runtime_ids: Sequence[UUID]) -> None:
    rows = await conn.execute(
        select(Task.id, Task.workspace_id)
        .join(LeaseWait, LeaseWait.task_id == Task.id)
        .where(
            Task.runtime_id.in_(runtime_ids),
            or_(
                LeaseWait.kind.in_([WaitKind.AGENT_CAPACITY, WaitKind.RUNTIME_CAPACITY]),
                # The machine was to look at a local directory.
                and_(LeaseWait.kind == WaitKind.DIRECTORY, LeaseWait.holder_task_id.is_(None)),
            ),
        )
    )
    for row in rows.all():
        await _wake(conn, row)


async def _wake(conn: AsyncConnection, row: AnyRow) -> None:
    await outbox.put(conn, workspace_id=row.workspace_id, kind=outbox.OutboxKind.WAKE, subject_id=row.id)


async def expire_dispatched(conn: AsyncConnection, queue_expiry: timedelta) -> int:
    """Tasks handed to a machine that went offline before it started them, for too long."""
    rows = await conn.execute(
        select(Task.id)
        .join(Attempt, Attempt.task_id == Task.id)
        .join(Runtime, Runtime.id == Task.runtime_id)
        .where(
            _OPEN,
            Attempt.dispatched_at.is_not(None),
            Attempt.started_at.is_(None),
            Attempt.ended_at.is_(None),
            Task.started_at.is_(None),
            Task.cancel_requested_at.is_(None),
            Runtime.offline_since < func.now() - queue_expiry,
        )
        .order_by(Task.id)  # as all who lock several tasks do
        .limit(_BATCH)
    )
    expired = rows.scalars().all()
    stopped = 0
    for task_id in expired:
        task = await tasks.lock(conn, task_id)
        if task is not None and _still_unstarted(task):
            await tasks.stop(conn, task, reason=Reason.QUEUED_EXPIRED)
            stopped += 1
    return stopped


def _still_unstarted(task: AnyRow) -> bool:
    """Under its lock: the machine may have come back and started it in the meantime."""
    ended = TaskStatus(task.status).terminal
    return not ended and task.started_at is None and task.cancel_requested_at is None


async def repair_leases(conn: AsyncConnection) -> int:
    """Free leases whose holder has ended. There should never be one: each is a defect to look into."""
    rows = await conn.execute(
        select(Lease.workspace_id, Lease.task_id, Task.lane_id)
        .join(Task, Task.id == Lease.task_id)
        .where(_TERMINAL)
        .distinct()
        .order_by(Lease.workspace_id)  # several workspaces' locks, always in the same order
        .limit(_BATCH)
    )
    stale = rows.all()
    for row in stale:
        await leases.give_up(conn, workspace_id=row.workspace_id, task_id=row.task_id, lane_id=row.lane_id)
    return len(stale)


async def wake_granted(conn: AsyncConnection) -> int:
    """Wake tasks that were granted a while ago and have not taken up their attempt."""
    rows = await conn.execute(
        select(Task.id, Task.workspace_id)
        .join(Attempt, Attempt.task_id == Task.id)
        .where(
            _OPEN,
            Attempt.dispatched_at.is_(None),
            Attempt.ended_at.is_(None),
            Attempt.created_at < func.now() - SETTLING,
            ~_told(Task.id),
        )
        .limit(_BATCH)
    )
    late = rows.all()
    for row in late:
        await _wake(conn, row)
    return len(late)


async def workspaces_with_waiters(conn: AsyncConnection) -> Sequence[UUID]:
    rows = await conn.execute(select(LeaseWait.workspace_id).distinct())
    return rows.scalars().all()


async def tasks_to_check(conn: AsyncConnection) -> Sequence[AnyRow]:
    """Open tasks whose workflow was not looked at for the longest time; marks them as looked at."""
    oldest = (
        select(Task.id)
        .where(
            _OPEN,
            Task.status != TaskStatus.DEFERRED,
            Task.workflow_checked_at < func.now() - SETTLING,
            ~_told(Task.id),
        )
        .order_by(Task.workflow_checked_at)
        .limit(_BATCH)
        .with_for_update(skip_locked=True)
    )
    rows = await conn.execute(
        update(Task)
        .where(Task.id.in_(oldest.scalar_subquery()))
        .values(workflow_checked_at=func.now())
        .returning(Task.id, Task.workspace_id, Task.attempt)
    )
    return rows.all()


async def start_again(conn: AsyncConnection, task_id: UUID) -> bool:
    """The workflow is missing and no process was started: let it be started once more."""
    task = await tasks.lock(conn, task_id)
    if task is None or TaskStatus(task.status).terminal or await _has_started_attempt(conn, task_id):
        return False
    in_chat = task.chat_id is not None  # its chat's workflow starts it
    await outbox.put(
        conn,
        workspace_id=task.workspace_id,
        kind=outbox.OutboxKind.TURN if in_chat else outbox.OutboxKind.START,
        subject_id=task_id,
        payload=await turns.outbox_payload(conn, task_id) if in_chat else None,
    )
    return True


async def _has_started_attempt(conn: AsyncConnection, task_id: UUID) -> bool:
    rows = await conn.execute(
        select(Attempt.id)
        .where(
            Attempt.task_id == task_id,
            Attempt.started_at.is_not(None),
            or_(Attempt.ended_at.is_(None), Attempt.set_aside_at.is_not(None)),
        )
        .limit(1)
    )
    return rows.first() is not None


async def stops_to_check(conn: AsyncConnection) -> Sequence[AnyRow]:
    """Attempts set aside whose machine has not spoken yet, with the input of their stop workflow."""
    rows = await conn.execute(
        select(Attempt.id, Attempt.workspace_id, Attempt.stop)
        .where(
            Attempt.set_aside_at < func.now() - SETTLING,
            Attempt.ended_at.is_(None),
            ~_told(Attempt.id),
        )
        .order_by(func.random())
        .limit(_BATCH)
    )
    return rows.all()


async def stop_again(conn: AsyncConnection, attempt: AnyRow) -> None:
    await outbox.put(
        conn,
        workspace_id=attempt.workspace_id,
        kind=outbox.OutboxKind.STOP,
        subject_id=attempt.id,
        payload=attempt.stop,
    )
