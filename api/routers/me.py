"""Who the token's owner is."""

from typing import Any
from uuid import UUID

from fastapi import APIRouter
from pydantic import BaseModel
from sqlalchemy import Row

from api.routers.members import Member
from api.units import InCall, UnitRoute
from store import members

router = APIRouter(tags=["me"], route_class=UnitRoute)


class Workspace(BaseModel):
    id: UUID
    name: str
    slug: str
    issue_prefix: str

    @classmethod
    def of(cls, row: Row[Any]) -> "Workspace":
        return cls(id=row.id, name=row.name, slug=row.slug, issue_prefix=row.issue_prefix)


class Me(BaseModel):
    """``member`` is the person: for a task token the one behind the task, for a runtime nobody."""

    member: Member | None
    workspace: Workspace
    agent_id: UUID | None = None
    task_id: UUID | None = None
    runtime_id: UUID | None = None


@router.get("/me")
async def who_am_i(call: InCall) -> Me:
    """The caller and the workspace that the token belongs to."""
    actor = call.actor
    workspace = await members.workspace(call.conn, actor.workspace_id)
    member = None
    if actor.member_id is not None:
        member = Member.of(await members.get(call.conn, actor.workspace_id, actor.member_id))
    return Me(
        member=member,
        workspace=Workspace.of(workspace),
        agent_id=actor.agent_id,
        task_id=actor.task_id,
        runtime_id=actor.runtime_id,
    )
