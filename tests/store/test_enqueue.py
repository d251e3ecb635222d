"""From a trigger to a queued task: coalescing, retries and reruns."""

import asyncio
from uuid import UUID

import pytest
from sqlalchemy import select

from domain.errors import InvalidInput, InvocationNotAllowed, NotFound, TaskNotTerminal
from domain.permissions import Actor
from domain.routing import TriggerOutcome
from domain.statuses import Permission, Role, TaskStatus
from domain.steps import Resolved
from store import enqueue
from store.ids import new_id
from store.models import Agent, Issue, Member, Task, TaskComment
from tests.store.board import Board, outcome

pytestmark = pytest.mark.slow


async def batch(board: Board, task: UUID) -> list[UUID]:
    """The comments that a task delivers."""
    query = select(TaskComment.comment_id).where(TaskComment.task_id == task)
    return [row.comment_id for row in await board.rows(query.order_by(TaskComment.comment_id))]


async def member(board: Board, role: Role = Role.MEMBER) -> Actor:
    member_id = new_id()
    values = {"id": member_id, "workspace_id": board.workspace_id, "name": "Bo", "role": role}
    await board.insert(Member, email=f"{member_id}@example.org", **values)
    return Actor(board.workspace_id, member_id=member_id, role=role)


async def retry_as(board: Board, actor: Actor, task: UUID) -> UUID:
    async with board.database.begin() as conn:
        return await enqueue.retry(conn, actor=actor, task_id=task)


async def rerun_as(board: Board, actor: Actor, issue: UUID, task: UUID | None = None) -> UUID:
    async with board.database.begin() as conn:
        return await enqueue.rerun(conn, actor=actor, issue_id=issue, task_id=task)


# --- coalescing -----------------------------------------------------------------------------------


async def test_comments_join_the_task_that_has_not_started(board: Board) -> None:
    """Queued or waiting, granted or not: until the attempt is dispatched the batch grows."""
    agent, issue = await board.agent(await board.runtime()), await board.issue()
    first = await board.trigger(agent, issue)
    second = await board.trigger(agent, issue)
    assert (first.outcome, second.outcome) == (TriggerOutcome.QUEUED, TriggerOutcome.COALESCED)
    assert (second.task_id, len(await board.outbox("start"))) == (first.task_id, 1)
    assert first.task_id is not None
    assert len(await batch(board, first.task_id)) == 2


async def test_a_comment_after_dispatch_makes_the_next_task(board: Board) -> None:
    """The input is frozen with the dispatch; what comes later is for the next turn."""
    agent, issue = await board.agent(await board.runtime()), await board.issue()
    first = await board.task(agent, issue)
    await board.resolve(first)
    second = await board.trigger(agent, issue)
    assert (second.outcome, second.task_id == first) == (TriggerOutcome.QUEUED, False)
    third = await board.trigger(agent, issue)
    assert (third.outcome, third.task_id) == (TriggerOutcome.COALESCED, second.task_id)


async def test_a_waiting_retry_attempt_takes_no_comments(board: Board) -> None:
    """A task between its attempts has started: its input is frozen."""
    agent, issue = await board.agent(await board.runtime()), await board.issue()
    first = await board.task(agent, issue)
    await board.run(first, reason="runtime_recovery")
    assert (await board.row(first)).status == TaskStatus.RETRY_WAIT
    assert await board.task(agent, issue) != first


async def test_the_same_comment_is_delivered_once(board: Board) -> None:
    """An edit that names the agent again adds nothing."""
    agent, issue = await board.agent(await board.runtime()), await board.issue()
    comment = await board.comment(issue)
    first = await board.trigger(agent, issue, comment_id=comment)
    await board.trigger(agent, issue, comment_id=comment)
    assert first.task_id is not None
    assert await batch(board, first.task_id) == [comment]


async def test_an_assignment_joins_with_its_note(board: Board) -> None:
    """A hand-off note is never dropped: the task that is joined carries all of them."""
    agent, issue = await board.agent(await board.runtime()), await board.issue()
    task = await board.task(agent, issue)
    for note in ("one", None, "two"):
        async with board.database.begin() as conn:
            joined = await enqueue.issue_task(
                conn,
                actor=board.actor,
                target=(await enqueue.targets(conn, board.workspace_id, issue, [agent]))[0],
                trigger_type="assignment",
                handoff_note=note,
            )
        assert (joined.outcome, joined.task_id) == (TriggerOutcome.COALESCED, task)
    assert (await board.row(task)).handoff_note == "one\n\ntwo"


async def test_a_comment_and_a_dispatch_at_once_never_lose_the_comment(board: Board) -> None:
    """Whoever wins, each comment is in one task's batch, and a frozen batch stays as it was."""
    agent = await board.agent(await board.runtime(slots=1000), at_once=1000)
    for _ in range(40):
        issue = await board.issue()
        first = await board.task(agent, issue)
        comment = await board.comment(issue)
        resolution, joined = await asyncio.gather(
            board.resolve(first), board.trigger(agent, issue, comment_id=comment)
        )
        assert resolution.kind is Resolved.RUN
        assert joined.task_id is not None
        assert comment in await batch(board, joined.task_id)
        frozen = await batch(board, first)
        assert (comment in frozen) == (joined.task_id == first)
        if joined.task_id != first:
            assert (await board.row(joined.task_id)).attempt == 0


async def test_comments_at_once_take_positions_without_gaps(board: Board) -> None:
    """Twenty people comment at the same moment on a new issue: one lane, one task, all comments."""
    agent, issue = await board.agent(await board.runtime()), await board.issue()
    triggered = await asyncio.gather(*(board.trigger(agent, issue) for _ in range(20)))
    (task,) = {one.task_id for one in triggered}
    assert task is not None
    assert [one.outcome for one in triggered].count(TriggerOutcome.QUEUED) == 1
    assert len(await batch(board, task)) == 20


# --- readiness ------------------------------------------------------------------------------------


async def test_an_agent_that_cannot_run_blocks(board: Board) -> None:
    """An archived agent and one without a runtime are told; nothing is written."""
    runtime, issue = await board.runtime(), await board.issue()
    archived = await board.agent(runtime, archived_at=await board.now())
    unbound = await board.agent(runtime)
    await board.change(Agent, unbound, runtime_id=None)
    outcomes = [await board.trigger(agent, issue) for agent in (archived, unbound)]
    assert [(one.outcome, one.reason) for one in outcomes] == [
        (TriggerOutcome.BLOCKED, "target_unavailable"),
        (TriggerOutcome.BLOCKED, "agent_runtime_required"),
    ]
    assert await board.outbox("start") == []


async def test_an_offline_machine_does_not_block(board: Board) -> None:
    """The task waits for it."""
    agent = await board.agent(await board.runtime(online=False))
    assert (await board.trigger(agent, await board.issue())).outcome is TriggerOutcome.QUEUED


# --- retry and rerun ------------------------------------------------------------------------------


async def test_a_retry_goes_on_from_its_task(board: Board) -> None:
    """It resumes that task's own session in its own directory, although the lane has gone on since."""
    agent, issue = await board.agent(await board.runtime()), await board.issue()
    source = await board.task(agent, issue)
    first = await board.run(source, session="s-old")
    await board.run(await board.rerun(agent, issue), session="s-new")
    retried = await board.retry(source)
    resolution = await board.resolve(retried)
    assert (resolution.session_id, resolution.continuity) == ("s-old", "resumed")
    assert (await board.attempt(resolution)).directory_id == (await board.attempt(first)).directory_id
    row = await board.row(retried)
    assert (row.rerun_of_task_id, row.trigger_type, row.attempt) == (source, "retry", 1)


async def test_a_rerun_with_a_task_is_its_retry(board: Board) -> None:
    """The same pointer; a task of another issue is not found."""
    agent, issue = await board.agent(await board.runtime()), await board.issue()
    source = await board.task(agent, issue)
    await board.run(source, session="s-1")
    again = await rerun_as(board, board.actor, issue, source)
    assert (await board.resolve(again)).session_id == "s-1"
    with pytest.raises(NotFound):
        await rerun_as(board, board.actor, await board.issue(), source)


async def test_a_rerun_without_a_task_is_fresh(board: Board) -> None:
    """The assignee runs in a new directory with no session, told as asked for."""
    agent, issue = await board.agent(await board.runtime()), await board.issue()
    before = await board.run(await board.task(agent, issue))
    resolution = await board.resolve(await board.rerun(agent, issue))
    assert (resolution.continuity, resolution.continuity_reason) == ("fresh", "asked_for")
    assert (resolution.session_id, resolution.work_dir) == (None, None)
    assert (await board.attempt(resolution)).directory_id != (await board.attempt(before)).directory_id


async def test_a_rerun_that_never_started_loses_nothing(board: Board) -> None:
    """It was cancelled before its start: the next comment resumes what was there."""
    agent, issue = await board.agent(await board.runtime()), await board.issue()
    before = await board.run(await board.task(agent, issue))
    rerun = await board.rerun(agent, issue)
    await board.record(rerun, await board.resolve(rerun), outcome("cancelled", None))
    resolution = await board.resolve(await board.task(agent, issue))
    assert (resolution.continuity, resolution.session_id) == ("resumed", "s-1")
    assert (await board.attempt(resolution)).directory_id == (await board.attempt(before)).directory_id


async def test_retries_queue_behind_the_lane(board: Board) -> None:
    """A retry never overtakes and never joins: it is a deliberate turn of its own."""
    agent, issue = await board.agent(await board.runtime()), await board.issue()
    source = await board.task(agent, issue)
    await board.run(source)
    waiting = await board.task(agent, issue)
    retried = await board.retry(source)
    assert (await board.row(retried)).lane_position > (await board.row(waiting)).lane_position
    assert (await board.resolve(retried)).wait_kind == "lane"


async def test_a_task_that_has_not_ended_is_not_retried(board: Board) -> None:
    """Cancel it first; nothing is written."""
    agent, issue = await board.agent(await board.runtime()), await board.issue()
    task = await board.task(agent, issue)
    with pytest.raises(TaskNotTerminal):
        await board.retry(task)
    assert len(await board.rows(select(Task.id))) == 1


async def test_an_archived_agents_task_is_not_retried(board: Board) -> None:
    """The message says to restore it first."""
    agent, issue = await board.agent(await board.runtime()), await board.issue()
    task = await board.task(agent, issue)
    await board.run(task)
    await board.change(Agent, agent, archived_at=await board.now())
    with pytest.raises(InvalidInput, match="restore"):
        await board.retry(task)


async def test_an_unassigned_issue_is_not_rerun(board: Board) -> None:
    """There is no agent to run; a deleted issue is not found."""
    issue = await board.issue()
    with pytest.raises(InvalidInput, match="assign"):
        await rerun_as(board, board.actor, issue)
    await board.change(Issue, issue, deleted_at=await board.now())
    with pytest.raises(NotFound):
        await rerun_as(board, board.actor, issue)


async def test_who_may_not_invoke_may_not_retry(board: Board) -> None:
    """An admin sees a private agent's task but may not run it; others don't learn that it exists."""
    agent = await board.agent(await board.runtime(), permission=Permission.PRIVATE)
    issue = await board.issue()
    task = await board.task(agent, issue)
    await board.run(task)
    await board.change(Issue, issue, assignee_type="agent", assignee_id=agent)
    admin, other = await member(board, Role.ADMIN), await member(board)
    elsewhere = Actor(new_id(), member_id=board.member_id, role=Role.OWNER)
    for actor, error in ((admin, InvocationNotAllowed), (other, NotFound), (elsewhere, NotFound)):
        with pytest.raises(error):
            await retry_as(board, actor, task)
        with pytest.raises(error):
            await rerun_as(board, actor, issue)
    assert len(await board.rows(select(Task.id))) == 1
