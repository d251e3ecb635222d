"""A chat's live stream: its messages, where its turns stand, and what they are saying.

Each look is one snapshot of the database, so a turn's reply is never there before the words that
led to it. Only messages carry an id, the number to come back with: what a turn at work has said so
far is said again to who comes back, with the same task and number.
"""

import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from pydantic import BaseModel
from sqlalchemy.ext.asyncio import AsyncConnection
from sse_starlette import ServerSentEvent

from api import streams
from api.chatviews import Chat, Message
from api.streams import Listeners, Right
from domain.chats import ChatStatus, MessageState
from domain.errors import NotFound
from domain.permissions import Actor
from domain.statuses import TaskStatus
from store import chats, messages, taskviews, transcripts
from store.database import Database
from store.rows import AnyRow
from store.taskviews import Standing, WaitReason

#: A message may be long.
MESSAGES_A_LOOK = 100


class TurnStatus(BaseModel):
    """The data of a ``task`` event."""

    task_id: UUID
    status: TaskStatus
    reason: str | None
    wait_reason: WaitReason | None

    @classmethod
    def of(cls, standing: Standing) -> "TurnStatus":
        return cls(**{name: getattr(standing, name) for name in cls.model_fields})


@dataclass(frozen=True)
class Look:
    """The chat at one moment, as far as its reader has not been told yet."""

    chat: AnyRow
    messages: list[AnyRow]
    standings: list[Standing]
    texts: list[AnyRow]

    @property
    def all_texts(self) -> bool:
        return len(self.texts) < streams.CHAPTER_EVENTS

    @property
    def complete(self) -> bool:
        """There is no more to read at this moment."""
        return self.all_texts and len(self.messages) < MESSAGES_A_LOOK

    @property
    def at_rest(self) -> bool:
        """Archived, and its last turn has ended: nothing can come any more."""
        ended = all(standing.status.terminal for standing in self.standings)
        return self.chat.status == ChatStatus.ARCHIVED and ended


@dataclass
class Told:
    """What one reader knows: the last message's number, and of each turn at work what it said."""

    after: int
    chat: Chat | None = None
    turns: dict[UUID, TurnStatus] = field(default_factory=dict)
    heard: dict[UUID, int] = field(default_factory=dict)

    async def look(self, conn: AsyncConnection, actor: Actor, chat_id: UUID) -> Look:
        """Raises `NotFound` once the caller can't read the chat any more."""
        chat = await chats.get(conn, actor, chat_id)
        standings = await taskviews.standings(conn, actor, chat_id, self.turns)
        heard = {one.task_id: self.heard.get(one.task_id, 0) for one in standings if one.last_seq}
        return Look(
            chat,
            list(await messages.news(conn, chat_id, self.after, MESSAGES_A_LOOK)),
            standings,
            list(await transcripts.texts(conn, heard, streams.CHAPTER_EVENTS)),
        )

    def tell(self, look: Look) -> Iterator[ServerSentEvent]:
        """The news, in the order in which they make sense."""
        yield from self._chat(look)
        yield from self._turns([one for one in look.standings if not one.status.terminal])
        yield from self._texts(look)
        if not look.all_texts:
            return
        for row in look.messages:
            yield _message(row)
            self.after = row.seq
        if look.complete:
            yield from self._turns([one for one in look.standings if one.status.terminal])

    def _chat(self, look: Look) -> Iterator[ServerSentEvent]:
        chat = Chat.of(look.chat)
        if chat != self.chat:
            self.chat = chat
            yield ServerSentEvent(event="chat", data=chat.model_dump_json())

    def _turns(self, standings: list[Standing]) -> Iterator[ServerSentEvent]:
        for standing in standings:
            status = TurnStatus.of(standing)
            if self.turns.get(status.task_id) != status:
                yield ServerSentEvent(event="task", data=status.model_dump_json())
            if status.status.terminal:
                self.turns.pop(status.task_id, None)
                self.heard.pop(status.task_id, None)
            else:
                self.turns[status.task_id] = status

    def _texts(self, look: Look) -> Iterator[ServerSentEvent]:
        for row in look.texts:
            self.heard[row.task_id] = row.seq
            data = {"task_id": str(row.task_id), "seq": row.seq, "text": row.text}
            yield ServerSentEvent(event="text", data=json.dumps(data))
        if look.all_texts:
            # What lies between two texts need not be looked through again.
            self.heard.update({one.task_id: one.last_seq for one in look.standings if one.last_seq})


async def follow(
    database: Database, listeners: Listeners, right: Right, chat_id: UUID, after: int
) -> AsyncIterator[ServerSentEvent]:
    """Every message above ``after`` and what the chat's turns are at, then what comes.

    Ends with ``end`` when the chat was deleted, or is archived and its last turn has ended.
    """
    told = Told(after)
    yield streams.beginning()
    with listeners.subscribe(chat_id) as subscription:
        while True:
            subscription.wake.clear()
            try:
                async with database.snapshot() as conn:
                    look = await told.look(conn, right.actor, chat_id)
            except NotFound:
                if await _was_deleted(database, right.actor, chat_id):
                    yield _end("deleted")
                return
            if not await right.stands():
                return
            for event in told.tell(look):
                yield event
            if subscription.follow({chat_id, *told.turns}) or not look.complete:
                continue
            if look.at_rest:
                yield _end(ChatStatus.ARCHIVED)
                return
            await subscription.wait()


async def _was_deleted(database: Database, actor: Actor, chat_id: UUID) -> bool:
    async with database.begin() as conn:
        return await chats.was_deleted(conn, actor, chat_id)


def _message(row: AnyRow) -> ServerSentEvent:
    if row.state == MessageState.SHOWN:
        return _numbered(row, "message", Message.of(row).model_dump_json())
    data: dict[str, Any] = {"id": str(row.id), "seq": row.seq, "state": row.state, "content": row.content}
    return _numbered(row, "removed", json.dumps(data))


def _numbered(row: AnyRow, event: str, data: str) -> ServerSentEvent:
    return ServerSentEvent(id=str(row.seq), event=event, data=data)


def _end(status: str) -> ServerSentEvent:
    """Without an id, as the end of a task's stream."""
    return ServerSentEvent(event="end", data=json.dumps({"status": status}))
