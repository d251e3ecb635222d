"""The task row: its lock, its end, and the request to cancel it."""

from datetime import datetime
from uuid import UUID

from sqlalchemy import bindparam, func, select, text, update
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.ext.asyncio import AsyncConnection

from domain.errors import Conflict, InvocationNotAllowed, NotFound, TaskTerminal
from domain.names import EVENTS_CHANNEL
from domain.outcomes import Usage
from domain.permissions import Actor, AgentAccess, may_invoke, may_view
from domain.reasons import Reason, rule_for
from domain.statuses import SLEEPING, Permission, TaskStatus
from store import chatreplies, leases, outbox
from store.endings import Ending
from store.models import Agent, Attempt, Chat, Task
from store.rows import AnyRow

_LOCKED = select(Task.__table__).where(Task.id == bindparam("wanted")).with_for_update(key_share=True)


async def lock(conn: AsyncConnection, task_id: UUID) -> AnyRow | None:
    """The task's row, locked first in every transaction that changes it (not its key)."""
    rows = await conn.execute(_LOCKED, {"wanted": task_id})
    return rows.one_or_none()


# The listeners of its transcript hear of it when the transaction commits.
_END = text(
    """
    with ended as (
        update tasks set status = :status, reason = :reason, error = :error, evidence = :evidence,
               result = :result, usage = :usage, ended_at = now(), retry_at = null
        where id = :task_id returning id
    )
    select pg_notify(:channel, cast(id as text)) from ended
    """
).bindparams(bindparam("usage", type_=JSONB))


async def end(conn: AsyncConnection, task: AnyRow, ending: Ending, *, usage: Usage | None = None) -> None:
    """Make the task terminal, give back everything it holds and let the next ones in.

    Leases that were passed to an attempt stay: `store.recording.settle` frees them.
    """
    used = task.usage
    if usage is not None:
        used = (Usage.model_validate(task.usage) + usage).model_dump()
    await conn.execute(
        _END,
        {
            "task_id": task.id,
            "status": ending.status,
            "reason": ending.reason,
            "error": ending.error,
            "evidence": ending.evidence,
            "result": ending.result,
            "usage": used,
            "channel": EVENTS_CHANNEL,
        },
    )
    await leases.give_up(conn, workspace_id=task.workspace_id, task_id=task.id, lane_id=task.lane_id)


def failure(reason: str, *, error: str | None = None, evidence: str | None = None) -> Ending:
    return Ending(TaskStatus.FAILED, reason, error or rule_for(reason).meaning, evidence)


async def request_cancel(conn: AsyncConnection, *, actor: Actor, task_id: UUID) -> None:
    """Ask for the task's end. Repeating it changes nothing.

    A task of which no attempt has been dispatched ends at once; otherwise its workflow stops the
    process first. Raises `NotFound`, and `TaskTerminal` if it ended for another reason.
    """
    task = await lock(conn, task_id)
    if task is None or not await _may_see(conn, actor, task):
        raise NotFound("There is no such task.")
    if task.status == TaskStatus.CANCELLED or task.cancel_requested_at is not None:
        return
    if TaskStatus(task.status).terminal:
        raise TaskTerminal(f"The task has already {task.status}; there is nothing to cancel.")
    await stop(conn, task)


async def retry_now(conn: AsyncConnection, *, actor: Actor, task_id: UUID) -> None:
    """Cut a wait between attempts short: a quota's reset, or the pause before a retry.

    It starts a run, so it needs the right to. Raises `NotFound`, `InvocationNotAllowed`, and `Conflict`
    for a task that does not sleep.
    """
    task = await lock(conn, task_id)
    access = None if task is None else await _access(conn, actor, task)
    if task is None or access is None or not may_view(actor, access):
        raise NotFound("There is no such task.")
    if not may_invoke(actor, access):
        raise InvocationNotAllowed("You may not start runs of this agent; ask its owner.")
    if TaskStatus(task.status) not in SLEEPING:
        raise Conflict(f"The task is {task.status}: it does not wait for a retry or a quota.")
    await conn.execute(update(Task).where(Task.id == task.id).values(retry_at=func.now()))
    await outbox.put(
        conn,
        workspace_id=task.workspace_id,
        kind=outbox.OutboxKind.WAKE,
        subject_id=task.id,
    )


async def stop(conn: AsyncConnection, task: AnyRow, *, reason: str | None = None) -> None:
    """Stop a locked, non-terminal task; ``reason`` is set when it is not a person's wish."""
    await conn.execute(
        update(Task).where(Task.id == task.id).values(cancel_requested_at=func.now(), cancel_reason=reason)
    )
    if task.attempt == 0:
        await end_unstarted(conn, task, reason)
    await outbox.put(
        conn,
        workspace_id=task.workspace_id,
        kind=outbox.OutboxKind.WAKE if task.attempt == 0 else outbox.OutboxKind.CANCEL,
        subject_id=task.id,
    )


async def end_unstarted(conn: AsyncConnection, task: AnyRow, reason: str | None) -> None:
    """End a task whose attempt, if one was granted, was never handed to a machine."""
    ending = stopped(reason)
    if task.chat_id is not None:
        await chatreplies.write(conn, task, ending)
    await close_unstarted(conn, task, ending.reason)
    await end(conn, task, ending)


async def close_unstarted(conn: AsyncConnection, task: AnyRow, reason: str) -> None:
    """End an attempt that was granted and not taken up. The lock keeps another grant out until the end."""
    await leases.lock(conn, task.workspace_id)
    await conn.execute(
        update(Attempt)
        .where(Attempt.task_id == task.id, Attempt.ended_at.is_(None), Attempt.started_at.is_(None))
        .values(ended_at=func.now(), reason=reason)
    )


def stopped(reason: str | None) -> Ending:
    """The ending of a stop: a person's is ``cancelled``, a rule's is a failure with its reason."""
    if reason is None or reason == Reason.CANCELLED:
        return Ending(TaskStatus.CANCELLED, Reason.CANCELLED)
    return failure(reason)


async def _may_see(conn: AsyncConnection, actor: Actor, task: AnyRow) -> bool:
    """The view gate: the agent's, and for a chat's task its creator alone."""
    access = await _access(conn, actor, task)
    return access is not None and may_view(actor, access)


async def _access(conn: AsyncConnection, actor: Actor, task: AnyRow) -> AgentAccess | None:
    """What the agent's gates are decided from; None for a task that is not there for the caller."""
    if task.workspace_id != actor.workspace_id:
        return None
    rows = await conn.execute(
        select(Agent.owner_id, Agent.permission, Agent.allowed_member_ids, Chat.creator_id)
        .outerjoin(Chat, Chat.id == task.chat_id)
        .where(Agent.id == task.agent_id)
    )
    agent = rows.one()
    if task.chat_id is not None and agent.creator_id != actor.member_id:
        return None
    return AgentAccess(
        task.agent_id,
        agent.owner_id,
        Permission(agent.permission),
        frozenset(agent.allowed_member_ids),
    )


async def set_status(
    conn: AsyncConnection, task_id: UUID, status: TaskStatus, *, retry_at: datetime | None = None
) -> None:
    await conn.execute(update(Task).where(Task.id == task_id).values(status=status, retry_at=retry_at))
