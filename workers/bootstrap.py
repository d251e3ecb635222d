"""The first rows of the embedded stack: a workspace, its owner, a runtime, and their tokens."""

from dataclasses import replace
from uuid import UUID

from sqlalchemy import insert, select
from sqlalchemy.ext.asyncio import AsyncConnection

from domain.errors import Unauthenticated
from domain.permissions import Actor
from domain.statuses import Role
from store import members, tokens
from store.database import Database
from store.ids import new_id
from store.models import Member, Runtime, Workspace
from store.secretbox import SecretBox
from workers import postgres, temporal
from workers.folder import StackFolder, StackRecord

WORKSPACE = "default"
ISSUE_PREFIX = "SEG"
OWNER_NAME = "Owner"
OWNER_EMAIL = "owner@localhost"
RUNTIME = "local"


def with_secret_key(record: StackRecord, folder: StackFolder) -> StackRecord:
    """The record with where its services are; the secret key is made once and kept for good."""
    return replace(
        record,
        secret_key=record.secret_key or SecretBox.new_key(),
        database_url=postgres.url(folder.postgres),
        temporal_namespace=temporal.NAMESPACE,
    )


async def ensure(record: StackRecord, folder: StackFolder) -> StackRecord:
    """Make whatever is missing, and write the record before the rows are committed.

    A crash in between leaves tokens that nobody knows; the next start sees that and makes new ones.
    """
    database = Database(record.database_url, pool_size=1)
    try:
        async with database.begin() as conn:
            complete = await _ensure(conn, record)
            if complete != record:
                folder.write(complete)
            return complete
    finally:
        await database.dispose()


async def _ensure(conn: AsyncConnection, record: StackRecord) -> StackRecord:
    workspace_id = await _workspace(conn)
    member_id = await _owner(conn, workspace_id)
    runtime_id = await _runtime(conn, workspace_id)
    token, runtime_token = record.token, record.runtime_token
    if (await _caller(conn, token)).member_id != member_id:
        _, token = await tokens.create_member_token(
            conn, workspace_id=workspace_id, member_id=member_id, name="segue up"
        )
    if (await _caller(conn, runtime_token)).runtime_id != runtime_id:
        _, runtime_token = await tokens.create_runtime_token(
            conn, workspace_id=workspace_id, runtime_id=runtime_id, name="segue up"
        )
    return replace(
        record,
        workspace_id=str(workspace_id),
        member_id=str(member_id),
        runtime_id=str(runtime_id),
        token=token,
        runtime_token=runtime_token,
    )


async def _workspace(conn: AsyncConnection) -> UUID:
    found = await conn.scalar(select(Workspace.id).where(Workspace.slug == WORKSPACE))
    return found or await members.create_workspace(
        conn, name=WORKSPACE, issue_prefix=ISSUE_PREFIX, slug=WORKSPACE
    )


async def _owner(conn: AsyncConnection, workspace_id: UUID) -> UUID:
    query = select(Member.id).where(Member.workspace_id == workspace_id, Member.role == Role.OWNER)
    found = await conn.scalar(query.order_by(Member.id).limit(1))
    return found or await members.add_member(
        conn, workspace_id=workspace_id, name=OWNER_NAME, email=OWNER_EMAIL, role=Role.OWNER
    )


async def _runtime(conn: AsyncConnection, workspace_id: UUID) -> UUID:
    found = await conn.scalar(
        select(Runtime.id).where(
            Runtime.workspace_id == workspace_id, Runtime.name == RUNTIME, Runtime.deleted_at.is_(None)
        )
    )
    if found is not None:
        return found
    runtime_id = new_id()
    await conn.execute(insert(Runtime).values(id=runtime_id, workspace_id=workspace_id, name=RUNTIME))
    return runtime_id


async def _caller(conn: AsyncConnection, token: str) -> Actor:
    """Who the token stands for; nobody when it is unknown."""
    try:
        return await tokens.authenticate(conn, token)
    except Unauthenticated:
        return Actor(workspace_id=UUID(int=0))
