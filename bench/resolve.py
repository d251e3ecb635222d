"""`resolve_resume` with few tasks and with very many in the tables, in turn, each time rolled back."""

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
from sqlalchemy import event
from sqlalchemy.ext.asyncio import AsyncConnection

from bench import measure
from bench.lab import Lab
from bench.measure import Row
from domain.steps import Resolution, Resolved, ResolveInput
from store import dispatch
from store.database import Database

_GOAL = 1.2
_TASKS_A_LANE = 100
_WARM_UP = 8
_END = "--"
_RULES = dispatch.DispatchRules()
_SEQ_SCAN = re.compile(r"Seq Scan on (\w+).*?rows=(\d+)")

#: A p99 needs a hundred of them.
_ROUNDS_FACTOR = 7
#: Fills a database; see there.
_HISTORY = Path(__file__).with_name("history.sql")


async def measured(lab: Lab) -> list[Row]:
    """One row; the note names every table that a statement reads as a whole."""
    few = await _Tables.filled(lab, "bench_few", lab.size.few_tasks)
    many = await _Tables.filled(lab, "bench_many", lab.size.many_tasks)
    for tables in (few, many):
        for number in range(_WARM_UP):
            await tables.resolve(number)
    small, large = [], []
    for number in range(lab.size.rounds * _ROUNDS_FACTOR):
        small.append(await few.resolve(number))
        large.append(await many.resolve(number))
    notes = [
        f"p99 {_p99(small)} with few tasks, {_p99(large)} with many",
        await many.scans(),
        f"filling took {few.seconds:.0f} s and {many.seconds:.0f} s",
    ]
    for tables in (few, many):
        await tables.database.dispose()
    name = f"resolve with {lab.size.many_tasks:,} tasks, beside {lab.size.few_tasks:,}"
    return [measure.at_most(name, _GOAL, floor=small, ours=large, notes=notes)]


def _p99(seconds: list[float]) -> str:
    return f"{measure.percentile(seconds, 0.99) * measure.MILLISECONDS:.0f} ms"


class _Tables:
    """A database of its own with so many ended tasks."""

    def __init__(self, url: str, lanes: int, seconds: float) -> None:
        self.database = Database(url)
        self._url = url
        self._lanes = lanes
        self.seconds = seconds

    @classmethod
    async def filled(cls, lab: Lab, name: str, tasks: int) -> "_Tables":
        began = time.monotonic()
        url = lab.services.new_database(name)
        lanes = max(1, tasks // _TASKS_A_LANE)
        script = (
            _HISTORY.read_text(encoding="utf-8")
            .replace(":lanes", str(lanes))
            .replace(":each", str(_TASKS_A_LANE))
        )
        with psycopg.connect(url, autocommit=True) as conn:
            conn.execute(script.encode())
            conn.execute("vacuum analyze")
        return cls(url, lanes, time.monotonic() - began)

    async def resolve(self, number: int) -> float:
        """Seconds for one queued task's decision, which is then undone."""
        async with self.database.engine.connect() as conn:
            began = time.time()
            await self._resolve(conn, number)
            seconds = time.time() - began
            await conn.rollback()
        return seconds

    async def _resolve(self, conn: AsyncConnection, number: int) -> Resolution:
        # Spread over the lanes, so that it is not one page that is always in memory.
        lane = number * 7919 % self._lanes
        step = ResolveInput(task_id=UUID(f"{10:08x}{lane:024x}"), attempt=1)
        answer = await dispatch.resolve(conn, step, _RULES)
        assert answer.kind is Resolved.RUN, answer
        return answer

    async def scans(self) -> str:
        """Which tables a statement of `resolve` reads from end to end, by the plans."""
        with _explained(self.database) as plans:
            async with self.database.engine.connect() as conn:
                await self._resolve(conn, 1)
                await conn.rollback()
        found = sorted(set(_SEQ_SCAN.findall("\n".join(plans))))
        small = ", ".join(f"{table} ({rows} rows expected)" for table, rows in found)
        return f"{plans.count(_END)} statements planned; read as a whole: {small or 'no table'}"


@contextmanager
def _explained(database: Database) -> Iterator[list[str]]:
    """The plan of every statement that is sent meanwhile, asked for just before it."""
    plans: list[str] = []

    def explain(_conn: Any, cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        cursor.execute(f"explain {statement}", parameters)
        plans.extend(row[0] for row in cursor.fetchall())
        plans.append(_END)

    engine = database.engine.sync_engine
    event.listen(engine, "before_cursor_execute", explain)
    try:
        yield plans
    finally:
        event.remove(engine, "before_cursor_execute", explain)
