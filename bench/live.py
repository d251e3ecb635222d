"""While a run lives: a cancel on its way to the agent, a line on its way to a reader, and what it weighs."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil
import psycopg

from bench import measure
from bench.lab import Lab
from bench.measure import Row
from bench.wire import Wire

_HEARTBEAT_SECONDS = 1.0
_BATCH_SECONDS = 0.1
_LINE_PAUSE_SECONDS = 0.3
_MIB = 1024 * 1024
_MEMORY_GOAL = 12.0


async def cancelled(lab: Lab) -> list[Row]:
    """From the cancel's 202 to the agent's end by SIGTERM, which it does not survive for a moment."""
    agent, issue = lab.segue.agent("Cancelled"), lab.segue.issue("cancelled")
    signals, ours = [], []
    for _ in range(lab.size.rounds):
        signals.append(await lab.floor.signal())
        ours.append(await _cancel(lab, agent, issue))
    floor = measure.percentile(signals, 0.5)
    return [
        measure.within(
            "cancel -> SIGTERM",
            "<= 1 s + T's signal",
            _HEARTBEAT_SECONDS + floor,
            ours,
            [f"T's signal round trip {measure.spread(signals)} ms"],
        )
    ]


async def _cancel(lab: Lab, agent: str, issue: str) -> float:
    task = lab.ask(agent, issue, "say up\nsleep 600")
    await _says(lab, task, "up")
    lab.wire.post(f"/tasks/{task}/cancel")
    asked = time.time()
    await lab.ended(task)
    query = "select outcome ->> 'ended_at' from attempts where task_id = %s"
    ended: str = lab.rows(query, task)[0][0]
    return datetime.fromisoformat(ended).timestamp() - asked


async def _says(lab: Lab, task: str, text: str) -> None:
    query = "select 1 from events where task_id = %s and type = 'text' and data ->> 'text' = %s"
    await lab.until(f"{task} says {text}", lambda: lab.rows(query, task, text))


async def streamed(lab: Lab) -> list[Row]:
    """From a line in the agent's file to the event at an SSE client; each line alone."""
    agent, issue = lab.segue.agent("Streamed"), lab.segue.issue("streamed")
    lines = lab.size.rounds * 2
    turns = [f"sleep {_LINE_PAUSE_SECONDS}\nsay line {number}" for number in range(lines)]
    task = lab.ask(agent, issue, "\n".join(["say up", *turns]))
    await _says(lab, task, "up")
    reader = Wire(lab.segue.port, lab.segue.token)
    floor, ours = [], []
    with _notified(lab) as insert_and_notify:
        for event, seen in _events(reader, task):
            if event["type"] == "text" and event["data"]["text"].startswith("line"):
                ours.append(seen - datetime.fromisoformat(event["at"]).timestamp())
                floor.append(insert_and_notify())
    reader.close()
    await lab.ended(task)
    middle = measure.percentile(floor, 0.5)
    return [
        measure.within(
            "agent's line -> SSE client",
            "<= 100 ms + 3 x insert+notify",
            _BATCH_SECONDS + 3 * middle,
            ours,
            [f"bare insert + notify {measure.spread(floor)} ms; a file's time is known to a few ms"],
        )
    ]


def _events(reader: Wire, task: str) -> Iterator[tuple[Any, float]]:
    """Events of the stream as they come, and when each was complete."""
    response = reader.stream(f"/tasks/{task}/events/stream")
    kind = ""
    for raw in response:
        name, _, value = raw.decode().rstrip("\r\n").partition(": ")
        if name == "event":
            kind = value
        if kind == "end":
            return
        if name == "data":
            yield json.loads(value), time.time()


@contextmanager
def _notified(lab: Lab) -> Iterator[Any]:
    """A function that inserts a row, notifies, and answers how long it took to hear of it."""
    url = lab.services.database_url
    with (
        psycopg.connect(url, autocommit=True) as listener,
        psycopg.connect(url, autocommit=True) as writer,
    ):
        listener.execute("listen bench")
        writer.execute("create table bench_lines (id bigint generated always as identity, data jsonb)")

        def insert_and_notify() -> float:
            began = time.time()
            with writer.transaction():
                writer.execute("""insert into bench_lines (data) values ('{"text": "line"}')""")
                writer.execute("notify bench")
            next(listener.notifies(timeout=60, stop_after=1))
            return time.time() - began

        yield insert_and_notify
        writer.execute("drop table bench_lines")


async def weighed(lab: Lab) -> list[Row]:
    """Memory (PSS) of the worker and the shims for each sleeping agent; the agents' own is not counted."""
    count = lab.size.sleepers
    agent = lab.segue.agent("Sleeper", max_concurrent_tasks=500)
    worker = lab.segue.parts["r0"].pid
    before = _pss(worker)
    tasks = [lab.ask(agent, lab.segue.issue("a sleeper"), "say up\nsleep 600") for _ in range(count)]
    for task in tasks:
        await _says(lab, task, "up")
    shims = [_shim(lab, task) for task in tasks]
    grown = _pss(worker) - before
    shared = sum(_pss(pid) for pid in shims)
    resident = sum(psutil.Process(pid).memory_info().rss for pid in shims) / count / _MIB
    for task in tasks:
        lab.wire.post(f"/tasks/{task}/cancel")
    for task in tasks:
        await lab.ended(task)
    each = (grown + shared) / count / _MIB
    note = (
        f"worker {before / _MIB:.0f} MiB idle, {grown / count / _MIB:.2f} MiB more for each; a shim has "
        f"{shared / count / _MIB:.1f} MiB (PSS), {resident:.1f} MiB resident with what all share"
    )
    met = each <= _MEMORY_GOAL
    return [Row("memory for each agent", f"<= {_MEMORY_GOAL:.0f} MiB", f"{each:.1f} MiB", met, notes=[note])]


def _shim(lab: Lab, task: str) -> int:
    attempt_id = lab.rows("select id from attempts where task_id = %s", task)[0][0]
    record = json.loads((lab.attempt_folder(attempt_id) / "1" / "shim.json").read_text())
    pid: int = record["pid"]
    return pid


def _pss(pid: int) -> int:
    """Bytes, each shared page divided by its users; Linux only, elsewhere what is resident."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii")
    except OSError:
        return int(psutil.Process(pid).memory_info().rss)
    return next(int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith("Pss:"))
