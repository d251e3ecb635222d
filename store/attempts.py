"""The runtime plane's side of an attempt: its brief, its start, its standing, its session.

Every function takes the calling runtime's id and answers `NotFound` for an attempt that is not its
own: a worker reads that as "not yours or gone", and as nothing else.
"""

from collections.abc import Sequence
from uuid import UUID

from sqlalchemy import and_, bindparam, func, or_, select, update
from sqlalchemy.dialects.postgresql import insert as pg_insert
from sqlalchemy.ext.asyncio import AsyncConnection

from domain.brief import AttemptState, Brief, DirectoryBrief, Prompt, StartAnswer, StartRequest
from domain.errors import AttemptElsewhere, NotFound
from domain.names import issue_key
from domain.outcomes import Outcome
from domain.prompts import AgentFacts, ChatFacts, CommentFacts, IssueFacts, TaskFacts, build_prompt
from domain.retry import RetryAction
from domain.statuses import Continuity, ContinuityReason, TaskStatus
from domain.steps import Recorded
from store import chatreplies, chats, sessions, tokens
from store.ids import new_id
from store.models import (
    Agent,
    Attempt,
    Comment,
    Directory,
    Issue,
    LaneSession,
    Member,
    Message,
    Session,
    Task,
    TaskComment,
    Token,
    Workspace,
)
from store.rows import AnyRow
from store.secretbox import SecretBox

#: The gate's words for a session that its provider doesn't have.
_NOT_STORED = (ContinuityReason.SESSION_MISSING, ContinuityReason.ROLLOUT_MISSING)

_GONE = "There is no such attempt of this runtime, or it has ended."


# --- the brief ------------------------------------------------------------------------------------


async def brief(conn: AsyncConnection, *, runtime_id: UUID, attempt_id: UUID, secrets: SecretBox) -> Brief:
    """Everything the machine needs. Raises `NotFound`."""
    row = await _load_brief(conn, runtime_id, attempt_id)
    comments = await _comments(conn, row) if row.issue_id is not None else ()
    return Brief(
        attempt_id=row.attempt_id,
        attempt=row.number,
        task_id=row.task_id,
        workspace_id=row.workspace_id,
        agent_id=row.agent_id,
        agent_name=row.agent_name,
        lane_id=row.lane_id,
        provider=row.provider,
        model=row.model,
        args=row.args,
        env=secrets.open(row.env_sealed),
        prompt=_prompt(row, comments),
        session_id=row.provider_session_id,
        fork=row.fork,
        directory=DirectoryBrief(
            id=row.directory_id,
            kind=row.directory_kind,
            path=row.path,
            device=row.device,
            inode=row.inode,
            accepted_lane_ids=[row.source_lane_id] if row.source_lane_id else [],
        ),
        continuity=row.continuity,
        continuity_reason=row.continuity_reason,
        issue_id=row.issue_id,
        issue_key=issue_key(row.issue_prefix, row.issue_number) if row.issue_id else None,
        chat_id=row.chat_id,
        autopilot_run_id=row.autopilot_run_id,
    )


_parent = Issue.__table__.alias("parent")
#: A continuation works in the directory of the run that it goes on from, whose marker names its lane.
_source_lane = (
    select(Directory.lane_id)
    .join(LaneSession, LaneSession.directory_id == Directory.id)
    .where(
        LaneSession.lane_id == Task.lane_id,
        LaneSession.directory_id == Attempt.directory_id,
        LaneSession.source_task_id.is_not(None),
    )
    .correlate(Task, Attempt)
    .scalar_subquery()
)
_BRIEF = (
    select(
        Attempt.id.label("attempt_id"),
        Attempt.number,
        Attempt.task_id,
        Attempt.workspace_id,
        Attempt.fork,
        Attempt.continuity,
        Attempt.continuity_reason,
        Task.agent_id,
        Task.lane_id,
        Task.issue_id,
        Task.chat_id,
        Task.autopilot_run_id,
        Task.handoff_note,
        Agent.name.label("agent_name"),
        Attempt.provider,
        Agent.model,
        Agent.instructions,
        Agent.args,
        Agent.env_sealed,
        Session.provider_session_id,
        Directory.id.label("directory_id"),
        Directory.kind.label("directory_kind"),
        Directory.path,
        Directory.device,
        Directory.inode,
        Issue.number.label("issue_number"),
        Issue.title,
        Issue.body,
        Issue.status.label("issue_status"),
        Workspace.issue_prefix,
        _parent.c.number.label("parent_number"),
        Message.content.label("message"),
        Member.name.label("person"),
        _source_lane.label("source_lane_id"),
        (Session.lane_id != Task.lane_id).label("foreign_session"),
    )
    .join(Task, Task.id == Attempt.task_id)
    .join(Agent, Agent.id == Task.agent_id)
    .join(Directory, Directory.id == Attempt.directory_id)
    .join(Workspace, Workspace.id == Attempt.workspace_id)
    .outerjoin(Session, Session.id == Attempt.requested_session_id)
    .outerjoin(Issue, Issue.id == Task.issue_id)
    .outerjoin(_parent, _parent.c.id == Issue.parent_id)
    .outerjoin(Message, Message.id == Task.trigger_message_id)
    .outerjoin(Member, and_(Member.id == Task.originator_id, Task.chat_id.is_not(None)))
    .where(
        Attempt.id == bindparam("wanted"),
        Attempt.runtime_id == bindparam("runtime"),
        Attempt.dispatched_at.is_not(None),
        Attempt.ended_at.is_(None),
    )
)


async def _load_brief(conn: AsyncConnection, runtime_id: UUID, attempt_id: UUID) -> AnyRow:
    rows = await conn.execute(_BRIEF, {"wanted": attempt_id, "runtime": runtime_id})
    row = rows.one_or_none()
    if row is None:
        raise NotFound(_GONE)
    return row


_owners = (
    select(Task.id, Task.rerun_of_task_id).where(Task.id == bindparam("task")).cte("owners", recursive=True)
)
_owners = _owners.union(
    select(Task.id, Task.rerun_of_task_id).join(_owners, Task.id == _owners.c.rerun_of_task_id)
)
_BATCH = (
    select(Comment.body, Comment.author_type, Member.name, Agent.name.label("agent_name"))
    .join(TaskComment, TaskComment.comment_id == Comment.id)
    .outerjoin(Member, Member.id == Comment.author_id)
    .outerjoin(Agent, Agent.id == Comment.author_id)
    .where(
        TaskComment.task_id.in_(select(_owners.c.id)),
        Comment.workspace_id == bindparam("workspace"),
        Comment.issue_id == bindparam("issue"),
        Comment.deleted_at.is_(None),
    )
    .order_by(Comment.created_at, Comment.id)
)


async def _comments(conn: AsyncConnection, brief_row: AnyRow) -> Sequence[AnyRow]:
    """The task's batch, and for a retry those of the tasks it retries; oldest first."""
    rows = await conn.execute(
        _BATCH,
        {
            "task": brief_row.task_id,
            "workspace": brief_row.workspace_id,
            "issue": brief_row.issue_id,
        },
    )
    return rows.all()


def _prompt(row: AnyRow, comments: Sequence[AnyRow]) -> Prompt:
    issue = None
    if row.issue_id is not None:
        issue = IssueFacts(
            key=issue_key(row.issue_prefix, row.issue_number),
            title=row.title,
            body=row.body,
            status=row.issue_status,
            parent_key=issue_key(row.issue_prefix, row.parent_number) if row.parent_number else None,
        )
    return build_prompt(
        TaskFacts(
            agent=AgentFacts(row.agent_name, row.instructions, row.agent_id),
            issue=issue,
            comments=[CommentFacts(c.name or c.agent_name or c.author_type, c.body) for c in comments],
            handoff_note=row.handoff_note,
            chat=_chat(row),
        )
    )


def _chat(row: AnyRow) -> ChatFacts | None:
    if row.chat_id is None:
        return None
    return ChatFacts(row.person or "somebody", row.message or "", comes_from_a_run=bool(row.foreign_session))


# --- start ----------------------------------------------------------------------------------------


_INSERT_TOKEN = pg_insert(Token).on_conflict_do_nothing()


async def start(
    conn: AsyncConnection, *, runtime_id: UUID, attempt_id: UUID, request: StartRequest, token: str
) -> StartAnswer:
    """Compare-and-set: the first caller runs the attempt, the same caller gets the same answer again.

    Raises `NotFound`, and `AttemptElsewhere` for another machine, boot or attempt directory.
    """
    row = await _lock_standing(conn, runtime_id, attempt_id)
    if row.started_at is not None:
        _check_same(row, request)
        return StartAnswer(token=token, first_seq=row.first_seq, acked_seq=row.last_seq, started=False)
    await _mark_started(conn, row, request)
    await _place(conn, row, request)
    await _drop_missing_session(conn, row, request)
    if row.chat_id is not None:
        await _tell_chat(conn, row, request)
    await conn.execute(
        _INSERT_TOKEN,
        {
            "id": new_id(),
            "workspace_id": row.workspace_id,
            "hash": tokens.hash_token(token),
            "name": "task",
            "attempt_id": attempt_id,
        },
    )
    return StartAnswer(token=token, first_seq=row.last_seq + 1, acked_seq=row.last_seq, started=True)


_STANDING_LOCKED = (
    select(
        Attempt.id,
        Attempt.workspace_id,
        Attempt.task_id,
        Attempt.directory_id,
        select(Directory.path).where(Directory.id == Attempt.directory_id).scalar_subquery().label("path"),
        Attempt.requested_session_id,
        Attempt.machine_id,
        Attempt.boot_id,
        Attempt.nonce,
        Attempt.first_seq,
        Attempt.started_at,
        Task.last_seq,
        Task.chat_id,
        Task.lane_position,
    )
    .join(Task, Task.id == Attempt.task_id)
    .where(
        Attempt.id == bindparam("wanted"),
        Attempt.runtime_id == bindparam("runtime"),
        Attempt.dispatched_at.is_not(None),
        Attempt.set_aside_at.is_(None),
        Attempt.ended_at.is_(None),
        # Nothing starts any more once the task's end was asked for.
        or_(Attempt.started_at.is_not(None), Task.cancel_requested_at.is_(None)),
    )
    # Both rows: after a wait, only what is locked is read again, and the other start, or the
    # end, that was waited for shows in the attempt.
    .with_for_update(key_share=True, of=(Task.__table__, Attempt.__table__))
)


async def _lock_standing(conn: AsyncConnection, runtime_id: UUID, attempt_id: UUID) -> AnyRow:
    """The attempt with its task's row locked. Raises `NotFound` unless it may run."""
    rows = await conn.execute(_STANDING_LOCKED, {"wanted": attempt_id, "runtime": runtime_id})
    row = rows.one_or_none()
    if row is None:
        raise NotFound(_GONE)
    return row


def _check_same(row: AnyRow, request: StartRequest) -> None:
    before = (row.machine_id, row.boot_id, row.nonce)
    if before != (request.machine_id, request.boot_id, request.nonce):
        raise AttemptElsewhere(
            "The attempt was started from another machine, boot or attempt directory; "
            "a second copy is never started."
        )


_START_ATTEMPT = update(Attempt).where(Attempt.id == bindparam("starting")).values(started_at=func.now())
_START_TASK = (
    update(Task)
    .where(Task.id == bindparam("starting"))
    .values(status=TaskStatus.RUNNING, started_at=func.coalesce(Task.started_at, func.now()))
)
_DELIVERED = (
    update(TaskComment)
    .where(TaskComment.task_id == bindparam("starting"), TaskComment.delivered_at.is_(None))
    .values(delivered_at=func.now())
)


async def _mark_started(conn: AsyncConnection, row: AnyRow, request: StartRequest) -> None:
    await conn.execute(
        _START_ATTEMPT,
        {
            "starting": row.id,
            "machine_id": request.machine_id,
            "boot_id": request.boot_id,
            "nonce": request.nonce,
            "first_seq": row.last_seq + 1,
            "continuity": request.continuity,
            "continuity_reason": request.continuity_reason,
        },
    )
    await conn.execute(_START_TASK, {"starting": row.task_id})
    await conn.execute(_DELIVERED, {"starting": row.task_id})


async def _tell_chat(conn: AsyncConnection, row: AnyRow, request: StartRequest) -> None:
    """Its readers see that the turn runs, and that it had to begin without its conversation."""
    if request.continuity is Continuity.LOST and request.continuity_reason is not None:
        await chatreplies.notice_loss(
            conn,
            chatreplies.TurnPlace(row.task_id, row.chat_id, row.lane_position),
            request.continuity_reason,
        )
    else:
        await chats.tell(conn, row.chat_id)


async def _place(conn: AsyncConnection, row: AnyRow, request: StartRequest) -> None:
    """The directory row learns where it is, once."""
    if row.path is not None:
        return
    await conn.execute(
        update(Directory)
        .where(Directory.id == row.directory_id, Directory.path.is_(None))
        .values(path=request.work_dir, device=request.device, inode=request.inode)
    )


async def _drop_missing_session(conn: AsyncConnection, row: AnyRow, request: StartRequest) -> None:
    """The gate found that the provider no longer has the session: nobody asks for it again."""
    if request.continuity_reason in _NOT_STORED and row.requested_session_id is not None:
        await conn.execute(
            update(Session)
            .where(Session.id == row.requested_session_id, Session.retired_at.is_(None))
            .values(retired_at=func.now(), retired_reason=request.continuity_reason)
        )
        await conn.execute(update(Attempt).where(Attempt.id == row.id).values(requested_session_id=None))


# --- while it runs --------------------------------------------------------------------------------


_STATE = (
    select(
        Attempt.first_seq,
        Attempt.ended_at,
        Attempt.set_aside_at,
        Task.last_seq,
        Task.cancel_requested_at,
    )
    .join(Task, Task.id == Attempt.task_id)
    .where(Attempt.id == bindparam("wanted"), Attempt.runtime_id == bindparam("runtime"))
)


async def state(conn: AsyncConnection, *, runtime_id: UUID, attempt_id: UUID) -> AttemptState:
    """Does the attempt still stand? An ended one answers ``standing: false``. Raises `NotFound`."""
    rows = await conn.execute(_STATE, {"wanted": attempt_id, "runtime": runtime_id})
    row = rows.one_or_none()
    if row is None:
        raise NotFound(_GONE)
    return AttemptState(
        attempt_id=attempt_id,
        standing=row.ended_at is None and row.set_aside_at is None,
        cancel_requested=row.cancel_requested_at is not None,
        first_seq=row.first_seq or row.last_seq + 1,
        acked_seq=row.last_seq,
    )


_REPORTING = select(Attempt.task_id, Attempt.number).where(
    Attempt.id == bindparam("wanted"),
    Attempt.runtime_id == bindparam("runtime"),
    Attempt.started_at.is_not(None),
    Attempt.ended_at.is_(None),
)


async def check_standing(conn: AsyncConnection, *, runtime_id: UUID, attempt_id: UUID) -> tuple[UUID, int]:
    """(task id, attempt number) of an attempt that may still report; one set aside may. `NotFound`."""
    rows = await conn.execute(_REPORTING, {"wanted": attempt_id, "runtime": runtime_id})
    row = rows.one_or_none()
    if row is None:
        raise NotFound(_GONE)
    return row.task_id, row.number


_PINNING = (
    select(
        Attempt.workspace_id,
        Attempt.directory_id,
        Attempt.runtime_id,
        Attempt.provider,
        Attempt.fork,
        Attempt.ended_at,
        Attempt.outcome,
        Attempt.decision,
        Task.lane_id,
        Task.context,
        Session.provider_session_id.label("requested"),
    )
    .join(Task, Task.id == Attempt.task_id)
    .outerjoin(Session, Session.id == Attempt.requested_session_id)
    .where(
        Attempt.id == bindparam("wanted"),
        Attempt.runtime_id == bindparam("runtime"),
        or_(
            Attempt.ended_at.is_(None),
            and_(Attempt.used_session_id.is_(None), Attempt.outcome.is_not(None)),
        ),
    )
)
_PIN = update(Attempt).where(Attempt.id == bindparam("pinning"))


async def pin_session(
    conn: AsyncConnection, *, runtime_id: UUID, attempt_id: UUID, provider_session_id: str
) -> None:
    """Remember the session a running attempt uses, so that a crash can't lose it. `NotFound`.

    A resumed run that reveals another id is not believed yet: its end decides (field notes R1, R3).
    One that comes after the end of a run without a session is judged as that end was.
    """
    rows = await conn.execute(_PINNING, {"wanted": attempt_id, "runtime": runtime_id})
    row = rows.one_or_none()
    if row is None:
        raise NotFound(_GONE)
    resumes = row.requested is not None and not row.fork
    if resumes and (row.ended_at is not None or row.requested != provider_session_id):
        return
    place = sessions.SessionPlace(
        row.workspace_id, row.provider, row.runtime_id, row.lane_id, row.directory_id, row.context
    )
    if row.ended_at is not None:
        await _judge_late(conn, place, row, provider_session_id)
    session_id = await sessions.remember(conn, place, provider_session_id)
    await conn.execute(_PIN, {"pinning": attempt_id, "used_session_id": session_id})


async def _judge_late(
    conn: AsyncConnection, place: sessions.SessionPlace, attempt: AnyRow, provider_session_id: str
) -> None:
    """Record what would have been recorded had the id come in time: it overtakes no later run's."""
    outcome = Outcome.model_validate(attempt.outcome)
    recorded = Recorded.model_validate(attempt.decision) if attempt.decision is not None else None
    await sessions.judge(
        conn,
        place=place,
        requested=None,
        pinned=None,
        outcome=outcome.model_copy(update={"session_id": provider_session_id}),
        at=attempt.ended_at,
        waits_for_quota=recorded is not None and recorded.decision.action is RetryAction.QUOTA,
    )
