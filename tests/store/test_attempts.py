"""The runtime plane's side of an attempt: brief, start, standing, session."""

import asyncio
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import select

from domain.brief import Brief
from domain.errors import AttemptElsewhere, NotFound
from domain.events import EventType
from domain.retry import RetryPolicy
from domain.statuses import Continuity, ContinuityReason, TaskStatus
from domain.steps import RecordInput, Resolution
from store import attempts, recording, tasks
from store.models import Agent, Comment, TaskComment
from store.secretbox import SecretBox
from tests.store.board import Board, outcome

pytestmark = pytest.mark.slow

SECRETS = SecretBox(SecretBox.new_key())


async def dispatched(board: Board) -> tuple[UUID, Resolution]:
    """A task whose attempt was handed to the machine."""
    task = await board.task(await board.agent(await board.runtime()), await board.issue())
    return task, await board.resolve(task)


async def brief_of(board: Board, resolution: Resolution) -> Brief:
    assert resolution.attempt_id
    assert resolution.runtime_id
    async with board.database.begin() as conn:
        return await attempts.brief(
            conn,
            runtime_id=resolution.runtime_id,
            attempt_id=resolution.attempt_id,
            secrets=SECRETS,
        )


async def state_of(board: Board, resolution: Resolution) -> Any:
    assert resolution.attempt_id
    assert resolution.runtime_id
    async with board.database.begin() as conn:
        return await attempts.state(conn, runtime_id=resolution.runtime_id, attempt_id=resolution.attempt_id)


# --- start ----------------------------------------------------------------------------------------


async def test_the_first_start_wins_and_is_told_the_numbers(board: Board) -> None:
    """The task runs, the directory learns its path, the comments get their receipt."""
    task, resolution = await dispatched(board)
    answer = await board.start(resolution, work_dir="/w/x", device=3, inode=4)
    assert (answer.started, answer.first_seq, answer.acked_seq) == (True, 1, 0)
    row, attempt = await board.row(task), await board.attempt(resolution)
    assert (row.status, attempt.started_at is not None) == (TaskStatus.RUNNING, True)
    assert (await board.resolve(task)).work_dir == "/w/x"
    receipts = await board.rows(select(TaskComment.delivered_at).where(TaskComment.task_id == task))
    assert all(receipt.delivered_at is not None for receipt in receipts)


async def test_the_same_caller_gets_the_same_answer(board: Board) -> None:
    """A redelivery finds its own start, its token and where the numbering goes on."""
    task, resolution = await dispatched(board)
    first = await board.start(resolution)
    await board.say(task, EventType.TEXT, text="hi")
    again = await board.start(resolution)
    assert (again.started, again.first_seq, again.acked_seq, again.token) == (False, 1, 1, first.token)


@pytest.mark.parametrize("changed", [{"machine_id": "m2"}, {"boot_id": "b2"}, {"nonce": "n2"}])
async def test_no_second_copy_is_started(board: Board, changed: dict[str, str]) -> None:
    """Another machine, boot or attempt directory is refused, and the first start stays."""
    _, resolution = await dispatched(board)
    await board.start(resolution)
    with pytest.raises(AttemptElsewhere):
        await board.start(resolution, **changed)
    attempt = await board.attempt(resolution)
    assert (attempt.machine_id, attempt.boot_id) == ("m", "b")


async def test_of_two_starts_at_once_one_is_refused(board: Board) -> None:
    """The compare-and-set holds under real concurrency: the other start that was waited for shows."""
    agent = await board.agent(await board.runtime(slots=100), at_once=100)
    for _ in range(15):
        resolution = await board.resolve(await board.task(agent, await board.issue()))
        results = await asyncio.gather(
            *(board.start(resolution, nonce=str(number)) for number in range(3)), return_exceptions=True
        )
        refused = [result for result in results if isinstance(result, AttemptElsewhere)]
        assert len(refused) == 2


async def test_a_start_that_waited_for_the_end_is_refused(board: Board) -> None:
    """The end of the attempt was being written while the machine asked: nothing starts."""
    task, resolution = await dispatched(board)
    async with board.database.begin() as conn:
        await tasks.lock(conn, task)
        starting = asyncio.create_task(board.start(resolution))
        await board.until_blocked(starting)
        cancelled = outcome("cancelled", None)
        step = RecordInput(task_id=task, attempt_id=resolution.attempt_id, outcome=cancelled)
        await recording.record(conn, step, RetryPolicy())
    with pytest.raises(NotFound):
        await starting


async def test_an_ended_attempt_does_not_start(board: Board) -> None:
    """Nor one whose task was set aside before the machine came."""
    task, resolution = await dispatched(board)
    await board.record(task, resolution, outcome("cancelled", None))
    with pytest.raises(NotFound):
        await board.start(resolution)
    lost, resolution = await dispatched(board)
    await board.set_aside(lost, resolution)
    with pytest.raises(NotFound):
        await board.start(resolution)


async def test_an_attempt_set_aside_is_not_started_again(board: Board) -> None:
    """Its machine may only stop and harvest it."""
    task, resolution = await dispatched(board)
    await board.start(resolution)
    await board.set_aside(task, resolution)
    with pytest.raises(NotFound):
        await board.start(resolution)


async def test_nothing_starts_after_a_cancel(board: Board) -> None:
    """A cancel that comes between dispatch and start leaves no process behind."""
    task, resolution = await dispatched(board)
    await board.cancel(task)
    with pytest.raises(NotFound):
        await board.start(resolution)


async def test_a_running_attempt_is_adopted_after_a_cancel(board: Board) -> None:
    """It has to be stopped by whoever holds it, so its own machine still gets its answer."""
    task, resolution = await dispatched(board)
    await board.start(resolution)
    await board.cancel(task)
    assert not (await board.start(resolution)).started


async def test_what_was_not_dispatched_does_not_start(board: Board) -> None:
    """A granted attempt belongs to nobody until its task has taken it up."""
    agent = await board.agent(await board.runtime(), at_once=1)
    first, second = [await board.task(agent, await board.issue()) for _ in range(2)]
    running = await board.running(first)
    await board.resolve(second)
    await board.record(first, running, outcome())
    granted = (await board.attempts(second))[0]
    for call in (board.start, lambda resolution: brief_of(board, resolution)):
        with pytest.raises(NotFound):
            await call(running.model_copy(update={"attempt_id": granted.id}))


async def test_another_runtime_finds_nothing(board: Board) -> None:
    """Brief, start, state and session of somebody else's attempt are all "not yours or gone"."""
    _, resolution = await dispatched(board)
    foreign = resolution.model_copy(update={"runtime_id": await board.runtime()})
    for call in (
        board.start(foreign),
        board.pin(foreign, "s"),
        brief_of(board, foreign),
        state_of(board, foreign),
    ):
        with pytest.raises(NotFound):
            await call


async def test_numbers_go_on_over_attempts(board: Board) -> None:
    """A second attempt's first number follows the last stored one."""
    task, resolution = await dispatched(board)
    await board.start(resolution)
    for _ in range(3):
        await board.say(task, EventType.TEXT, text="hi")
    await board.record(task, resolution, outcome("runtime_recovery"))
    second = await board.resolve(task, 2)
    assert (second.attempt, (await state_of(board, second)).first_seq) == (2, 4)
    answer = await board.start(second)
    assert (answer.first_seq, answer.acked_seq) == (4, 3)


@pytest.mark.parametrize("reason", [ContinuityReason.SESSION_MISSING, ContinuityReason.ROLLOUT_MISSING])
async def test_a_session_that_is_not_stored_is_retired(board: Board, reason: ContinuityReason) -> None:
    """The gate found it missing: the attempt says so, keeps the directory, and nobody asks again."""
    agent, issue = await board.agent(await board.runtime()), await board.issue()
    await board.run(await board.task(agent, issue))
    task = await board.task(agent, issue)
    resolution = await board.resolve(task)
    await board.start(resolution, continuity=Continuity.LOST, continuity_reason=reason)
    attempt, session = await board.attempt(resolution), await board.session("s-1")
    assert (attempt.requested_session_id, attempt.continuity_reason) == (None, reason)
    assert session.retired_reason == reason
    await board.record(task, resolution, outcome(session="s-2"))
    assert (await board.resolve(await board.task(agent, issue))).session_id == "s-2"


# --- state and session ----------------------------------------------------------------------------


async def test_the_state_tells_what_stands(board: Board) -> None:
    """Standing until ended or set aside; a requested cancel shows."""
    task, resolution = await dispatched(board)
    await board.start(resolution)
    before = await state_of(board, resolution)
    assert (before.standing, before.cancel_requested) == (True, False)
    await board.cancel(task)
    assert (await state_of(board, resolution)).cancel_requested
    await board.set_aside(task, resolution)
    assert not (await state_of(board, resolution)).standing
    await board.settle(resolution)
    assert not (await state_of(board, resolution)).standing


async def test_a_pinned_session_survives_a_crash(board: Board) -> None:
    """The outcome knows no session, the pin does: the retry resumes it in the same directory."""
    task, resolution = await dispatched(board)
    await board.start(resolution)
    for _ in range(2):
        await board.pin(resolution, "s-pin")
    await board.record(task, resolution, outcome("runtime_recovery", None))
    second = await board.resolve(task, 2)
    assert (second.session_id, second.continuity) == ("s-pin", Continuity.RESUMED)
    assert (await board.attempt(second)).directory_id == (await board.attempt(resolution)).directory_id


async def test_a_resumed_run_cannot_pin_another_session(board: Board) -> None:
    """An id that a failing resume makes up is not believed before its end."""
    agent, issue = await board.agent(await board.runtime()), await board.issue()
    await board.run(await board.task(agent, issue))
    resolution = await board.running(await board.task(agent, issue))
    await board.pin(resolution, "ghost")
    assert (await board.attempt(resolution)).used_session_id is None
    await board.pin(resolution, "s-1")
    assert (await board.attempt(resolution)).used_session_id == (await board.session("s-1")).id


async def test_a_replaced_pin_does_not_stand_in_front(board: Board) -> None:
    """The run ended in another session than it had pinned: the lane goes on from that one."""
    agent, issue = await board.agent(await board.runtime()), await board.issue()
    task = await board.task(agent, issue)
    resolution = await board.running(task)
    await board.pin(resolution, "s-first")
    await board.record(task, resolution, outcome(session="s-second"))
    assert (await board.resolve(await board.task(agent, issue))).session_id == "s-second"


# --- the brief ------------------------------------------------------------------------------------


async def test_the_brief_is_what_the_machine_needs(board: Board) -> None:
    """Agent, environment, directory, pointer and the comments of the batch, oldest first."""
    agent, issue = await board.agent(await board.runtime(), model="m-1"), await board.issue()
    await board.change(Agent, agent, env_sealed=SECRETS.seal({"KEY": "value"}), args=["--fast"])
    task = await board.task(agent, issue, "one")
    await board.task(agent, issue, "two")
    brief = await brief_of(board, await board.resolve(task))
    assert (brief.task_id, brief.agent_id, brief.issue_id, brief.issue_key) == (task, agent, issue, "SEG-1")
    assert (brief.provider, brief.model, brief.args) == ("script", "m-1", ["--fast"])
    assert (brief.env, brief.session_id, brief.continuity) == ({"KEY": "value"}, None, Continuity.FIRST)
    assert brief.prompt.message == "one\n\ntwo"
    assert brief.directory.path is None


async def test_a_follow_up_delivers_only_what_is_new(board: Board) -> None:
    """Each comment is delivered once; the resumed session is named in the provider's words."""
    agent, issue = await board.agent(await board.runtime()), await board.issue()
    await board.run(await board.task(agent, issue, "one"))
    brief = await brief_of(board, await board.resolve(await board.task(agent, issue, "two")))
    assert (brief.prompt.message, brief.session_id) == ("two", "s-1")


async def test_a_retry_delivers_its_sources_comments(board: Board) -> None:
    """A retry of a retry does too, along the whole chain, and what joined it comes last."""
    agent, issue = await board.agent(await board.runtime()), await board.issue()
    task = await board.task(agent, issue, "one")
    await board.run(task)
    for _ in range(3):
        task = await board.retry(task)
        resolution = await board.resolve(task)
        assert (await brief_of(board, resolution)).prompt.message == "one"
        await board.start(resolution)
        await board.record(task, resolution, outcome("unknown"))
    task = await board.retry(task)
    assert await board.task(agent, issue, "two") == task
    assert (await brief_of(board, await board.resolve(task))).prompt.message == "one\n\ntwo"


async def test_a_second_attempt_delivers_the_same_batch(board: Board) -> None:
    """An automatic retry reads its task's own comments again."""
    task, resolution = await dispatched(board)
    await board.start(resolution)
    await board.record(task, resolution, outcome("runtime_recovery"))
    assert (await brief_of(board, await board.resolve(task, 2))).prompt.message == "say hi"


async def test_a_deleted_comment_is_not_delivered(board: Board) -> None:
    """What its author took back never reaches the agent."""
    agent, issue = await board.agent(await board.runtime()), await board.issue()
    taken_back = await board.comment(issue, "never mind")
    task = (await board.trigger(agent, issue, comment_id=taken_back)).task_id
    await board.task(agent, issue, "this")
    await board.change(Comment, taken_back, deleted_at=await board.now())
    assert task is not None
    assert (await brief_of(board, await board.resolve(task))).prompt.message == "this"


async def test_an_ended_attempt_has_no_brief(board: Board) -> None:
    """Secrets are for runs that stand."""
    task, resolution = await dispatched(board)
    await board.record(task, resolution, outcome("cancelled", None))
    with pytest.raises(NotFound):
        await brief_of(board, resolution)
