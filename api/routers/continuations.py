"""Continuing a finished run in a chat: what it would do, and doing it."""

from uuid import UUID

from fastapi import APIRouter, Response
from pydantic import BaseModel

from api.chatviews import Chat
from api.deps import PREFIX
from api.fields import Body
from api.units import InCall, MembersRoute
from domain.statuses import ContinuityReason
from store import chats, continuations

router = APIRouter(prefix="/tasks", tags=["tasks"], route_class=MembersRoute)


class Continuation(BaseModel):
    """What `continue-in-chat` would do. ``reason`` is a code; it is set where it is not possible now.

    ``shared_with_issue``: the chat can't branch the conversation off, so the issue's next run sees it.
    """

    possible: bool
    reason: str | None
    session_carried: bool
    session_reason: ContinuityReason | None
    fork: bool
    shared_with_issue: bool
    work_dir: str | None
    runtime_online: bool
    existing_chat_id: UUID | None


class ContinueInChat(Body):
    """``fork``: branch the conversation off (default where the agent's program can)."""

    fork: bool | None = None


class ContinuedChat(BaseModel):
    """``reopened``: the caller had continued this run before, and it is that chat."""

    chat: Chat
    session_carried: bool
    session_reason: str | None
    reopened: bool


@router.get("/{task_id}/continuation")
async def preview_continuation(call: InCall, task_id: UUID) -> Continuation:
    """What continuing the run in a chat would do; for those who may start its agent."""
    found = await continuations.preview(call.conn, call.actor, task_id, offline_after=call.deps.offline_after)
    return Continuation(
        possible=found.reason is None,
        reason=found.reason,
        session_carried=found.decision.session_carried,
        session_reason=found.decision.session_reason,
        fork=found.decision.fork,
        shared_with_issue=found.decision.shared_with_issue,
        work_dir=found.work_dir,
        runtime_online=found.runtime_online,
        existing_chat_id=found.existing_chat_id,
    )


@router.post(
    "/{task_id}/continue-in-chat",
    status_code=201,
    responses={200: {"model": ContinuedChat, "description": "The chat that was made before"}},
)
async def continue_in_chat(
    call: InCall, task_id: UUID, response: Response, body: ContinueInChat | None = None
) -> ContinuedChat:
    """A chat that goes on from the finished run: its session, its directory, its machine."""
    made = await continuations.continue_in_chat(
        call.conn, call.actor, task_id, fork=body.fork if body else None
    )
    chat = await chats.get(call.conn, call.actor, made.chat_id)
    response.status_code = 200 if made.reopened else 201
    response.headers["Location"] = f"{PREFIX}/chats/{made.chat_id}"
    return ContinuedChat(
        chat=Chat.of(chat),
        session_carried=bool(chat.session_carried),
        session_reason=chat.session_reason,
        reopened=made.reopened,
    )
