"""One follow-up turn, idle machine: accepted to the agent's first line, and its exit to the readable end."""

import itertools
import json
import statistics
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent

from bench import measure
from bench.floor.activities import bare_spawn
from bench.lab import Lab
from bench.measure import Row

#: The first line stands alone for a moment, so that the file's time is its time.
_PROMPT = "sleep 0.3\nsay done"
_WARM_UP = 2
_STARTED, _RECORDED = "first line", "readable"

Moments = dict[str, float]


async def measured(lab: Lab) -> list[Row]:
    """Four rows: two with goals, two that take the agent's own start-up out of them."""
    agent, issue = lab.segue.agent("Turner"), lab.segue.issue("turns")
    for _ in range(_WARM_UP):
        await _turn(lab, agent, issue)
    floors, ours, spawns = [], [], []
    for _ in range(lab.size.rounds):
        await lab.quiet()
        floors.append(await _floor(lab))
        spawns.append(bare_spawn(lab.folder))
        ours.append(await _turn(lab, agent, issue))
    return _rows(floors, spawns, ours)


def _rows(floors: Sequence[Moments], spawns: Sequence[float], ours: Sequence[Moments]) -> list[Row]:
    started = [one["run started"] - one["accepted"] for one in floors]
    before = [t + s for t, s in zip(started, spawns, strict=True)]
    began = [one[_STARTED] - one["accepted"] for one in ours]
    over = [one[_RECORDED] - one["run ended"] for one in floors]
    readable = [one[_RECORDED] - one["run ended"] for one in ours]
    notes = [f"T {measure.spread(started)} ms, S {measure.spread(spawns)} ms"]
    notes += _anatomy(ours, "ours") + _anatomy(floors, "T")
    strict = [one["recorded"] - one["run ended"] for one in floors]
    return [
        measure.at_most("accepted -> agent started", 1.25, floor=before, ours=began, notes=notes),
        measure.at_most(
            "agent's exit -> reason readable",
            1.25,
            floor=over,
            ours=readable,
            notes=[f"T to its second local activity's body, not to its end: {measure.spread(strict)} ms"],
        ),
    ]


async def _floor(lab: Lab) -> Moments:
    run = await lab.floor.task()
    moments = await _history(lab, run.workflow_id)
    moments["accepted"] = run.asked
    moments["run started"] = run.times.run.began
    moments["run ended"] = run.times.run.ended
    moments["recorded"] = run.times.recorded
    moments[_RECORDED] = run.over
    return moments


async def _turn(lab: Lab, agent: str, issue: str) -> Moments:
    asked = time.time()
    task_id = lab.ask(agent, issue, _PROMPT)
    accepted = time.time()
    await lab.ended(task_id)
    lab.wire.get(f"/tasks/{task_id}")
    readable = time.time()
    moments = await _history(lab, f"task/{task_id}")
    moments |= _tables(lab, task_id)
    return moments | {"asked": asked, "accepted": accepted, _RECORDED: readable}


_HISTORY = {
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED: ("workflow started",),
    EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED: ("gate scheduled", "run scheduled"),
    EventType.EVENT_TYPE_ACTIVITY_TASK_STARTED: ("gate started", "run started"),
    EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED: ("gate completed", "run completed"),
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED: ("workflow completed",),
}


async def _history(lab: Lab, workflow_id: str) -> Moments:
    """When the server wrote the steps that ours and T have in common."""
    handle = lab.floor.client.get_workflow_handle(workflow_id)
    await handle.result()
    moments: Moments = {}
    for event in (await handle.fetch_history()).events:
        names = _HISTORY.get(event.event_type, ())
        name = next((name for name in names if name not in moments), None)
        if name is not None:
            moments[name] = _at(event)
    return moments


def _at(event: HistoryEvent) -> float:
    return event.event_time.seconds + event.event_time.nanos / 1e9


def _tables(lab: Lab, task_id: str) -> Moments:
    """What the rows and the machine's records say about the same turn."""
    row = lab.rows(
        """
        select t.created_at, t.ended_at, a.started_at, a.id, a.outcome ->> 'ended_at',
               (select at from events where task_id = t.id and type = 'session' order by seq limit 1)
        from tasks t join attempts a on a.task_id = t.id where t.id = %s
        """,
        task_id,
    )[0]
    records = lab.attempt_folder(row[3]) / "1"
    return {
        "request's transaction": row[0].timestamp(),
        "recorded": row[1].timestamp(),
        "claimed": row[2].timestamp(),
        "shim": _record(records / "shim.json")["at"],
        "agent": _record(records / "agent.json")["at"],
        "run ended": datetime.fromisoformat(row[4]).timestamp(),
        _STARTED: row[5].timestamp(),
    }


def _record(path: Any) -> Mapping[str, float]:
    found: Mapping[str, float] = json.loads(path.read_text())
    return found


_ORDER = (
    "asked",
    "accepted",
    "workflow started",
    "gate scheduled",
    "gate started",
    "gate completed",
    "run scheduled",
    "run started",
    "claimed",
    "shim",
    "agent",
    _STARTED,
    "run ended",
    "run completed",
    "recorded",
    "workflow completed",
    _RECORDED,
)


def _anatomy(turns: Sequence[Moments], whose: str) -> list[str]:
    """Median milliseconds from each step to the next one."""
    known = [name for name in _ORDER if all(name in turn for turn in turns)]
    parts = []
    for before, after in itertools.pairwise(known):
        middle = statistics.median(turn[after] - turn[before] for turn in turns)
        parts.append(f"{after} +{middle * measure.MILLISECONDS:.0f}")
    return [f"{whose}, from {known[0]}: " + ", ".join(parts)]
