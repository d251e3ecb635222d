"""What a turn leaves in its chat: one reply, a notice of lost context, or its own words as a draft.

Written in the transaction that records the turn's end, before the task lets go of its leases.
"""

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from sqlalchemy import bindparam, select
from sqlalchemy.ext.asyncio import AsyncConnection

from domain.chats import MessageKind, MessageRole, MessageState, Part
from domain.notices import continuity_notice
from domain.reasons import Reason, advice_for
from domain.statuses import ContinuityReason, TaskStatus
from store import messages
from store.endings import Ending
from store.models import Message
from store.rows import AnyRow

#: A reply longer than this is cut in the chat; the transcript has all of it. In characters.
MAX_REPLY = 64 * 1024
_NO_RESPONSE = "The agent ended its turn without an answer."
_STOPPED = "The turn was stopped before the agent had answered."


@dataclass(frozen=True)
class TurnPlace:
    """A turn's task and its place in the chat."""

    task_id: UUID
    chat_id: UUID
    lane_position: int


async def write(conn: AsyncConnection, task: AnyRow, ending: Ending) -> None:
    """The one reply of a locked chat task that ends now; a turn that never ran gives its words back."""
    if ending.status is TaskStatus.CANCELLED and task.started_at is None:
        await _give_back(conn, task)
        return
    kind, content = _reply(ending)
    await messages.write(
        conn,
        task.chat_id,
        messages.Draft(
            MessageRole.ASSISTANT,
            content,
            task.lane_position,
            Part.REPLY,
            kind=kind,
            reason=None if ending.status is TaskStatus.COMPLETED else ending.reason,
            task_id=task.id,
        ),
    )


async def correct(conn: AsyncConnection, task: AnyRow, ending: Ending) -> None:
    """The machine has spoken: the reply that said ``outcome_unknown`` says what was found."""
    reply = (await conn.execute(_REPLY_OF, {"task": task.id})).one_or_none()
    if reply is None:
        return
    kind, content = _reply(ending)
    reason = None if ending.status is TaskStatus.COMPLETED else ending.reason
    await messages.change(conn, reply.id, content=content, verdict=messages.Verdict(kind, reason))


async def notice_loss(conn: AsyncConnection, turn: TurnPlace, reason: ContinuityReason) -> None:
    """Tell the person, once a turn, that the agent had to go on without its earlier conversation."""
    if (await conn.execute(_NOTICE_OF, {"task": turn.task_id})).first() is not None:
        return
    await messages.write(
        conn,
        turn.chat_id,
        messages.Draft(
            MessageRole.SYSTEM,
            continuity_notice(reason),
            turn.lane_position,
            Part.NOTICE,
            kind=MessageKind.NOTICE,
            reason=reason,
            task_id=turn.task_id,
        ),
    )


_REPLY_OF = select(Message.id).where(
    Message.task_id == bindparam("task"), Message.role == MessageRole.ASSISTANT
)
_NOTICE_OF = select(Message.id).where(Message.task_id == bindparam("task"), Message.part == Part.NOTICE)
_QUESTION_OF: Any = select(Message.id).where(
    Message.task_id == bindparam("task"),
    Message.part == Part.QUESTION,
    Message.state == MessageState.SHOWN,
)


async def _give_back(conn: AsyncConnection, task: AnyRow) -> None:
    """A retry has no question of its own, and one that was taken out of the queue is back already."""
    question = (await conn.execute(_QUESTION_OF, {"task": task.id})).one_or_none()
    if question is not None:
        await messages.change(conn, question.id, state=MessageState.DRAFT)


def _reply(ending: Ending) -> tuple[MessageKind, str]:
    text = _cut(ending.result or "")
    if text.strip() and ending.status is not TaskStatus.FAILED:
        return MessageKind.MESSAGE, text
    if ending.status is TaskStatus.COMPLETED:
        return MessageKind.NO_RESPONSE, _NO_RESPONSE
    if ending.reason == Reason.CANCELLED:
        return MessageKind.NO_RESPONSE, _STOPPED
    return MessageKind.FAILURE, failure_text(ending)


def failure_text(ending: Ending) -> str:
    """What happened, the reason's name, and the next step."""
    lines = [f"The run failed: {ending.error}", f"Reason: {ending.reason}.", advice_for(ending.reason)]
    return "\n".join(line for line in lines if line)


def _cut(text: str) -> str:
    if len(text) <= MAX_REPLY:
        return text
    return f"{text[:MAX_REPLY]}\n\n[cut here: the whole reply is in the task's transcript]"
