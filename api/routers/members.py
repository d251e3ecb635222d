"""The people of a workspace, and their tokens."""

from datetime import datetime
from typing import Any
from uuid import UUID

from fastapi import APIRouter, Response
from pydantic import BaseModel
from sqlalchemy import Row

from api import auth, pagination
from api.fields import Body, Email, FutureTime, Name
from api.pagination import Listing, Paging
from api.units import Call, InCall, PeopleRoute
from domain.errors import NotAllowed
from domain.statuses import Role
from store import members, tokens

router = APIRouter(prefix="/members", tags=["members"], route_class=PeopleRoute)


class Member(BaseModel):
    id: UUID
    name: str
    email: str
    role: Role
    created_at: datetime

    @classmethod
    def of(cls, row: Row[Any]) -> "Member":
        return cls(id=row.id, name=row.name, email=row.email, role=row.role, created_at=row.created_at)


class NewMember(Body):
    name: Name
    email: Email
    role: Role = Role.MEMBER


class NewToken(Body):
    name: Name | None = None
    expires_at: FutureTime | None = None


class CreatedToken(BaseModel):
    """``token`` is shown this once; only its hash is stored."""

    id: UUID
    token: str


class Token(BaseModel):
    id: UUID
    name: str | None
    created_at: datetime
    expires_at: datetime | None


@router.get("")
async def list_members(call: InCall, page: Paging) -> Listing[Member]:
    """Everybody in the workspace."""
    rows = await members.page(call.conn, call.actor.workspace_id, page)
    return pagination.listing(page, rows, Member.of)


@router.post("", status_code=201)
async def add_member(call: InCall, body: NewMember) -> Member:
    """Add a person. Owners and admins only; an owner is made by an owner."""
    auth.require_admin(call.actor)
    _check_rank(call, body.role)
    member_id = await members.add_member(
        call.conn, workspace_id=call.actor.workspace_id, name=body.name, email=body.email, role=body.role
    )
    return Member.of(await members.get(call.conn, call.actor.workspace_id, member_id))


@router.get("/{member_id}/tokens")
async def list_tokens(call: InCall, member_id: UUID) -> Listing[Token]:
    """The tokens of a member, without the secrets."""
    await _managed(call, member_id)
    rows = await tokens.member_tokens(call.conn, call.actor.workspace_id, member_id)
    items = [
        Token(id=row.id, name=row.name, created_at=row.created_at, expires_at=row.expires_at) for row in rows
    ]
    return Listing(items=items)


@router.post("/{member_id}/tokens", status_code=201)
async def create_token(call: InCall, member_id: UUID, body: NewToken | None = None) -> CreatedToken:
    """A new token of a member: for themselves, or by owners and admins."""
    await _managed(call, member_id)
    wanted = body or NewToken()
    token_id, token = await tokens.create_member_token(
        call.conn,
        workspace_id=call.actor.workspace_id,
        member_id=member_id,
        name=wanted.name,
        expires_at=wanted.expires_at,
    )
    return CreatedToken(id=token_id, token=token)


@router.delete("/{member_id}/tokens/{token_id}", status_code=204)
async def revoke_token(call: InCall, member_id: UUID, token_id: UUID) -> Response:
    """Make a token useless from now on."""
    await _managed(call, member_id)
    await tokens.revoke_member_token(
        call.conn, workspace_id=call.actor.workspace_id, member_id=member_id, token_id=token_id
    )
    return Response(status_code=204)


async def _managed(call: Call, member_id: UUID) -> None:
    """May the caller deal with this member's tokens?"""
    auth.require_member(call.actor)
    row = await members.get(call.conn, call.actor.workspace_id, member_id)
    if member_id == call.actor.member_id:
        return
    auth.require_admin(call.actor)
    _check_rank(call, Role(row.role))


def _check_rank(call: Call, role: Role) -> None:
    """An admin who could make or impersonate an owner would be one."""
    if role is Role.OWNER and call.actor.role is not Role.OWNER:
        raise NotAllowed("Only an owner may do this for an owner.")
