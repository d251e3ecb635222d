"""Everything at once on few lanes: no deadlock, no lost wake, no lease left, order kept.

The tables' side of the control worker is played here in small: tasks are started, woken, cancelled
and stopped by nothing but what the outbox says, so a wake that is not written shows as a task that
never ends.
"""

import asyncio
from collections import defaultdict
from contextlib import suppress
from datetime import timedelta
from itertools import pairwise
from random import Random
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from domain.brief import HeartbeatRequest
from domain.errors import Conflict, InvalidInput, NotFound
from domain.events import EventType
from domain.steps import Resolution, Resolved
from domain.triggers import TriggerType
from store import comments, outbox, reconcile, runtimes
from store.models import Attempt, Outbox, Runtime, Task
from store.outbox import OutboxItem, OutboxKind
from tests.store.board import Board, outcome

pytestmark = pytest.mark.slow

SEED = 20261130
_BUSY_SECONDS = 5.0
_DRAIN_SECONDS = 200.0


class Player:
    """Plays workflows and machines; people are played by `people`."""

    def __init__(self, board: Board, agents: list[UUID], issues: list[UUID]) -> None:
        self.board, self.agents, self.issues = board, agents, issues
        self.random = Random(SEED)
        self.news: dict[UUID, asyncio.Event] = defaultdict(asyncio.Event)
        self.cancelled: set[UUID] = set()
        self.started: set[UUID] = set()
        self.attempts: dict[UUID, Resolution] = {}
        self.busy = True

    # --- what the outbox says ---------------------------------------------------------------------

    async def waker(self, group: asyncio.TaskGroup) -> None:
        while self.busy or await self.unfinished():
            async with self.board.database.begin() as conn:
                items = await outbox.claim(conn, 4)
            for item in items:
                self.deliver(item, group)
            if items:
                async with self.board.database.begin() as conn:
                    await outbox.sent(conn, [item.id for item in items])
            else:
                await asyncio.sleep(0.01)

    def deliver(self, item: OutboxItem, group: asyncio.TaskGroup) -> None:
        match item.kind:
            case OutboxKind.START if item.subject_id not in self.started:
                self.started.add(item.subject_id)
                group.create_task(self.workflow(item.subject_id))
            case OutboxKind.CANCEL:
                self.cancelled.add(item.subject_id)
            case OutboxKind.STOP:
                resolution = self.attempts[item.subject_id]
                group.create_task(self.board.settle(resolution, settled_reason="runtime_recovery"))
            case _:
                pass
        self.news[item.subject_id].set()

    async def unfinished(self) -> bool:
        open_tasks = select(Task.id).where(Task.status.not_in(["completed", "failed", "cancelled"]))
        standing = select(Attempt.id).where(Attempt.ended_at.is_(None))
        pending = select(Outbox.id)
        return any([await self.board.rows(query.limit(1)) for query in (open_tasks, standing, pending)])

    # --- a task's life ----------------------------------------------------------------------------

    async def workflow(self, task: UUID) -> None:
        number = 1
        while True:
            self.news[task].clear()
            resolution = await self.board.resolve(task, number)
            if resolution.kind is Resolved.END:
                return
            if resolution.kind is Resolved.WAIT:
                await self.news[task].wait()
            elif await self.attempt(task, resolution):
                number = resolution.attempt + 1
            else:
                return

    async def attempt(self, task: UUID, resolution: Resolution) -> bool:
        """Run one attempt; True if another one follows."""
        assert resolution.attempt_id is not None
        self.attempts[resolution.attempt_id] = resolution
        try:
            await self.board.start(resolution)
        except NotFound:  # cancelled in between
            recorded = await self.board.record(task, resolution, outcome("cancelled", None))
            return not recorded.decision.ends
        session = resolution.session_id or f"s-{resolution.attempt_id}"
        await self.board.pin(resolution, session)
        seq = await self.board.say(task, EventType.RESULT, success=True, text=self.reply())
        reason = self.reason(task)
        if reason == "nothing":
            await self.board.set_aside(task, resolution)
            return False
        ended = outcome(reason, session, result_seq=seq)
        return not (await self.board.record(task, resolution, ended)).decision.ends

    def reason(self, task: UUID) -> str:
        if task in self.cancelled:
            return "cancelled"
        reasons = ["completed"] * 6 + ["runtime_recovery", "process_failure", "context_overflow", "nothing"]
        return self.random.choice(reasons)

    def reply(self) -> str:
        """Every third reply names an agent, so that lanes are entered from within a recording."""
        if not self.busy or self.random.random() > 0.3:
            return "done"
        return f"over to [@A](mention://agent/{self.random.choice(self.agents)})"

    async def machine(self, runtime: UUID) -> None:
        """The runtime falls silent and comes back, again and again, and is back in the end."""
        beat = HeartbeatRequest(machine_id="m", boot_id="b")
        while self.busy:
            async with self.board.database.begin() as conn:
                await reconcile.mark_offline(conn, timedelta(0))
            async with self.board.database.begin() as conn:
                await runtimes.beat(conn, self.board.workspace_id, runtime, beat)

    # --- people -----------------------------------------------------------------------------------

    async def people(self) -> None:
        deadline = asyncio.get_running_loop().time() + _BUSY_SECONDS
        acts = [self.comment, self.comment, self.retry, self.rerun, self.cancel, self.take_back]
        while asyncio.get_running_loop().time() < deadline:
            with suppress(Conflict, InvalidInput, NotFound):
                await self.random.choice(acts)()

    async def comment(self) -> None:
        body = mentions(self.random.sample(self.agents, len(self.agents)))
        await write(self.board, self.random.choice(self.issues), body)

    async def retry(self) -> None:
        await self.board.retry(await self.some_task())

    async def rerun(self) -> None:
        await self.board.rerun(self.random.choice(self.agents), self.random.choice(self.issues))

    async def cancel(self) -> None:
        await self.board.cancel(await self.some_task())

    async def take_back(self) -> None:
        """Delete a comment that started something."""
        row = await self.board.row(await self.some_task())
        if row.trigger_comment_id is None or row.trigger_type != TriggerType.MENTION:
            return
        async with self.board.database.begin() as conn:
            await comments.delete(conn, self.board.actor, row.trigger_comment_id)

    async def some_task(self) -> UUID:
        rows = await self.board.rows(select(Task.id).order_by(Task.id.desc()).limit(10))
        if not rows:
            raise NotFound("No task yet.")
        found: UUID = self.random.choice(rows).id
        return found


async def test_everything_at_once(board: Board) -> None:
    """Comments, mentions in replies, cancels, retries, reruns, losses and records on four lanes."""
    runtime = await board.runtime(slots=3)
    await board.change(Runtime, runtime, machine_id="m")
    agents = [await board.agent(runtime, at_once=2) for _ in range(2)]
    issues = [await board.issue() for _ in range(2)]
    for issue in issues:
        for agent in agents:
            await board.task(agent, issue)
    player = Player(board, agents, issues)

    async def day() -> None:
        await board.at_once(*(player.people() for _ in range(4)))
        player.busy = False

    try:
        async with asyncio.timeout(_DRAIN_SECONDS), asyncio.TaskGroup() as group:
            for _ in range(3):
                group.create_task(player.waker(group))
            group.create_task(player.machine(runtime))
            group.create_task(day())
    except TimeoutError:
        pytest.fail(f"stuck: {await board.waits()} {await board.leases()}")
    await check_the_traces(board)


async def test_lanes_are_locked_in_one_order(board: Board) -> None:
    """A comment is between its two new lanes when another one finds the second made: no deadlock."""
    runtime, issue = await board.runtime(), await board.issue()
    one, two = sorted([await board.agent(runtime) for _ in range(2)])
    async with board.database.begin() as conn:
        await say(conn, board, issue, mentions([one]))
        await write(board, issue, mentions([two]))
        both = asyncio.create_task(write(board, issue, mentions([one, two])))
        await board.until_blocked(both)
        await say(conn, board, issue, mentions([two]))
    await both


def mentions(agents: list[UUID]) -> str:
    return " ".join(f"[@A](mention://agent/{agent})" for agent in agents)


async def write(board: Board, issue: UUID, body: str) -> None:
    async with board.database.begin() as conn:
        await say(conn, board, issue, body)


async def say(conn: AsyncConnection, board: Board, issue: UUID, body: str) -> None:
    """A member's comment."""
    await comments.add(
        conn,
        actor=board.actor,
        issue_id=issue,
        body=body,
        author_type="member",
        author_id=board.member_id,
    )


async def check_the_traces(board: Board) -> None:
    """What must hold when all is quiet again."""
    assert (await board.leases(), await board.waits()) == ([], {})
    rows = await board.rows(select(Task.__table__).order_by(Task.lane_id, Task.lane_position))
    assert len(rows) > 20, "the day was too quiet to prove anything"
    assert all((row.reason is not None, row.ended_at is not None) == (True, True) for row in rows)
    lanes: dict[UUID, list[Any]] = defaultdict(list)
    for row in rows:
        if row.started_at is not None:
            lanes[row.lane_id].append(row)
    for lane in lanes.values():
        for before, after in pairwise(lane):
            assert before.ended_at <= after.started_at, "a lane ran two tasks at once, or out of order"
