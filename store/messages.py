"""Messages of a chat: written under its lane's lock, read in the order of the turns.

A chat has one lane, made with it. Writers lock the lane's row, so numbers are taken in the order in
which they become visible, and a reader who goes on from the last number misses nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from sqlalchemy import Row, and_, func, select, text, tuple_
from sqlalchemy.ext.asyncio import AsyncConnection

from domain.chats import MessageKind, MessageRole, MessageState, Part
from domain.names import EVENTS_CHANNEL
from store.ids import new_id
from store.models import Message, Task
from store.rows import AnyRow
from store.taskstates import not_started

#: Where a page of messages begins: after this (turn, part, seq).
Place = tuple[int, int, int]


@dataclass(frozen=True)
class Draft:
    """A message that is to be written at ``part`` of ``turn`` (its task's lane position)."""

    role: MessageRole
    content: str
    turn: int
    part: Part
    kind: MessageKind = MessageKind.MESSAGE
    reason: str | None = None
    task_id: UUID | None = None


_WRITE = text(
    """
    with numbered as (
        update lanes set message_seq = message_seq + 1
        where kind = 'chat' and chat_id = :chat_id
        returning workspace_id, message_seq
    ), written as (
        insert into messages
            (id, workspace_id, chat_id, seq, turn, part, role, kind, reason, content, task_id)
        select :id, workspace_id, :chat_id, message_seq, :turn, :part, :role, :kind, :reason, :content,
               :task_id
        from numbered
        returning *
    )
    select written.*, pg_notify(:channel, cast(chat_id as text)) from written
    """
)


async def write(conn: AsyncConnection, chat_id: UUID, draft: Draft) -> Row[Any]:
    """Write one message and tell the chat's readers. The caller holds the task's row if there is one."""
    rows = await conn.execute(
        _WRITE,
        {
            "id": new_id(),
            "chat_id": chat_id,
            "turn": draft.turn,
            "part": draft.part,
            "role": draft.role,
            "kind": draft.kind,
            "reason": draft.reason,
            "content": draft.content,
            "task_id": draft.task_id,
            "channel": EVENTS_CHANNEL,
        },
    )
    return rows.one()


@dataclass(frozen=True)
class Verdict:
    """What became of a turn, as its reply says it."""

    kind: MessageKind
    reason: str | None


# The newest number for what changed: readers that are past the old one see it again.
_CHANGE = text(
    """
    with numbered as (
        update lanes set message_seq = message_seq + 1
        where kind = 'chat' and chat_id = (select chat_id from messages where id = :id)
        returning message_seq
    ), changed as (
        update messages set seq = numbered.message_seq, content = coalesce(:content, content),
               state = coalesce(:state, state), turn = coalesce(cast(:turn as bigint), turn),
               kind = coalesce(:kind, kind),
               reason = case when cast(:kind as text) is null then reason else :reason end
        from numbered where messages.id = :id
        returning messages.*
    )
    select changed.*, pg_notify(:channel, cast(chat_id as text)) from changed
    """
)


async def change(
    conn: AsyncConnection,
    message_id: UUID,
    *,
    content: str | None = None,
    state: MessageState | None = None,
    turn: int | None = None,
    verdict: Verdict | None = None,
) -> Row[Any]:
    """Change what is given, and tell the chat's readers."""
    rows = await conn.execute(
        _CHANGE,
        {
            "id": message_id,
            "content": content,
            "state": state,
            "turn": turn,
            "kind": verdict.kind if verdict else None,
            "reason": verdict.reason if verdict else None,
            "channel": EVENTS_CHANNEL,
        },
    )
    return rows.one()


#: ``queued``: a question whose turn nothing has started yet.
_VIEW = select(
    *Message.__table__.c,
    and_(Message.role == MessageRole.USER, func.coalesce(not_started(), False)).label("queued"),
).outerjoin(Task, Task.id == Message.task_id)
_SHOWN = _VIEW.where(Message.state == MessageState.SHOWN)


async def page(conn: AsyncConnection, chat_id: UUID, after: Place | None, limit: int) -> Sequence[AnyRow]:
    """Up to ``limit`` shown messages after a place, oldest first. The caller has checked the right to."""
    query = _SHOWN.where(Message.chat_id == chat_id)
    if after is not None:
        query = query.where(tuple_(Message.turn, Message.part, Message.seq) > tuple_(*after))
    rows = await conn.execute(query.order_by(Message.turn, Message.part, Message.seq).limit(limit))
    return rows.all()


async def last(conn: AsyncConnection, chat_id: UUID, count: int) -> Sequence[AnyRow]:
    """The last ``count`` shown messages in the order of reading."""
    query = _SHOWN.where(Message.chat_id == chat_id)
    newest = query.order_by(Message.turn.desc(), Message.part.desc(), Message.seq.desc()).limit(count)
    return list(reversed((await conn.execute(newest)).all()))


async def news(conn: AsyncConnection, chat_id: UUID, after: int, limit: int) -> Sequence[AnyRow]:
    """What was written or changed above number ``after``, in that order; removed ones and drafts too."""
    rows = await conn.execute(
        _VIEW.where(Message.chat_id == chat_id, Message.seq > after).order_by(Message.seq).limit(limit)
    )
    return rows.all()
