"""Agents: the named teammates of a workspace."""

import re
from datetime import datetime
from typing import Annotated, Any, ClassVar
from uuid import UUID

from fastapi import APIRouter, Query
from pydantic import AfterValidator, BaseModel, Field
from sqlalchemy import Row

from api import auth, pagination
from api.fields import Body, Name, Patch, Text
from api.pagination import Listing, Paging
from api.units import Call, InCall, PeopleRoute
from domain.errors import UnprocessableInput
from domain.providers import ACP, PROVIDER_NAMES
from domain.statuses import Permission
from store import agents, members, runtimes, taskviews
from store.stopping import stop_all
from store.taskviews import TaskFilter, TaskView

router = APIRouter(prefix="/agents", tags=["agents"], route_class=PeopleRoute)

_MOST_TASKS = 1000
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)


def _known_provider(name: str) -> str:
    if name not in PROVIDER_NAMES:
        raise ValueError(f"must be one of {', '.join(PROVIDER_NAMES)}")
    return name


def _variable(name: str) -> str:
    if not _ENV_NAME.fullmatch(name):
        raise ValueError("a variable's name has letters, digits and underscores")
    if name.startswith("SEGUE_"):
        raise ValueError("names that begin with SEGUE_ are set by Segue itself")
    return name


Provider = Annotated[str, AfterValidator(_known_provider)]
Variable = Annotated[str, Field(max_length=200), AfterValidator(_variable)]
Arguments = Annotated[list[Text], Field(max_length=200)]
MemberIds = Annotated[list[UUID], Field(max_length=1000)]
Concurrency = Annotated[int, Field(ge=1, le=_MOST_TASKS)]


class Agent(BaseModel):
    """``env_names`` are the names of its environment; the values are never shown."""

    id: UUID
    name: str
    provider: str
    model: str | None
    instructions: str
    runtime_id: UUID | None
    env_names: list[str]
    args: list[str]
    max_concurrent_tasks: int
    permission: Permission
    allowed_member_ids: list[UUID]
    owner_id: UUID | None
    archived_at: datetime | None
    created_at: datetime

    @classmethod
    def of(cls, row: Row[Any]) -> "Agent":
        return cls(**{name: getattr(row, name) for name in cls.model_fields})


class NewAgent(Body):
    name: Name
    provider: Provider
    model: Name | None = None
    instructions: Text = ""
    runtime_id: UUID | None = None
    env: dict[Variable, Text] = Field(default_factory=dict)
    args: Arguments = Field(default_factory=list)
    max_concurrent_tasks: Concurrency = 6
    permission: Permission = Permission.WORKSPACE
    allowed_member_ids: MemberIds = Field(default_factory=list)


class AgentPatch(Patch):
    """``env`` is merged: a value sets a variable, null removes it; null instead of a map removes all."""

    nullable: ClassVar[frozenset[str]] = frozenset({"model", "runtime_id", "env"})

    name: Name | None = None
    provider: Provider | None = None
    model: Name | None = None
    instructions: Text | None = None
    runtime_id: UUID | None = None
    env: dict[Variable, Text | None] | None = None
    args: Arguments | None = None
    max_concurrent_tasks: Concurrency | None = None
    permission: Permission | None = None
    allowed_member_ids: MemberIds | None = None


@router.get("")
async def list_agents(
    call: InCall,
    page: Paging,
    *,
    archived: Annotated[bool, Query(description="Archived ones as well")] = False,
    name: str | None = None,
) -> Listing[Agent]:
    """The agents that the caller may see."""
    rows = await agents.page(call.conn, call.actor, page, archived=archived, name=name)
    return pagination.listing(page, rows, Agent.of)


@router.post("", status_code=201)
async def create_agent(call: InCall, body: NewAgent) -> Agent:
    """Make an agent; the caller owns it. People only."""
    auth.require_member(call.actor)
    values = body.model_dump(exclude={"env"})
    await _check(call, values)
    row = await agents.create(call.conn, call.actor, values | _sealed(call, dict(body.env)))
    return Agent.of(row)


@router.get("/{agent_id}")
async def get_agent(call: InCall, agent_id: UUID) -> Agent:
    """One agent."""
    return Agent.of(await agents.get(call.conn, call.actor, agent_id))


@router.patch("/{agent_id}")
async def change_agent(call: InCall, agent_id: UUID, body: AgentPatch) -> Agent:
    """Change an agent: its owner and admins only. A queued task keeps the runtime it was queued for."""
    row = await agents.managed(call.conn, call.actor, agent_id)
    values = body.changes()
    if "env" in values:
        values |= _merged(call, row, values.pop("env"))
    await _check(call, {"provider": row.provider, "args": row.args} | values)
    return Agent.of(await agents.change(call.conn, row, values))


@router.post("/{agent_id}/archive")
async def archive_agent(call: InCall, agent_id: UUID) -> Agent:
    """Put the agent away: nobody can start it, and its tasks that have not ended are cancelled."""
    row = await agents.managed(call.conn, call.actor, agent_id)
    archived = await agents.archive(call.conn, row)
    await stop_all(call.conn, await agents.open_task_ids(call.conn, agent_id))
    return Agent.of(archived)


@router.post("/{agent_id}/restore")
async def restore_agent(call: InCall, agent_id: UUID) -> Agent:
    """Bring an archived agent back."""
    row = await agents.managed(call.conn, call.actor, agent_id)
    return Agent.of(await agents.restore(call.conn, row))


@router.get("/{agent_id}/tasks")
async def list_agent_tasks(call: InCall, agent_id: UUID, page: Paging) -> Listing[TaskView]:
    """The agent's tasks that the caller may see, newest first."""
    await agents.get(call.conn, call.actor, agent_id)
    narrowed = TaskFilter(agent_id=agent_id)
    rows = await taskviews.page(call.conn, call.actor, page, narrowed, call.deps.links)
    return pagination.listing(page, rows, lambda view: view)


async def _check(call: Call, values: dict[str, Any]) -> None:
    """What one field's type can't say."""
    if values["provider"] == ACP and not values["args"]:
        raise UnprocessableInput("args: an agent of the provider acp needs the command to run in its args.")
    workspace_id = call.actor.workspace_id
    runtime_id = values.get("runtime_id")
    if runtime_id is not None and not await runtimes.exists(call.conn, workspace_id, runtime_id):
        raise UnprocessableInput("runtime_id: there is no such runtime in this workspace.")
    allowed = values.get("allowed_member_ids")
    if allowed and not await members.all_in(call.conn, workspace_id, allowed):
        raise UnprocessableInput("allowed_member_ids: not all of them are members of this workspace.")


def _sealed(call: Call, env: dict[str, str]) -> dict[str, Any]:
    return {
        "env_sealed": call.deps.secret_box.seal(env) if env else None,
        "env_names": sorted(env),
    }


def _merged(call: Call, row: Row[Any], changes: dict[str, str | None] | None) -> dict[str, Any]:
    if changes is None:
        return _sealed(call, {})
    env = {**call.deps.secret_box.open(row.env_sealed), **changes}
    return _sealed(call, {name: value for name, value in env.items() if value is not None})
