"""What a write on the board starts: permission first, then the queue of each agent's lane."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from sqlalchemy import Row, select
from sqlalchemy.ext.asyncio import AsyncConnection

from domain.permissions import Actor, may_invoke
from domain.routing import TriggerOutcome, issue_write_starts_run
from domain.triggers import TriggerType
from store import agents, enqueue
from store.enqueue import Triggered
from store.models import Task
from store.rows import AnyRow

NOT_ALLOWED = "invocation_not_allowed"
UNAVAILABLE = "target_unavailable"
SELF_TRIGGER = "self_trigger_suppressed"

#: Stands for a mention whose id is no id at all.
_NOBODY = UUID(int=0)


@dataclass(frozen=True)
class Cause:
    """What starts runs on an issue, and the note that goes with it."""

    issue_id: UUID
    trigger_type: TriggerType
    comment_id: UUID | None = None
    handoff_note: str | None = None


async def start(
    conn: AsyncConnection,
    *,
    actor: Actor,
    targets: Sequence[str],
    cause: Cause,
    suppressed: UUID | None = None,
) -> list[Triggered]:
    """Start every target that may be started; the answers are in the targets' order.

    ``suppressed`` is an agent that must not start itself. A write and the runs it starts are
    independent facts: a blocked target is an answer, never an error. Whether an agent is archived
    or has a machine is told only to those who may start it.
    """
    wanted = list(dict.fromkeys(_agent_id(target) for target in targets))
    known = [agent_id for agent_id in wanted if agent_id != _NOBODY]
    found = await enqueue.targets(conn, actor.workspace_id, cause.issue_id, known)
    rows = {row.id: row for row in found}
    answers = {agent_id: _refusal(actor, agent_id, rows.get(agent_id), suppressed) for agent_id in wanted}
    for agent_id in _in_lane_order(agent_id for agent_id, refused in answers.items() if not refused):
        answers[agent_id] = await enqueue.issue_task(
            conn,
            actor=actor,
            target=rows[agent_id],
            trigger_type=cause.trigger_type,
            comment_id=cause.comment_id,
            handoff_note=cause.handoff_note,
        )
    return [answer for answer in answers.values() if answer is not None]


def _agent_id(target: str) -> UUID:
    try:
        return UUID(target)
    except ValueError:
        return _NOBODY


def _refusal(actor: Actor, agent_id: UUID, agent: AnyRow | None, suppressed: UUID | None) -> Triggered | None:
    if agent_id == _NOBODY:
        return Triggered(agent_id, None, TriggerOutcome.BLOCKED, UNAVAILABLE)
    if agent is None or not may_invoke(actor, agents.access(agent)):
        return Triggered(agent_id, None, TriggerOutcome.BLOCKED, NOT_ALLOWED)
    if agent_id == suppressed:
        return Triggered(agent_id, None, TriggerOutcome.BLOCKED, SELF_TRIGGER)
    return None


def _in_lane_order(agent_ids: Iterable[UUID]) -> list[UUID]:
    """By agent, so that two writes never lock the same lanes crosswise.

    All lanes of one write belong to one issue, so an agent names its lane, made already or not.
    """
    return sorted(agent_ids)


async def on_issue_write(
    conn: AsyncConnection,
    *,
    actor: Actor,
    issue: Row[Any],
    before: Row[Any] | None = None,
    handoff_note: str | None = None,
) -> list[Triggered]:
    """Start the assigned agent if this create or update (``before`` is its old row) calls for it."""
    if issue.assignee_type != "agent" or issue.assignee_id is None:
        return []
    reassigned = before is not None and issue.assignee_id != before.assignee_id
    own_task = actor.task_id is not None and await task_issue(conn, actor.task_id) == issue.id
    starts = issue_write_starts_run(
        assignee_changed=reassigned,
        old_status=before.status if before is not None else None,
        new_status=issue.status,
        by_agents_own_task=own_task,
    )
    # Taking over the issue that one already works on saves the ownership and starts nothing.
    if not starts or (own_task and issue.assignee_id == actor.agent_id):
        return []
    created_or_assigned = before is None or reassigned
    return await start(
        conn,
        actor=actor,
        targets=[str(issue.assignee_id)],
        cause=Cause(
            issue_id=issue.id,
            trigger_type=TriggerType.ASSIGNMENT if created_or_assigned else TriggerType.STATUS,
            handoff_note=handoff_note,
        ),
    )


async def task_issue(conn: AsyncConnection, task_id: UUID) -> UUID | None:
    """The issue that a task runs on."""
    issue_id: UUID | None = await conn.scalar(select(Task.issue_id).where(Task.id == task_id))
    return issue_id
