"""Continuing a finished run in a chat: the gate, what the chat is seeded with, and its one row.

There is one living chat for each task and member: a unique index says so, also under a race.
"""

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from sqlalchemy import Row, func, insert, select
from sqlalchemy.dialects.postgresql import insert as pg_insert
from sqlalchemy.ext.asyncio import AsyncConnection

from domain import continuation
from domain.chats import DEFAULT_TITLE, ChatStatus, title_of
from domain.continuation import FORKING, ContinuationDecision, SourceFacts
from domain.errors import InvalidInput, NotFound, TaskIsChat, TaskNotTerminal
from domain.permissions import Actor
from domain.pointer import SessionFacts
from domain.statuses import TaskKind, TaskStatus
from store import chats, outbox, runtimes, taskqueue
from store.ids import new_id
from store.models import Agent, Attempt, Chat, Directory, Issue, LaneSession, Runtime, Session, Task
from store.rows import AnyRow
from store.visibility import agent_visible

_NO_TASK = "There is no such task."
_STILL_RUNS = "The task has not ended; wait for its end, or cancel it first."
_IS_CHAT = "The task is a turn of a chat: go on in that chat."


@dataclass(frozen=True)
class Preview:
    """What continuing would do. ``reason`` is a code, set where it is not possible now."""

    reason: str | None
    decision: ContinuationDecision
    work_dir: str | None
    runtime_online: bool
    existing_chat_id: UUID | None


@dataclass(frozen=True)
class Continued:
    """The chat; ``reopened`` says that it had been made before."""

    chat_id: UUID
    reopened: bool


async def preview(conn: AsyncConnection, actor: Actor, task_id: UUID, *, offline_after: float) -> Preview:
    """What `continue_in_chat` would do, said before. Raises `NotFound`, `InvocationNotAllowed`."""
    source = await _permitted(conn, actor, task_id)
    found = await _facts(conn, source)
    runs_on = found.facts.runtime_id or source.agent_runtime_id
    return Preview(
        reason=_obstacle(source, runs_on),
        decision=continuation.decide(found.facts, fork=None),
        work_dir=found.work_dir,
        runtime_online=await _is_online(conn, runs_on, offline_after),
        existing_chat_id=await conn.scalar(_existing(actor, task_id, Chat.id)),
    )


async def continue_in_chat(
    conn: AsyncConnection, actor: Actor, task_id: UUID, *, fork: bool | None
) -> Continued:
    """The member's chat that goes on from the task, made by the first call.

    Raises, in this order, `NotFound`, `InvocationNotAllowed`, `InvalidInput`, `TaskIsChat`,
    `TaskNotTerminal`; then nothing was made.
    """
    source = await _permitted(conn, actor, task_id)
    found = await _facts(conn, source)
    decision = continuation.decide(found.facts, fork=fork)
    _check_possible(source, found.facts.runtime_id or source.agent_runtime_id, decision)
    while True:
        chat_id = await _insert(conn, actor, source, found, decision)
        if chat_id is not None:
            return Continued(chat_id, reopened=False)
        chat_id = await _reopen(conn, actor, task_id)
        if chat_id is not None:
            return Continued(chat_id, reopened=True)
        # It was deleted between the two looks, which frees its place.


# --- the gate -------------------------------------------------------------------------------------

_SOURCE: Any = (
    select(
        Task.id,
        Task.kind,
        Task.status,
        Task.lane_id,
        Task.runtime_id,
        Task.agent_id,
        Task.chat_id,
        Issue.title,
        Agent.provider,
        Agent.owner_id,
        Agent.permission,
        Agent.allowed_member_ids,
        Agent.archived_at,
        Agent.runtime_id.label("agent_runtime_id"),
        Runtime.deleted_at.label("runtime_deleted_at"),
    )
    .join(Agent, Agent.id == Task.agent_id)
    .join(Runtime, Runtime.id == Task.runtime_id)
    .outerjoin(Issue, Issue.id == Task.issue_id)
    .outerjoin(Chat, Chat.id == Task.chat_id)
)


async def _permitted(conn: AsyncConnection, actor: Actor, task_id: UUID) -> AnyRow:
    """The task, if the caller may start its agent. A turn of somebody else's chat is not there at all.

    The invoke gate, not the view gate: a member of the workspace who may not start the agent is told
    so. Raises `NotFound`, `InvocationNotAllowed`.
    """
    rows = await conn.execute(
        _SOURCE.where(
            Task.id == task_id,
            Task.workspace_id == actor.workspace_id,
            Task.chat_id.is_(None) | (chats.chat_visible(actor) & agent_visible(actor)),
        )
    )
    source: AnyRow | None = rows.one_or_none()
    if source is None:
        raise NotFound(_NO_TASK)
    chats.check_invoke(actor, source.agent_id, source)
    return source


def _obstacle(source: AnyRow, runs_on: UUID | None) -> str | None:
    """Why it is not possible now, in the order in which the action would say it."""
    return taskqueue.readiness(source.archived_at, runs_on) or continuation.refusal(
        TaskKind(source.kind), TaskStatus(source.status)
    )


def _check_possible(source: AnyRow, runs_on: UUID | None, decision: ContinuationDecision) -> None:
    taskqueue.check_ready(source.archived_at, runs_on)
    if decision.fork and source.provider not in FORKING:
        raise InvalidInput(
            f"The agent's program ({source.provider}) can't branch a conversation off: leave `fork` out, "
            "and the issue's next run will see what is said in the chat."
        )
    match continuation.refusal(TaskKind(source.kind), TaskStatus(source.status)):
        case "task_is_chat":
            raise TaskIsChat(_IS_CHAT)
        case "task_not_terminal":
            raise TaskNotTerminal(_STILL_RUNS)


async def _is_online(conn: AsyncConnection, runtime_id: UUID | None, offline_after: float) -> bool:
    """A turn would start now: the machine is there, and takes new work."""
    status = await conn.scalar(select(runtimes.status(offline_after)).where(Runtime.id == runtime_id))
    return bool(status == "online")


# --- what the run left ----------------------------------------------------------------------------


@dataclass(frozen=True)
class _Found:
    facts: SourceFacts
    #: The row of the run's directory, whether or not it can still be used, and where it is if it can.
    directory_id: UUID | None
    work_dir: str | None


#: The last started attempt with its pointer: what it used, or was stopped before it had said so.
_LAST_ATTEMPT: Any = (
    select(
        Attempt.directory_id,
        Directory.path,
        Directory.gone_at,
        Session.id.label("session_id"),
        Session.provider,
        Session.provider_session_id,
        Session.runtime_id,
        Session.last_status,
        Session.last_reason,
        Session.last_ended_at,
        Session.retired_at,
        Session.retired_reason,
    )
    .join(Directory, Directory.id == Attempt.directory_id)
    .outerjoin(Session, Session.id == func.coalesce(Attempt.used_session_id, Attempt.requested_session_id))
    .where(Attempt.started_at.is_not(None))
    .order_by(Attempt.number.desc())
    .limit(1)
)


async def _facts(conn: AsyncConnection, source: AnyRow) -> _Found:
    runtime_id = source.runtime_id if source.runtime_deleted_at is None else None
    attempt: AnyRow | None = (
        await conn.execute(_LAST_ATTEMPT.where(Attempt.task_id == source.id))
    ).one_or_none()
    facts = SourceFacts(
        provider=source.provider,
        runtime_id=runtime_id,
        started=attempt is not None,
        session=_session(attempt) if attempt is not None and attempt.session_id is not None else None,
    )
    if attempt is None or runtime_id is None:
        return _Found(facts, None, None)
    return _Found(facts, attempt.directory_id, attempt.path if attempt.gone_at is None else None)


def _session(attempt: AnyRow) -> SessionFacts:
    columns = {**attempt._mapping, "id": attempt.session_id}
    return SessionFacts.model_validate(
        {name: columns[name] for name in SessionFacts.model_fields if name in columns}
    )


# --- the chat -------------------------------------------------------------------------------------


def _existing(actor: Actor, task_id: UUID, *columns: Any) -> Any:
    """The index's own condition."""
    return select(*columns).where(
        Chat.continued_from_task_id == task_id,
        Chat.creator_id == actor.member_id,
        Chat.deleted_at.is_(None),
    )


async def _reopen(conn: AsyncConnection, actor: Actor, task_id: UUID) -> UUID | None:
    """The chat that was made before, taken out of the archive; None if there is none any more."""
    query = _existing(actor, task_id, Chat.id, Chat.status).with_for_update(key_share=True)
    chat: Row[Any] | None = (await conn.execute(query)).one_or_none()
    if chat is None:
        return None
    if chat.status == ChatStatus.ARCHIVED:
        await chats.unarchive(conn, actor, chat.id)
    chat_id: UUID = chat.id
    return chat_id


async def _insert(
    conn: AsyncConnection, actor: Actor, source: AnyRow, found: _Found, decision: ContinuationDecision
) -> UUID | None:
    """The chat with its lane, its seed and its workflow's start; None if the member has one already."""
    chat_id = new_id()
    made = await conn.execute(
        pg_insert(Chat)
        .values(
            id=chat_id,
            workspace_id=actor.workspace_id,
            creator_id=actor.member_id,
            agent_id=source.agent_id,
            title=title_of(source.title) if source.title else DEFAULT_TITLE,
            runtime_id=found.facts.runtime_id,
            continued_from_task_id=source.id,
            session_carried=decision.session_carried,
            session_reason=decision.session_reason,
            fork=decision.fork,
        )
        .on_conflict_do_nothing()
        .returning(Chat.id)
    )
    if made.one_or_none() is None:
        return None
    lane_id = await chats.insert_lane(conn, actor.workspace_id, source.agent_id, chat_id)
    await _seed(conn, lane_id, source, found, decision)
    chat = await chats.lock(conn, actor, chat_id)
    await outbox.put(
        conn,
        workspace_id=actor.workspace_id,
        kind=outbox.OutboxKind.CHAT,
        subject_id=chat_id,
        payload=chats.workflow_input(chat).model_dump(mode="json"),
    )
    return chat_id


async def _seed(
    conn: AsyncConnection, lane_id: UUID, source: AnyRow, found: _Found, decision: ContinuationDecision
) -> None:
    """What the chat's first turn goes on from. A run that never started has left nothing."""
    if not found.facts.started:
        return
    session = found.facts.session if decision.session_carried else None
    await conn.execute(
        insert(LaneSession).values(
            lane_id=lane_id,
            session_id=session.id if session is not None else None,
            source_task_id=source.id,
            directory_id=found.directory_id,
        )
    )
