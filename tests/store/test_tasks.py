"""Cancelling: who may, what happens in each status, and saying it twice."""

from collections.abc import Awaitable, Callable
from uuid import UUID

import pytest

from domain.errors import NotFound, TaskTerminal
from domain.permissions import Actor
from domain.statuses import Permission, Role, TaskStatus
from store import tasks
from store.ids import new_id
from store.models import Chat, Task
from tests.store.board import Board, outcome

pytestmark = pytest.mark.slow

Build = Callable[[Board, UUID, UUID], Awaitable[UUID]]


async def queued(board: Board, agent: UUID, issue: UUID) -> UUID:
    return await board.task(agent, issue)


async def waiting(board: Board, agent: UUID, issue: UUID) -> UUID:
    await board.running(await board.task(agent, issue))
    task = await board.task(agent, issue)
    await board.resolve(task)
    return task


async def granted(board: Board, agent: UUID, issue: UUID) -> UUID:
    """Granted by another's end, and not taken up yet."""
    first = await board.task(agent, issue)
    running = await board.running(first)
    task = await board.task(agent, issue)
    await board.resolve(task)
    await board.record(first, running, outcome())
    return task


async def dispatched(board: Board, agent: UUID, issue: UUID) -> UUID:
    task = await board.task(agent, issue)
    await board.resolve(task)
    return task


async def running(board: Board, agent: UUID, issue: UUID) -> UUID:
    task = await board.task(agent, issue)
    await board.running(task)
    return task


async def retry_wait(board: Board, agent: UUID, issue: UUID) -> UUID:
    task = await board.task(agent, issue)
    await board.run(task, reason="runtime_recovery")
    return task


@pytest.mark.parametrize("build", [queued, waiting, granted])
async def test_what_has_not_started_ends_at_once(board: Board, build: Build) -> None:
    """No machine is asked: the task is cancelled, holds nothing, and its workflow is woken to end."""
    agent, issue = await board.agent(await board.runtime()), await board.issue()
    task = await build(board, agent, issue)
    await board.cancel(task)
    row = await board.row(task)
    assert (row.status, row.reason, row.ended_at is not None) == ("cancelled", "cancelled", True)
    assert task not in {holder for _, holder in await board.leases()}
    assert task not in await board.waits()
    assert all(attempt.ended_at is not None for attempt in await board.attempts(task))
    assert (await board.outbox("wake"))[-1] == task
    assert (await board.resolve(task)).kind == "end"


@pytest.mark.parametrize("build", [dispatched, running, retry_wait])
async def test_what_has_started_is_asked_to_stop(board: Board, build: Build) -> None:
    """The workflow stops the process first; until then the task keeps its status and its leases."""
    agent, issue = await board.agent(await board.runtime()), await board.issue()
    task = await build(board, agent, issue)
    before = await board.row(task)
    await board.cancel(task)
    row = await board.row(task)
    assert (row.status, row.cancel_requested_at is not None) == (before.status, True)
    assert await board.outbox("cancel") == [task]
    assert task in {holder for _, holder in await board.leases()}


async def test_a_cancelled_sleeper_ends_when_it_asks_again(board: Board) -> None:
    """Between attempts there is no process: the next question ends the task and frees the lane."""
    agent, issue = await board.agent(await board.runtime()), await board.issue()
    task = await retry_wait(board, agent, issue)
    await board.cancel(task)
    assert (await board.resolve(task, 2)).kind == "end"
    assert ((await board.row(task)).status, await board.leases()) == ("cancelled", [])


@pytest.mark.parametrize("build", [queued, running])
async def test_cancelling_twice_changes_nothing(board: Board, build: Build) -> None:
    """The same answer, one message to the workflow."""
    agent, issue = await board.agent(await board.runtime()), await board.issue()
    task = await build(board, agent, issue)
    await board.cancel(task)
    before = await board.row(task)
    await board.cancel(task)
    assert await board.row(task) == before
    assert len(await board.outbox("cancel") + await board.outbox("wake")) == 1


async def test_cancelling_a_cancelled_run_again_is_fine(board: Board) -> None:
    """The answer stays the same after the stop has been carried out."""
    agent, issue = await board.agent(await board.runtime()), await board.issue()
    task = await board.task(agent, issue)
    resolution = await board.running(task)
    await board.cancel(task)
    await board.record(task, resolution, outcome("cancelled"))
    await board.cancel(task)
    assert (await board.row(task)).status == TaskStatus.CANCELLED


@pytest.mark.parametrize("reason", ["completed", "process_failure"])
async def test_an_ended_task_is_not_cancelled(board: Board, reason: str) -> None:
    """What has ended for another reason says so."""
    agent, issue = await board.agent(await board.runtime()), await board.issue()
    task = await board.task(agent, issue)
    await board.run(task, reason=reason)
    with pytest.raises(TaskTerminal):
        await board.cancel(task)


async def test_who_may_see_may_cancel(board: Board) -> None:
    """An admin may stop a private agent's run; a member who can't see it doesn't learn of it."""
    agent = await board.agent(await board.runtime(), permission=Permission.PRIVATE)
    task = await board.task(agent, await board.issue())
    stranger = Actor(board.workspace_id, member_id=new_id(), role=Role.MEMBER)
    elsewhere = Actor(new_id(), member_id=board.member_id, role=Role.OWNER)
    runtime = Actor(board.workspace_id, runtime_id=new_id())
    for actor in (stranger, elsewhere, runtime):
        with pytest.raises(NotFound):
            await cancel_as(board, actor, task)
    await cancel_as(board, Actor(board.workspace_id, member_id=new_id(), role=Role.ADMIN), task)
    assert (await board.row(task)).status == TaskStatus.CANCELLED


async def test_a_chats_task_is_its_creators(board: Board) -> None:
    """Administrators included: nobody else sees it."""
    agent, issue = await board.agent(await board.runtime()), await board.issue()
    task = await board.task(agent, issue)
    chat = new_id()
    owned = {"id": chat, "workspace_id": board.workspace_id, "creator_id": board.member_id}
    await board.insert(Chat, agent_id=agent, title="t", **owned)
    await board.change(Task, task, chat_id=chat)
    with pytest.raises(NotFound):
        await cancel_as(board, Actor(board.workspace_id, member_id=new_id(), role=Role.OWNER), task)
    await board.cancel(task)


async def test_an_unknown_task_is_not_found(board: Board) -> None:
    """Whoever asks."""
    with pytest.raises(NotFound):
        await board.cancel(new_id())


async def test_a_grant_and_a_cancel_at_once_leave_no_open_attempt(board: Board) -> None:
    """Whichever comes first, the cancelled task holds nothing and its attempt is closed."""
    agent = await board.agent(await board.runtime())
    for _ in range(10):
        issue = await board.issue()
        first = await board.task(agent, issue)
        resolution = await board.running(first)
        second = await board.task(agent, issue)
        await board.resolve(second)
        await board.at_once(board.record(first, resolution, outcome()), board.cancel(second))
        assert (await board.row(second)).status == TaskStatus.CANCELLED
        assert all(attempt.ended_at is not None for attempt in await board.attempts(second))
    assert (await board.leases(), await board.waits()) == ([], {})


async def cancel_as(board: Board, actor: Actor, task: UUID) -> None:
    async with board.database.begin() as conn:
        await tasks.request_cancel(conn, actor=actor, task_id=task)
