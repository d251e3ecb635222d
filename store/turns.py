"""A chat's turns: sent, queued, edited, taken back and put first, until an attempt takes them up.

Locks are taken in the order chat row, task rows, lane row, lease lock.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from sqlalchemy import Row, bindparam, exists, select, text, update
from sqlalchemy.ext.asyncio import AsyncConnection

from domain.chats import (
    DEFAULT_TITLE,
    NEW_CONTEXT,
    MessageKind,
    MessageRole,
    MessageState,
    Part,
    title_of,
)
from domain.errors import AlreadyStarted, Conflict, NotFound, TaskNotTerminal
from domain.permissions import Actor
from domain.pointer import PointerMode
from domain.statuses import LeaseKind, TaskKind, TaskStatus
from domain.steps import Turn, TurnMessage
from store import chats, leases, messages, outbox, taskqueue, tasks
from store.models import Agent, Chat, Lane, Lease, Message, Runtime, Task
from store.rows import AnyRow
from store.stopping import lock_all
from store.taskqueue import LanePlace, Runner
from store.taskstates import is_open, not_started

_MOST_QUEUED = 1000
#: What a new context's notice says; the person wrote nothing that is kept.
_NEW_CONTEXT_TEXT = "A new conversation begins here. The agent knows nothing of what is above."
_STARTED = "The turn has started, or has ended: it can't be changed any more."


@dataclass(frozen=True)
class Sent:
    """A message that was taken; without a task it was a command."""

    message_id: UUID
    task_id: UUID | None
    queued: bool


async def send(conn: AsyncConnection, actor: Actor, chat_id: UUID, content: str) -> Sent:
    """Queue the message's own turn; `NEW_CONTEXT` alone begins a new context instead.

    Raises `NotFound`, `InvocationNotAllowed`, `InvalidInput`, `ChatArchived`.
    """
    chat = await _ready(conn, actor, chat_id)
    if content.strip() == NEW_CONTEXT:
        return await _begin_context(conn, chat)
    place = await _next_place(conn, chat)
    message = await messages.write(
        conn, chat.id, messages.Draft(MessageRole.USER, content, place.position, Part.QUESTION)
    )
    columns = {"trigger_type": "message", "trigger_message_id": message.id}
    task_id = await _queue(conn, actor, chat, place, columns)
    await conn.execute(update(Message).where(Message.id == message.id).values(task_id=task_id))
    if place.position == 1 and chat.title == DEFAULT_TITLE:
        await chats.set_title(conn, chat.id, title_of(content))
    return Sent(message.id, task_id, await _has_earlier(conn, place))


async def retry(conn: AsyncConnection, actor: Actor, source: AnyRow) -> UUID:
    """Queue a new turn that goes on from this ended one's own pointer, with its own message.

    Raises as `send` does, and `TaskNotTerminal`, `Conflict`.
    """
    chat = await _ready(conn, actor, source.chat_id, hidden="There is no such task.")
    if not TaskStatus(source.status).terminal:
        raise TaskNotTerminal("The task has not ended; cancel it first, or wait for it.")
    question = await conn.scalar(select(Message.state).where(Message.id == source.trigger_message_id))
    if question != MessageState.SHOWN:
        raise Conflict("The turn's message was taken back before it started; send it again.")
    place = await _next_place(conn, chat)
    return await _queue(
        conn,
        actor,
        chat,
        LanePlace(place.lane_id, place.position, source.context),
        {
            "trigger_type": "retry",
            "trigger_message_id": source.trigger_message_id,
            "pointer_mode": PointerMode.TASK,
            "rerun_of_task_id": source.id,
        },
    )


async def _ready(
    conn: AsyncConnection, actor: Actor, chat_id: UUID, *, hidden: str | None = None
) -> Row[Any]:
    """The locked chat, if a turn may be queued in it: permission first, then what is unusable."""
    try:
        chat = await chats.lock(conn, actor, chat_id)
    except NotFound as error:
        raise NotFound(hidden or str(error)) from None
    chats.check_invoke(actor, chat.agent_id, chat)
    taskqueue.check_ready(chat.agent_archived_at, chat.runs_on)
    chats.check_active(chat)
    return chat


_NEXT_PLACE = (
    update(Lane)
    .where(Lane.id == bindparam("lane"))
    .values(last_position=Lane.last_position + 1)
    .returning(Lane.last_position, Lane.context)
)


async def _next_place(conn: AsyncConnection, chat: AnyRow) -> LanePlace:
    row = (await conn.execute(_NEXT_PLACE, {"lane": chat.lane_id})).one()
    return LanePlace(chat.lane_id, row.last_position, row.context)


async def _queue(
    conn: AsyncConnection, actor: Actor, chat: AnyRow, place: LanePlace, columns: dict[str, Any]
) -> UUID:
    task_id = await taskqueue.insert_task(
        conn,
        kind=TaskKind.CHAT,
        agent=Runner(chat.agent_id, chat.workspace_id, chat.runs_on),
        place=place,
        columns={"chat_id": chat.id, "originator_id": actor.member_id, **columns},
    )
    await outbox.put(
        conn,
        workspace_id=chat.workspace_id,
        kind=outbox.OutboxKind.TURN,
        subject_id=task_id,
        payload=_payload(chat, task_id, columns["trigger_type"]),
    )
    return task_id


async def _has_earlier(conn: AsyncConnection, place: LanePlace) -> bool:
    earlier = exists().where(Task.lane_id == place.lane_id, Task.lane_position < place.position, is_open())
    return bool(await conn.scalar(select(earlier)))


async def _begin_context(conn: AsyncConnection, chat: AnyRow) -> Sent:
    rows = await conn.execute(
        update(Lane)
        .where(Lane.id == chat.lane_id)
        .values(context=Lane.context + 1)
        .returning(Lane.last_position)
    )
    notice = await messages.write(
        conn,
        chat.id,
        messages.Draft(
            MessageRole.SYSTEM,
            _NEW_CONTEXT_TEXT,
            rows.scalar_one(),
            Part.AFTER,
            kind=MessageKind.NOTICE,
            reason="new_context",
        ),
    )
    return Sent(notice.id, None, queued=False)


# --- what Temporal is told ------------------------------------------------------------------------


def _payload(chat: AnyRow, task_id: UUID, trigger: str) -> dict[str, Any]:
    """Names only: what people write never enters a history."""
    chat_input = chats.workflow_input(chat)
    turn = Turn(
        task_id=task_id,
        summary=f"{chat.agent_name} in a chat ({trigger})",
        search_attributes={**chat_input.search_attributes, "SegueTrigger": trigger},
    )
    return TurnMessage(chat=chat_input, turn=turn).model_dump(mode="json")


_CHAT_OF_TASK = (
    select(
        Chat.__table__,
        Task.trigger_type,
        Agent.name.label("agent_name"),
        Runtime.name.label("runtime_name"),
    )
    .select_from(Task)
    .join(Chat, Chat.id == Task.chat_id)
    .join(Agent, Agent.id == Task.agent_id)
    .join(Runtime, Runtime.id == Task.runtime_id)
    .where(Task.id == bindparam("wanted"))
)


async def outbox_payload(conn: AsyncConnection, task_id: UUID) -> dict[str, Any]:
    """The payload of a chat task's TURN row, made again from the tables."""
    chat = (await conn.execute(_CHAT_OF_TASK, {"wanted": task_id})).one()
    return _payload(chat, task_id, chat.trigger_type)


# --- the queue ------------------------------------------------------------------------------------

_QUEUE: Any = (
    select(Task.id.label("task_id"), Task.created_at, Task.trigger_message_id, Message.content)
    .join(Message, Message.id == Task.trigger_message_id)
    .join(Lane, Lane.id == Task.lane_id)
    .where(Lane.chat_id == bindparam("chat"), Lane.kind == "chat", not_started())
    .order_by(Task.lane_position)
    .limit(_MOST_QUEUED)
)


async def queue(conn: AsyncConnection, actor: Actor, chat_id: UUID) -> Sequence[Row[Any]]:
    """The turns that nothing has started yet, in their order. Raises `NotFound`."""
    await chats.check_visible(conn, actor, chat_id)
    rows: Sequence[Row[Any]] = (await conn.execute(_QUEUE, {"chat": chat_id})).all()
    return rows


async def edit(conn: AsyncConnection, actor: Actor, chat_id: UUID, task_id: UUID, content: str) -> Row[Any]:
    """Change a waiting turn's words. Raises as `send`, and `AlreadyStarted`."""
    await _changeable(conn, actor, chat_id)
    task = await _waiting(conn, chat_id, task_id)
    return await messages.change(conn, task.trigger_message_id, content=content)


async def remove(conn: AsyncConnection, actor: Actor, chat_id: UUID, task_id: UUID) -> str:
    """Take a waiting turn out of the queue; its words come back. Raises as `edit`."""
    await _changeable(conn, actor, chat_id)
    task = await _waiting(conn, chat_id, task_id)
    message = await messages.change(conn, task.trigger_message_id, state=MessageState.REMOVED)
    await tasks.stop(conn, task)
    content: str = message.content
    return content


async def _changeable(conn: AsyncConnection, actor: Actor, chat_id: UUID) -> Row[Any]:
    chat = await chats.lock(conn, actor, chat_id)
    chats.check_invoke(actor, chat.agent_id, chat)
    chats.check_active(chat)
    return chat


async def _waiting(conn: AsyncConnection, chat_id: UUID, task_id: UUID) -> Row[Any]:
    """The locked task of a turn of which no attempt was dispatched. A retry has no words of its own."""
    task = await tasks.lock(conn, task_id)
    if task is None or task.chat_id != chat_id:
        raise NotFound("There is no such turn in this chat.")
    if not _is_waiting(task):
        raise AlreadyStarted(_STARTED)
    if task.rerun_of_task_id is not None:
        raise Conflict("A retry reads the message of the turn that it repeats; cancel its task instead.")
    return task


def _is_waiting(task: AnyRow) -> bool:
    return task.attempt == 0 and not TaskStatus(task.status).terminal and task.cancel_requested_at is None


async def send_now(conn: AsyncConnection, actor: Actor, chat_id: UUID, task_id: UUID) -> None:
    """Put a waiting turn before all others that wait. Raises as `edit`."""
    chat = await _changeable(conn, actor, chat_id)
    rows = await conn.scalars(select(Task.id).where(Task.lane_id == chat.lane_id, not_started()))
    locked = await lock_all(conn, {*rows, task_id})
    if not any(task.id == task_id and task.chat_id == chat_id for task in locked):
        raise NotFound("There is no such turn in this chat.")
    await conn.execute(select(Lane.id).where(Lane.id == chat.lane_id).with_for_update(key_share=True))
    await leases.lock(conn, chat.workspace_id)
    waiting = await _not_granted(conn, [task for task in locked if _is_waiting(task)])
    chosen = next((task for task in waiting if task.id == task_id), None)
    if chosen is None:
        raise AlreadyStarted(_STARTED)
    await _reorder(conn, [chosen, *(task for task in waiting if task.id != task_id)])
    await leases.reconsider(conn, [task.id for task in waiting])


async def _not_granted(conn: AsyncConnection, waiting: Sequence[AnyRow]) -> list[AnyRow]:
    """Those that don't hold the lane yet, in their order. The caller holds the lease lock."""
    rows = await conn.scalars(
        select(Lease.task_id).where(
            Lease.kind == LeaseKind.LANE, Lease.task_id.in_([task.id for task in waiting])
        )
    )
    granted = set(rows)
    left = [task for task in waiting if task.id not in granted]
    return sorted(left, key=lambda task: int(task.lane_position))


# Two steps, since a unique index is checked row by row: the places are free before they are taken.
_VACATE = text("update tasks set lane_position = -lane_position where id = any(:ids)")
_TAKE = text(
    """
    update tasks set lane_position = wanted.position
    from unnest(cast(:ids as uuid[]), cast(:positions as bigint[])) as wanted (id, position)
    where tasks.id = wanted.id
    """
)


async def _reorder(conn: AsyncConnection, ordered: Sequence[AnyRow]) -> None:
    places = sorted(task.lane_position for task in ordered)
    moved = [
        (task, place) for task, place in zip(ordered, places, strict=True) if task.lane_position != place
    ]
    if not moved:
        return
    ids = [task.id for task, _ in moved]
    await conn.execute(_VACATE, {"ids": ids})
    await conn.execute(_TAKE, {"ids": ids, "positions": [place for _, place in moved]})
    for task, place in moved:
        if task.rerun_of_task_id is None:
            await messages.change(conn, task.trigger_message_id, turn=place)


# --- drafts ---------------------------------------------------------------------------------------


async def drafts(conn: AsyncConnection, actor: Actor, chat_id: UUID) -> Sequence[Row[Any]]:
    """The words of turns that were cancelled before they started, newest first. Raises `NotFound`."""
    await chats.check_visible(conn, actor, chat_id)
    rows = await conn.execute(
        select(Message.__table__)
        .where(Message.chat_id == chat_id, Message.state == MessageState.DRAFT)
        .order_by(Message.seq.desc())
        .limit(_MOST_QUEUED)
    )
    return rows.all()


async def discard_draft(conn: AsyncConnection, actor: Actor, chat_id: UUID, message_id: UUID) -> None:
    """Forget a draft. Raises `NotFound`."""
    await chats.check_visible(conn, actor, chat_id)
    found = await conn.scalar(
        select(Message.id)
        .where(Message.id == message_id, Message.chat_id == chat_id, Message.state == MessageState.DRAFT)
        .with_for_update(key_share=True)
    )
    if found is None:
        raise NotFound("There is no such draft in this chat.")
    await messages.change(conn, message_id, state=MessageState.REMOVED)
