"""What becomes of an attempt: outcome, retry, session, reply; and what happens without an outcome."""

from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import select

from domain.events import EventType
from domain.outcomes import Usage
from domain.retry import RetryAction
from domain.statuses import TaskStatus
from domain.steps import Resolution, Resolved
from store import recording
from store.dispatch import DispatchRules
from store.models import Comment, Directory, Issue, LaneSession, Task
from tests.store.board import Board, outcome

pytestmark = pytest.mark.slow

LANE_KEPT = ["directory", "lane"]


class Lane:
    """One agent on one issue."""

    def __init__(self, board: Board, agent: UUID, issue: UUID) -> None:
        self.board, self.agent, self.issue = board, agent, issue

    async def task(self, body: str = "say hi") -> UUID:
        return await self.board.task(self.agent, self.issue, body)

    async def run(self, **ended: Any) -> Resolution:
        return await self.board.run(await self.task(), **ended)

    async def next(self) -> Resolution:
        return await self.board.resolve(await self.task())

    async def replies(self) -> list[Any]:
        return [c for c in await self.board.comments(self.issue) if c.author_type != "member"]


@pytest.fixture
async def lane(board: Board) -> Lane:
    return Lane(board, await board.agent(await board.runtime()), await board.issue())


async def ended(board: Board, task: UUID, resolution: Resolution, reply: str, **more: Any) -> None:
    """The run says ``reply`` and completes."""
    seq = await board.say(task, EventType.RESULT, success=True, text=reply)
    await board.record(task, resolution, outcome(result_seq=seq, last_seq=seq, **more))


# --- each kind of outcome -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "reason, status", [("completed", "completed"), ("cancelled", "cancelled"), ("process_failure", "failed")]
)
async def test_an_end_is_final_and_frees_everything(
    board: Board, lane: Lane, reason: str, status: str
) -> None:
    """Status, reason and times are set, the attempt is closed, no lease is left."""
    task = await lane.task()
    resolution = await board.running(task)
    recorded = await board.record(task, resolution, outcome(reason))
    row, attempt = await board.row(task), await board.attempt(resolution)
    assert (row.status, row.reason, row.ended_at is not None) == (status, reason, True)
    assert (recorded.status, recorded.reason, recorded.decision.ends) == (status, reason, True)
    assert (attempt.reason, attempt.ended_at is not None) == (reason, True)
    assert (await board.leases(), await board.waits()) == ([], {})


@pytest.mark.parametrize("reason", ["completed", "cancelled", "process_failure", "runtime_recovery"])
async def test_recording_again_answers_the_same(board: Board, lane: Lane, reason: str) -> None:
    """A lost answer is repeated: one comment, one usage, one strike, one decision."""
    task = await lane.task()
    resolution = await board.running(task)
    seq = await board.say(task, EventType.RESULT, success=True, text="done")
    said = outcome(reason, result_seq=seq, usage=Usage(input_tokens=5))
    answers = [await board.record(task, resolution, said) for _ in range(3)]
    assert [(a.status, a.reason) for a in answers] == [(answers[0].status, answers[0].reason)] * 3
    assert (await board.row(task)).usage["input_tokens"] == 5
    assert (await board.session("s-1")).consecutive_failures == (reason not in {"completed", "cancelled"})
    assert len(await lane.replies()) <= 1


async def test_a_late_outcome_of_an_earlier_attempt_changes_nothing(board: Board, lane: Lane) -> None:
    """The task is at its second attempt; the first one's record is answered from its row."""
    task = await lane.task()
    first = await board.running(task)
    said = await board.record(task, first, outcome("runtime_recovery"))
    await board.start(await board.resolve(task, 2))
    assert await board.record(task, first, outcome("completed")) == said
    assert (await board.row(task)).status == TaskStatus.RUNNING


async def test_a_cancel_before_the_grant_closes_what_was_granted(board: Board, lane: Lane) -> None:
    """The workflow is cancelled while its grant is on the way: no attempt is left open."""
    running = await board.running(first := await lane.task())
    waiting = await lane.task()
    await board.resolve(waiting)
    await board.record(first, running, outcome())
    assert len(await board.attempts(waiting)) == 1
    await board.record(waiting, None, outcome("cancelled", None))
    assert (await board.attempts(waiting))[0].ended_at is not None
    assert await board.leases() == []


async def test_a_result_beats_a_cancel(board: Board, lane: Lane) -> None:
    """The agent had finished when the stop came: completed, with its reply."""
    task = await lane.task()
    resolution = await board.running(task)
    await board.cancel(task)
    await ended(board, task, resolution, "done")
    assert ((await board.row(task)).status, (await board.row(task)).result) == ("completed", "done")


async def test_a_failure_under_a_cancel_is_not_retried(board: Board, lane: Lane) -> None:
    """Nobody wants another attempt of what is being stopped."""
    task = await lane.task()
    resolution = await board.running(task)
    await board.cancel(task)
    recorded = await board.record(task, resolution, outcome("runtime_recovery"))
    assert recorded.decision.ends


async def test_texts_come_from_the_events(board: Board, lane: Lane) -> None:
    """Message and evidence are the error event's; without one the reason's meaning stands in."""
    task = await lane.task()
    resolution = await board.running(task)
    seq = await board.say(task, EventType.ERROR, message="it broke", evidence="line 7")
    await board.record(task, resolution, outcome("process_failure", error_seq=seq))
    row = await board.row(task)
    assert (row.error, row.evidence) == ("it broke", "line 7")
    silent = await lane.task()
    await board.run(silent, reason="process_failure")
    assert (await board.row(silent)).error.startswith("The agent's process crashed")


# --- retries --------------------------------------------------------------------------------------


async def test_a_retry_keeps_the_lane_and_frees_the_slots(board: Board) -> None:
    """While it sleeps others may use agent and machine, but nobody enters lane, directory or session."""
    agent = await board.agent(await board.runtime(slots=1), at_once=1)
    lane = Lane(board, agent, await board.issue())
    await lane.run()
    task = await lane.task()
    resolution = await board.running(task)
    other = await board.task(agent, await board.issue())
    await board.resolve(other)
    recorded = await board.record(task, resolution, outcome("runtime_recovery"))
    assert (recorded.decision.action, recorded.status) == (RetryAction.NOW, TaskStatus.RETRY_WAIT)
    assert recorded.reason is None
    held = await board.leases()
    assert [kind for kind, holder in held if holder == task] == [*LANE_KEPT, "session"]
    assert await board.outbox("wake") == [other]
    waiting = await board.resolve(task, 2)
    assert waiting.wait_kind == "agent_capacity"
    row = await board.row(task)
    assert (row.reason, row.ended_at) == (None, None)


async def test_a_retry_goes_on_with_its_own_session(board: Board, lane: Lane) -> None:
    """Same session, same directory, next number; its usage adds up."""
    task = await lane.task()
    first = await board.running(task)
    await board.record(task, first, outcome("runtime_recovery", usage=Usage(input_tokens=1)))
    second = await board.resolve(task, 2)
    await board.start(second)
    assert (second.session_id, second.attempt, second.continuity) == ("s-1", 2, "resumed")
    assert (await board.attempt(second)).directory_id == (await board.attempt(first)).directory_id
    await board.record(task, second, outcome(usage=Usage(input_tokens=2)))
    assert (await board.row(task)).usage["input_tokens"] == 3
    assert await board.leases() == []


async def test_a_fresh_rerun_stays_in_its_directory_when_retried(board: Board, lane: Lane) -> None:
    """Fresh was asked for once, not for every attempt, whichever attempt never started."""
    await lane.run()
    task = await board.rerun(lane.agent, lane.issue)
    first = await board.running(task)
    await board.record(task, first, outcome("provider_network", "s-2"))
    second = await board.resolve(task, 2)
    assert second.session_id == "s-2"
    await board.record(task, second, outcome("provider_network", None))
    third = await board.resolve(task, 3)
    assert (third.session_id, third.work_dir) == ("s-2", second.work_dir)


async def test_a_last_attempt_ends_the_task(board: Board, lane: Lane) -> None:
    """Two attempts, then its reason stands."""
    task = await lane.task()
    for number in (1, 2):
        resolution = await board.resolve(task, number)
        await board.start(resolution)
        await board.record(task, resolution, outcome("runtime_recovery"))
    row = await board.row(task)
    assert (row.status, row.reason, row.attempt) == ("failed", "runtime_recovery", 2)


async def test_a_quota_with_a_reset_is_a_wait(board: Board, lane: Lane) -> None:
    """No strike, no attempt used up, the same session afterwards."""
    task = await lane.task()
    reset = await board.now() + timedelta(hours=1)
    for number in (1, 2, 3):
        resolution = await board.resolve(task, number)
        await board.start(resolution)
        recorded = await board.record(task, resolution, outcome("provider_quota_limit", resets_at=reset))
        assert recorded.decision.action is RetryAction.QUOTA
    row, session = await board.row(task), await board.session("s-1")
    assert (row.status, row.quota_waits, row.retry_at >= reset) == (TaskStatus.WAITING_QUOTA, 3, True)
    assert (session.consecutive_failures, session.retired_at) == (0, None)
    assert [kind for kind, _ in await board.leases()] == [*LANE_KEPT, "session"]
    resolution = await board.resolve(task, 4)
    assert resolution.session_id == "s-1"
    await board.start(resolution)
    again = await board.record(task, resolution, outcome("runtime_recovery"))
    assert again.decision.action is RetryAction.NOW


async def test_waits_for_quota_don_t_switch_retries_on(board: Board, lane: Lane) -> None:
    """A task with one attempt still has one after a wait."""
    board.rules = DispatchRules(max_attempts=1)
    task = await lane.task()
    reset = await board.now() + timedelta(hours=1)
    await board.record(task, await board.running(task), outcome("provider_quota_limit", resets_at=reset))
    second = await board.resolve(task, 2)
    await board.start(second)
    recorded = await board.record(task, second, outcome("provider_network"))
    assert recorded.decision.ends


async def test_a_session_that_waited_for_quota_does_not_hide_its_successor(board: Board, lane: Lane) -> None:
    """It was never judged and then refused: the lane goes on from the session that took its place."""
    task = await lane.task()
    reset = await board.now() + timedelta(hours=1)
    first = await board.running(task)
    await board.record(task, first, outcome("provider_quota_limit", "s-1", resets_at=reset))
    second = await board.resolve(task, 2)
    await board.start(second)
    await board.record(task, second, outcome(session="s-2", refused_session_id="s-1"))
    resolution = await lane.next()
    assert (resolution.session_id, resolution.continuity) == ("s-2", "resumed")


# --- what it says about the session ---------------------------------------------------------------


async def test_poison_retires_the_session_and_keeps_the_directory(board: Board, lane: Lane) -> None:
    """The next run is cold in the same files, and says why."""
    first = await lane.run(reason="context_overflow")
    assert (await board.session("s-1")).retired_reason == "context_overflow"
    after = await lane.next()
    assert (after.session_id, after.continuity, after.continuity_reason) == (
        None,
        "lost",
        "session_poisoned",
    )
    assert (await board.attempt(after)).directory_id == (await board.attempt(first)).directory_id


async def test_a_poisoned_retry_starts_cold_at_once(board: Board, lane: Lane) -> None:
    """A Codex stall is retried on a fresh session in the same directory."""
    task = await lane.task()
    await board.record(task, await board.running(task), outcome("codex_semantic_inactivity"))
    second = await board.resolve(task, 2)
    assert (second.session_id, second.continuity_reason) == (None, "session_poisoned")
    assert second.work_dir is not None


async def test_three_failures_in_a_row_retire(board: Board, lane: Lane) -> None:
    """Whatever the text; the directory stays."""
    for number in (1, 2, 3):
        assert (await board.session("s-1")).retired_at is None if number > 1 else True
        await lane.run(reason="process_failure")
    assert (await board.session("s-1")).retired_reason == "repeated_failure"
    after = await lane.next()
    assert (after.session_id, after.continuity_reason) == (None, "session_retired")


async def test_a_success_wipes_the_strikes(board: Board, lane: Lane) -> None:
    """Consecutive means consecutive; a person's stop neither adds nor wipes."""
    for reason in ("process_failure", "process_failure", "cancelled"):
        await lane.run(reason=reason)
    assert (await board.session("s-1")).consecutive_failures == 2
    await lane.run()
    assert (await board.session("s-1")).consecutive_failures == 0


async def test_a_cancelled_run_keeps_its_session(board: Board, lane: Lane) -> None:
    """The next comment resumes it, and so does a retry, even when it had revealed nothing."""
    await lane.run()
    stopped = await lane.task()
    await board.record(stopped, await board.running(stopped), outcome("cancelled", None))
    again = await board.retry(stopped)
    resolution = await board.resolve(again)
    assert (resolution.session_id, resolution.continuity) == ("s-1", "resumed")


async def test_a_refused_session_is_retired_and_its_successor_adopted(board: Board, lane: Lane) -> None:
    """The provider refused the resume, the attempt went on fresh: lost, told, and resumed from then on."""
    await lane.run()
    resolution = await lane.run(session="s-2", refused_session_id="s-1")
    attempt = await board.attempt(resolution)
    assert (attempt.continuity, attempt.continuity_reason) == ("lost", "resume_rejected")
    assert (await board.session("s-1")).retired_reason == "resume_rejected"
    assert (await lane.next()).session_id == "s-2"


async def test_a_failed_refusal_does_not_come_back(board: Board, lane: Lane) -> None:
    """Refused, and the fresh one never came to be: the next run says that the resume was rejected."""
    await lane.run()
    await lane.run(session=None, reason="resume_rejected", refused_session_id="s-1")
    after = await lane.next()
    assert (after.session_id, after.continuity_reason) == (None, "resume_rejected")


@pytest.mark.parametrize("reason", ["process_failure", "cancelled"])
async def test_a_made_up_session_is_never_adopted(board: Board, lane: Lane, reason: str) -> None:
    """The id changed and the run did not succeed: the lane keeps the session it asked for, openly."""
    await lane.run()
    resolution = await lane.run(session="ghost", reason=reason)
    assert (await board.attempt(resolution)).continuity_reason == "session_changed"
    assert (await lane.next()).session_id == "s-1"


async def test_a_silent_new_session_is_told_and_adopted(board: Board, lane: Lane) -> None:
    """The id changed on success: that was no resume, and the new conversation is the lane's now."""
    await lane.run()
    resolution = await lane.run(session="s-2")
    attempt = await board.attempt(resolution)
    assert (attempt.continuity, attempt.continuity_reason) == ("lost", "session_changed")
    assert (await lane.next()).session_id == "s-2"


async def test_a_fork_is_judged_by_itself(board: Board, lane: Lane) -> None:
    """Another id is what was asked for: the source keeps its record, the fork gets its own."""
    await lane.run()
    task = await lane.task()
    resolution = await board.running(task)
    await board.change_attempt(resolution, fork=True)
    await board.record(task, resolution, outcome("process_failure", "s-fork"))
    assert (await board.attempt(resolution)).continuity == "resumed"
    assert (await board.session("s-1")).consecutive_failures == 0
    assert (await board.session("s-fork")).consecutive_failures == 1


async def test_a_run_that_never_started_says_nothing_about_a_session(board: Board, lane: Lane) -> None:
    """A full disk is not the conversation's fault."""
    await lane.run()
    task = await lane.task()
    await board.record(task, await board.resolve(task), outcome("disk_full", None))
    assert (await board.session("s-1")).consecutive_failures == 0
    assert len(await board.rows(select(LaneSession.session_id))) == 1


# --- the reply ------------------------------------------------------------------------------------


async def test_the_reply_is_the_agents_comment_under_the_trigger(board: Board, lane: Lane) -> None:
    """Whole, by the agent, from this task, below the comment that started it."""
    task = await lane.task()
    await ended(board, task, await board.running(task), "done")
    (reply,) = await lane.replies()
    assert (reply.body, reply.author_type, reply.author_id) == ("done", "agent", lane.agent)
    assert (reply.source_task_id, reply.parent_id) == (task, (await board.row(task)).trigger_comment_id)


@pytest.mark.parametrize("text", ["", "  \n"])
async def test_an_empty_reply_is_no_comment(board: Board, lane: Lane, text: str) -> None:
    """A run may have nothing to say."""
    task = await lane.task()
    await ended(board, task, await board.running(task), text)
    assert await lane.replies() == []


async def test_an_agent_that_has_commented_is_not_repeated(board: Board, lane: Lane) -> None:
    """It spoke for itself during the run."""
    task = await lane.task()
    resolution = await board.running(task)
    comment = await board.comment(lane.issue, "my own words")
    await board.change(Comment, comment, author_type="agent", source_task_id=task)
    await ended(board, task, resolution, "done")
    assert [reply.body for reply in await lane.replies()] == ["my own words"]


async def test_a_long_reply_is_cut(board: Board, lane: Lane) -> None:
    """The comment says so; the task's result is whole."""
    task = await lane.task()
    await ended(board, task, await board.running(task), "x" * (recording.MAX_REPLY + 1))
    (reply,) = await lane.replies()
    assert reply.body.endswith("transcript]")
    assert len((await board.row(task)).result) == recording.MAX_REPLY + 1


async def test_a_failure_is_told_once_with_its_advice(board: Board, lane: Lane) -> None:
    """Not while a retry follows; then what happened, the reason and the next step, by the system."""
    task = await lane.task()
    for number in (1, 2):
        assert await lane.replies() == []
        resolution = await board.resolve(task, number)
        await board.start(resolution)
        seq = await board.say(task, EventType.ERROR, message="it died")
        await board.record(task, resolution, outcome("runtime_recovery", error_seq=seq))
    (reply,) = await lane.replies()
    assert (reply.author_type, reply.author_id) == ("system", None)
    for part in ("it died", "runtime_recovery", "memory"):
        assert part in reply.body


async def test_a_failure_that_quotes_a_mention_starts_nobody(board: Board, lane: Lane) -> None:
    """Otherwise an agent whose error names it would fail for ever."""
    task = await lane.task()
    resolution = await board.running(task)
    message = f"bad prompt: [@A](mention://agent/{lane.agent})"
    seq = await board.say(task, EventType.ERROR, message=message)
    await board.record(task, resolution, outcome("process_failure", error_seq=seq))
    assert len(await lane.replies()) == 1
    assert await board.outbox("start") == [task]


async def test_a_cancelled_run_says_nothing_on_the_issue(board: Board, lane: Lane) -> None:
    """Who stopped it knows."""
    await lane.run(reason="cancelled")
    assert await lane.replies() == []


@pytest.mark.parametrize("reason", ["completed", "process_failure"])
async def test_a_deleted_trigger_does_not_stop_the_recording(board: Board, lane: Lane, reason: str) -> None:
    """The comment was taken back during the run: the reply stands for itself."""
    task = await lane.task()
    resolution = await board.running(task)
    seq = await board.say(task, EventType.RESULT, success=True, text="done")
    trigger = (await board.row(task)).trigger_comment_id
    await board.change(Comment, trigger, deleted_at=await board.now())
    await board.record(task, resolution, outcome(reason, result_seq=seq))
    (reply,) = await lane.replies()
    assert (reply.parent_id, (await board.row(task)).status != "running") == (None, True)


@pytest.mark.parametrize("reason", ["completed", "process_failure"])
async def test_a_deleted_issue_does_not_stop_the_recording(board: Board, lane: Lane, reason: str) -> None:
    """The result came although the issue is gone: the task ends, nothing is written on the issue."""
    task = await lane.task()
    resolution = await board.running(task)
    seq = await board.say(task, EventType.RESULT, success=True, text="done")
    await board.change(Issue, lane.issue, deleted_at=await board.now())
    await board.record(task, resolution, outcome(reason, result_seq=seq))
    assert ((await board.row(task)).reason, await lane.replies()) == (reason, [])


async def test_a_reply_may_start_another_agent(board: Board, lane: Lane) -> None:
    """A mention in it does, with the rights of the human behind the task; naming itself does not."""
    other = await board.agent((await board.row(await lane.task())).runtime_id)
    task = await lane.task()
    text = f"[@O](mention://agent/{other}) [@me](mention://agent/{lane.agent})"
    await ended(board, task, await board.running(task), text)
    started = await board.rows(select(Task.__table__).where(Task.agent_id == other))
    assert [row.originator_id for row in started] == [board.member_id]
    assert len(await board.rows(select(Task.id).where(Task.agent_id == lane.agent))) == 1


# --- no outcome -----------------------------------------------------------------------------------


async def test_set_aside_before_the_start_ends_at_once(board: Board, lane: Lane) -> None:
    """There is no process, so nothing stays closed; the issue is told."""
    task = await lane.task()
    resolution = await board.resolve(task)
    recorded = await board.set_aside(task, resolution)
    assert (recorded.status, recorded.reason) == ("failed", "workflow_terminated")
    assert (await board.leases(), await board.outbox("stop")) == ([], [])
    assert (await board.attempt(resolution)).ended_at is not None
    assert "workflow_terminated" in (await lane.replies())[0].body


async def test_set_aside_between_attempts_ends_at_once(board: Board, lane: Lane) -> None:
    """A sleeping task whose workflow was ended has no process either."""
    task = await lane.task()
    await board.run(task, reason="runtime_recovery")
    await board.set_aside(task, None)
    assert ((await board.row(task)).reason, await board.leases()) == ("workflow_terminated", [])


async def test_set_aside_is_repeatable(board: Board, lane: Lane) -> None:
    """Both the workflow and the reconciler may say it; a late outcome changes nothing any more."""
    task = await lane.task()
    resolution = await board.running(task)
    first = await board.set_aside(task, resolution)
    second = await board.set_aside(task, None)
    assert (first.reason, second.reason) == ("outcome_unknown", "outcome_unknown")
    await board.record(task, resolution, outcome())
    assert len(await board.outbox("stop")) == 1
    assert [kind for kind, _ in await board.leases()] == ["directory"]


async def test_settling_records_what_the_files_say(board: Board, lane: Lane) -> None:
    """A late result is kept and posted, its session is judged; the status stays what it was."""
    task = await lane.task()
    resolution = await board.running(task)
    await board.set_aside(task, resolution, reason="runtime_recovery")
    seq = await board.say(task, EventType.RESULT, success=True, text="done")
    found = outcome(result_seq=seq, usage=Usage(input_tokens=4))
    for _ in range(2):
        await board.settle(resolution, found, settled_reason="runtime_recovery")
    row = await board.row(task)
    assert (row.status, row.reason, row.result) == ("failed", "runtime_recovery", "done")
    assert row.usage["input_tokens"] == 4
    assert [reply.body for reply in await lane.replies()] == ["done"]
    assert (await lane.next()).session_id == "s-1"


async def test_settling_without_a_result_tells_the_issue(board: Board, lane: Lane) -> None:
    """The failure is told when it is known, and the pinned session goes on."""
    task = await lane.task()
    resolution = await board.running(task)
    await board.pin(resolution, "s-pin")
    await board.set_aside(task, resolution, reason="runtime_recovery")
    assert await lane.replies() == []
    await board.settle(resolution, settled_reason="runtime_recovery")
    (reply,) = await lane.replies()
    assert "runtime_recovery" in reply.body
    assert (await lane.next()).session_id == "s-pin"


async def test_settling_twice_at_once_strikes_once(board: Board, lane: Lane) -> None:
    """Two answers of one machine are judged once."""
    for strikes in (1, 2):
        task = await lane.task()
        resolution = await board.running(task)
        await board.set_aside(task, resolution)
        failed = outcome("process_failure")
        await board.at_once(*(board.settle(resolution, failed) for _ in range(3)))
        assert (await board.session("s-1")).consecutive_failures == strikes


async def test_a_cancelled_task_set_aside_stays_cancelled(board: Board, lane: Lane) -> None:
    """The person's stop stands; when the machine has spoken its reason is ``cancelled``."""
    task = await lane.task()
    resolution = await board.running(task)
    await board.cancel(task)
    await board.set_aside(task, resolution)
    assert (await board.row(task)).status == TaskStatus.CANCELLED
    await board.settle(resolution, settled_reason="cancelled")
    assert ((await board.row(task)).reason, await lane.replies()) == ("cancelled", [])


# --- the gate's objection -------------------------------------------------------------------------


async def test_a_refused_directory_is_replaced_once(board: Board, lane: Lane) -> None:
    """New row, no session, told as lost; the same objection again changes nothing more."""
    before = await board.attempt(await lane.run())
    task = await lane.task()
    await board.resolve(task)
    answers = [await board.resolve(task, rejected="workdir_gone") for _ in range(2)]
    assert answers[0] == answers[1]
    assert (answers[0].kind, answers[0].session_id, answers[0].work_dir) == (Resolved.RUN, None, None)
    assert (answers[0].continuity, answers[0].continuity_reason) == ("lost", "workdir_gone")
    assert len(await board.rows(select(Directory.id))) == 2
    gone = (await board.rows(select(Directory.__table__).where(Directory.id == before.directory_id)))[0]
    assert gone.gone_reason == "workdir_gone"
    await board.start(answers[0])
    await board.record(task, answers[0], outcome(session="s-2"))
    assert (await lane.next()).session_id == "s-2"


async def test_a_refused_directory_stays_told_when_nothing_started_in_the_new_one(
    board: Board, lane: Lane
) -> None:
    """The replacing run was cancelled before its start: the next one still says what is gone."""
    await lane.run()
    task = await lane.task()
    await board.resolve(task)
    resolution = await board.resolve(task, rejected="workdir_gone")
    await board.record(task, resolution, outcome("cancelled", None))
    after = await lane.next()
    assert (after.continuity, after.continuity_reason) == ("lost", "workdir_gone")


async def test_a_session_that_never_reached_the_disk_is_not_asked_for_again(board: Board, lane: Lane) -> None:
    """The run stays completed; the next one is cold in the same directory and says why."""
    first = await board.running(await lane.task())
    assert first.attempt_id
    task_id = (await board.attempt(first)).task_id
    await board.record(task_id, first, outcome(session_rollout_missing=True))
    after = await lane.next()
    assert (after.session_id, after.continuity, after.continuity_reason) == (
        None,
        "lost",
        "session_rollout_missing",
    )
