"""Chats: private conversations of one member with one agent, and who may see them: their creator alone."""

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from sqlalchemy import Row, Select, func, insert, select, text, update
from sqlalchemy.ext.asyncio import AsyncConnection

from domain.chats import DEFAULT_TITLE, ChatStatus
from domain.errors import ChatArchived, InvocationNotAllowed, NotFound
from domain.names import EVENTS_CHANNEL
from domain.permissions import Actor, AgentAccess, may_invoke
from domain.statuses import Permission
from domain.steps import ChatInput, ChatSeed
from store import outbox, taskqueue
from store.agents import get as get_agent
from store.ids import new_id
from store.models import Agent, Chat, Lane, Message, Runtime, Task
from store.pages import Page, newest_first
from store.rows import AnyRow
from store.stopping import lock_all, stop_locked
from store.taskstates import is_open
from store.visibility import agent_visible

_GONE = "There is no such chat."

_unread = (
    select(func.count())
    .where(
        Message.chat_id == Chat.id,
        Message.seq > Chat.last_read_seq,
        Message.role == "assistant",
        Message.state == "shown",
        Chat.status == ChatStatus.ACTIVE,
    )
    .correlate(Chat)
    .scalar_subquery()
)
_last_message_at = (
    select(Message.created_at)
    .where(Message.chat_id == Chat.id, Message.state == "shown")
    .order_by(Message.seq.desc())
    .limit(1)
    .correlate(Chat)
    .scalar_subquery()
)
#: A chat with what the people's view adds to its row.
_VIEW: Select[Any] = select(
    *Chat.__table__.c, _unread.label("unread"), _last_message_at.label("last_message_at")
).join(Agent, Agent.id == Chat.agent_id)


@dataclass(frozen=True)
class ChatFilter:
    """What a list of chats is narrowed to; None is everything."""

    agent_id: UUID | None = None
    status: ChatStatus | None = None


def chat_visible(actor: Actor) -> Any:
    """The creator alone, and only as long as the agent is visible to them. The query joins the agent."""
    return (
        (Chat.workspace_id == actor.workspace_id)
        & (Chat.creator_id == actor.member_id)
        & Chat.deleted_at.is_(None)
        & agent_visible(actor)
    )


async def get(conn: AsyncConnection, actor: Actor, chat_id: UUID) -> Row[Any]:
    """A chat of the caller's. Raises `NotFound`."""
    row: Row[Any] | None = (
        await conn.execute(_VIEW.where(Chat.id == chat_id, chat_visible(actor)))
    ).one_or_none()
    if row is None:
        raise NotFound(_GONE)
    return row


async def check_visible(conn: AsyncConnection, actor: Actor, chat_id: UUID) -> None:
    """Raise `NotFound` unless the caller may read the chat."""
    query = select(Chat.id).join(Agent, Agent.id == Chat.agent_id)
    if await conn.scalar(query.where(Chat.id == chat_id, chat_visible(actor))) is None:
        raise NotFound(_GONE)


async def was_deleted(conn: AsyncConnection, actor: Actor, chat_id: UUID) -> bool:
    """Is it a chat of the caller's that they have deleted?"""
    mine = (Chat.id == chat_id) & (Chat.creator_id == actor.member_id)
    return await conn.scalar(select(Chat.id).where(mine, Chat.deleted_at.is_not(None))) is not None


async def page(conn: AsyncConnection, actor: Actor, part: Page, narrowed: ChatFilter) -> list[Row[Any]]:
    """The caller's chats, newest first."""
    query: Select[Any] = _VIEW.where(chat_visible(actor))
    if narrowed.agent_id is not None:
        query = query.where(Chat.agent_id == narrowed.agent_id)
    if narrowed.status is not None:
        query = query.where(Chat.status == narrowed.status)
    return list(await conn.execute(newest_first(query, Chat, part)))


# --- writing --------------------------------------------------------------------------------------


async def create(conn: AsyncConnection, actor: Actor, agent_id: UUID, title: str | None) -> UUID:
    """A new chat with the agent. Raises `NotFound`, `InvocationNotAllowed`, `InvalidInput`."""
    agent = await get_agent(conn, actor, agent_id)
    check_invoke(actor, agent.id, agent)
    taskqueue.check_ready(agent.archived_at, agent.runtime_id)
    return await insert_chat(conn, actor, {"agent_id": agent_id, "title": title or DEFAULT_TITLE})


async def insert_chat(conn: AsyncConnection, actor: Actor, values: dict[str, Any]) -> UUID:
    """The chat's row and its lane's."""
    chat_id = new_id()
    await conn.execute(
        insert(Chat).values(id=chat_id, workspace_id=actor.workspace_id, creator_id=actor.member_id, **values)
    )
    await insert_lane(conn, actor.workspace_id, values["agent_id"], chat_id)
    return chat_id


async def insert_lane(conn: AsyncConnection, workspace_id: UUID, agent_id: UUID, chat_id: UUID) -> UUID:
    """A chat has exactly one lane, made with it."""
    lane_id = new_id()
    await conn.execute(
        insert(Lane).values(
            id=lane_id, workspace_id=workspace_id, kind="chat", agent_id=agent_id, chat_id=chat_id
        )
    )
    return lane_id


def check_invoke(actor: Actor, agent_id: UUID, agent: AnyRow) -> None:
    """Raise `InvocationNotAllowed` unless ``actor`` may start runs of the agent with these columns."""
    access = AgentAccess(
        agent_id, agent.owner_id, Permission(agent.permission), frozenset(agent.allowed_member_ids)
    )
    if not may_invoke(actor, access):
        raise InvocationNotAllowed("You may not start runs of this agent; ask its owner.")


_LOCKED = (
    select(
        Chat.__table__,
        Lane.id.label("lane_id"),
        Agent.name.label("agent_name"),
        Agent.owner_id,
        Agent.permission,
        Agent.allowed_member_ids,
        Agent.archived_at.label("agent_archived_at"),
        func.coalesce(Chat.runtime_id, Agent.runtime_id).label("runs_on"),
        Runtime.name.label("runtime_name"),
    )
    .join(Agent, Agent.id == Chat.agent_id)
    .join(Lane, (Lane.chat_id == Chat.id) & (Lane.kind == "chat"))
    .outerjoin(Runtime, Runtime.id == func.coalesce(Chat.runtime_id, Agent.runtime_id))
    .with_for_update(key_share=True, of=Chat.__table__)
)


async def lock(conn: AsyncConnection, actor: Actor, chat_id: UUID) -> Row[Any]:
    """The caller's chat with its row locked, before any task's. Raises `NotFound`."""
    row: Row[Any] | None = (
        await conn.execute(_LOCKED.where(Chat.id == chat_id, chat_visible(actor)))
    ).one_or_none()
    if row is None:
        raise NotFound(_GONE)
    return row


def check_active(chat: AnyRow) -> None:
    """Raise `ChatArchived` for a chat that can only be read."""
    if chat.status == ChatStatus.ARCHIVED:
        raise ChatArchived("The chat is archived; unarchive it to go on.")


# Its readers hear of the new title or status when the transaction commits.
_TELL = text("select pg_notify(:channel, :chat_id)")


async def tell(conn: AsyncConnection, chat_id: UUID) -> None:
    """Let the chat's readers look again."""
    await conn.execute(_TELL, {"channel": EVENTS_CHANNEL, "chat_id": str(chat_id)})


async def rename(conn: AsyncConnection, actor: Actor, chat_id: UUID, title: str) -> None:
    """Change the title. Raises `NotFound`."""
    await lock(conn, actor, chat_id)
    await set_title(conn, chat_id, title)


async def set_title(conn: AsyncConnection, chat_id: UUID, title: str) -> None:
    await conn.execute(update(Chat).where(Chat.id == chat_id).values(title=title))
    await tell(conn, chat_id)


async def archive(conn: AsyncConnection, actor: Actor, chat_id: UUID) -> None:
    """Make the chat read-only; what is queued or at work goes on to its end. Raises `NotFound`."""
    chat = await lock(conn, actor, chat_id)
    if chat.status == ChatStatus.ARCHIVED:
        return
    await _set_status(conn, chat_id, ChatStatus.ARCHIVED)
    await _close(conn, chat)


async def unarchive(conn: AsyncConnection, actor: Actor, chat_id: UUID) -> None:
    """Let the chat go on. Raises `NotFound`."""
    await lock(conn, actor, chat_id)
    await _set_status(conn, chat_id, ChatStatus.ACTIVE)


async def _set_status(conn: AsyncConnection, chat_id: UUID, status: ChatStatus) -> None:
    await conn.execute(update(Chat).where(Chat.id == chat_id).values(status=status))
    await tell(conn, chat_id)


async def delete(conn: AsyncConnection, actor: Actor, chat_id: UUID) -> None:
    """Take the chat away, and stop what is queued or at work in it. Raises `NotFound`."""
    chat = await lock(conn, actor, chat_id)
    await conn.execute(update(Chat).where(Chat.id == chat_id).values(deleted_at=func.now()))
    open_tasks = await conn.scalars(select(Task.id).where(Task.lane_id == chat.lane_id, is_open()))
    await stop_locked(conn, await lock_all(conn, open_tasks))
    await _close(conn, chat)
    await tell(conn, chat_id)


async def _close(conn: AsyncConnection, chat: AnyRow) -> None:
    await outbox.put(conn, workspace_id=chat.workspace_id, kind=outbox.OutboxKind.CLOSE, subject_id=chat.id)


_READ = text(
    """
    update chats
    set last_read_seq = greatest(
        last_read_seq, least(coalesce(cast(:up_to as bigint), message_seq), message_seq)
    )
    from lanes where chats.id = :chat_id and lanes.chat_id = chats.id and lanes.kind = 'chat'
    """
)


async def mark_read(conn: AsyncConnection, actor: Actor, chat_id: UUID, up_to: int | None) -> None:
    """The creator has seen the messages up to this number, or all there are. Raises `NotFound`."""
    await check_visible(conn, actor, chat_id)
    await conn.execute(_READ, {"chat_id": chat_id, "up_to": up_to})
    await tell(conn, chat_id)


def workflow_input(chat: AnyRow) -> ChatInput:
    """What the chat's workflow is started with: names, no words of the person."""
    seed = None
    if chat.continued_from_task_id is not None:
        seed = ChatSeed(
            source_task_id=chat.continued_from_task_id,
            runtime_id=chat.runtime_id,
            session_carried=bool(chat.session_carried),
            session_reason=chat.session_reason,
            fork=chat.fork,
        )
    names = {
        "SegueChat": str(chat.id),
        "SegueAgent": chat.agent_name,
        "SegueRuntime": chat.runtime_name,
    }
    return ChatInput(
        chat_id=chat.id,
        seed=seed,
        search_attributes={name: value for name, value in names.items() if value},
    )
