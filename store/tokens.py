"""Bearer tokens: made, hashed, and turned into the caller they stand for.

``sgu_`` belongs to a member, ``sgr_`` to a runtime, ``sgt_`` to one attempt of a task. Only SHA-256
hashes are stored: the tokens are 256 random bits, so a slow hash would protect nothing.
"""

import base64
import hashlib
import hmac
import secrets
from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import Row, bindparam, func, insert, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from domain.errors import NotFound, Unauthenticated
from domain.permissions import Actor
from domain.statuses import Role
from store.ids import new_id
from store.models import Attempt, Member, Runtime, Task, Token

MEMBER_PREFIX = "sgu_"
RUNTIME_PREFIX = "sgr_"
TASK_PREFIX = "sgt_"

_ALL_PREFIXES = (MEMBER_PREFIX, RUNTIME_PREFIX, TASK_PREFIX)
_BYTES = 32
_LONGEST = 200


def mint(prefix: str) -> str:
    """A new random token."""
    return prefix + secrets.token_urlsafe(_BYTES)


def hash_token(token: str) -> bytes:
    return hashlib.sha256(token.encode(errors="replace")).digest()


def task_token(secret_key: bytes, attempt_id: UUID) -> str:
    """The token of an attempt: derived, so that asking twice gives the same and nothing is kept."""
    digest = hmac.digest(secret_key, b"segue.task-token:" + attempt_id.bytes, "sha256")
    return TASK_PREFIX + base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


async def create_member_token(
    conn: AsyncConnection,
    *,
    workspace_id: UUID,
    member_id: UUID,
    name: str | None = None,
    expires_at: datetime | None = None,
) -> tuple[UUID, str]:
    """A new token of a member: its id, and the token itself, which is shown only now."""
    return await _create(
        conn, MEMBER_PREFIX, workspace_id=workspace_id, member_id=member_id, name=name, expires_at=expires_at
    )


async def create_runtime_token(
    conn: AsyncConnection, *, workspace_id: UUID, runtime_id: UUID, name: str | None = None
) -> tuple[UUID, str]:
    """A new token of a runtime: its id, and the token itself, which is shown only now."""
    return await _create(conn, RUNTIME_PREFIX, workspace_id=workspace_id, runtime_id=runtime_id, name=name)


async def _create(conn: AsyncConnection, prefix: str, **values: Any) -> tuple[UUID, str]:
    token_id, token = new_id(), mint(prefix)
    await conn.execute(insert(Token).values(id=token_id, hash=hash_token(token), **values))
    return token_id, token


async def member_tokens(conn: AsyncConnection, workspace_id: UUID, member_id: UUID) -> Sequence[Any]:
    """A member's tokens that were not revoked, newest first; never the tokens themselves."""
    rows = await conn.execute(
        select(Token.id, Token.name, Token.created_at, Token.expires_at)
        .where(Token.workspace_id == workspace_id, Token.member_id == member_id, Token.revoked_at.is_(None))
        .order_by(Token.id.desc())
    )
    return rows.all()


async def revoke_member_token(
    conn: AsyncConnection, *, workspace_id: UUID, member_id: UUID, token_id: UUID
) -> None:
    """Make a token useless from now on. Raises `NotFound`; doing it again is fine."""
    changed = await conn.execute(
        update(Token)
        .where(Token.id == token_id, Token.workspace_id == workspace_id, Token.member_id == member_id)
        .values(revoked_at=func.coalesce(Token.revoked_at, func.now()))
    )
    if changed.rowcount == 0:
        raise NotFound("This member has no such token.")


async def revoke_runtime_tokens(conn: AsyncConnection, runtime_id: UUID) -> None:
    await conn.execute(
        update(Token)
        .where(Token.runtime_id == runtime_id, Token.revoked_at.is_(None))
        .values(revoked_at=func.now())
    )


_CALLER: Any = (  # made once: every request needs it
    select(
        Token.id.label("token_id"),
        Token.workspace_id,
        Token.member_id,
        Token.runtime_id,
        Token.attempt_id,
        Member.role,
        Task.id.label("task_id"),
        Task.agent_id,
        Task.originator_id,
    )
    .outerjoin(Member, Member.id == Token.member_id)
    .outerjoin(Runtime, Runtime.id == Token.runtime_id)
    .outerjoin(Attempt, Attempt.id == Token.attempt_id)
    .outerjoin(Task, Task.id == Attempt.task_id)
    .where(
        Token.hash == bindparam("presented"),
        Token.revoked_at.is_(None),
        or_(Token.expires_at.is_(None), Token.expires_at > func.now()),
        Runtime.deleted_at.is_(None),
        Attempt.ended_at.is_(None),
    )
)


async def authenticate(conn: AsyncConnection, token: str) -> Actor:
    """Who calls with this token. Raises `Unauthenticated`. One statement."""
    if not token.startswith(_ALL_PREFIXES) or len(token) > _LONGEST:
        raise Unauthenticated(_UNKNOWN)
    row = (await conn.execute(_CALLER, {"presented": hash_token(token)})).one_or_none()
    if row is None:
        raise Unauthenticated(_UNKNOWN)
    return _actor(row)


_UNKNOWN = "The token is unknown, expired or revoked."


def _actor(row: Row[Any]) -> Actor:
    if row.attempt_id is None:
        return Actor(
            workspace_id=row.workspace_id,
            member_id=row.member_id,
            role=Role(row.role) if row.role else None,
            runtime_id=row.runtime_id,
            token_id=row.token_id,
        )
    # An agent has the rights of the human behind its task, but never an administrator's.
    return Actor(
        workspace_id=row.workspace_id,
        member_id=row.originator_id,
        role=Role.MEMBER if row.originator_id else None,
        agent_id=row.agent_id,
        task_id=row.task_id,
        attempt_id=row.attempt_id,
        token_id=row.token_id,
    )
