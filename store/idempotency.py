"""Stored answers of creating calls, one a caller and Idempotency-Key.

The call and its answer are one transaction, and a transaction lock stands for "in flight": a call
that crashed leaves neither an answer nor a lock, so its repetition simply runs.
"""

import hashlib
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from sqlalchemy import func, select, text
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from domain.errors import IdempotencyInFlight, UnprocessableInput
from store.models import IdempotencyKey

#: How long an answer can be had again.
KEPT = timedelta(hours=24)

_LOCK = text("select pg_try_advisory_xact_lock(:key)")


@dataclass(frozen=True)
class Answer:
    status: int
    body: bytes


def fingerprint(method: str, path: str, body: bytes) -> bytes:
    """What makes two calls the same one."""
    return hashlib.sha256(b"\0".join((method.encode(), path.encode(), body))).digest()


async def earlier_answer(
    conn: AsyncConnection, token_id: UUID, key: str, fingerprinted: bytes
) -> Answer | None:
    """The answer given before, or None: then this call has the key until its transaction ends.

    Raises `IdempotencyInFlight`, and `UnprocessableInput` if the key was used for another call.
    """
    if not await conn.scalar(_LOCK, {"key": _lock_number(token_id, key)}):
        raise IdempotencyInFlight("A call with this Idempotency-Key is being served; repeat it in a moment.")
    rows = await conn.execute(
        select(IdempotencyKey.fingerprint, IdempotencyKey.status, IdempotencyKey.body).where(
            IdempotencyKey.token_id == token_id,
            IdempotencyKey.key == key,
            IdempotencyKey.created_at > func.now() - KEPT,
        )
    )
    row = rows.one_or_none()
    if row is None:
        return None
    if row.fingerprint != fingerprinted:
        raise UnprocessableInput("This Idempotency-Key was used for another request; take a new one.")
    return Answer(row.status, row.body)


async def keep(conn: AsyncConnection, token_id: UUID, key: str, fingerprinted: bytes, answer: Answer) -> None:
    """Store the answer of the call that has the key; an expired one is replaced."""
    row = insert(IdempotencyKey).values(
        token_id=token_id, key=key, fingerprint=fingerprinted, status=answer.status, body=answer.body
    )
    await conn.execute(
        row.on_conflict_do_update(
            index_elements=[IdempotencyKey.token_id, IdempotencyKey.key],
            set_={
                "fingerprint": row.excluded.fingerprint,
                "status": row.excluded.status,
                "body": row.excluded.body,
                "created_at": func.now(),
            },
        )
    )


def _lock_number(token_id: UUID, key: str) -> int:
    digest = hashlib.sha256(token_id.bytes + key.encode()).digest()
    return int.from_bytes(digest[:8], signed=True)
