"""The outbox: what Temporal must be told, from the causing transaction to the waker.

Rows of one subject go out in the order they were written; a row is deleted when Temporal has
accepted it. A crash between acceptance and deletion sends it twice, which every receiver tolerates.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any
from uuid import UUID

from sqlalchemy import bindparam, delete, func, text, update
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.ext.asyncio import AsyncConnection

from domain.names import OUTBOX_CHANNEL
from store.models import Outbox

#: A claimed row whose sender died is claimed again after this long, in seconds.
CLAIM_SECONDS = 30
_MAX_BACKOFF_SECONDS = 30


class OutboxKind(StrEnum):
    START = "start"
    WAKE = "wake"
    CANCEL = "cancel"
    STOP = "stop"
    #: Start a chat's task through its `ChatWorkflow` (payload: `domain.steps.TurnMessage`).
    TURN = "turn"
    #: Start a chat's workflow without a turn (payload: `domain.steps.ChatInput`).
    CHAT = "chat"
    #: The chat was archived or deleted: its workflow may end.
    CLOSE = "close"


@dataclass(frozen=True)
class OutboxItem:
    id: int
    kind: OutboxKind
    subject_id: UUID
    payload: dict[str, Any]
    tries: int


_PUT = text(
    """
    with put as (
        insert into outbox (workspace_id, kind, subject_id, payload)
        values (:workspace_id, :kind, :subject_id, :payload) returning id
    )
    select pg_notify(:channel, '') from put
    """
).bindparams(bindparam("payload", type_=JSONB))


async def put(
    conn: AsyncConnection,
    *,
    workspace_id: UUID,
    kind: OutboxKind,
    subject_id: UUID,
    payload: dict[str, Any] | None = None,
) -> None:
    """Write one row and notify the waker, which hears of it when the transaction commits."""
    await conn.execute(
        _PUT,
        {
            "workspace_id": workspace_id,
            "kind": kind,
            "subject_id": subject_id,
            "payload": payload or {},
            "channel": OUTBOX_CHANNEL,
        },
    )


_CLAIM = text(
    """
    update outbox set claimed_until = now() + make_interval(secs => :seconds), tries = tries + 1
    where id in (
        select o.id from outbox o
        where (o.claimed_until is null or o.claimed_until < now())
          and not exists (select 1 from outbox p where p.subject_id = o.subject_id and p.id < o.id)
        order by o.id limit :most for update skip locked
    )
    returning id, kind, subject_id, payload, tries
    """
).columns(payload=JSONB)


async def claim(conn: AsyncConnection, most: int) -> list[OutboxItem]:
    """Take up to ``most`` rows to send; another waker leaves them alone for `CLAIM_SECONDS`."""
    rows = await conn.execute(_CLAIM, {"seconds": CLAIM_SECONDS, "most": most})
    return sorted(
        (OutboxItem(r.id, OutboxKind(r.kind), r.subject_id, r.payload, r.tries) for r in rows),
        key=lambda item: item.id,
    )


_SENT = delete(Outbox).where(Outbox.id.in_(bindparam("items", expanding=True)))


async def sent(conn: AsyncConnection, item_ids: list[int]) -> None:
    await conn.execute(_SENT, {"items": item_ids})


async def failed(conn: AsyncConnection, item: OutboxItem, error: str) -> None:
    """Leave the row for a later try, after a pause that grows with the tries."""
    pause = min(2**item.tries, _MAX_BACKOFF_SECONDS)
    await conn.execute(
        update(Outbox)
        .where(Outbox.id == bindparam("item_id"))
        .values(claimed_until=func.now() + func.make_interval(0, 0, 0, 0, 0, 0, pause), last_error=error),
        {"item_id": item.id},
    )
