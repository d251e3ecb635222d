"""Collection in the tables: what is given up loses its pointer in the same step."""

import asyncio
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import select

from domain.collection import CollectionRequest, CollectionRules, DirectoryCandidate
from domain.statuses import Continuity, ContinuityReason
from domain.steps import Resolution
from store import collection, leases
from store.ids import new_id
from store.models import (
    Attempt,
    Chat,
    Comment,
    Directory,
    Issue,
    Lane,
    LaneSession,
    LeaseWait,
    Session,
    Task,
)
from tests.store.board import Board, outcome

pytestmark = pytest.mark.slow

DAY = 86400.0


async def asked(board: Board, runtime: UUID, *directories: UUID, **more: Any) -> dict[UUID, tuple[bool, str]]:
    """What the runtime is answered; ``more`` are fields of its request and ages."""
    age = more.pop("age", 0.0)
    request = CollectionRequest(
        directories=[DirectoryCandidate(id=one, age_seconds=age) for one in directories], **more
    )
    async with board.database.begin() as conn:
        answer = await collection.check(
            conn,
            workspace_id=board.workspace_id,
            runtime_id=runtime,
            request=request,
            rules=CollectionRules(),
        )
    assert answer.workspace_id == board.workspace_id
    decisions = (*answer.directories, *answer.attempts)
    return {one.id: (one.collect, one.reason.value) for one in decisions}


async def directory_of(board: Board, resolution: Resolution) -> UUID:
    directory_id: UUID = (await board.attempt(resolution)).directory_id
    return directory_id


async def make_old(board: Board, issue: UUID, seconds: float) -> None:
    """Everything about the issue happened this long ago."""
    moment = await board.ago(seconds)
    await board.change(Issue, issue, updated_at=moment)
    for model in (Comment, Task):
        for row in await board.rows(select(model.id).where(model.issue_id == issue)):
            await board.change(model, row.id, created_at=moment)
    attempts = select(Attempt.id, Attempt.directory_id).join(Task, Task.id == Attempt.task_id)
    for row in await board.rows(attempts.where(Task.issue_id == issue)):
        await board.change(Attempt, row.id, created_at=moment, started_at=moment, ended_at=moment)
        await board.change(Directory, row.directory_id, created_at=moment)


class Lived:
    """An issue on which an agent has run once, some time ago."""

    def __init__(self, board: Board, runtime: UUID, agent: UUID, issue: UUID, directory: UUID) -> None:
        self.board, self.runtime, self.agent, self.issue, self.directory = (
            board,
            runtime,
            agent,
            issue,
            directory,
        )

    async def ask(self, **more: Any) -> tuple[bool, str]:
        return (await asked(self.board, self.runtime, self.directory, **more))[self.directory]

    async def gone(self) -> Any:
        row = await self.board.rows(select(Directory.__table__).where(Directory.id == self.directory))
        return row[0].gone_reason


@pytest.fixture
async def lived(board: Board) -> Lived:
    runtime = await board.runtime()
    agent, issue = await board.agent(runtime), await board.issue()
    resolution = await board.run(await board.task(agent, issue))
    await make_old(board, issue, 2 * DAY)
    return Lived(board, runtime, agent, issue, await directory_of(board, resolution))


async def test_an_open_issue_keeps_its_directory(lived: Lived) -> None:
    """Until nobody has used it for thirty days."""
    assert await lived.ask() == (False, "recent")
    await make_old(lived.board, lived.issue, 31 * DAY)
    assert await lived.ask() == (True, "unused")


@pytest.mark.parametrize("status", ["done", "cancelled"])
async def test_an_issue_that_is_over_gives_its_directory_up(lived: Lived, status: str) -> None:
    """The pointer ends in the same step, and the next run says what was lost."""
    await lived.board.change(Issue, lived.issue, status=status)
    assert await lived.ask() == (True, "settled")
    assert await lived.gone() == "collected"
    assert await lived.ask() == (True, "gone")
    after = await lived.board.resolve(await lived.board.task(lived.agent, lived.issue))
    assert (after.session_id, after.work_dir) == (None, None)
    assert (after.continuity, after.continuity_reason) == (Continuity.LOST, ContinuityReason.WORKDIR_GONE)
    assert await directory_of(lived.board, after) != lived.directory


async def test_a_dry_run_gives_nothing_up(lived: Lived) -> None:
    """The same answer, and no change."""
    await lived.board.change(Issue, lived.issue, status="done")
    assert await lived.ask(dry_run=True) == (True, "settled")
    assert await lived.gone() is None
    after = await lived.board.resolve(await lived.board.task(lived.agent, lived.issue))
    assert after.continuity is Continuity.RESUMED


@pytest.mark.parametrize("touch", ["issue", "comment", "run"])
async def test_somebody_has_touched_it_since(lived: Lived, touch: str) -> None:
    """A change, a comment or a run within the last day keeps the directory of an issue that is over."""
    board, now = lived.board, await lived.board.now()
    await board.change(Issue, lived.issue, status="done")
    if touch == "issue":
        await board.change(Issue, lived.issue, updated_at=now)
    elif touch == "comment":
        await board.comment(lived.issue)
    else:
        (row,) = await board.rows(select(Attempt.id).where(Attempt.directory_id == lived.directory))
        await board.change(Attempt, row.id, ended_at=now)
    assert await lived.ask() == (False, "recent")


async def test_a_deleted_issue_gives_its_directory_up_at_once(lived: Lived) -> None:
    """Nobody can go on from it."""
    await lived.board.change(Issue, lived.issue, deleted_at=await lived.board.now())
    assert await lived.ask() == (True, "deleted")


async def test_an_open_task_keeps_the_directory(lived: Lived) -> None:
    """Queued, waiting or asleep: it will go on from there."""
    await lived.board.change(Issue, lived.issue, status="done")
    await lived.board.task(lived.agent, lived.issue)
    await make_old(lived.board, lived.issue, 60 * DAY)
    assert await lived.ask() == (False, "open_task")


async def test_a_leased_directory_is_never_given_up(lived: Lived) -> None:
    """Not even when its issue is deleted, and not while a set-aside attempt may still live in it."""
    board = lived.board
    task = await board.task(lived.agent, lived.issue)
    running = await board.running(task)
    await board.change(Issue, lived.issue, deleted_at=await board.now())
    assert await lived.ask() == (False, "leased")
    await board.set_aside(task, running)
    assert await lived.ask() == (False, "leased")
    await board.settle(running)
    assert await lived.ask() == (True, "deleted")


async def test_a_directory_that_is_waited_for_is_kept(lived: Lived) -> None:
    """The waiter was promised it."""
    board = lived.board
    task = await board.row(await board.task(lived.agent, await board.issue()))
    await board.insert(
        LeaseWait,
        task_id=task.id,
        workspace_id=board.workspace_id,
        kind="directory",
        key=lived.directory,
        rank=task.rank,
    )
    await board.change(Issue, lived.issue, deleted_at=await board.now())
    assert await lived.ask() == (False, "leased")


async def test_a_directory_of_a_run_that_never_started(board: Board) -> None:
    """The machine may have made it; no pointer leads to it."""
    runtime = await board.runtime()
    issue = await board.issue()
    task = await board.task(await board.agent(runtime), issue)
    resolution = await board.resolve(task)
    await board.set_aside(task, None)
    directory = await directory_of(board, resolution)
    assert (await asked(board, runtime, directory))[directory] == (False, "recent")
    await make_old(board, issue, 2 * DAY)
    assert (await asked(board, runtime, directory))[directory] == (True, "never_used")


@pytest.mark.parametrize("seeded", ["session", "directory"])
async def test_a_living_chat_keeps_the_directory_it_goes_on_from(lived: Lived, seeded: str) -> None:
    """The issue may be deleted: the conversation in the chat needs the files."""
    board = lived.board
    chat, lane = new_id(), new_id()
    await board.insert(
        Chat, id=chat, workspace_id=board.workspace_id, creator_id=board.member_id, agent_id=lived.agent,
        title="On",
    )  # fmt: skip
    await board.insert(
        Lane, id=lane, workspace_id=board.workspace_id, kind="chat", agent_id=lived.agent, chat_id=chat
    )
    (session,) = await board.rows(select(Session.id).where(Session.directory_id == lived.directory))
    seed = lived.directory if seeded == "directory" else None
    await board.insert(LaneSession, lane_id=lane, session_id=session.id, directory_id=seed)
    await board.change(Issue, lived.issue, deleted_at=await board.now())
    assert await lived.ask() == (False, "recent")
    await board.change(Chat, chat, status="archived")
    assert await lived.ask() == (True, "deleted")


async def test_unknown_and_foreign_directories(lived: Lived, board: Board) -> None:
    """An orphan is judged by its age; another runtime's is never collected; nor is a local one."""
    unknown, other = new_id(), await board.runtime()
    assert (await asked(board, lived.runtime, unknown, age=DAY))[unknown] == (False, "unknown")
    assert (await asked(board, lived.runtime, unknown, age=4 * DAY))[unknown] == (True, "orphan")
    await board.change(Issue, lived.issue, deleted_at=await board.now())
    assert (await asked(board, other, lived.directory))[lived.directory] == (False, "other_runtime")
    await board.change(Directory, lived.directory, kind="local")
    assert await lived.ask() == (False, "local_directory")


async def test_another_workspaces_rows_are_not_there(lived: Lived) -> None:
    """Neither its directories nor its attempts; nothing of them is changed."""
    stranger = await Board(lived.board.database).open()
    await lived.board.change(Issue, lived.issue, deleted_at=await lived.board.now())
    runtime = await stranger.runtime()
    assert (await asked(stranger, runtime, lived.directory))[lived.directory] == (False, "unknown")
    assert await lived.gone() is None


async def test_attempts(board: Board) -> None:
    """Files of ended and unknown attempts may go, those of standing ones and of other runtimes not."""
    runtime, other, unknown = await board.runtime(), await board.runtime(), new_id()
    agent = await board.agent(runtime)
    done = (await board.run(await board.task(agent, await board.issue()))).attempt_id
    live = (await board.running(await board.task(agent, await board.issue()))).attempt_id
    assert done
    assert live
    assert await asked(board, runtime, attempts=[done, live, unknown]) == {
        done: (True, "ended"),
        live: (False, "standing"),
        unknown: (True, "orphan"),
    }
    assert await asked(board, other, attempts=[done]) == {done: (False, "other_runtime")}


async def test_a_grant_at_the_same_moment_wins_or_sees_it_gone(lived: Lived) -> None:
    """Collection and a new task decide one after the other; no task is sent into a deleted directory."""
    board = lived.board
    await board.change(Issue, lived.issue, status="done")
    task = await board.task(lived.agent, lived.issue)
    await make_old(board, lived.issue, 2 * DAY)
    async with board.database.begin() as conn:
        await leases.lock(conn, board.workspace_id)
        granting = asyncio.create_task(board.resolve(task))
        await board.until_blocked(granting)
        asking = asyncio.create_task(lived.ask())
    resolution, answer = await granting, await asking
    assert await directory_of(board, resolution) == lived.directory
    assert answer[0] is False
    await board.start(resolution)
    await board.record(task, resolution, outcome())
