"""Random histories of two agents on two issues and two machines, against `continuity_model`.

Every step goes through the store functions that the activities call, on a real database. After each
grant the pointer equals the model's, after each end so does what became of the session; and what must
hold in any case is asked of the rows themselves, whatever the model says.

``SEGUE_TEST_HISTORIES`` sets how many histories each seed plays, ``SEGUE_TEST_FIRST_SEED`` which seeds.
A failure prints its history; its seed is in the test's name. With ``SEGUE_TEST_SHRINK=1`` it takes
minutes more to find the shortest one.
"""

import asyncio
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import count
from typing import Any
from uuid import UUID

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)
from sqlalchemy import func, select

from domain.reasons import Reason
from domain.retry import RetryAction
from domain.routing import TriggerOutcome
from domain.statuses import Continuity, ContinuityReason, WaitKind
from domain.steps import Recorded, Resolution, Resolved
from store import enqueue
from store.database import Database
from store.models import Agent, Attempt, Directory, LaneSession, Session, Task
from tests.store.board import Board, outcome
from tests.store.continuity_model import Conversation, Decision, End, Folder, Lane, Run, decide
from tests.store.continuity_model import Task as Wish

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

HISTORIES = int(os.environ.get("SEGUE_TEST_HISTORIES", "125"))
FIRST_SEED = int(os.environ.get("SEGUE_TEST_FIRST_SEED", "1"))
SHRINK = os.environ.get("SEGUE_TEST_SHRINK", "") == "1"
STEPS = 20

MACHINES = ("a", "b")
PROVIDERS = ("claude", "codex")


# --- what a step may draw -------------------------------------------------------------------------


@dataclass(frozen=True)
class Ending:
    """How a run is to end. ``named``: which session id it gives; ``vanishes``: nobody hears of it.

    ``gate`` and ``pins`` are what happens to it before that.
    """

    reason: str
    named: str
    refused: bool
    stored: bool
    waits: bool
    vanishes: bool
    pins: str
    gate: str


_FAILURES = sorted(set(Reason) - {Reason.COMPLETED, Reason.CANCELLED})
_reasons = st.one_of(
    st.just(Reason.COMPLETED),
    st.sampled_from(
        [Reason.COMPLETED, Reason.CANCELLED, Reason.RUNTIME_RECOVERY, Reason.PROVIDER_QUOTA_LIMIT]
    ),
    st.sampled_from(_FAILURES),
)
#: ``kept``: the session that it asked for, else a new one. ``other``: one that is known somewhere.
_names = st.one_of(st.just("kept"), st.sampled_from(["kept", "none", "new", "other"]))
_pins = st.sampled_from(["no", "no", "kept", "new"])
_gates = st.sampled_from([*["good"] * 7, "no directory", "no session"])
_endings = st.builds(
    Ending,
    reason=_reasons,
    named=_names,
    refused=st.sampled_from([False, False, False, False, True]),
    stored=st.sampled_from([True, True, True, True, True, False]),
    waits=st.booleans(),
    vanishes=st.sampled_from([*[False] * 9, True]),
    pins=_pins,
    gate=_gates,
)
_which = st.integers(0, 7)
_lanes = st.integers(0, 3)


@dataclass(eq=False)
class Turn:
    """A task of ours: the model's and the database's."""

    id: UUID
    agent: int
    wish: Wish
    asked: bool = False
    cancelled: bool = False
    number: int = 0
    #: The decision that the standing attempt was granted with.
    granted: Decision | None = None
    provider: str = ""
    resolution: Resolution | None = None
    run: Run | None = None
    attempts: list[tuple[Run, Resolution]] = field(default_factory=list)


@dataclass(eq=False)
class Line:
    """A lane, with its open tasks in order and its ended ones."""

    agent: int
    issue: int
    lane: Lane = field(default_factory=Lane)
    open: list[Turn] = field(default_factory=list)
    ended: list[Turn] = field(default_factory=list)


@dataclass(frozen=True)
class Ground:
    """What all histories share: a database, and the loop that its connections belong to."""

    database: Database
    runner: asyncio.Runner


class History(RuleBasedStateMachine):
    """One workspace and what happens in it."""

    ground: Ground

    def __init__(self) -> None:
        super().__init__()
        self.board = Board(self.ground.database)
        self.clock = count(1)
        self.names = count(1)
        self.known: dict[tuple[str, str, str], Conversation] = {}
        self.aside: list[tuple[Line, Turn, Resolution, Run]] = []
        self.bound = ["a", "a"]
        self.provider = ["claude", "claude"]
        self.lines = [Line(agent, issue) for agent in (0, 1) for issue in (0, 1)]
        self.do(self._open())

    def do(self, step: Any) -> Any:
        return self.ground.runner.run(step)

    async def _open(self) -> None:
        await self.board.open()
        self.machines = {name: await self.board.runtime() for name in MACHINES}
        self.agents = [
            await self.board.agent(self.machines["a"], provider="claude", at_once=20) for _ in range(2)
        ]
        self.issues = [await self.board.issue() for _ in range(2)]

    @initialize(lanes=st.sampled_from([1, 1, 2, 4]))
    def choose(self, lanes: int) -> None:
        """Few lanes make long ones; two agents on two issues make four."""
        self.lines = self.lines[:lanes]

    # --- triggers ---------------------------------------------------------------------------------

    @rule(lane=_lanes, asks=st.booleans())
    def comment(self, lane: int, *, asks: bool) -> None:
        """A comment: a new task, or one more input of the task that waits."""
        self.do(self._comment(self._some_line(lane, self.lines), asks=asks))

    async def _comment(self, line: Line, *, asks: bool) -> None:
        done = await self.board.trigger(self.agents[line.agent], self.issues[line.issue])
        assert done.task_id is not None
        if done.outcome is TriggerOutcome.QUEUED:
            await self._queued(line, done.task_id, Wish("next", self.bound[line.agent]), asks=asks)
        else:
            assert done.task_id in [turn.id for turn in line.open]

    @rule(lane=_lanes, asks=st.booleans())
    def rerun(self, lane: int, *, asks: bool) -> None:
        """A rerun of the issue: fresh is asked for."""
        self.do(self._rerun(self._some_line(lane, self.lines), asks=asks))

    async def _rerun(self, line: Line, *, asks: bool) -> None:
        task_id = await self.board.rerun(self.agents[line.agent], self.issues[line.issue])
        await self._queued(line, task_id, Wish("fresh", self.bound[line.agent]), asks=asks)

    @precondition(lambda self: any(line.ended for line in self.lines))
    @rule(lane=_lanes, which=_which, names_issue=st.booleans(), asks=st.booleans())
    def retry(self, lane: int, which: int, *, names_issue: bool, asks: bool) -> None:
        """A retry of one ended task, or a rerun that names it: the same door."""
        line = self._some_line(lane, [line for line in self.lines if line.ended])
        self.do(
            self._retry(line, line.ended[-1 - which % len(line.ended)], names_issue=names_issue, asks=asks)
        )

    async def _retry(self, line: Line, source: Turn, *, names_issue: bool, asks: bool) -> None:
        if names_issue:
            async with self.board.database.begin() as conn:
                issue_id = self.issues[line.issue]
                task_id = await enqueue.rerun(
                    conn, actor=self.board.actor, issue_id=issue_id, task_id=source.id
                )
        else:
            task_id = await self.board.retry(source.id)
        await self._queued(line, task_id, Wish("again", self.bound[line.agent], source.wish), asks=asks)

    async def _queued(self, line: Line, task_id: UUID, wish: Wish, *, asks: bool) -> None:
        line.open.append(Turn(task_id, line.agent, wish))
        if asks and len(line.open) > 1:
            waits = await self.board.resolve(task_id)
            assert (waits.kind, waits.wait_kind) == (Resolved.WAIT, WaitKind.LANE)
            line.open[-1].asked = True

    def _some_line(self, lane: int, lines: list[Line]) -> Line:
        return lines[lane % len(lines)]

    # --- one attempt ------------------------------------------------------------------------------

    def _heads(self, *stages: str) -> list[Line]:
        return [line for line in self.lines if line.open and _stage(line.open[0]) in stages]

    @precondition(lambda self: self._heads("waiting"))
    @rule(lane=_lanes, gate=_gates)
    def dispatch(self, lane: int, gate: str) -> None:
        """The head of a lane asks; if it is granted, the gate has its say."""
        line = self._some_line(lane, self._heads("waiting"))
        self.do(self._dispatch(line, gate))

    async def _dispatch(self, line: Line, gate: str) -> bool:
        turn = line.open[0]
        self._grant(line)
        resolution = await self.board.resolve(turn.id, turn.number + 1)
        if turn.granted is None:
            assert resolution.kind is Resolved.WAIT, "another run's directory was entered"
            assert resolution.wait_kind in {WaitKind.DIRECTORY, WaitKind.SESSION}
            turn.asked = True
            return False
        turn.resolution, turn.number = resolution, resolution.attempt
        await self._compare_grant(line, turn)
        if gate == "no directory" and turn.granted.folder is not None:
            await self._reject(line, turn)
        return True

    def _grant(self, line: Line) -> None:
        """What the model grants to the lane's head, unless a run that was set aside is in its way."""
        turn = line.open[0]
        if turn.granted is not None:
            return
        decision = decide(line.lane, turn.wish, self.provider[line.agent])
        if decision.folder is None or not decision.folder.closed:
            turn.granted, turn.provider = decision, self.provider[line.agent]

    async def _reject(self, line: Line, turn: Turn) -> None:
        """The directory is not there: the machine says so, and another one is made."""
        assert turn.granted
        assert turn.granted.folder
        turn.granted.folder.gone = True
        turn.granted = Decision(None, None, "lost", "workdir_gone")
        turn.resolution = await self.board.resolve(
            turn.id, turn.number, early=True, rejected=ContinuityReason.WORKDIR_GONE
        )
        await self._compare_grant(line, turn)

    @precondition(lambda self: self._heads("dispatched"))
    @rule(lane=_lanes, gate=_gates)
    def start(self, lane: int, gate: str) -> None:
        """The machine starts the process, with the session unless it found that missing."""
        line = self._some_line(lane, self._heads("dispatched"))
        self.do(self._start(line, gate))

    async def _start(self, line: Line, gate: str) -> None:
        turn = line.open[0]
        if turn.cancelled:
            return
        assert turn.granted
        assert turn.resolution
        granted, changed = turn.granted, {}
        if gate == "no session" and granted.conversation is not None:
            granted.conversation.retire("session_missing")
            granted = Decision(None, granted.folder, "lost", "session_missing")
            changed = {"continuity": Continuity.LOST, "continuity_reason": ContinuityReason.SESSION_MISSING}
        await self.board.start(turn.resolution, **changed)
        folder = granted.folder or self._new_folder(line, turn)
        folder.used_at = next(self.clock)
        turn.run = Run(turn.provider, folder, granted.conversation, granted.continuity, granted.reason)
        turn.wish.runs.append(turn.run)
        turn.attempts.append((turn.run, turn.resolution))

    def _new_folder(self, line: Line, turn: Turn) -> Folder:
        assert turn.resolution
        folder = Folder(f"/w/{turn.resolution.attempt_id}", turn.wish.machine, next(self.clock))
        line.lane.folders.append(folder)
        return folder

    @precondition(lambda self: self._heads("running"))
    @rule(lane=_lanes, name=st.sampled_from(["kept", "new", "other"]), which=_which)
    def pin(self, lane: int, name: str, which: int) -> None:
        """The session id is told while the run goes on."""
        line = self._some_line(lane, self._heads("running"))
        turn = line.open[0]
        assert turn.run
        assert turn.resolution
        self.do(self._pin(line, turn.run, turn.resolution, self._name(turn.run, name, which)))

    async def _pin(self, line: Line, run: Run, resolution: Resolution, name: str | None) -> None:
        if name is None:
            return
        await self.board.pin(resolution, name)
        heard = run.asked is None or (run.asked.name == name and run.end is None)
        if heard:
            run.pin(self._conversation(line, run, name))

    def _name(self, run: Run, kind: str, which: int) -> str | None:
        """The id that the provider gives."""
        others = [name for machine, _, name in self.known if machine == run.folder.machine]
        match kind:
            case "none":
                return None
            case "kept" if run.asked or run.pinned:
                kept = run.pinned or run.asked
                assert kept
                return kept.name
            case "other" if others:
                return others[which % len(others)]
            case _:
                return f"s-{next(self.names)}"

    def _conversation(self, line: Line, run: Run, name: str) -> Conversation:
        """The model's conversation of that id, which the run's lane knows from now on."""
        seen = run.ended_at or next(self.clock)
        key = (run.folder.machine, run.provider, name)
        conversation = self.known.setdefault(key, Conversation(name, run.provider, run.folder, seen))
        if conversation not in line.lane.conversations:
            line.lane.conversations.append(conversation)
        return conversation

    # --- ends -------------------------------------------------------------------------------------

    @precondition(lambda self: self._heads("dispatched", "running"))
    @rule(lane=_lanes, ending=_endings, which=_which)
    def finish(self, lane: int, ending: Ending, which: int) -> None:
        """The attempt ends, started or not."""
        line = self._some_line(lane, self._heads("dispatched", "running"))
        self.do(self._finish(line, ending, which))

    async def _finish(self, line: Line, ending: Ending, which: int) -> None:
        turn = line.open[0]
        assert turn.resolution
        run, resolution = turn.run, turn.resolution
        if run is None:
            reason = Reason.CANCELLED if turn.cancelled or ending.reason == "completed" else ending.reason
            recorded = await self.board.record(turn.id, resolution, outcome(reason, None))
        else:
            if ending.pins != "no":
                await self._pin(line, run, resolution, self._name(run, ending.pins, which))
            recorded = await self._record(line, turn, ending, which)
            await self._compare_end(run, resolution)
        self._after(line, turn, recorded)

    async def _record(self, line: Line, turn: Turn, ending: Ending, which: int) -> Recorded:
        assert turn.run
        assert turn.resolution
        said, named = self._outcome(turn.run, ending, which)
        recorded = await self.board.record(turn.id, turn.resolution, said)
        waits = recorded.decision.action is RetryAction.QUOTA
        self._end_run(line, turn.run, said, named, waits=waits)
        return recorded

    def _outcome(self, run: Run, ending: Ending, which: int) -> tuple[Any, str | None]:
        """What the machine reports, and the id in it."""
        more: dict[str, Any] = {}
        named = self._name(run, ending.named, which)
        if ending.refused and run.asked is not None:
            more["refused_session_id"] = run.asked.name
            if named == run.asked.name:
                named = None
        if not ending.stored:
            more["session_rollout_missing"], named = True, None
        if ending.waits:
            more["resets_at"] = datetime.now(UTC)
        return outcome(ending.reason, named, **more), named

    def _end_run(self, line: Line, run: Run, said: Any, named: str | None, *, waits: bool) -> None:
        refused = said.refused_session_id is not None
        # An id is looked up only if it is believed: a made-up one is never known to the lane.
        believed = run.asked is None or refused or said.status == "completed"
        # One that was set aside has ended already.
        run.ended_at = run.ended_at or next(self.clock)
        conversation = None
        if named is not None:
            conversation = self._conversation(line, run, named) if believed else self._stranger(run, named)
        end = End(
            said.status,
            said.reason,
            conversation,
            refused=refused,
            not_stored=said.session_rollout_missing,
            waits_for_quota=waits,
        )
        run.finish(end)

    def _stranger(self, run: Run, name: str) -> Conversation:
        if run.asked is not None and run.asked.name == name:
            return run.asked
        return Conversation(name, run.provider, run.folder, 0)

    def _after(self, line: Line, turn: Turn, recorded: Recorded) -> None:
        """The task sleeps until its next attempt, or is over and the next one's turn comes."""
        turn.granted = turn.resolution = turn.run = None
        if recorded.decision.ends:
            self._over(line, turn)

    def _over(self, line: Line, turn: Turn) -> None:
        line.open.remove(turn)
        line.ended.append(turn)
        self._grant_waiter(line)

    def _grant_waiter(self, line: Line) -> None:
        if line.open and line.open[0].asked:
            self._grant(line)

    @precondition(lambda self: any(line.open for line in self.lines))
    @rule(lane=_lanes, which=_which)
    def cancel(self, lane: int, which: int) -> None:
        """A person stops a task, wherever it stands."""
        line = self._some_line(lane, [line for line in self.lines if line.open])
        self.do(self._cancel(line, line.open[which % len(line.open)]))

    async def _cancel(self, line: Line, turn: Turn) -> None:
        await self.board.cancel(turn.id)
        turn.cancelled = True
        if turn.number == 0:
            turn.granted = None
            self._over(line, turn)
        elif turn.resolution is None:  # asleep: the workflow records what no machine has to say
            await self.board.record(turn.id, None, outcome("cancelled", None))
            self._over(line, turn)

    @precondition(lambda self: self._heads("dispatched", "running"))
    @rule(lane=_lanes)
    def vanish(self, lane: int) -> None:
        """Nobody can speak for the attempt any more: it is set aside."""
        line = self._some_line(lane, self._heads("dispatched", "running"))
        self.do(self._vanish(line))

    async def _vanish(self, line: Line) -> None:
        turn = line.open[0]
        assert turn.resolution
        await self.board.set_aside(turn.id, turn.resolution)
        if turn.run is not None:
            turn.run.folder.closed = True
            turn.run.ended_at = next(self.clock)
            self.aside.append((line, turn, turn.resolution, turn.run))
        turn.granted = turn.resolution = turn.run = None
        self._over(line, turn)

    @precondition(lambda self: self.aside)
    @rule(which=_which, found=st.booleans(), ending=_endings)
    def settle(self, which: int, ending: Ending, *, found: bool) -> None:
        """The machine is back: no process is left, and its files may say how the run ended."""
        line, _, resolution, run = self.aside.pop(which % len(self.aside))
        said, named = self._outcome(run, ending, which) if found else (outcome("cancelled", None), None)
        self.do(self.board.settle(resolution, said if found else None))
        self._end_run(line, run, said, named, waits=False)
        self.do(self._compare_end(run, resolution))
        run.folder.closed = False
        self._grant_waiter(line)

    @precondition(lambda self: any(self._unnamed(line) for line in self.lines))
    @rule(lane=_lanes, which=_which, name=st.sampled_from(["kept", "new", "other"]))
    def pin_late(self, lane: int, which: int, name: str) -> None:
        """A session id arrives after the end of its run."""
        line = self._some_line(lane, [line for line in self.lines if self._unnamed(line)])
        run, resolution = self._unnamed(line)[which % len(self._unnamed(line))]
        self.do(self._pin(line, run, resolution, self._name(run, name, which)))
        self.do(self._compare_sessions())

    def _unnamed(self, line: Line) -> list[tuple[Run, Resolution]]:
        attempts = [pair for turn in [*line.open, *line.ended] for pair in turn.attempts]
        return [(run, at) for run, at in attempts if run.end and run.asked is None and run.used is None]

    # --- a whole turn, so that histories get somewhere ---------------------------------------------

    @rule(lane=_lanes, endings=st.lists(_endings, min_size=1, max_size=3), which=_which)
    def turns(self, lane: int, endings: list[Ending], which: int) -> None:
        """Comments, each when nothing is open; what stands first is brought to its attempt's end."""
        line = self._some_line(lane, self.lines)
        for ending in endings:
            if not line.open:
                self.do(self._comment(line, asks=False))
            self.do(self._turn(line, ending, which))

    @precondition(lambda self: any(line.ended for line in self.lines))
    @rule(lane=_lanes, ending=_endings, which=_which, fresh=st.booleans())
    def turn_back(self, lane: int, ending: Ending, which: int, *, fresh: bool) -> None:
        """The same for a rerun, or for a retry of any older task."""
        line = self._some_line(lane, [line for line in self.lines if line.ended])
        if not line.open and fresh:
            self.do(self._rerun(line, asks=False))
        elif not line.open:
            self.do(self._retry(line, line.ended[which % len(line.ended)], names_issue=False, asks=False))
        self.do(self._turn(line, ending, which))

    async def _turn(self, line: Line, ending: Ending, which: int) -> None:
        if _stage(line.open[0]) == "waiting" and not await self._dispatch(line, ending.gate):
            return
        if _stage(line.open[0]) == "dispatched":
            await self._start(line, ending.gate)
        run, resolution = line.open[0].run, line.open[0].resolution
        if not ending.vanishes or run is None or resolution is None:
            await self._finish(line, ending, which)
            return
        await self._pin(line, run, resolution, self._name(run, "kept", which))
        await self._vanish(line)

    # --- what changes around it -------------------------------------------------------------------

    @rule(
        agent=st.integers(0, 1),
        machine=st.sampled_from(MACHINES),
        provider=st.sampled_from([*PROVIDERS, None]),
    )
    def change(self, agent: int, machine: str, provider: str | None) -> None:
        """The agent moves to a machine, or gets another provider."""
        agent_id = self.agents[agent]
        if provider is None:
            self.bound[agent] = machine
            self.do(self.board.change(Agent, agent_id, runtime_id=self.machines[machine]))
        else:
            self.provider[agent] = provider
            self.do(self.board.change(Agent, agent_id, provider=provider))

    @precondition(lambda self: any(self._idle_folders(line) for line in self.lines))
    @rule(lane=_lanes, which=_which, really=st.sampled_from([False, False, True]))
    def collect(self, lane: int, which: int, *, really: bool) -> None:
        """A directory that nobody uses is looked at, and now and then collected."""
        line = self._some_line(lane, [line for line in self.lines if self._idle_folders(line)])
        folder = self._idle_folders(line)[-1 - which % len(self._idle_folders(line))]
        if really:
            folder.gone = True
            self.do(self._collect(folder))

    async def _collect(self, folder: Folder) -> None:
        rows = await self.board.rows(select(Directory.id).where(Directory.path == folder.path))
        await self.board.change(
            Directory, rows[0].id, gone_at=await self.board.now(), gone_reason="workdir_gone"
        )

    def _idle_folders(self, line: Line) -> list[Folder]:
        used = [turn.granted.folder for turn in line.open if turn.granted]
        used += [turn.run.folder for turn in line.open if turn.run]
        # A task that sleeps between two attempts keeps its directory leased.
        used += [run.folder for turn in line.open for run in turn.wish.runs]
        return [f for f in line.lane.folders if not f.gone and not f.closed and f not in used]

    # --- comparisons ------------------------------------------------------------------------------

    async def _compare_grant(self, line: Line, turn: Turn) -> None:
        """The system's pointer is the model's, and by the rows alone it can work."""
        assert turn.resolution
        assert turn.granted
        said, expected = turn.resolution, turn.granted
        assert said.kind is Resolved.RUN
        assert (said.session_id, said.work_dir, said.continuity, said.continuity_reason) == (
            expected.conversation.name if expected.conversation else None,
            expected.folder.path if expected.folder else None,
            expected.continuity,
            expected.reason,
        )
        await self._check_rows(turn)

    async def _check_rows(self, turn: Turn) -> None:
        """What must hold for every granted attempt, asked of the rows."""
        assert turn.resolution
        rows = await self.board.rows(
            select(
                Attempt.continuity,
                Attempt.continuity_reason,
                Attempt.requested_session_id,
                Attempt.directory_id,
                Attempt.runtime_id,
                Task.lane_id,
                Directory.lane_id.label("directory_lane"),
                Directory.runtime_id.label("directory_runtime"),
                Directory.gone_at,
                Session.runtime_id.label("session_runtime"),
                Session.lane_id.label("session_lane"),
                Session.directory_id.label("session_directory"),
                Session.provider,
                Session.retired_at,
            )
            .join(Task, Task.id == Attempt.task_id)
            .join(Directory, Directory.id == Attempt.directory_id)
            .outerjoin(Session, Session.id == Attempt.requested_session_id)
            .where(Attempt.id == turn.resolution.attempt_id)
        )
        row = rows[0]
        assert row.directory_lane == row.lane_id, "lanes share a directory"
        assert (row.directory_runtime, row.gone_at) == (row.runtime_id, None)
        assert (row.continuity == "lost") == (row.continuity_reason not in {None, "asked_for"})
        assert (row.continuity == "resumed") == (row.requested_session_id is not None)
        if row.requested_session_id is not None:
            assert row.retired_at is None, "a retired session is asked for again"
            assert (row.session_runtime, row.provider) == (row.runtime_id, turn.provider)
            assert row.session_directory == row.directory_id, "it does not live there"
            assert row.session_lane == row.lane_id, "lanes share a session"
        if row.continuity == "first":
            assert not await self._ran_before(row.lane_id)

    async def _ran_before(self, lane_id: UUID) -> bool:
        started = (
            select(Attempt.id)
            .join(Task, Task.id == Attempt.task_id)
            .where(Task.lane_id == lane_id, Attempt.started_at.is_not(None))
        )
        return bool(await self.board.rows(started.limit(1)))

    async def _compare_end(self, run: Run, resolution: Resolution) -> None:
        """The attempt's last word, its session, and every session's standing."""
        rows = await self.board.rows(
            select(
                Attempt.continuity,
                Attempt.continuity_reason,
                Session.provider_session_id,
                Session.provider,
            )
            .outerjoin(Session, Session.id == Attempt.used_session_id)
            .where(Attempt.id == resolution.attempt_id)
        )
        row = rows[0]
        assert (row.continuity, row.continuity_reason) == (run.continuity, run.reason)
        used = (run.used.name, run.provider) if run.used else (None, None)
        assert (row.provider_session_id, row.provider) == used
        await self._compare_sessions()

    async def _compare_sessions(self) -> None:
        """Each session is retired or not, has its strikes and its place in time; none is unheard of."""
        rows = await self.board.rows(
            select(
                Session.runtime_id,
                Session.provider,
                Session.provider_session_id,
                Session.retired_at,
                Session.consecutive_failures,
            )
            .where(Session.workspace_id == self.board.workspace_id)
            .order_by(func.coalesce(Session.last_ended_at, Session.created_at))
        )
        machines = {runtime_id: name for name, runtime_id in self.machines.items()}
        found = {
            (machines[row.runtime_id], row.provider, row.provider_session_id): (
                row.retired_at is not None,
                None if row.retired_at else row.consecutive_failures,
            )
            for row in rows
        }
        expected = {key: (bool(c.lost_as), None if c.lost_as else c.strikes) for key, c in self.known.items()}
        assert found == expected
        assert list(found) == sorted(self.known, key=lambda key: self.known[key].ended_at)

    def teardown(self) -> None:
        """Whatever a lane knows beyond its own sessions was really said by a run of it."""
        self.do(self._check_lanes())

    async def _check_lanes(self) -> None:
        rows = await self.board.rows(
            select(LaneSession.lane_id, LaneSession.session_id)
            .join(Session, Session.id == LaneSession.session_id)
            .where(Session.workspace_id == self.board.workspace_id)
        )
        assert len(rows) == sum(len(line.lane.conversations) for line in self.lines)


def _stage(turn: Turn) -> str:
    if turn.resolution is None:
        return "waiting"
    return "dispatched" if turn.run is None else "running"


@pytest.fixture
def ground(database_url: str) -> Iterator[Ground]:
    """One database and one loop for all histories of a test."""
    with asyncio.Runner() as runner:
        database = Database(database_url, pool_size=1)
        yield Ground(database, runner)
        runner.run(database.dispose())


@pytest.mark.parametrize("number", range(FIRST_SEED, FIRST_SEED + 4))
def test_random_histories_keep_to_the_model(ground: Ground, number: int) -> None:
    """Continuity is what the design says: never silently lost, never overstated."""
    machine = seed(number)(type("SeededHistory", (History,), {"ground": ground}))
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=HISTORIES,
            stateful_step_count=STEPS,
            database=None,
            deadline=None,
            print_blob=True,
            phases=[Phase.generate, Phase.shrink] if SHRINK else [Phase.generate],
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
        ),
    )
