"""Workspaces and the people in them."""

import re
from typing import Any
from uuid import UUID

from sqlalchemy import Row, insert, select
from sqlalchemy.ext.asyncio import AsyncConnection

from domain.errors import NotFound
from domain.statuses import Role
from store.constraints import refused_as
from store.ids import new_id
from store.models import Member, Workspace
from store.pages import Page, newest_first

_TAKEN = {
    "uq_workspaces_slug": "There is a workspace with this slug already.",
    "uq_members_workspace_id_email": "This workspace has a member with this e-mail address already.",
}


async def create_workspace(
    conn: AsyncConnection, *, name: str, issue_prefix: str, slug: str | None = None
) -> UUID:
    """A new workspace. Raises `Conflict` if its slug (made of the name if not given) is taken."""
    workspace_id = new_id()
    with refused_as(_TAKEN):
        await conn.execute(
            insert(Workspace).values(
                id=workspace_id,
                name=name,
                slug=slug or _slug(name) or str(workspace_id),
                issue_prefix=issue_prefix.upper(),
            )
        )
    return workspace_id


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


async def add_member(
    conn: AsyncConnection, *, workspace_id: UUID, name: str, email: str, role: Role = Role.MEMBER
) -> UUID:
    """A new member. Raises `Conflict` if the e-mail address is taken."""
    member_id = new_id()
    with refused_as(_TAKEN):
        await conn.execute(
            insert(Member).values(
                id=member_id, workspace_id=workspace_id, name=name, email=email.lower(), role=role
            )
        )
    return member_id


async def get(conn: AsyncConnection, workspace_id: UUID, member_id: UUID) -> Row[Any]:
    """One member. Raises `NotFound`."""
    query = select(*_COLUMNS).where(Member.id == member_id, Member.workspace_id == workspace_id)
    row = (await conn.execute(query)).one_or_none()
    if row is None:
        raise NotFound("There is no such member in this workspace.")
    return row


async def page(conn: AsyncConnection, workspace_id: UUID, part: Page) -> list[Row[Any]]:
    query = select(*_COLUMNS).where(Member.workspace_id == workspace_id)
    return list(await conn.execute(newest_first(query, Member, part)))


async def workspace(conn: AsyncConnection, workspace_id: UUID) -> Row[Any]:
    query = select(*Workspace.__table__.c).where(Workspace.id == workspace_id)
    return (await conn.execute(query)).one()


async def all_in(conn: AsyncConnection, workspace_id: UUID, member_ids: list[UUID]) -> bool:
    """Are all of these members of the workspace?"""
    query = select(Member.id).where(Member.workspace_id == workspace_id, Member.id.in_(member_ids))
    return set(member_ids) == set(await conn.scalars(query))


_COLUMNS = tuple(Member.__table__.c)
