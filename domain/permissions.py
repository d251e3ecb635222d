"""Who may do what: pure checks, made before any state is revealed or changed.

Two gates on an agent, as upstream has them: *invoke* (may start its runs: no bypass for admins) and
*view* (may read its runs and cancel them: softer).
"""

from dataclasses import dataclass, field
from uuid import UUID

from domain.statuses import Permission, Role


@dataclass(frozen=True)
class Actor:
    """Who is calling. A task token acts as its agent, with the rights of the human behind the task."""

    workspace_id: UUID
    member_id: UUID | None = None
    role: Role | None = None
    runtime_id: UUID | None = None
    agent_id: UUID | None = None
    task_id: UUID | None = None
    attempt_id: UUID | None = None
    token_id: UUID | None = None

    @property
    def is_member(self) -> bool:
        return self.member_id is not None and self.agent_id is None

    @property
    def is_admin(self) -> bool:
        return self.is_member and self.role in (Role.OWNER, Role.ADMIN)


@dataclass(frozen=True)
class AgentAccess:
    """The part of an agent that permissions are decided from."""

    agent_id: UUID
    owner_id: UUID | None
    permission: Permission
    allowed_member_ids: frozenset[UUID] = field(default_factory=frozenset)


def may_invoke(actor: Actor, agent: AgentAccess) -> bool:
    """May ``actor`` start runs of ``agent``? For a task token, ``member_id`` is its human originator."""
    if actor.member_id is not None and actor.member_id == agent.owner_id:
        return True
    if agent.permission is Permission.WORKSPACE:
        return actor.member_id is not None or actor.agent_id is not None
    if agent.permission is Permission.MEMBERS:
        return actor.member_id is not None and actor.member_id in agent.allowed_member_ids
    return False


def may_view(actor: Actor, agent: AgentAccess) -> bool:
    """May ``actor`` read the agent's runs, and stop them?"""
    if actor.agent_id is not None or actor.is_admin:
        return True
    return may_invoke(actor, agent)


def may_manage(actor: Actor, agent: AgentAccess) -> bool:
    """May ``actor`` change the agent itself? People only: its owner and admins."""
    return actor.is_member and (actor.is_admin or actor.member_id == agent.owner_id)
