"""Order and capacity: who is granted what, and when."""

import asyncio
from uuid import UUID

import pytest

from domain.statuses import ContinuityReason, TaskStatus, WaitKind
from domain.steps import Resolved
from store import leases
from store.models import Agent, LeaseWait, Runtime, Task
from tests.store.board import Board, outcome

pytestmark = pytest.mark.slow


async def test_a_free_lane_is_granted_at_once(board: Board) -> None:
    """The first task of a lane gets lane, directory, agent slot and runtime slot in one step."""
    agent = await board.agent(await board.runtime())
    task = await board.task(agent, await board.issue())
    resolution = await board.resolve(task)
    assert resolution.kind is Resolved.RUN
    assert [kind for kind, _ in await board.leases()] == ["agent", "directory", "lane", "runtime"]
    assert (await board.row(task)).status == TaskStatus.DISPATCHED


async def test_the_same_question_gets_the_same_answer(board: Board) -> None:
    """An activity that runs again after its commit was lost answers its stored decision."""
    agent = await board.agent(await board.runtime())
    task = await board.task(agent, await board.issue())
    assert await board.resolve(task) == await board.resolve(task)


async def test_a_lane_runs_one_task_at_a_time_in_order(board: Board) -> None:
    """The second task of a lane waits for the first, is granted by its end, and is woken."""
    agent, issue = await board.agent(await board.runtime()), await board.issue()
    first = await board.task(agent, issue)
    running = await board.resolve(first)
    await board.start(running)
    second = await board.task(agent, issue)
    assert second != first
    waiting = await board.resolve(second)
    assert (waiting.kind, waiting.wait_kind) == (Resolved.WAIT, WaitKind.LANE)
    wait = (await board.waits())[second]
    assert (wait.holder_task_id, (await board.row(second)).status) == (first, "waiting")
    await board.record(first, running, outcome())
    assert second in await board.outbox("wake")
    assert {holder for _, holder in await board.leases()} == {second}
    assert (await board.resolve(second)).kind is Resolved.RUN


async def test_a_later_task_never_overtakes_in_its_lane(board: Board) -> None:
    """A task that asks when its waiting predecessor could run still waits for it."""
    runtime = await board.runtime(online=False)
    agent, issue = await board.agent(runtime), await board.issue()
    first = await board.task(agent, issue)
    await board.resolve(first)
    later = await board.rerun(agent, issue)
    await board.change(Runtime, runtime, online=True)
    waiting = await board.resolve(later)
    assert (waiting.kind, waiting.wait_kind) == (Resolved.WAIT, WaitKind.LANE)
    assert (await board.waits())[later].holder_task_id == first


async def test_agents_on_one_issue_run_side_by_side(board: Board) -> None:
    """Another agent on the same issue has a lane and a directory of its own."""
    runtime, issue = await board.runtime(), await board.issue()
    one = await board.resolve(await board.task(await board.agent(runtime), issue))
    other = await board.resolve(await board.task(await board.agent(runtime), issue))
    assert (one.kind, other.kind) == (Resolved.RUN, Resolved.RUN)
    assert (await board.attempt(one)).directory_id != (await board.attempt(other)).directory_id


async def test_agent_capacity_is_never_exceeded(board: Board) -> None:
    """With two slots the third issue waits for agent_capacity and is granted by the first end."""
    agent = await board.agent(await board.runtime(), at_once=2)
    tasks_ = [await board.task(agent, await board.issue()) for _ in range(3)]
    answers = [await board.resolve(task) for task in tasks_]
    assert [a.kind for a in answers] == [Resolved.RUN, Resolved.RUN, Resolved.WAIT]
    assert answers[2].wait_kind is WaitKind.AGENT_CAPACITY
    await board.start(answers[0])
    await board.record(tasks_[0], answers[0], outcome())
    assert await board.outbox("wake") == [tasks_[2]]


async def test_runtime_slots_are_never_exceeded(board: Board) -> None:
    """Two agents share one slot of their machine: the second waits for runtime_capacity."""
    runtime = await board.runtime(slots=1)
    first = await board.task(await board.agent(runtime), await board.issue())
    second = await board.task(await board.agent(runtime), await board.issue())
    await board.resolve(first)
    assert (await board.resolve(second)).wait_kind is WaitKind.RUNTIME_CAPACITY


async def test_raising_a_capacity_grants(board: Board) -> None:
    """The transaction that raises the agent's capacity grants to the waiting task."""
    agent = await board.agent(await board.runtime(), at_once=1)
    first, second = [await board.task(agent, await board.issue()) for _ in range(2)]
    await board.resolve(first)
    await board.resolve(second)
    await board.change(Agent, agent, max_concurrent_tasks=2)
    async with board.database.begin() as conn:
        await leases.grant_for_agent(conn, board.workspace_id, agent)
    assert await board.outbox("wake") == [second]


async def test_an_offline_machine_is_waited_for_and_its_return_grants(board: Board) -> None:
    """The wait says runtime_offline and when it is looked at again; coming back grants and wakes."""
    runtime = await board.runtime(online=False)
    task = await board.task(await board.agent(runtime), await board.issue())
    waiting = await board.resolve(task)
    assert waiting.wait_kind is WaitKind.RUNTIME_OFFLINE
    assert waiting.look_again_at is not None
    await board.change(Runtime, runtime, online=True)
    async with board.database.begin() as conn:
        await leases.grant_for_runtime(conn, board.workspace_id, runtime)
    assert (await board.outbox("wake"), (await board.resolve(task)).kind) == ([task], Resolved.RUN)


async def test_capacity_goes_by_importance_with_ageing(board: Board) -> None:
    """The waiter with the lowest rank (enqueue time plus handicap) gets the freed slot."""
    agent = await board.agent(await board.runtime(), at_once=1)
    running, late, early = [await board.task(agent, await board.issue()) for _ in range(3)]
    resolution = await board.resolve(running)
    await board.change(Task, early, rank=await board.ago(60))
    for task in (late, early):
        await board.resolve(task)
    await board.start(resolution)
    await board.record(running, resolution, outcome())
    assert await board.outbox("wake") == [early]


async def test_cancelling_a_waiter_lets_the_next_one_in(board: Board) -> None:
    """A cancelled task that never started ends at once and leaves every queue."""
    agent, issue = await board.agent(await board.runtime()), await board.issue()
    first = await board.task(agent, issue)
    resolution = await board.resolve(first)
    await board.start(resolution)
    second = await board.task(agent, issue)
    await board.resolve(second)
    await board.cancel(second)
    assert (await board.row(second)).status == TaskStatus.CANCELLED
    assert await board.waits() == {}
    third = await board.task(agent, issue)
    await board.resolve(third)
    await board.record(first, resolution, outcome())
    assert {holder for _, holder in await board.leases()} == {third}


@pytest.mark.parametrize("asked", [True, False])
async def test_cancelling_the_head_of_a_lane_lets_the_next_one_in(board: Board, *, asked: bool) -> None:
    """Also when it waited for something else than the lane, or had not asked yet."""
    runtime = await board.runtime()
    agent, issue = await board.agent(runtime, at_once=1), await board.issue()
    running = await board.task(agent, await board.issue())
    resolution = await board.running(running)
    head = await board.task(agent, issue)
    if asked:
        assert (await board.resolve(head)).wait_kind is WaitKind.AGENT_CAPACITY
    later = await board.rerun(agent, issue)
    assert (await board.resolve(later)).wait_kind is WaitKind.LANE
    await board.cancel(head)
    await board.record(running, resolution, outcome())
    assert later in await board.outbox("wake")
    assert (await board.resolve(later)).kind is Resolved.RUN


async def test_set_aside_keeps_directory_and_session_closed(board: Board) -> None:
    """Without an outcome lane and slots are freed; the next task waits for the directory."""
    agent, issue = await board.agent(await board.runtime()), await board.issue()
    await board.run(await board.task(agent, issue))
    lost = await board.task(agent, issue)
    resolution = await board.resolve(lost)
    await board.start(resolution)
    await board.set_aside(lost, resolution)
    assert [kind for kind, _ in await board.leases()] == ["directory", "session"]
    row = await board.row(lost)
    assert (row.status, row.reason) == ("failed", "outcome_unknown")
    after = await board.task(agent, issue)
    waiting = await board.resolve(after)
    assert waiting.wait_kind is WaitKind.DIRECTORY
    assert (await board.waits())[after].holder_task_id == lost


async def test_settling_opens_the_directory_and_tells_the_reason(board: Board) -> None:
    """The machine's word frees the leases, wakes the waiter, and settles outcome_unknown once."""
    agent, issue = await board.agent(await board.runtime()), await board.issue()
    lost = await board.task(agent, issue)
    resolution = await board.resolve(lost)
    await board.start(resolution)
    await board.set_aside(lost, resolution)
    after = await board.task(agent, issue)
    await board.resolve(after)
    for _ in range(2):
        await board.settle(resolution)
    assert (await board.row(lost)).reason == "workflow_terminated"
    assert (await board.outbox("stop"), await board.outbox("wake")) == ([resolution.attempt_id], [after])
    assert {holder for _, holder in await board.leases()} == {after}


async def test_concurrent_requests_never_share_a_slot(board: Board) -> None:
    """Twenty tasks ask at once for three slots: three run, seventeen wait, no error, no deadlock."""
    agent = await board.agent(await board.runtime(), at_once=3)
    queued = [await board.task(agent, await board.issue()) for _ in range(20)]
    answers = await asyncio.gather(*(board.resolve(task) for task in queued))
    assert [answer.kind for answer in answers].count(Resolved.RUN) == 3
    assert len(await board.waits()) == 17


async def test_lanes_drain_in_order_under_concurrency(board: Board) -> None:
    """Everything that waits is granted in the end, each lane in its order, capacity kept."""
    agent = await board.agent(await board.runtime(), at_once=2)
    issues = [await board.issue() for _ in range(4)]
    started: list[UUID] = []

    async def work(task: UUID) -> None:
        while (resolution := await board.resolve(task)).kind is Resolved.WAIT:
            await asyncio.sleep(0.01)
        started.append(task)
        await board.start(resolution)
        await board.record(task, resolution, outcome())

    queued = [await board.task(agent, issue) for issue in issues]
    await asyncio.gather(*(work(task) for task in queued))
    again = [await board.task(agent, issue) for issue in issues]
    await asyncio.gather(*(work(task) for task in again))
    assert sorted(started[:4]) == sorted(queued)
    assert await board.leases() == []


async def test_a_replaced_directory_lets_its_waiters_in(board: Board) -> None:
    """The gate refuses a directory that another task waits for: the waiter is looked at again."""
    agent, issue = await board.agent(await board.runtime()), await board.issue()
    await board.run(await board.task(agent, issue))
    held = await board.task(agent, issue)
    resolution = await board.resolve(held)
    other = await board.task(agent, await board.issue())
    directory = (await board.attempt(resolution)).directory_id
    await board.insert(
        LeaseWait,
        task_id=other,
        workspace_id=board.workspace_id,
        kind=WaitKind.DIRECTORY,
        key=directory,
        rank=await board.now(),
        holder_task_id=held,
    )
    await board.resolve(held, rejected=ContinuityReason.WORKDIR_GONE)
    assert (await board.waits(), await board.outbox("wake")) == ({}, [other])


async def test_the_sweep_finds_every_forgotten_waiter(board: Board) -> None:
    """More waiters than one scan looks at don't hide a runnable one of another key."""
    full = await board.agent(await board.runtime(), at_once=1)
    await board.resolve(await board.task(full, await board.issue()))
    early = await board.ago(3600)
    template = await board.row(await board.task(full, await board.issue()))
    await board.crowd(template, leases._SCAN_LIMIT + 1, rank=early)
    runtime = await board.runtime(slots=1)
    agents = [await board.agent(runtime) for _ in range(2)]
    running, forgotten = [await board.task(agent, await board.issue()) for agent in agents]
    await board.resolve(running)
    await board.resolve(forgotten)
    await board.change(Runtime, runtime, slots=2)
    async with board.database.begin() as conn:
        await leases.grant_all(conn, board.workspace_id)
    assert await board.outbox("wake") == [forgotten]
