"""Agents: the named teammates, who may see and start them, and their sealed environment."""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from sqlalchemy import Row, func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from domain.errors import NotAllowed, NotFound
from domain.permissions import Actor, AgentAccess, may_manage
from domain.statuses import Permission
from store import leases
from store.constraints import refused_as
from store.ids import new_id
from store.models import Agent, Task
from store.pages import Page, newest_first
from store.taskstates import is_open
from store.visibility import agent_visible

_TAKEN = {"ix_agents_workspace_id_name": "There is an agent with this name already."}


def access(agent: Row[Any]) -> AgentAccess:
    """What permissions on an agent's row are decided from."""
    return AgentAccess(
        agent_id=agent.id,
        owner_id=agent.owner_id,
        permission=Permission(agent.permission),
        allowed_member_ids=frozenset(agent.allowed_member_ids),
    )


async def create(conn: AsyncConnection, actor: Actor, values: dict[str, Any]) -> Row[Any]:
    """A new agent of the caller's. Raises `Conflict` if the name is taken."""
    with refused_as(_TAKEN):
        rows = await conn.execute(
            insert(Agent)
            .values(id=new_id(), workspace_id=actor.workspace_id, owner_id=actor.member_id, **values)
            .returning(*Agent.__table__.c)
        )
    return rows.one()


async def get(conn: AsyncConnection, actor: Actor, agent_id: UUID) -> Row[Any]:
    """An agent that the caller may see. Raises `NotFound`."""
    row = (await conn.execute(_visible(actor).where(Agent.id == agent_id))).one_or_none()
    if row is None:
        raise NotFound("There is no such agent in this workspace.")
    return row


async def page(
    conn: AsyncConnection, actor: Actor, part: Page, *, archived: bool = False, name: str | None = None
) -> list[Row[Any]]:
    """The agents that the caller may see; archived ones only when asked for."""
    query = _visible(actor)
    if not archived:
        query = query.where(Agent.archived_at.is_(None))
    if name is not None:
        query = query.where(Agent.name == name)
    return list(await conn.execute(newest_first(query, Agent, part)))


def _visible(actor: Actor) -> Any:
    return select(*Agent.__table__.c).where(Agent.workspace_id == actor.workspace_id, agent_visible(actor))


async def managed(conn: AsyncConnection, actor: Actor, agent_id: UUID) -> Row[Any]:
    """The locked row of an agent that the caller may change. Raises `NotFound`, then `NotAllowed`."""
    query = _visible(actor).where(Agent.id == agent_id).with_for_update(key_share=True)
    row: Row[Any] | None = (await conn.execute(query)).one_or_none()
    if row is None:
        raise NotFound("There is no such agent in this workspace.")
    if not may_manage(actor, access(row)):
        raise NotAllowed("Only the agent's owner and the workspace's admins may change it.")
    return row


async def change(conn: AsyncConnection, agent: Row[Any], values: dict[str, Any]) -> Row[Any]:
    """Change a locked agent; room for more tasks is granted to who waits. Raises `Conflict`."""
    if not values:
        return agent
    with refused_as(_TAKEN):
        rows = await conn.execute(
            update(Agent).where(Agent.id == agent.id).values(**values).returning(*Agent.__table__.c)
        )
    row = rows.one()
    if row.max_concurrent_tasks > agent.max_concurrent_tasks:
        await leases.grant_for_agent(conn, agent.workspace_id, agent.id)
    return row


async def archive(conn: AsyncConnection, agent: Row[Any]) -> Row[Any]:
    """Put a locked agent away; archiving it again changes nothing. Its tasks are the caller's to cancel."""
    return await change(conn, agent, {"archived_at": func.coalesce(Agent.archived_at, func.now())})


async def restore(conn: AsyncConnection, agent: Row[Any]) -> Row[Any]:
    """Bring a locked agent back. Raises `Conflict` if its name was taken meanwhile."""
    row = await change(conn, agent, {"archived_at": None})
    await leases.grant_for_agent(conn, agent.workspace_id, agent.id)
    return row


async def open_task_ids(conn: AsyncConnection, agent_id: UUID) -> Sequence[UUID]:
    query = select(Task.id).where(Task.agent_id == agent_id, is_open()).order_by(Task.id)
    return list(await conn.scalars(query))
