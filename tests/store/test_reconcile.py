"""What a crash leaves, found in the tables."""

import asyncio
from datetime import timedelta
from uuid import UUID

import pytest
from sqlalchemy import delete, select

from domain.statuses import LeaseKind, TaskStatus
from domain.steps import Resolved
from store import reconcile
from store.models import Attempt, Lease, Outbox, Runtime, Task
from tests.store.board import Board, outcome

pytestmark = pytest.mark.slow

EXPIRY = timedelta(hours=2)
OLD = reconcile.SETTLING.total_seconds() + 60


async def forget_outbox(board: Board) -> None:
    """Everything was sent."""
    async with board.database.begin() as conn:
        await conn.execute(delete(Outbox))


async def expire(board: Board) -> int:
    async with board.database.begin() as conn:
        return await reconcile.expire_dispatched(conn, EXPIRY)


async def checked(board: Board) -> list[UUID]:
    async with board.database.begin() as conn:
        return [row.id for row in await reconcile.tasks_to_check(conn)]


# --- machines that fell silent --------------------------------------------------------------------


async def test_a_silent_machine_goes_offline_and_its_waiters_say_so(board: Board) -> None:
    """Once; it counts as away since it was last seen, and capacity waiters are woken to ask again."""
    runtime = await board.runtime(slots=1)
    agent = await board.agent(runtime)
    await board.resolve(await board.task(agent, await board.issue()))
    waiting = await board.task(agent, await board.issue())
    await board.resolve(waiting)
    seen = await board.ago(60)
    await board.change(Runtime, runtime, last_seen_at=seen)
    silent = []
    for _ in range(2):
        async with board.database.begin() as conn:
            silent.append(list(await reconcile.mark_offline(conn, timedelta(seconds=30))))
    assert (silent, await board.outbox("wake")) == ([[runtime], []], [waiting])
    answer = await board.resolve(waiting)
    both_wait_since = (await board.row(waiting)).created_at
    assert (answer.wait_kind, answer.look_again_at) == ("runtime_offline", both_wait_since + EXPIRY)
    assert (await board.rows(select(Runtime.offline_since)))[0].offline_since == seen


async def test_a_machine_that_was_heard_stays_online(board: Board) -> None:
    """Only silence counts."""
    await board.runtime()
    async with board.database.begin() as conn:
        assert list(await reconcile.mark_offline(conn, timedelta(minutes=5))) == []


async def test_a_task_expires_in_the_queue_of_an_offline_machine(board: Board) -> None:
    """After the limit, and not before; its lane goes on with the next."""
    runtime = await board.runtime(online=False)
    task = await board.task(await board.agent(runtime), await board.issue())
    assert (await board.resolve(task)).kind is Resolved.WAIT
    await board.change(Task, task, created_at=await board.ago(EXPIRY.total_seconds() + 60))
    await board.change(Runtime, runtime, offline_since=await board.ago(60))
    assert (await board.resolve(task)).kind is Resolved.WAIT
    await board.change(Runtime, runtime, offline_since=await board.ago(EXPIRY.total_seconds() + 60))
    assert (await board.resolve(task)).kind is Resolved.END
    row = await board.row(task)
    assert (row.status, row.reason) == ("failed", "queued_expired")


async def test_a_dispatched_task_expires_with_its_machine(board: Board) -> None:
    """It was handed over, never started, and the machine has been away for too long."""
    runtime = await board.runtime()
    task = await board.task(await board.agent(runtime), await board.issue())
    resolution = await board.resolve(task)
    await board.change(Runtime, runtime, online=False, offline_since=await board.ago(60))
    assert await expire(board) == 0
    await board.change(Runtime, runtime, offline_since=await board.ago(EXPIRY.total_seconds() + 60))
    assert (await expire(board), await expire(board)) == (1, 0)
    assert await board.outbox("cancel") == [task]
    await board.record(task, resolution, outcome("cancelled", None))
    row = await board.row(task)
    assert (row.status, row.reason) == ("failed", "queued_expired")


async def test_a_run_that_starts_meanwhile_does_not_expire(board: Board) -> None:
    """The machine came back between the look and the lock: a healthy run is never stopped."""
    runtime = await board.runtime()
    task = await board.task(await board.agent(runtime), await board.issue())
    resolution = await board.resolve(task)
    await board.change(Runtime, runtime, offline_since=await board.ago(EXPIRY.total_seconds() + 60))
    async with board.database.begin() as conn:
        await board.start_in(conn, resolution)
        expiring = asyncio.create_task(expire(board))
        await board.until_blocked(expiring)
    assert await expiring == 0
    assert (await board.row(task)).cancel_requested_at is None


# --- grants and leases ----------------------------------------------------------------------------


async def test_a_grant_that_nobody_took_up_is_woken(board: Board) -> None:
    """Not while it is fresh, and not while a wake is on its way."""
    agent, issue = await board.agent(await board.runtime()), await board.issue()
    first = await board.task(agent, issue)
    resolution = await board.running(first)
    granted = await board.task(agent, issue)
    await board.resolve(granted)
    await board.record(first, resolution, outcome())
    attempt = (await board.attempts(granted))[0]
    counts = []
    for prepare in (
        forget_outbox(board),
        board.change(Attempt, attempt.id, created_at=await board.ago(OLD)),
        board.resolve(granted),
    ):
        await prepare
        async with board.database.begin() as conn:
            counts.append(await reconcile.wake_granted(conn))
    assert (counts, await board.outbox("wake")) == ([0, 1, 0], [granted])


async def test_leases_of_the_dead_are_repaired(board: Board) -> None:
    """They are freed, counted, and granted on; there is nothing to repair in a healthy workspace."""
    agent, issue = await board.agent(await board.runtime()), await board.issue()
    dead = await board.task(agent, issue)
    await board.running(dead)
    await board.change(Task, dead, status="completed")
    waiting = await board.task(agent, issue)
    key = (await board.row(dead)).lane_id
    assert (await board.resolve(waiting)).kind is Resolved.WAIT
    counts = []
    for _ in range(2):
        async with board.database.begin() as conn:
            counts.append(await reconcile.repair_leases(conn))
    assert counts == [1, 0]
    held = await board.rows(Lease.__table__.select().where(Lease.kind == LeaseKind.LANE))
    assert [(lease.key, lease.task_id) for lease in held] == [(key, waiting)]
    assert await board.outbox("wake") == [waiting]


async def test_leases_set_aside_are_not_repaired(board: Board) -> None:
    """An attempt's leases stand until its machine has spoken."""
    task = await board.task(await board.agent(await board.runtime()), await board.issue())
    await board.set_aside(task, await board.running(task))
    async with board.database.begin() as conn:
        assert await reconcile.repair_leases(conn) == 0
    assert [kind for kind, _ in await board.leases()] == ["directory"]


# --- workflows ------------------------------------------------------------------------------------


async def test_open_tasks_are_checked_longest_unseen_first(board: Board) -> None:
    """Each once a period; not while young, told of, deferred or ended."""
    agent = await board.agent(await board.runtime())
    made = [await board.task(agent, await board.issue()) for _ in range(5)]
    assert await checked(board) == []
    for seconds, task in enumerate(made):
        await board.change(Task, task, workflow_checked_at=await board.ago(OLD - seconds))
    assert await checked(board) == []
    await forget_outbox(board)
    await board.change(Task, made[3], status=TaskStatus.DEFERRED)
    await board.change(Task, made[4], status=TaskStatus.COMPLETED)
    assert (sorted(await checked(board)), await checked(board)) == (sorted(made[:3]), [])


async def test_two_reconcilers_check_different_tasks(board: Board) -> None:
    """What one is looking at the other leaves alone."""
    agent = await board.agent(await board.runtime())
    for _ in range(3):
        task = await board.task(agent, await board.issue())
        await board.change(Task, task, workflow_checked_at=await board.ago(OLD))
    await forget_outbox(board)
    async with board.database.begin() as conn:
        mine = [row.id for row in await reconcile.tasks_to_check(conn)]
        assert await asyncio.wait_for(checked(board), timeout=60) == []
    assert len(mine) == 3


async def start_again(board: Board, task: UUID) -> bool:
    async with board.database.begin() as conn:
        return await reconcile.start_again(conn, task)


async def test_a_missing_workflow_is_started_again_unless_something_runs(board: Board) -> None:
    """A queued, dispatched or sleeping task is; a running, ended or unknown one is not."""
    agent, issue = await board.agent(await board.runtime()), await board.issue()
    task = await board.task(agent, issue)
    assert await start_again(board, task)
    resolution = await board.resolve(task)
    assert await start_again(board, task)
    await board.start(resolution)
    assert not await start_again(board, task)
    await board.record(task, resolution, outcome("runtime_recovery"))
    assert await start_again(board, task)
    await board.cancel(task)
    await board.resolve(task, 2)
    assert not await start_again(board, task)
    assert (await board.outbox("start")).count(task) == 4


async def test_a_stop_is_repeated_until_the_machine_has_spoken(board: Board) -> None:
    """With its own input; not while young, on its way, or settled."""
    task = await board.task(await board.agent(await board.runtime()), await board.issue())
    resolution = await board.running(task)
    await board.set_aside(task, resolution)
    await board.change_attempt(resolution, set_aside_at=await board.ago(OLD))
    assert await stops(board) == []
    await forget_outbox(board)
    assert await stops(board) == [resolution.attempt_id]
    assert await board.outbox("stop") == [resolution.attempt_id]
    await forget_outbox(board)
    await board.settle(resolution)
    assert await stops(board) == []


async def stops(board: Board) -> list[UUID]:
    async with board.database.begin() as conn:
        found = await reconcile.stops_to_check(conn)
        for attempt in found:
            assert attempt.stop["attempt_id"] == str(attempt.id)
            await reconcile.stop_again(conn, attempt)
    return [attempt.id for attempt in found]
