"""Who may start, see and change an agent: the whole matrix."""

from uuid import uuid4

import pytest

from domain.permissions import Actor, AgentAccess, may_invoke, may_manage, may_view
from domain.statuses import Permission, Role

WORKSPACE, OWNER, ALLOWED, OTHER = (uuid4() for _ in range(4))


def person(member_id: object, role: Role = Role.MEMBER) -> Actor:
    return Actor(WORKSPACE, member_id=member_id, role=role)  # type: ignore[arg-type]


def task(member_id: object) -> Actor:
    """A task's token: an agent, with the rights of the human behind it (None: an automation)."""
    return Actor(
        WORKSPACE,
        member_id=member_id,  # type: ignore[arg-type]
        role=Role.MEMBER if member_id else None,
        agent_id=uuid4(),
        task_id=uuid4(),
    )


ACTORS = {
    "owner": person(OWNER),
    "allowed": person(ALLOWED),
    "other": person(OTHER),
    "admin": person(OTHER, Role.ADMIN),
    "workspace owner": person(OTHER, Role.OWNER),
    "task of owner": task(OWNER),
    "task of allowed": task(ALLOWED),
    "task of other": task(OTHER),
    "task of nobody": task(None),
    "runtime": Actor(WORKSPACE, runtime_id=uuid4()),
}
_PEOPLE = {"owner", "allowed", "other", "admin", "workspace owner"}
_TASKS = {"task of owner", "task of allowed", "task of other", "task of nobody"}
_ADMINS = {"admin", "workspace owner"}

INVOKE = {
    Permission.PRIVATE: {"owner", "task of owner"},
    Permission.MEMBERS: {"owner", "allowed", "task of owner", "task of allowed"},
    Permission.WORKSPACE: _PEOPLE | _TASKS,
}
VIEW = {permission: allowed | _ADMINS | _TASKS for permission, allowed in INVOKE.items()}
MANAGE = {"owner"} | _ADMINS


def agent(permission: Permission) -> AgentAccess:
    return AgentAccess(uuid4(), OWNER, permission, frozenset([ALLOWED]))


@pytest.mark.parametrize("name", ACTORS)
@pytest.mark.parametrize("permission", list(Permission))
def test_the_matrix(permission: Permission, name: str) -> None:
    """Invoking has no bypass for admins; viewing has one, and agents always see; people manage."""
    actor, access = ACTORS[name], agent(permission)
    assert may_invoke(actor, access) is (name in INVOKE[permission])
    assert may_view(actor, access) is (name in VIEW[permission])
    assert may_manage(actor, access) is (name in MANAGE)


@pytest.mark.parametrize("name", ["runtime", "task of nobody"])
@pytest.mark.parametrize("permission", [Permission.PRIVATE, Permission.MEMBERS])
def test_an_agent_without_an_owner_is_nobodys(permission: Permission, name: str) -> None:
    """No owner and no member never count as the same person."""
    access = AgentAccess(uuid4(), None, permission)
    assert not may_invoke(ACTORS[name], access)
    assert not may_manage(ACTORS[name], access)
