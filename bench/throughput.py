"""Many tasks at once: how many a second, and how soon a burst fills the slots of one agent."""

import time
from collections import Counter
from uuid import UUID

from bench import measure
from bench.lab import Lab
from bench.measure import Row
from store import comments, enqueue, issues

_GOAL = 0.7
#: Little beside what is waited for.
_PAUSE_SECONDS = 0.05


async def measured(lab: Lab) -> list[Row]:
    """Tasks per second beside T, and beside T whose run starts the same process."""
    lanes, tasks_a_lane = lab.size.lanes, lab.size.tasks_a_lane
    agent = lab.segue.agent("Many", max_concurrent_tasks=500)
    sources = await _first_turns(lab, agent, lanes)
    bare, spawning, ours = [], [], []
    floor_cpu: Counter[str] = Counter()
    cpu: Counter[str] = Counter()
    for _ in range(lab.size.throughput_rounds):
        moments = [lab.cpu()]
        bare.append(await _floor_rate(lab, spawns=False))
        moments.append(lab.cpu())
        spawning.append(await _floor_rate(lab, spawns=True))
        moments.append(lab.cpu())
        ours.append(await _rate(lab, sources, tasks_a_lane))
        floor_cpu += moments[1] - moments[0]
        cpu += lab.cpu() - moments[2]
    tasks = lanes * tasks_a_lane * lab.size.throughput_rounds
    notes = [f"processor time a task, ms: {_shares(cpu, tasks)}", f"of T: {_shares(floor_cpu, tasks)}"]
    name = f"no-op tasks/s ({lanes * tasks_a_lane} on {lanes} lanes)"
    return [
        measure.at_least(name, _GOAL, floor=bare, ours=ours, notes=notes),
        measure.at_least("the same beside T + S", _GOAL, floor=spawning, ours=ours),
    ]


def _shares(used: Counter[str], tasks: int) -> str:
    """Each process's milliseconds a task, from half a millisecond."""
    return ", ".join(
        f"{name} {total / tasks:.0f}" for name, total in used.most_common() if total * 2 >= tasks
    )


async def _first_turns(lab: Lab, agent: str, lanes: int) -> list[UUID]:
    tasks = [lab.ask(agent, lab.segue.issue("a lane"), "say ok") for _ in range(lanes)]
    for task in tasks:
        await lab.ended(task)
    await lab.quiet()
    return [UUID(task) for task in tasks]


async def _floor_rate(lab: Lab, *, spawns: bool) -> float:
    began = time.time()
    runs = await lab.floor.tasks(lab.size.lanes, lab.size.tasks_a_lane, spawns=spawns)
    return len(runs) / (time.time() - began)


async def _rate(lab: Lab, sources: list[UUID], tasks_a_lane: int) -> float:
    """All tasks are queued by one commit, so that writing them is not measured; coalescing is not wanted."""
    async with lab.database.begin() as conn:
        tasks = [
            await enqueue.retry(conn, actor=lab.actor, task_id=source)
            for _ in range(tasks_a_lane)
            for source in sources
        ]
    began = time.time()
    await lab.until(
        "all tasks have ended",
        lambda: (
            lab.rows("select count(*) from tasks where id = any(%s) and ended_at is not null", tasks)[0][0]
            == len(tasks)
        ),
        _PAUSE_SECONDS,
    )
    rate = len(tasks) / (time.time() - began)
    await lab.quiet()
    return rate


async def burst(lab: Lab) -> list[Row]:
    """A burst on one agent: until its slots are all running, beside T and T + S as often."""
    slots, size = lab.size.burst_slots, lab.size.burst
    agent = lab.segue.agent("Burst", max_concurrent_tasks=slots)
    bare, spawning, ours = [], [], []
    for _ in range(lab.size.burst_rounds):
        bare.append(await _floor_burst(lab, slots, spawns=False))
        spawning.append(await _floor_burst(lab, slots, spawns=True))
        ours.append(await _burst(lab, agent, size, slots))
    name = f"burst of {size} -> {slots} running"
    return [
        measure.at_most(name, 1.5, floor=bare, ours=ours),
        measure.informative("the same beside T + S", floor=spawning, ours=ours),
    ]


async def _floor_burst(lab: Lab, slots: int, *, spawns: bool) -> float:
    began = time.time()
    runs = await lab.floor.tasks(slots, 1, spawns=spawns)
    return max(run.times.run.first_line for run in runs) - began


async def _burst(lab: Lab, agent: str, size: int, slots: int) -> float:
    places = [lab.segue.issue("a burst") for _ in range(size)]
    tasks = []
    async with lab.database.begin() as conn:
        for place in places:
            issue = await issues.standing(conn, lab.actor.workspace_id, place)
            body = f"[@Burst](mention://agent/{agent})\nsleep 600"
            draft = comments.Draft(body, "member", lab.actor.member_id)
            _, triggered = await comments.write(conn, lab.actor, issue, draft)
            tasks.append(triggered[0].task_id)
    began = time.time()
    first_lines = await lab.until(
        "the slots are running", lambda: _first_lines(lab, tasks, slots), _PAUSE_SECONDS
    )
    await _cancel(lab, tasks)
    return max(first_lines) - began


def _first_lines(lab: Lab, tasks: list[UUID | None], slots: int) -> list[float] | None:
    rows = lab.rows("select at from events where task_id = any(%s) and type = 'session'", tasks)
    return [row[0].timestamp() for row in rows] if len(rows) >= slots else None


async def _cancel(lab: Lab, tasks: list[UUID | None]) -> None:
    """Those that wait first, so that nobody moves up."""
    for task in reversed(tasks):
        lab.wire.post(f"/tasks/{task}/cancel")
    for task in tasks:
        await lab.ended(str(task))
    await lab.quiet()
