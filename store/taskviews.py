"""The task as people see it: one statement for the tasks, one for their attempts."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any
from urllib.parse import quote
from uuid import UUID

from pydantic import BaseModel, Field
from sqlalchemy import Row, Select, and_, bindparam, func, or_, select
from sqlalchemy.ext.asyncio import AsyncConnection

from domain import names, reasons
from domain.errors import NotFound
from domain.outcomes import Usage
from domain.permissions import Actor
from domain.statuses import Continuity, ContinuityReason, TaskKind, TaskStatus, WaitKind
from store.models import Agent, Attempt, Chat, Directory, LeaseWait, Session, Task
from store.pages import Page
from store.taskstates import is_open
from store.visibility import task_visible


class Trigger(BaseModel):
    """What the task comes from."""

    type: str
    comment_id: UUID | None = None
    message_id: UUID | None = None


class WaitReason(BaseModel):
    """What a waiting task waits for; ``private`` stands for a holder that the caller may not see."""

    kind: WaitKind
    holder_task_id: UUID | None = None
    private: bool = False
    since: datetime


class ContinuityView(BaseModel):
    """What became of the pointer; null before the first attempt."""

    state: Continuity | None = None
    reason: ContinuityReason | None = None


class AttemptView(BaseModel):
    number: int
    session_id: str | None
    work_dir: str | None
    continuity: ContinuityView
    reason: str | None
    started_at: datetime | None
    ended_at: datetime | None


class TaskView(BaseModel):
    """One turn of work for one agent. Session, directory and continuity are the last attempt's."""

    id: UUID
    kind: TaskKind
    trigger: Trigger
    agent_id: UUID
    runtime_id: UUID
    issue_id: UUID | None
    chat_id: UUID | None
    autopilot_run_id: UUID | None
    status: TaskStatus
    wait_reason: WaitReason | None
    attempt: int
    max_attempts: int
    session_id: str | None
    work_dir: str | None
    continuity: ContinuityView
    reason: str | None
    error: str | None
    evidence: str | None
    advice: str | None
    result: str | None
    usage: Usage
    rerun_of_task_id: UUID | None
    workflow_id: str
    temporal_url: str | None
    created_at: datetime
    dispatched_at: datetime | None
    started_at: datetime | None
    ended_at: datetime | None
    retry_at: datetime | None
    attempts: list[AttemptView] = Field(default_factory=list)


@dataclass(frozen=True)
class TemporalLinks:
    """Where people find a workflow in the Temporal Web UI; no ``ui`` address, no links."""

    ui: str | None
    namespace: str

    def workflow(self, workflow_id: str) -> str | None:
        if self.ui is None:
            return None
        path = f"namespaces/{quote(self.namespace, safe='')}/workflows/{quote(workflow_id, safe='')}"
        return f"{self.ui.rstrip('/')}/{path}"


@dataclass(frozen=True)
class TaskFilter:
    """What a list of tasks is narrowed to; None and empty are everything."""

    agent_id: UUID | None = None
    issue_id: UUID | None = None
    chat_id: UUID | None = None
    runtime_id: UUID | None = None
    status: Sequence[str] = ()
    reason: Sequence[str] = ()


async def get(conn: AsyncConnection, actor: Actor, task_id: UUID, links: TemporalLinks) -> TaskView:
    """One task that the caller may see. Raises `NotFound`."""
    row = (await conn.execute(_one(actor), {"wanted": task_id})).one_or_none()
    if row is None:
        raise NotFound("There is no such task.")
    return (await _views(conn, [row], links))[0]


async def page(
    conn: AsyncConnection, actor: Actor, part: Page, narrowed: TaskFilter, links: TemporalLinks
) -> list[TaskView]:
    """The tasks that the caller may see, newest first, and one more than the limit if there is one."""
    query = _narrow(_select(actor), narrowed)
    if part.before is not None:
        query = query.where(Task.id < part.before[1])
    rows = (await conn.execute(query.order_by(Task.id.desc()).limit(part.limit + 1))).all()
    return await _views(conn, rows, links)


async def some(
    conn: AsyncConnection, actor: Actor, task_ids: Sequence[UUID], links: TemporalLinks
) -> dict[UUID, TaskView]:
    """Those of the tasks that the caller may see, by id."""
    rows = (await conn.execute(_select(actor).where(Task.id.in_(task_ids)))).all()
    return {view.id: view for view in await _views(conn, rows, links)}


@dataclass(frozen=True)
class Standing:
    """Where a task stands, in few words; ``last_seq`` is the number of its last event."""

    task_id: UUID
    status: TaskStatus
    reason: str | None
    wait_reason: WaitReason | None
    last_seq: int


async def standings(
    conn: AsyncConnection, actor: Actor, chat_id: UUID, also: Collection[UUID]
) -> list[Standing]:
    """The turns of a chat that have not ended, and those of ``also``, in their order."""
    wanted = Task.chat_id == chat_id, or_(is_open(), Task.id.in_(also))
    rows = await conn.execute(_select(actor).where(*wanted).order_by(Task.lane_position))
    return [
        Standing(row.id, TaskStatus(row.status), row.reason, _wait_reason(row), row.last_seq) for row in rows
    ]


async def check_visible(conn: AsyncConnection, actor: Actor, task_id: UUID) -> None:
    """Raise `NotFound` unless the caller may see the task."""
    query = (
        select(Task.id)
        .join(Agent, Agent.id == Task.agent_id)
        .outerjoin(Chat, Chat.id == Task.chat_id)
        .where(Task.id == task_id, Task.workspace_id == actor.workspace_id, task_visible(actor))
    )
    if await conn.scalar(query) is None:
        raise NotFound("There is no such task.")


_holder = Task.__table__.alias("holder")
_holder_agent = Agent.__table__.alias("holder_agent")
_holder_chat = Chat.__table__.alias("holder_chat")


def _select(actor: Actor) -> Select[Any]:
    holder_seen = and_(
        _holder.c.id.is_not(None), task_visible(actor, _holder.c, _holder_agent.c, _holder_chat.c)
    )
    return (
        select(
            *Task.__table__.c,
            LeaseWait.kind.label("wait_kind"),
            LeaseWait.since.label("wait_since"),
            LeaseWait.holder_task_id.label("wait_holder"),
            func.coalesce(holder_seen, False).label("wait_holder_seen"),
        )
        .join(Agent, Agent.id == Task.agent_id)
        .outerjoin(Chat, Chat.id == Task.chat_id)
        .outerjoin(LeaseWait, LeaseWait.task_id == Task.id)
        .outerjoin(
            _holder,
            and_(_holder.c.id == LeaseWait.holder_task_id, _holder.c.workspace_id == Task.workspace_id),
        )
        .outerjoin(_holder_agent, _holder_agent.c.id == _holder.c.agent_id)
        .outerjoin(_holder_chat, _holder_chat.c.id == _holder.c.chat_id)
        .where(Task.workspace_id == actor.workspace_id, task_visible(actor))
    )


@lru_cache(maxsize=256)
def _one(actor: Actor) -> Select[Any]:
    """Kept for each caller: who waits for a task asks again and again."""
    return _select(actor).where(Task.id == bindparam("wanted"))


def _narrow(query: Select[Any], narrowed: TaskFilter) -> Select[Any]:
    for column in ("agent_id", "issue_id", "chat_id", "runtime_id"):
        wanted = getattr(narrowed, column)
        if wanted is not None:
            query = query.where(getattr(Task, column) == wanted)
    if narrowed.status:
        query = query.where(Task.status.in_(narrowed.status))
    if narrowed.reason:
        query = query.where(Task.reason.in_(narrowed.reason))
    return query


async def _views(conn: AsyncConnection, rows: Iterable[Row[Any]], links: TemporalLinks) -> list[TaskView]:
    rows = list(rows)
    attempts = await _attempts(conn, [row.id for row in rows if row.attempt > 0])
    return [_view(row, attempts[row.id], links) for row in rows]


_used = Session.__table__.alias("used")
_requested = Session.__table__.alias("requested")
_ATTEMPTS = (
    select(
        Attempt.task_id,
        Attempt.number,
        Attempt.continuity,
        Attempt.continuity_reason,
        Attempt.reason,
        Attempt.started_at,
        Attempt.ended_at,
        Directory.path,
        func.coalesce(_used.c.provider_session_id, _requested.c.provider_session_id).label("session"),
    )
    .join(Directory, Directory.id == Attempt.directory_id)
    .outerjoin(_used, _used.c.id == Attempt.used_session_id)
    .outerjoin(_requested, _requested.c.id == Attempt.requested_session_id)
    .where(Attempt.task_id.in_(bindparam("tasks", expanding=True)))
    .order_by(Attempt.task_id, Attempt.number)
)


async def _attempts(conn: AsyncConnection, task_ids: list[UUID]) -> dict[UUID, list[AttemptView]]:
    found: dict[UUID, list[AttemptView]] = defaultdict(list)
    if not task_ids:
        return found
    for row in await conn.execute(_ATTEMPTS, {"tasks": task_ids}):
        found[row.task_id].append(_attempt_view(row))
    return found


def _attempt_view(row: Row[Any]) -> AttemptView:
    return AttemptView(
        number=row.number,
        session_id=row.session,
        work_dir=row.path,
        continuity=ContinuityView(state=row.continuity, reason=row.continuity_reason),
        reason=row.reason,
        started_at=row.started_at,
        ended_at=row.ended_at,
    )


def _view(row: Row[Any], attempts: list[AttemptView], links: TemporalLinks) -> TaskView:
    last = attempts[-1] if attempts else None
    workflow_id = names.task_workflow_id(row.id)
    return TaskView(
        id=row.id,
        kind=row.kind,
        trigger=Trigger(
            type=row.trigger_type, comment_id=row.trigger_comment_id, message_id=row.trigger_message_id
        ),
        agent_id=row.agent_id,
        runtime_id=row.runtime_id,
        issue_id=row.issue_id,
        chat_id=row.chat_id,
        autopilot_run_id=row.autopilot_run_id,
        status=row.status,
        wait_reason=_wait_reason(row),
        attempt=row.attempt,
        max_attempts=row.max_attempts,
        session_id=last.session_id if last else None,
        work_dir=last.work_dir if last else None,
        continuity=last.continuity if last else ContinuityView(),
        reason=row.reason,
        error=row.error,
        evidence=row.evidence,
        advice=reasons.advice_for(row.reason),
        result=row.result,
        usage=Usage.model_validate(row.usage),
        rerun_of_task_id=row.rerun_of_task_id,
        workflow_id=workflow_id,
        temporal_url=links.workflow(workflow_id),
        created_at=row.created_at,
        dispatched_at=row.dispatched_at,
        started_at=row.started_at,
        ended_at=row.ended_at,
        retry_at=row.retry_at,
        attempts=attempts,
    )


def _wait_reason(row: Row[Any]) -> WaitReason | None:
    if row.wait_kind is None or TaskStatus(row.status).terminal:
        return None
    seen = row.wait_holder is not None and row.wait_holder_seen
    return WaitReason(
        kind=row.wait_kind,
        holder_task_id=row.wait_holder if seen else None,
        private=row.wait_holder is not None and not seen,
        since=row.wait_since,
    )
