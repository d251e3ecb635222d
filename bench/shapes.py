"""Decision 0002: the same four no-op steps as 2 local + 2 remote activities (ours), and as 4 remote ones.

Both shapes in turn, in one run, on the same server and the same workers: some alone, one after the other,
then many at once. In the table "floor" is the shape with four remote activities. The processor time of
`T's control` includes what starts the workflows and waits for them, which is the same for both.
"""

from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from time import time

from bench import measure
from bench.floor.driver import FloorRun, Shape
from bench.floor.workflow import FloorRemoteTask, FloorTask
from bench.lab import Lab
from bench.measure import Row

_WORKERS = ("T's control", "T's runtime")


@dataclass
class Load:
    """What the workflows of one shape took under one load; processor time in seconds a workflow."""

    runs: list[FloorRun] = field(default_factory=list)
    server: list[float] = field(default_factory=list)
    workers: list[float] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)

    def add(self, runs: list[FloorRun], used: Counter[str], seconds: float) -> None:
        """One turn: these workflows, the milliseconds of every process meanwhile, and how long it took."""
        share = len(runs) * measure.MILLISECONDS
        self.runs += runs
        self.server.append(used["temporal"] / share)
        self.workers.append(sum(used[name] for name in _WORKERS) / share)
        self.rates.append(len(runs) / seconds)

    @property
    def to_the_run(self) -> list[float]:
        return [run.times.run.began - run.asked for run in self.runs]

    @property
    def to_the_end(self) -> list[float]:
        return [run.over - run.asked for run in self.runs]


Loads = dict[Shape, Load]
Turn = Callable[[Shape], Awaitable[list[FloorRun]]]


async def measured(lab: Lab) -> list[Row]:
    """Counts, latencies and processor time of both shapes, alone and many at once; none has a goal."""
    size = lab.size
    await lab.quiet()
    await lab.floor.task(shape=FloorRemoteTask)  # T itself is warm already
    alone = await _in_turn(
        lab, size.shape_rounds, lambda shape: lab.floor.tasks(1, size.shapes_in_turn, shape=shape)
    )
    crowd = await _in_turn(
        lab, size.throughput_rounds, lambda shape: lab.floor.tasks(size.lanes, size.tasks_a_lane, shape=shape)
    )
    return [
        *await _history_rows(lab, alone),
        *_alone_rows(alone),
        *_crowd_rows(crowd, f"{size.lanes} at once"),
    ]


async def _in_turn(lab: Lab, rounds: int, turn: Turn) -> Loads:
    """Each round has a turn of each shape; who comes first alternates, so what is left over falls on both."""
    loads: Loads = {FloorTask: Load(), FloorRemoteTask: Load()}
    for number in range(rounds):
        for shape in list(loads)[:: -1 if number % 2 else 1]:
            before, began = lab.cpu(), time()
            runs = await turn(shape)
            loads[shape].add(runs, lab.cpu() - before, time() - began)
    return loads


async def _history_rows(lab: Lab, loads: Loads) -> list[Row]:
    """Exact: all workflows of a shape have the same number, or the note shows it."""
    remote, ours = [await _events(lab, loads[shape].runs) for shape in (FloorRemoteTask, FloorTask)]
    notes = [f"4 remote: {_tally(remote)}; 2 local + 2 remote: {_tally(ours)}"]
    return [
        measure.informative("history events of a workflow", floor=remote, ours=ours, scale=1, notes=notes)
    ]


async def _events(lab: Lab, runs: list[FloorRun]) -> list[int]:
    handles = [lab.floor.client.get_workflow_handle(run.workflow_id) for run in runs]
    return [len((await handle.fetch_history()).events) for handle in handles]


def _tally(events: list[int]) -> str:
    return ", ".join(f"{number} in {workflows} workflows" for number, workflows in Counter(events).items())


def _alone_rows(loads: Loads) -> list[Row]:
    remote, ours = loads[FloorRemoteTask], loads[FloorTask]
    return [
        measure.informative("start -> run step, alone", floor=remote.to_the_run, ours=ours.to_the_run),
        measure.informative("start -> end, alone", floor=remote.to_the_end, ours=ours.to_the_end),
        *_cpu_rows(loads, "alone"),
    ]


def _crowd_rows(loads: Loads, name: str) -> list[Row]:
    remote, ours = loads[FloorRemoteTask], loads[FloorTask]
    return [
        measure.informative(f"start -> end, {name}", floor=remote.to_the_end, ours=ours.to_the_end),
        measure.informative(
            f"workflows/s, {name}", floor=remote.rates, ours=ours.rates, scale=1, unit="per s"
        ),
        *_cpu_rows(loads, name),
    ]


def _cpu_rows(loads: Loads, name: str) -> list[Row]:
    remote, ours = loads[FloorRemoteTask], loads[FloorTask]
    return [
        measure.informative(f"Temporal's CPU a workflow, {name}", floor=remote.server, ours=ours.server),
        measure.informative(f"workers' CPU a workflow, {name}", floor=remote.workers, ours=ours.workers),
    ]
