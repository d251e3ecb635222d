"""Waiting for a quota: the task that ran into it sleeps, and its agent's others don't run into it too."""

from datetime import timedelta
from uuid import UUID

import pytest

from domain.errors import Conflict, InvocationNotAllowed
from domain.permissions import Actor
from domain.statuses import Continuity, Role, TaskStatus
from domain.steps import Resolved
from store import tasks
from store.ids import new_id
from store.models import Agent, Task
from tests.store.board import Board, outcome


async def _limited(board: Board, agent: UUID, seconds: float = 600) -> UUID:
    """A task of the agent that has run into a quota which resets in so many seconds."""
    task = await board.task(agent, await board.issue())
    resolution = await board.resolve(task)
    await board.start(resolution)
    resets_at = await board.now() + timedelta(seconds=seconds)
    await board.record(task, resolution, outcome("provider_quota_limit", resets_at=resets_at))
    return task


async def test_a_quota_hit_sleeps_with_its_lane_and_gives_back_capacity(board: Board) -> None:
    """The time is shown; lane, directory and session stay held, agent and machine slots don't."""
    agent = await board.agent(await board.runtime())
    task = await _limited(board, agent)
    row = await board.row(task)
    assert row.status == TaskStatus.WAITING_QUOTA
    assert row.retry_at >= await board.now() + timedelta(seconds=500)
    assert [kind for kind, _ in await board.leases()] == ["directory", "lane"]


async def test_other_tasks_of_the_agent_wait_for_the_reset_too(board: Board) -> None:
    """A task that has not started takes no slot and runs into nothing: it sleeps until the same reset."""
    agent = await board.agent(await board.runtime())
    first = await _limited(board, agent)
    other = await board.task(agent, await board.issue())
    answer = await board.resolve(other)
    row = await board.row(other)
    assert (answer.kind, row.status, row.attempt) == (Resolved.WAIT, TaskStatus.WAITING_QUOTA, 0)
    assert answer.look_again_at == row.retry_at
    assert row.retry_at >= (await board.row(first)).retry_at
    assert {holder for _, holder in await board.leases()} == {first}


async def test_another_agent_is_not_held_back(board: Board) -> None:
    """The account is the agent's: others go on."""
    runtime = await board.runtime()
    await _limited(board, await board.agent(runtime))
    free = await board.task(await board.agent(runtime), await board.issue())
    assert (await board.resolve(free)).kind is Resolved.RUN


async def test_a_task_is_held_back_once(board: Board) -> None:
    """After the reset it finds out for itself, although the first one may still sleep."""
    agent = await board.agent(await board.runtime())
    await _limited(board, agent)
    other = await board.task(agent, await board.issue())
    await board.resolve(other)
    await board.change(Task, other, retry_at=await board.ago(1))
    assert (await board.resolve(other)).kind is Resolved.RUN


async def test_an_early_question_is_told_to_sleep_on(board: Board) -> None:
    """A workflow that was started again asks before the reset: it gets the time, not an attempt."""
    agent = await board.agent(await board.runtime())
    task = await _limited(board, agent)
    answer = await board.resolve(task, 2, early=True)
    row = await board.row(task)
    assert (answer.kind, answer.look_again_at, row.status) == (Resolved.WAIT, row.retry_at, "waiting_quota")


async def test_retry_now_goes_on_in_the_same_session(board: Board) -> None:
    """It wakes the task, whose next attempt resumes the session that ran into the quota."""
    agent = await board.agent(await board.runtime())
    task = await _limited(board, agent)
    async with board.database.begin() as conn:
        await tasks.retry_now(conn, actor=board.actor, task_id=task)
    assert await board.outbox("wake") == [task]
    answer = await board.resolve(task, 2, early=True)
    assert (answer.kind, answer.continuity, answer.session_id) == (Resolved.RUN, Continuity.RESUMED, "s-1")


async def test_a_task_that_does_not_sleep_has_no_retry_now(board: Board) -> None:
    """409: there is no wait to cut short."""
    task = await board.task(await board.agent(await board.runtime()), await board.issue())
    async with board.database.begin() as conn:
        with pytest.raises(Conflict, match="queued"):
            await tasks.retry_now(conn, actor=board.actor, task_id=task)


async def test_seeing_a_run_is_not_enough_to_start_it_again(board: Board) -> None:
    """An admin may look at somebody's private agent and stop it, but not make it run."""
    agent = await board.agent(await board.runtime())
    task = await _limited(board, agent)
    await board.change(Agent, agent, permission="private")
    admin = Actor(board.workspace_id, member_id=new_id(), role=Role.ADMIN)
    async with board.database.begin() as conn:
        with pytest.raises(InvocationNotAllowed):
            await tasks.retry_now(conn, actor=admin, task_id=task)
    assert await board.outbox("wake") == []


async def test_a_comment_joins_a_task_that_is_held_back(board: Board) -> None:
    """It has not started, so it takes the comment in; and cancelling it needs no machine."""
    agent, issue = await board.agent(await board.runtime()), await board.issue()
    await _limited(board, agent)
    held = await board.task(agent, issue)
    await board.resolve(held)
    assert await board.task(agent, issue) == held
    async with board.database.begin() as conn:
        await tasks.request_cancel(conn, actor=board.actor, task_id=held)
    assert (await board.row(held)).status == TaskStatus.CANCELLED
