"""What every way of queueing a task shares: who may, whether the agent is ready, and the row itself."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import insert, select
from sqlalchemy.ext.asyncio import AsyncConnection

from domain.errors import InvalidInput, InvocationNotAllowed, NotFound
from domain.permissions import Actor, AgentAccess, may_invoke, may_view
from domain.statuses import Permission, TaskKind
from store.ids import new_id
from store.models import Agent, Task
from store.rows import AnyRow

#: Capacity goes by ``rank``: the time of enqueueing plus this handicap. A constant one ages by
#: itself: an autopilot's task that has waited for five minutes goes before a chat's of now.
HANDICAP: Mapping[TaskKind, timedelta] = {
    TaskKind.CHAT: timedelta(0),
    TaskKind.ISSUE: timedelta(seconds=30),
    TaskKind.AUTOPILOT: timedelta(minutes=5),
}

ARCHIVED = "target_unavailable"
NO_RUNTIME = "agent_runtime_required"


@dataclass(frozen=True)
class LanePlace:
    """A lane's next position, taken under its row's lock."""

    lane_id: UUID
    position: int
    context: int = 0


@dataclass(frozen=True)
class Runner:
    """The agent that a task is for, and the runtime that it runs on."""

    id: UUID
    workspace_id: UUID
    runtime_id: UUID


def readiness(archived_at: datetime | None, runtime_id: UUID | None) -> str | None:
    """Why the agent can't be queued, or None. An offline machine is fine: the task waits."""
    if archived_at is not None:
        return ARCHIVED
    if runtime_id is None:
        return NO_RUNTIME
    return None


def check_ready(archived_at: datetime | None, runtime_id: UUID | None) -> None:
    """Raise `InvalidInput` where `readiness` has something to say."""
    match readiness(archived_at, runtime_id):
        case "target_unavailable":
            raise InvalidInput("The agent is archived; restore it first.")
        case "agent_runtime_required":
            raise InvalidInput("The agent has no runtime; bind it to one first.")


async def check_invoke(conn: AsyncConnection, actor: Actor, agent_id: UUID, *, hidden: str) -> None:
    """Raise `NotFound` (with the text ``hidden``) or `InvocationNotAllowed` unless ``actor`` may start it."""
    rows = await conn.execute(
        select(Agent.owner_id, Agent.permission, Agent.allowed_member_ids).where(Agent.id == agent_id)
    )
    agent = rows.one()
    access = AgentAccess(
        agent_id, agent.owner_id, Permission(agent.permission), frozenset(agent.allowed_member_ids)
    )
    if not may_view(actor, access):
        raise NotFound(hidden)
    if not may_invoke(actor, access):
        raise InvocationNotAllowed("You may not start runs of this agent; ask its owner.")


_INSERT = insert(Task)


async def insert_task(
    conn: AsyncConnection, *, kind: TaskKind, agent: Runner, place: LanePlace, columns: dict[str, Any]
) -> UUID:
    """Insert a queued task; the outbox row is the caller's to write."""
    task_id = new_id()
    await conn.execute(
        _INSERT,
        {
            "id": task_id,
            "workspace_id": agent.workspace_id,
            "lane_id": place.lane_id,
            "lane_position": place.position,
            "context": place.context,
            "rank": datetime.now(UTC) + HANDICAP[kind],
            "kind": kind,
            "agent_id": agent.id,
            "runtime_id": agent.runtime_id,
            **columns,
        },
    )
    return task_id


async def source(conn: AsyncConnection, actor: Actor, task_id: UUID) -> AnyRow:
    """The task that is to be repeated. Raises `NotFound`; the agent's gates are the caller's to check."""
    rows = await conn.execute(
        select(
            Task.id,
            Task.agent_id,
            Task.issue_id,
            Task.chat_id,
            Task.kind,
            Task.status,
            Task.context,
            Task.trigger_comment_id,
            Task.trigger_message_id,
            Task.handoff_note,
        ).where(Task.id == task_id, Task.workspace_id == actor.workspace_id)
    )
    found = rows.one_or_none()
    if found is None:
        raise NotFound("There is no such task.")
    return found
