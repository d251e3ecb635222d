"""From a trigger on an issue to a queued task: one lane row locked, one position taken, one outbox row."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from sqlalchemy import bindparam, func, select, text, update
from sqlalchemy.dialects.postgresql import insert as pg_insert
from sqlalchemy.ext.asyncio import AsyncConnection

from domain.errors import InvalidInput, NotFound, TaskNotTerminal
from domain.names import issue_key
from domain.permissions import Actor
from domain.pointer import PointerMode
from domain.routing import TriggerOutcome
from domain.statuses import TaskKind, TaskStatus
from store import outbox, taskqueue, turns
from store.ids import new_id
from store.models import Agent, Issue, Lane, Runtime, Task, TaskComment, Workspace
from store.rows import AnyRow
from store.taskqueue import LanePlace, Runner
from store.taskstates import not_started


@dataclass(frozen=True)
class Triggered:
    """What became of one target of a write; ``reason`` is set when it is blocked."""

    agent_id: UUID
    task_id: UUID | None
    outcome: TriggerOutcome
    reason: str | None = None


async def issue_task(
    conn: AsyncConnection,
    *,
    actor: Actor,
    target: AnyRow,
    trigger_type: str,
    comment_id: UUID | None = None,
    handoff_note: str | None = None,
) -> Triggered:
    """Queue a run of the agent on the issue, or join the lane's task that has not started yet.

    ``target`` is a row of `targets`. The caller has checked that ``actor`` may invoke the agent.
    """
    blocked = taskqueue.readiness(target.archived_at, target.runtime_id)
    if blocked is not None:
        return Triggered(target.id, None, TriggerOutcome.BLOCKED, blocked)
    lane = await _next_position(conn, target)
    joined = await _join(conn, actor, lane.id, comment_id)
    if joined is not None:
        if handoff_note:
            await _add_note(conn, joined, handoff_note)
        return Triggered(target.id, joined, TriggerOutcome.COALESCED)
    task_id = await _insert(
        conn,
        target,
        lane,
        {
            "trigger_type": trigger_type,
            "trigger_comment_id": comment_id,
            "originator_id": actor.member_id,
            "handoff_note": handoff_note,
        },
    )
    if comment_id is not None:
        await _deliver(conn, task_id, lane.id, comment_id)
    return Triggered(target.id, task_id, TriggerOutcome.QUEUED)


async def retry(conn: AsyncConnection, *, actor: Actor, task_id: UUID) -> UUID:
    """Queue a new task that goes on from this finished one's own pointer and input.

    Raises `NotFound`, `InvocationNotAllowed`, `TaskNotTerminal`, `InvalidInput`.
    """
    source = await taskqueue.source(conn, actor, task_id)
    if source.chat_id is not None:
        return await turns.retry(conn, actor, source)
    if source.issue_id is None:
        raise NotFound("There is no such task.")
    await taskqueue.check_invoke(conn, actor, source.agent_id, hidden="There is no such task.")
    if not TaskStatus(source.status).terminal:
        raise TaskNotTerminal("The task has not ended; cancel it first, or wait for it.")
    return await _again(conn, actor, source, PointerMode.TASK, "retry")


async def rerun(conn: AsyncConnection, *, actor: Actor, issue_id: UUID, task_id: UUID | None) -> UUID:
    """Rerun an issue: with ``task_id`` the same as `retry` of it, without a fresh run of the assignee.

    Raises `NotFound`, `InvocationNotAllowed`, `TaskNotTerminal`, `InvalidInput`.
    """
    if task_id is not None:
        source = await taskqueue.source(conn, actor, task_id)
        if source.issue_id != issue_id:
            raise NotFound("That task is not one of this issue.")
        return await retry(conn, actor=actor, task_id=task_id)
    agent_id = await _assignee(conn, actor.workspace_id, issue_id)
    await taskqueue.check_invoke(conn, actor, agent_id, hidden="There is no such issue.")
    target = await _target(conn, actor.workspace_id, agent_id, issue_id)
    taskqueue.check_ready(target.archived_at, target.runtime_id)
    lane = await _next_position(conn, target)
    return await _insert(
        conn,
        target,
        lane,
        {
            "trigger_type": "rerun",
            "originator_id": actor.member_id,
            "pointer_mode": PointerMode.FRESH,
        },
    )


async def _again(
    conn: AsyncConnection, actor: Actor, source: AnyRow, mode: PointerMode, trigger: str
) -> UUID:
    target = await _target(conn, actor.workspace_id, source.agent_id, source.issue_id)
    taskqueue.check_ready(target.archived_at, target.runtime_id)
    lane = await _next_position(conn, target)
    return await _insert(
        conn,
        target,
        lane,
        {
            "trigger_type": trigger,
            "trigger_comment_id": source.trigger_comment_id,
            "originator_id": actor.member_id,
            "pointer_mode": mode,
            "rerun_of_task_id": source.id,
            "handoff_note": source.handoff_note,
        },
    )


# --- the parts ------------------------------------------------------------------------------------


_TARGETS = (
    select(
        Agent.id,
        Agent.workspace_id,
        Agent.name,
        Agent.owner_id,
        Agent.permission,
        Agent.allowed_member_ids,
        Agent.archived_at,
        Agent.runtime_id,
        Runtime.name.label("runtime_name"),
        Issue.id.label("issue_id"),
        Issue.number.label("issue_number"),
        Workspace.issue_prefix,
    )
    .join(Workspace, Workspace.id == Agent.workspace_id)
    .join(Issue, Issue.workspace_id == Agent.workspace_id)
    .outerjoin(Runtime, Runtime.id == Agent.runtime_id)
    .where(
        Agent.workspace_id == bindparam("workspace"),
        Agent.id.in_(bindparam("agents", expanding=True)),
        Issue.id == bindparam("issue"),
        Issue.deleted_at.is_(None),
    )
)


async def targets(
    conn: AsyncConnection, workspace_id: UUID, issue_id: UUID, agent_ids: Sequence[UUID]
) -> Sequence[AnyRow]:
    """Those of the agents that are in this workspace, each with who may start it, and with the issue."""
    if not agent_ids:
        return []
    rows = await conn.execute(_TARGETS, {"workspace": workspace_id, "agents": agent_ids, "issue": issue_id})
    return rows.all()


async def _target(conn: AsyncConnection, workspace_id: UUID, agent_id: UUID, issue_id: UUID) -> AnyRow:
    found = await targets(conn, workspace_id, issue_id, [agent_id])
    if not found:
        raise NotFound("There is no such agent or issue in this workspace.")
    return found[0]


_NEXT_POSITION = (
    pg_insert(Lane)
    .on_conflict_do_update(
        index_elements=[Lane.agent_id, Lane.issue_id],
        index_where=text("kind = 'issue'"),
        set_={"last_position": Lane.last_position + 1},
    )
    .returning(Lane.id, Lane.last_position)
)


async def _next_position(conn: AsyncConnection, target: AnyRow) -> AnyRow:
    """Make or lock the lane's row and take its next position, in one statement."""
    rows = await conn.execute(
        _NEXT_POSITION,
        {
            "id": new_id(),
            "workspace_id": target.workspace_id,
            "kind": TaskKind.ISSUE,
            "agent_id": target.id,
            "issue_id": target.issue_id,
            "last_position": 1,
        },
    )
    return rows.one()


_JOINABLE = (
    select(Task.id)
    .where(Task.lane_id == bindparam("lane"), Task.attempt == 0, not_started())
    .order_by(Task.lane_position)
    .limit(1)
    .with_for_update(key_share=True)
)


async def _join(conn: AsyncConnection, actor: Actor, lane_id: UUID, comment_id: UUID | None) -> UUID | None:
    """Join the lane's task of which no attempt has started; None if there is none.

    The row lock waits for a dispatch that is under way, and then no longer matches. The run gets the
    rights of whoever spoke last: an earlier speaker's must not serve a later one's words.
    """
    rows = await conn.execute(_JOINABLE, {"lane": lane_id})
    task_id: UUID | None = rows.scalar_one_or_none()
    if task_id is not None and comment_id is not None:
        await conn.execute(update(Task).where(Task.id == task_id).values(originator_id=actor.member_id))
        await _deliver(conn, task_id, lane_id, comment_id)
    return task_id


async def _add_note(conn: AsyncConnection, task_id: UUID, note: str) -> None:
    """The task that is joined carries both notes."""
    notes = func.concat_ws("\n\n", Task.handoff_note, note)
    await conn.execute(update(Task).where(Task.id == task_id).values(handoff_note=notes))


_DELIVER = pg_insert(TaskComment).on_conflict_do_nothing()


async def _deliver(conn: AsyncConnection, task_id: UUID, lane_id: UUID, comment_id: UUID) -> None:
    """Put the comment into the task's batch; a comment belongs to one task of a lane."""
    await conn.execute(_DELIVER, {"task_id": task_id, "comment_id": comment_id, "lane_id": lane_id})


async def _insert(conn: AsyncConnection, target: AnyRow, lane: AnyRow, columns: dict[str, Any]) -> UUID:
    task_id = await taskqueue.insert_task(
        conn,
        kind=TaskKind.ISSUE,
        agent=Runner(target.id, target.workspace_id, target.runtime_id),
        place=LanePlace(lane.id, lane.last_position),
        columns={"issue_id": target.issue_id, **columns},
    )
    await outbox.put(
        conn,
        workspace_id=target.workspace_id,
        kind=outbox.OutboxKind.START,
        subject_id=task_id,
        payload=_start_payload(target, columns["trigger_type"]),
    )
    return task_id


def _start_payload(target: AnyRow, trigger: str) -> dict[str, Any]:
    """What the Temporal Web UI shows; the names are those of the moment."""
    key = issue_key(target.issue_prefix, target.issue_number)
    return {
        "summary": f"{target.name} on {key} ({trigger})",
        "search_attributes": {
            "SegueAgent": target.name,
            "SegueIssue": key,
            "SegueRuntime": target.runtime_name,
            "SegueTrigger": trigger,
        },
    }


async def _assignee(conn: AsyncConnection, workspace_id: UUID, issue_id: UUID) -> UUID:
    rows = await conn.execute(
        select(Issue.assignee_type, Issue.assignee_id).where(
            Issue.id == issue_id, Issue.workspace_id == workspace_id, Issue.deleted_at.is_(None)
        )
    )
    issue = rows.one_or_none()
    if issue is None:
        raise NotFound("There is no such issue.")
    if issue.assignee_type != "agent" or issue.assignee_id is None:
        raise InvalidInput("No agent is assigned to the issue; name the task to rerun, or assign one.")
    agent_id: UUID = issue.assignee_id
    return agent_id
