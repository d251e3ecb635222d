"""Where the next run goes on when a history gets crooked: plain cases beside `test_continuity`."""

import asyncio
from typing import Any
from uuid import UUID

import pytest

from domain.statuses import Continuity
from domain.steps import Resolution
from store import attempts, schema
from store.models import Agent, Directory
from store.secretbox import SecretBox
from tests.store.board import Board, outcome

pytestmark = pytest.mark.slow


class Lane:
    """One agent on one issue."""

    def __init__(self, board: Board, agent: UUID, issue: UUID) -> None:
        self.board, self.agent, self.issue = board, agent, issue

    async def task(self) -> UUID:
        return await self.board.task(self.agent, self.issue)

    async def rerun(self) -> UUID:
        return await self.board.rerun(self.agent, self.issue)

    async def run(self, session: str | None = "s-1", **more: Any) -> UUID:
        """A comment's task, from its start to its end."""
        task = await self.task()
        await self.board.run(task, session=session, **more)
        return task

    async def next(self) -> tuple[str | None, str | None, Continuity | None, str | None]:
        """Session, directory and words of the next comment's run."""
        return pointer(await self.board.resolve(await self.task()))


@pytest.fixture
async def lane(board: Board) -> Lane:
    return Lane(board, await board.agent(await board.runtime()), await board.issue())


def pointer(said: Resolution) -> tuple[str | None, str | None, Continuity | None, str | None]:
    return said.session_id, said.work_dir, said.continuity, said.continuity_reason


async def place_of(board: Board, task: UUID) -> Any:
    """The directory that the task's last attempt ran in."""
    attempt = (await board.attempts(task))[-1]
    rows = await board.rows(Directory.__table__.select().where(Directory.id == attempt.directory_id))
    return rows[0]


# --- which session was the last one ---------------------------------------------------------------


async def test_a_success_without_an_id_used_what_it_asked_for(board: Board, lane: Lane) -> None:
    """Nothing says otherwise: its strikes are wiped, and a retry of it goes on in that session."""
    await lane.run(reason="process_failure")
    task = await lane.run(session=None)
    assert (await board.session("s-1")).consecutive_failures == 0
    assert (await board.attempts(task))[0].used_session_id == (await board.session("s-1")).id


async def test_a_session_that_hit_a_quota_is_the_last_one(board: Board, lane: Lane) -> None:
    """The waiting task was cancelled: the next comment goes on where it had been, not one session before."""
    first = await lane.run("s-1")
    await lane.run("s-2")
    again = await board.retry(first)
    resolution = await board.running(again)
    assert resolution.session_id == "s-1"
    reset = await board.now()
    await board.record(again, resolution, outcome("provider_quota_limit", "s-1", resets_at=reset))
    await board.cancel(again)
    await board.record(again, None, outcome("cancelled", None))
    assert (await board.session("s-1")).consecutive_failures == 0
    assert (await lane.next())[0] == "s-1"


async def test_a_late_pin_does_not_overtake_a_later_run(board: Board, lane: Lane) -> None:
    """The id of a stopped run arrives when another run has ended in a session of its own."""
    stopped = await lane.task()
    resolution = await board.running(stopped)
    await board.record(stopped, resolution, outcome("cancelled", None))
    await lane.run("s-2")
    await board.pin(resolution, "s-late")
    assert (await lane.next())[0] == "s-2"


async def test_a_late_pin_is_resumed_if_nothing_came_after(board: Board, lane: Lane) -> None:
    """The stopped run's conversation is not lost for being late."""
    stopped = await lane.task()
    resolution = await board.running(stopped)
    await board.record(stopped, resolution, outcome("cancelled", None))
    await board.pin(resolution, "s-late")
    assert (await lane.next())[0] == "s-late"


async def test_a_late_pin_of_a_poisoned_run_is_retired(board: Board, lane: Lane) -> None:
    """It is judged as the run's end was."""
    failed = await lane.task()
    resolution = await board.running(failed)
    await board.record(failed, resolution, outcome("context_overflow", None))
    await board.pin(resolution, "s-late")
    session, _, continuity, reason = await lane.next()
    assert (session, continuity, reason) == (None, "lost", "session_poisoned")


async def test_a_run_settled_late_does_not_overtake_a_later_one(board: Board, lane: Lane) -> None:
    """For its lane it ended when it was set aside; a fresh rerun has gone on since."""
    lost = await lane.task()
    resolution = await board.running(lost)
    await board.pin(resolution, "s-1")
    await board.set_aside(lost, resolution)
    fresh = await lane.rerun()
    await board.run(fresh, session="s-2")
    await board.settle(resolution)
    session, path, continuity, _ = await lane.next()
    assert (session, continuity) == ("s-2", "resumed")
    assert path == (await place_of(board, fresh)).path


async def test_a_refused_session_was_not_used(board: Board, lane: Lane) -> None:
    """The provider named the session and then refused it: the attempt doesn't claim to have used it."""
    await lane.run()
    task = await lane.task()
    resolution = await board.running(task)
    await board.pin(resolution, "s-1")
    await board.record(task, resolution, outcome(session=None, refused_session_id="s-1"))
    assert (await board.attempt(resolution)).used_session_id is None
    assert (await lane.next())[3] == "resume_rejected"


# --- which directory ------------------------------------------------------------------------------


async def test_a_comment_goes_on_where_the_lane_ran_last(board: Board, lane: Lane) -> None:
    """After a rerun in a new directory, a retry of an older task has gone back to the first one."""
    first = await lane.run("s-1")
    await board.run(await lane.rerun(), session="s-2")
    await board.run(await board.retry(first), session="s-1")
    home = await place_of(board, first)
    assert await lane.next() == ("s-1", home.path, "resumed", None)


async def test_a_directory_that_is_gone_is_named_although_an_older_one_is_left(
    board: Board, lane: Lane
) -> None:
    """The session went with its directory; it is not said that there never was one."""
    old = await place_of(board, await lane.run("s-1"))
    fresh = await lane.rerun()
    await board.run(fresh, session="s-2")
    newest = await place_of(board, fresh)
    await board.change(Directory, newest.id, gone_at=await board.now(), gone_reason="collected")
    assert await lane.next() == (None, old.path, "lost", "workdir_gone")


# --- a retry of what never started ----------------------------------------------------------------


async def test_a_retry_of_a_rerun_that_never_started_is_fresh(board: Board, lane: Lane) -> None:
    """Fresh was asked for and has not happened yet."""
    await lane.run()
    rerun = await lane.rerun()
    await board.cancel(rerun)
    again = await board.retry(rerun)
    assert pointer(await board.resolve(again)) == (None, None, "fresh", "asked_for")


async def test_a_retry_of_a_retry_that_never_started_has_the_first_ones_pointer(
    board: Board, lane: Lane
) -> None:
    """Never the lane's latest."""
    first = await lane.run("s-1")
    await board.run(await lane.rerun(), session="s-2")
    retry = await board.retry(first)
    await board.cancel(retry)
    again = await board.retry(retry)
    home = await place_of(board, first)
    assert pointer(await board.resolve(again)) == ("s-1", home.path, "resumed", None)


async def test_a_retry_of_a_comment_that_never_started_goes_on_in_the_lane(board: Board, lane: Lane) -> None:
    """It does what the comment would have done."""
    await lane.run("s-1")
    waiting = await lane.task()
    await board.cancel(waiting)
    assert pointer(await board.resolve(await board.retry(waiting)))[0] == "s-1"


# --- the provider ---------------------------------------------------------------------------------


async def test_an_attempt_keeps_the_provider_that_it_was_granted_with(board: Board, lane: Lane) -> None:
    """The agent is changed while it runs: the session is still the old provider's, and not resumed."""
    task = await lane.task()
    resolution = await board.running(task)
    await board.change(Agent, lane.agent, provider="claude")
    async with board.database.begin() as conn:
        assert resolution.runtime_id
        assert resolution.attempt_id
        brief = await attempts.brief(
            conn,
            runtime_id=resolution.runtime_id,
            attempt_id=resolution.attempt_id,
            secrets=SecretBox(SecretBox.new_key()),
        )
    assert brief.provider == "script"
    await board.pin(resolution, "s-1")
    await board.record(task, resolution, outcome())
    assert (await board.session("s-1")).provider == "script"
    session, _, continuity, reason = await lane.next()
    assert (session, continuity, reason) == (None, "lost", "provider_changed")


async def test_older_attempts_get_their_sessions_provider(board: Board, lane: Lane) -> None:
    """The migration takes it from the session, else from the agent."""
    known, unknown = await lane.run(), await lane.rerun()
    await board.run(unknown, session=None)
    await board.change(Agent, lane.agent, provider="claude")
    url = board.database.url
    await board.database.dispose()
    await asyncio.to_thread(schema.downgrade, url, "0003")
    await asyncio.to_thread(schema.upgrade, url)
    assert [(await board.attempts(task))[0].provider for task in (known, unknown)] == ["script", "claude"]
