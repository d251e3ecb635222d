"""Transcript ingest: batches of events over the runtime plane, beside COPY of the same rows."""

import json
import time
from datetime import UTC, datetime
from typing import Any

import psycopg

from bench import measure
from bench.lab import Lab
from bench.measure import Row
from bench.wire import Wire

_BATCH = 256  # what a runtime worker posts at most
_TEXT = "The quick brown fox jumps over the lazy dog, and says so at some length. " * 3
_GOAL = 0.5
#: No worker polls for this machine: its attempt stands still, and this benchmark is its machine.
_MACHINE = {"machine_id": "bench", "boot_id": "bench"}


async def measured(lab: Lab) -> list[Row]:
    """Rows per second, by batches of one transaction each."""
    task, attempt, machine = await _standing_attempt(lab)
    other = await _finished_task(lab)
    floor, ours = [], []
    with psycopg.connect(lab.services.database_url) as conn:
        for number in range(lab.size.batches):
            events = _events(number * _BATCH + 1)
            floor.append(_copy(conn, other, events))
            ours.append(_post(machine, attempt, events))
    machine.close()
    lab.segue.post(f"/tasks/{task}/cancel")
    note = f"batches of {_BATCH} events, {len(json.dumps(_events(1)))} bytes each"
    return [measure.at_least("transcript ingest, rows/s", _GOAL, floor=floor, ours=ours, notes=[note])]


async def _standing_attempt(lab: Lab) -> tuple[str, str, Wire]:
    """A started attempt of a machine that only registers."""
    created = lab.segue.post("/runtimes", {"name": "by hand"})
    machine = Wire(lab.segue.port, created["token"])
    registration = {**_MACHINE, "slots": 1, "version": "0", "providers": []}
    machine.post("/runtime/register", registration)
    agent = lab.segue.post(
        "/agents", {"name": "Typist", "provider": "script", "runtime_id": created["runtime"]["id"]}
    )["id"]
    task = lab.ask(agent, lab.segue.issue("a transcript"), "say anything")
    attempt = await lab.until(
        "the attempt is dispatched",
        lambda: lab.rows("select id from attempts where task_id = %s and dispatched_at is not null", task),
    )
    attempt_id = str(attempt[0][0])
    start = {**_MACHINE, "nonce": "n", "work_dir": "/bench", "device": 1, "inode": 1, "continuity": "first"}
    machine.post(f"/runtime/attempts/{attempt_id}/start", start)
    return task, attempt_id, machine


async def _finished_task(lab: Lab) -> str:
    task = lab.ask(lab.segue.agent("Done"), lab.segue.issue("done"), "say done")
    await lab.ended(task)
    await lab.quiet()
    lab.rows("delete from events where task_id = %s returning 1", task)
    return task


def _events(first: int) -> list[dict[str, Any]]:
    at = datetime.now(UTC).isoformat()
    return [
        {"seq": seq, "type": "text", "at": at, "data": {"text": f"{seq}: {_TEXT}"}}
        for seq in range(first, first + _BATCH)
    ]


def _post(machine: Wire, attempt: str, events: list[dict[str, Any]]) -> float:
    body = json.dumps({"events": events}).encode()
    began = time.time()
    status, answer = machine.send("POST", f"/runtime/attempts/{attempt}/events", body)
    if status != 200:
        raise RuntimeError(f"{status}: {answer.decode(errors='replace')}")
    return len(events) / (time.time() - began)


def _copy(conn: psycopg.Connection[Any], task: str, events: list[dict[str, Any]]) -> float:
    rows = [(task, one["seq"], 1, one["type"], one["at"], json.dumps(one["data"])) for one in events]
    began = time.time()
    with (
        conn.transaction(),
        conn.cursor() as cursor,
        cursor.copy("copy events (task_id, seq, attempt, type, at, data) from stdin") as copy,
    ):
        for row in rows:
            copy.write_row(row)
    return len(events) / (time.time() - began)
