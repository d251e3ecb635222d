"""Chats: one member's private conversation with one agent, its messages and its queue."""

import base64
import binascii
import json
from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Query, Request, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel, Field
from sse_starlette import EventSourceResponse

from api import auth, chatstreams, pagination, streams
from api.chatviews import Chat, Message
from api.deps import PREFIX, ApiDeps
from api.fields import Body, FilledText, Patch, Title
from api.pagination import LARGEST_PAGE, Listing, Paging
from api.streams import LARGEST_SEQ, After, LastEventId
from api.units import Call, InCall, MembersRoute
from domain.chats import ChatStatus
from domain.errors import InvalidInput
from domain.permissions import Actor
from domain.statuses import TaskStatus
from store import chats, messages, taskviews, turns
from store.chats import ChatFilter
from store.rows import AnyRow
from store.taskviews import WaitReason

router = APIRouter(prefix="/chats", tags=["chats"], route_class=MembersRoute)
#: Streams live longer than a transaction may.
stream_router = APIRouter(prefix="/chats", tags=["chats"], route_class=APIRoute)


class SentMessage(BaseModel):
    """``task_id`` is null for a command; ``queued`` says that an earlier turn has not ended yet."""

    message_id: UUID
    task_id: UUID | None
    queued: bool


class QueuedTurn(BaseModel):
    """A turn that waits; ``position`` 1 is the next one."""

    task_id: UUID
    message_id: UUID
    content: str
    position: int
    status: TaskStatus
    wait_reason: WaitReason | None
    created_at: datetime


class Draft(BaseModel):
    """The words of a turn that was cancelled before it started."""

    id: UUID
    content: str
    created_at: datetime


class RemovedTurn(BaseModel):
    content: str


class NewChat(Body):
    agent_id: UUID
    title: Title | None = None


class ChatPatch(Patch):
    title: Title | None = None


class NewMessage(Body):
    content: FilledText


class ReadMark(Body):
    """``up_to_seq`` is the ``seq`` of the last message that was seen; without it, all there are."""

    up_to_seq: Annotated[int, Field(ge=0, le=LARGEST_SEQ)] | None = None


# --- chats ----------------------------------------------------------------------------------------


@router.get("")
async def list_chats(
    call: InCall, page: Paging, *, agent_id: UUID | None = None, status: ChatStatus | None = None
) -> Listing[Chat]:
    """The caller's own chats, newest first."""
    rows = await chats.page(call.conn, call.actor, page, ChatFilter(agent_id, status))
    return pagination.listing(page, rows, Chat.of)


@router.post("", status_code=201)
async def create_chat(call: InCall, body: NewChat, response: Response) -> Chat:
    """A new chat with an agent that the caller may start."""
    chat_id = await chats.create(call.conn, call.actor, body.agent_id, body.title)
    response.headers["Location"] = f"{PREFIX}/chats/{chat_id}"
    return await _shown(call, chat_id)


@router.get("/{chat_id}")
async def get_chat(call: InCall, chat_id: UUID) -> Chat:
    """One chat of the caller's."""
    return await _shown(call, chat_id)


@router.patch("/{chat_id}")
async def change_chat(call: InCall, chat_id: UUID, body: ChatPatch) -> Chat:
    """Rename the chat."""
    if body.title is not None:
        await chats.rename(call.conn, call.actor, chat_id, body.title)
    return await _shown(call, chat_id)


@router.delete("/{chat_id}", status_code=204)
async def delete_chat(call: InCall, chat_id: UUID) -> Response:
    """Take the chat away for good; what is queued or at work in it is cancelled."""
    await chats.delete(call.conn, call.actor, chat_id)
    return Response(status_code=204)


@router.post("/{chat_id}/archive")
async def archive_chat(call: InCall, chat_id: UUID) -> Chat:
    """Make the chat read-only; turns that were sent before go on to their end."""
    await chats.archive(call.conn, call.actor, chat_id)
    return await _shown(call, chat_id)


@router.post("/{chat_id}/unarchive")
async def unarchive_chat(call: InCall, chat_id: UUID) -> Chat:
    """Let an archived chat go on."""
    await chats.unarchive(call.conn, call.actor, chat_id)
    return await _shown(call, chat_id)


@router.post("/{chat_id}/read")
async def mark_read(call: InCall, chat_id: UUID, body: ReadMark | None = None) -> Chat:
    """The caller has seen the chat's messages."""
    await chats.mark_read(call.conn, call.actor, chat_id, body.up_to_seq if body else None)
    return await _shown(call, chat_id)


async def _shown(call: Call, chat_id: UUID) -> Chat:
    return Chat.of(await chats.get(call.conn, call.actor, chat_id))


# --- messages -------------------------------------------------------------------------------------


@router.get("/{chat_id}/messages")
async def list_messages(
    call: InCall,
    chat_id: UUID,
    *,
    limit: Annotated[int, Query(ge=1, le=LARGEST_PAGE)] = pagination.DEFAULT_PAGE,
    cursor: Annotated[str | None, Query(max_length=200, description="`next` of the page before")] = None,
    last: Annotated[int | None, Query(ge=1, le=LARGEST_PAGE, description="Only the last ones")] = None,
) -> Listing[Message]:
    """The messages in the order of the turns, oldest first; what waits in the queue stands at the end."""
    await chats.check_visible(call.conn, call.actor, chat_id)
    if last is not None:
        rows = await messages.last(call.conn, chat_id, last)
        return Listing(items=[Message.of(row) for row in rows])
    rows = await messages.page(call.conn, chat_id, _place(cursor), limit + 1)
    shown = rows[:limit]
    more = len(rows) > limit
    return Listing(items=[Message.of(row) for row in shown], next=_cursor(shown[-1]) if more else None)


@router.post("/{chat_id}/messages", status_code=201)
async def send_message(call: InCall, chat_id: UUID, body: NewMessage) -> SentMessage:
    """Send a message, which gets a turn of its own. `/new` alone begins a new context and runs nothing."""
    sent = await turns.send(call.conn, call.actor, chat_id, body.content)
    return SentMessage(message_id=sent.message_id, task_id=sent.task_id, queued=sent.queued)


def _cursor(row: AnyRow) -> str:
    return base64.urlsafe_b64encode(json.dumps([row.turn, row.part, row.seq]).encode()).decode()


def _place(cursor: str | None) -> messages.Place | None:
    if cursor is None:
        return None
    try:
        turn, part, seq = json.loads(base64.urlsafe_b64decode(cursor))
        place = (int(turn), int(part), int(seq))
    except (binascii.Error, ValueError, TypeError, OverflowError, RecursionError) as error:
        raise InvalidInput("cursor: take `next` of the page before, as it is.") from error
    if not all(0 <= number <= LARGEST_SEQ for number in place) or place[1] > 2**15 - 1:
        raise InvalidInput("cursor: take `next` of the page before, as it is.")
    return place


@stream_router.get("/{chat_id}/events/stream", response_class=EventSourceResponse)
async def stream_chat(
    request: Request, chat_id: UUID, after: After = 0, last_event_id: LastEventId = None
) -> EventSourceResponse:
    """The chat as server-sent events: messages above ``after``, its turns at work, then what comes.

    `message` and `removed` carry the message's ``seq`` as their id. `text` is what a turn at work is
    saying, `task` where a turn stands, `chat` the chat itself; `end` says that nothing can come any more.
    """
    deps: ApiDeps = request.app.state.deps

    async def check() -> Actor:
        async with deps.database.begin() as conn:
            actor = await auth.authenticate(conn, request, request.app.state.limiter)
            MembersRoute.admit(actor)
            await chats.check_visible(conn, actor, chat_id)
            return actor

    auth.bearer_token(request)
    right = streams.Right(check, await check())
    start = streams.resume_point(last_event_id, after)
    events = chatstreams.follow(deps.database, request.app.state.listeners, right, chat_id, start)
    return EventSourceResponse(events, ping=streams.KEEP_ALIVE_SECONDS)


# --- the queue ------------------------------------------------------------------------------------


@router.get("/{chat_id}/queue")
async def list_queue(call: InCall, chat_id: UUID) -> Listing[QueuedTurn]:
    """The turns that nothing has started yet, the next one first."""
    rows = await turns.queue(call.conn, call.actor, chat_id)
    return Listing(items=await _queued(call, rows))


async def _queued(call: Call, rows: Sequence[AnyRow]) -> list[QueuedTurn]:
    views = await taskviews.some(call.conn, call.actor, [row.task_id for row in rows], call.deps.links)
    return [
        QueuedTurn(
            task_id=row.task_id,
            message_id=row.trigger_message_id,
            content=row.content,
            position=position,
            status=views[row.task_id].status,
            wait_reason=views[row.task_id].wait_reason,
            created_at=row.created_at,
        )
        for position, row in enumerate(rows, start=1)
        if row.task_id in views
    ]


@router.patch("/{chat_id}/queue/{task_id}")
async def edit_queued(call: InCall, chat_id: UUID, task_id: UUID, body: NewMessage) -> Message:
    """Change the words of a turn that waits."""
    row = await turns.edit(call.conn, call.actor, chat_id, task_id, body.content)
    fields: dict[str, Any] = {name: getattr(row, name) for name in Message.model_fields if name != "queued"}
    return Message(**fields, queued=True)


@router.delete("/{chat_id}/queue/{task_id}")
async def remove_queued(call: InCall, chat_id: UUID, task_id: UUID) -> RemovedTurn:
    """Take a turn that waits out of the queue; its words come back."""
    return RemovedTurn(content=await turns.remove(call.conn, call.actor, chat_id, task_id))


@router.post("/{chat_id}/queue/{task_id}/send-now")
async def send_now(call: InCall, chat_id: UUID, task_id: UUID) -> Listing[QueuedTurn]:
    """Put a turn that waits before all others that wait. What is at work is not stopped."""
    await turns.send_now(call.conn, call.actor, chat_id, task_id)
    rows = await turns.queue(call.conn, call.actor, chat_id)
    return Listing(items=await _queued(call, rows))


@router.get("/{chat_id}/drafts")
async def list_drafts(call: InCall, chat_id: UUID) -> Listing[Draft]:
    """The words of turns that were cancelled before they started, the newest first."""
    rows = await turns.drafts(call.conn, call.actor, chat_id)
    drafts = [Draft(id=row.id, content=row.content, created_at=row.created_at) for row in rows]
    return Listing(items=drafts)


@router.delete("/{chat_id}/drafts/{draft_id}", status_code=204)
async def discard_draft(call: InCall, chat_id: UUID, draft_id: UUID) -> Response:
    """Forget a draft, for example once it was sent again."""
    await turns.discard_draft(call.conn, call.actor, chat_id, draft_id)
    return Response(status_code=204)
