"""What became of an attempt: one transaction that judges, decides, releases and grants.

`record` has an outcome; `set_aside` has none, so the directory stays closed until `settle` brings
the machine's word that no process is left.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from random import random
from typing import Any
from uuid import UUID

import structlog
from sqlalchemy import bindparam, func, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from domain.errors import NotFound, UnprocessableInput
from domain.outcomes import Outcome, OutcomeStatus, Usage
from domain.permissions import Actor
from domain.reasons import Reason, rule_for
from domain.retry import END, RetryAction, RetryDecision, RetryPolicy, decide_retry
from domain.statuses import (
    CAPACITY_LEASES,
    Continuity,
    ContinuityReason,
    TaskKind,
    TaskStatus,
)
from domain.steps import AsideInput, Recorded, RecordInput, SettleInput, StopInput
from store import chatreplies, comments, leases, outbox, sessions, tasks
from store.endings import Ending
from store.models import Attempt, Comment, EventRow, Session, Task
from store.rows import AnyRow

log = structlog.get_logger(__name__)

#: A reply longer than this is cut in the comment; the transcript has all of it (upstream #5455).
MAX_REPLY = 8000
_ERROR_LIMIT = 4000


@dataclass(frozen=True)
class Texts:
    """What the agent and the runner wrote about the end, from the event table."""

    reply: str | None = None
    message: str | None = None
    evidence: str | None = None


async def record(conn: AsyncConnection, step: RecordInput, policy: RetryPolicy) -> Recorded:
    """Record an outcome: the attempt's, and the task's if no retry follows. Idempotent."""
    task = await tasks.lock(conn, step.task_id)
    if task is None:
        return Recorded(decision=END, status=TaskStatus.CANCELLED)
    if TaskStatus(task.status).terminal:
        return Recorded(decision=END, status=task.status, reason=task.reason)
    attempt = await _attempt(conn, step.attempt_id)
    if attempt is not None and attempt.decision is not None:
        return Recorded.model_validate(attempt.decision)
    decision = _decide(task, step.outcome, policy)
    ending = None
    if decision.ends:
        ending = _ending(task, attempt, step, await _texts(conn, task.id, step.outcome))
    recorded = _recorded(decision, ending)
    if attempt is not None:
        await _record_attempt(conn, task, attempt, step.outcome, recorded)
    if ending is None:
        await _sleep(conn, task, step.outcome, recorded)
    else:
        await _finish(conn, task, attempt, ending, step.outcome)
    return recorded


def _recorded(decision: RetryDecision, ending: Ending | None) -> Recorded:
    if ending is not None:
        return Recorded(decision=decision, status=ending.status, reason=ending.reason)
    quota = decision.action is RetryAction.QUOTA
    return Recorded(decision=decision, status=TaskStatus.WAITING_QUOTA if quota else TaskStatus.RETRY_WAIT)


def _decide(task: AnyRow, outcome: Outcome, policy: RetryPolicy) -> RetryDecision:
    if outcome.status is not OutcomeStatus.FAILED or task.cancel_requested_at is not None:
        return END
    return decide_retry(
        outcome.reason,
        # Waits for quota raised both numbers; what is decided on are the attempts that count.
        task.attempt - task.quota_waits,
        policy.model_copy(update={"max_attempts": task.max_attempts - task.quota_waits}),
        now=datetime.now(UTC),
        resets_at=outcome.resets_at,
        quota_waits=task.quota_waits,
        jitter=random(),
    )


_asked_for = Session.__table__.alias("asked_for")
_used = Session.__table__.alias("used")
_ATTEMPT = (
    select(
        Attempt.__table__,
        _asked_for.c.provider_session_id.label("requested_name"),
        _used.c.provider_session_id.label("used_name"),
    )
    .outerjoin(_asked_for, _asked_for.c.id == Attempt.requested_session_id)
    .outerjoin(_used, _used.c.id == Attempt.used_session_id)
    .where(Attempt.id == bindparam("wanted"))
)


async def _attempt(conn: AsyncConnection, attempt_id: UUID | None) -> AnyRow | None:
    """The attempt, with the provider's names for the session it was to resume and the one it pinned."""
    if attempt_id is None:
        return None
    rows = await conn.execute(_ATTEMPT, {"wanted": attempt_id})
    return rows.one_or_none()


def _known(session_id: UUID | None, name: str) -> sessions.KnownSession | None:
    return None if session_id is None else sessions.KnownSession(session_id, name)


_END_ATTEMPT = update(Attempt).where(Attempt.id == bindparam("ending")).values(ended_at=func.now())


async def _record_attempt(
    conn: AsyncConnection,
    task: AnyRow,
    attempt: AnyRow,
    outcome: Outcome,
    recorded: Recorded | None = None,
) -> None:
    """The attempt's end and what it says about its session; ``recorded`` is kept as the answer."""
    # Set aside: for its lane it ended then, and what has run since is later.
    at: sessions.Moment = attempt.set_aside_at
    requested = _known(attempt.requested_session_id, attempt.requested_name)
    pinned = _known(attempt.used_session_id, attempt.used_name)
    if pinned is not None and pinned.provider_session_id == outcome.refused_session_id:
        pinned = None  # the provider named it, then refused it
    if outcome.session_id is None and pinned is not None:
        outcome = outcome.model_copy(update={"session_id": pinned.provider_session_id})
    used = None
    if attempt.started_at is not None:
        used = await sessions.judge(
            conn,
            place=sessions.SessionPlace(
                task.workspace_id,
                attempt.provider,
                attempt.runtime_id,
                task.lane_id,
                attempt.directory_id,
                task.context,
            ),
            requested=requested,
            pinned=pinned,
            outcome=outcome,
            at=at,
            forks=attempt.fork,
            waits_for_quota=recorded is not None and recorded.decision.action is RetryAction.QUOTA,
        )
    if used is not None and outcome.session_rollout_missing:
        await sessions.retire(conn, used, ContinuityReason.ROLLOUT_MISSING, at)
    kept = {} if recorded is None else {"decision": recorded.model_dump(mode="json")}
    continuity = _continuity(attempt, requested, outcome)
    if continuity and task.chat_id is not None:
        await chatreplies.notice_loss(
            conn,
            chatreplies.TurnPlace(task.id, task.chat_id, task.lane_position),
            continuity["continuity_reason"],
        )
    await conn.execute(
        _END_ATTEMPT,
        {
            "ending": attempt.id,
            "reason": outcome.reason,
            "outcome": outcome.model_dump(mode="json"),
            "used_session_id": used or (pinned.id if pinned is not None else None),
            **kept,
            **continuity,
        },
    )


def _continuity(attempt: AnyRow, requested: sessions.KnownSession | None, outcome: Outcome) -> dict[str, Any]:
    """Never call a cold start a resume: the refused and the silently changed session are told."""
    if outcome.refused_session_id is not None and requested is not None:
        return {
            "continuity": Continuity.LOST,
            "continuity_reason": ContinuityReason.RESUME_REJECTED,
        }
    changed = (
        requested is not None
        and outcome.session_id is not None
        and outcome.session_id != requested.provider_session_id
    )
    if changed and not attempt.fork:
        return {
            "continuity": Continuity.LOST,
            "continuity_reason": ContinuityReason.SESSION_CHANGED,
        }
    return {}


async def _finish(
    conn: AsyncConnection, task: AnyRow, attempt: AnyRow | None, ending: Ending, outcome: Outcome
) -> None:
    await _reply(conn, task, ending)
    if attempt is None:
        await tasks.close_unstarted(conn, task, ending.reason)
    await tasks.end(conn, task, ending, usage=outcome.usage)


async def _sleep(conn: AsyncConnection, task: AnyRow, outcome: Outcome, recorded: Recorded) -> None:
    """Keep lane, directory and session; give the slots of agent and machine to others."""
    quota = recorded.decision.action is RetryAction.QUOTA
    usage = Usage.model_validate(task.usage) + outcome.usage
    await conn.execute(
        update(Task)
        .where(Task.id == task.id)
        .values(
            status=recorded.status,
            retry_at=recorded.decision.at or func.now(),
            usage=usage.model_dump(),
            quota_waits=Task.quota_waits + (1 if quota else 0),
            max_attempts=Task.max_attempts + (1 if quota else 0),
        )
    )
    await leases.release(conn, workspace_id=task.workspace_id, task_id=task.id, kinds=CAPACITY_LEASES)


def _ending(task: AnyRow, attempt: AnyRow | None, step: RecordInput, texts: Texts) -> Ending:
    outcome = step.outcome
    match outcome.status:
        case OutcomeStatus.COMPLETED:
            return Ending(TaskStatus.COMPLETED, Reason.COMPLETED, result=texts.reply)
        case OutcomeStatus.CANCELLED:
            never_started = attempt is None or attempt.started_at is None
            ending = tasks.stopped(task.cancel_reason if never_started else None)
            return Ending(ending.status, ending.reason, ending.error, result=texts.reply)
        case OutcomeStatus.FAILED:
            return Ending(
                TaskStatus.FAILED,
                outcome.reason,
                (texts.message or step.detail or rule_for(outcome.reason).meaning)[:_ERROR_LIMIT],
                texts.evidence or step.detail,
                texts.reply,
            )


_TEXTS = select(EventRow.seq, EventRow.data).where(
    EventRow.task_id == bindparam("task"), EventRow.seq.in_(bindparam("seqs", expanding=True))
)


async def _texts(conn: AsyncConnection, task_id: UUID, outcome: Outcome) -> Texts:
    seqs = [seq for seq in (outcome.result_seq, outcome.error_seq) if seq is not None]
    if not seqs:
        return Texts()
    rows = await conn.execute(_TEXTS, {"task": task_id, "seqs": seqs})
    data = {row.seq: row.data for row in rows}
    result = data.get(outcome.result_seq, {})
    error = data.get(outcome.error_seq, {})
    return Texts(result.get("text"), error.get("message"), error.get("evidence"))


# --- the reply on the issue -----------------------------------------------------------------------


async def _reply(conn: AsyncConnection, task: AnyRow, ending: Ending) -> None:
    """One comment says how the run ended, unless the agent has commented by itself; a chat has its reply."""
    if task.chat_id is not None:
        await chatreplies.write(conn, task, ending)
        return
    if task.kind != TaskKind.ISSUE or ending.status is TaskStatus.CANCELLED:
        return
    completed = ending.status is TaskStatus.COMPLETED
    body = _cut(ending.result or "") if completed else chatreplies.failure_text(ending)
    if not body.strip() or (completed and await _has_commented(conn, task.id)):
        return
    author = ("agent", task.agent_id) if completed else ("system", None)
    try:
        await _comment(conn, task, body, author, task.trigger_comment_id)
    except UnprocessableInput:  # the comment that it answers is gone
        await _comment(conn, task, body, author, None)
    except NotFound:
        log.info("reply_without_issue", task_id=str(task.id))  # the transcript has it


async def _comment(
    conn: AsyncConnection,
    task: AnyRow,
    body: str,
    author: tuple[str, UUID | None],
    parent_id: UUID | None,
) -> None:
    await comments.add(
        conn,
        actor=Actor(
            workspace_id=task.workspace_id,
            member_id=task.originator_id,
            agent_id=task.agent_id,
            task_id=task.id,
        ),
        issue_id=task.issue_id,
        body=body,
        parent_id=parent_id,
        author_type=author[0],
        author_id=author[1],
        source_task_id=task.id,
    )


_OWN_COMMENT = select(Comment.id).where(Comment.source_task_id == bindparam("task")).limit(1)


async def _has_commented(conn: AsyncConnection, task_id: UUID) -> bool:
    rows = await conn.execute(_OWN_COMMENT, {"task": task_id})
    return rows.first() is not None


def _cut(text: str) -> str:
    if len(text) <= MAX_REPLY:
        return text
    return f"{text[:MAX_REPLY]}\n\n[cut here: the whole reply is in the task's transcript]"


# --- no outcome -----------------------------------------------------------------------------------


async def set_aside(conn: AsyncConnection, step: AsideInput) -> Recorded:
    """End a task whose run nobody can speak for; its directory and session stay closed.

    An attempt that the machine never started has no process, so it ends at once and frees all.
    """
    task = await tasks.lock(conn, step.task_id)
    if task is None:
        return Recorded(decision=END, status=TaskStatus.CANCELLED)
    if TaskStatus(task.status).terminal:
        return Recorded(decision=END, status=task.status, reason=task.reason)
    attempt = await _attempt(conn, step.attempt_id or await _standing_attempt(conn, task.id))
    if attempt is None or attempt.started_at is None or attempt.ended_at is not None:
        ending = tasks.stopped(task.cancel_reason) if task.cancel_requested_at else _unstarted(step)
        await end_unstarted(conn, task, ending)
        return Recorded(decision=END, status=ending.status, reason=ending.reason)
    return await _set_aside_started(conn, task, attempt, step)


async def end_unstarted(conn: AsyncConnection, task: AnyRow, ending: Ending) -> None:
    """End a locked task that no machine has started, and say so on its issue."""
    await _reply(conn, task, ending)
    await tasks.close_unstarted(conn, task, ending.reason)
    await tasks.end(conn, task, ending)


def _unstarted(step: AsideInput) -> Ending:
    return tasks.failure(step.reason, evidence=step.cause)


async def _set_aside_started(
    conn: AsyncConnection, task: AnyRow, attempt: AnyRow, step: AsideInput
) -> Recorded:
    cancelled = task.cancel_requested_at is not None
    stop = StopInput(
        attempt_id=attempt.id,
        task_id=task.id,
        runtime_id=attempt.runtime_id,
        ops_queue=attempt.ops_queue,
        settled_reason=Reason.CANCELLED if cancelled else step.reason,
    ).model_dump(mode="json")
    await conn.execute(
        update(Attempt)
        .where(Attempt.id == attempt.id)
        .values(set_aside_at=func.now(), reason=Reason.OUTCOME_UNKNOWN, stop=stop)
    )
    await leases.pass_to_attempt(conn, workspace_id=task.workspace_id, task_id=task.id, attempt_id=attempt.id)
    status = TaskStatus.CANCELLED if cancelled else TaskStatus.FAILED
    ending = Ending(status, Reason.OUTCOME_UNKNOWN, rule_for(Reason.OUTCOME_UNKNOWN).meaning, step.cause)
    if task.chat_id is not None:
        await chatreplies.write(conn, task, ending)
    await tasks.end(conn, task, ending)
    await outbox.put(
        conn,
        workspace_id=task.workspace_id,
        kind=outbox.OutboxKind.STOP,
        subject_id=attempt.id,
        payload=stop,
    )
    return Recorded(decision=END, status=status, reason=Reason.OUTCOME_UNKNOWN)


async def settle(conn: AsyncConnection, step: SettleInput) -> None:
    """The machine has spoken: no process is left. Record what it found and open the directory."""
    found = await _attempt(conn, step.attempt_id)
    task = await tasks.lock(conn, found.task_id) if found is not None else None
    attempt = await _attempt(conn, step.attempt_id)  # again: now nobody else settles it
    if task is None or attempt is None or attempt.ended_at is not None:
        return
    outcome = step.result.outcome or Outcome(
        status=OutcomeStatus.CANCELLED, reason=Reason.CANCELLED, last_seq=task.last_seq
    )
    await _record_attempt(conn, task, attempt, outcome)
    await _settle_task(conn, task, outcome, step.settled_reason)
    await leases.release(conn, workspace_id=task.workspace_id, attempt_id=attempt.id)


async def _settle_task(conn: AsyncConnection, task: AnyRow, outcome: Outcome, settled_reason: str) -> None:
    """``outcome_unknown`` becomes known, once. The status never changes; a late reply is not lost."""
    if task.reason != Reason.OUTCOME_UNKNOWN:
        return
    texts = await _texts(conn, task.id, outcome)
    failed = task.status == TaskStatus.FAILED
    ending = Ending(
        TaskStatus(task.status),
        settled_reason,
        rule_for(settled_reason).meaning if failed else None,
        result=texts.reply,
    )
    await conn.execute(
        update(Task)
        .where(Task.id == task.id)
        .values(
            reason=ending.reason,
            error=ending.error,
            result=ending.result,
            usage=(Usage.model_validate(task.usage) + outcome.usage).model_dump(),
        )
    )
    if outcome.status is OutcomeStatus.COMPLETED:
        ending = Ending(TaskStatus.COMPLETED, Reason.COMPLETED, result=texts.reply)
    if task.chat_id is not None:
        await chatreplies.correct(conn, task, ending)
    else:
        await _reply(conn, task, ending)


async def _standing_attempt(conn: AsyncConnection, task_id: UUID) -> UUID | None:
    rows = await conn.execute(
        select(Attempt.id).where(Attempt.task_id == task_id, Attempt.ended_at.is_(None)).limit(1)
    )
    return rows.scalar_one_or_none()
