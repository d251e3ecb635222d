"""What every benchmark is given: Segue as separate processes, the floor, and a look into the tables."""

import asyncio
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, LiteralString, Self, TypeVar
from uuid import UUID

import psutil
import psycopg
from psycopg.rows import TupleRow

from bench.floor.driver import Floor
from bench.measure import Size
from bench.services import Services
from bench.wire import Wire
from domain import names
from domain.permissions import Actor
from domain.statuses import Role
from store.database import Database
from tests.scenarios.deployment import Deployment, Part
from workers import temporal
from workers.lifeline import STACK_VARIABLE

#: Nothing measured takes long, but the machine may.
DEADLINE_SECONDS = 300.0
LOOK_SECONDS = 0.004
#: A task that ends in a way that tells no stream is found after this.
_LOST_SECONDS = 1.0
T = TypeVar("T")

#: The product's own numbers, where the tests use hastier ones.
_SETTINGS = {
    "SEGUE_HEARTBEAT_TIMEOUT": "30",
    "SEGUE_RECONCILE_SECONDS": "3",
    "SEGUE_BEAT_SECONDS": "5",
    "SEGUE_OFFLINE_AFTER": "30",
    STACK_VARIABLE: str(os.getpid()),
}


class _Processes(Deployment):
    """The scenarios' deployment; each process names itself to PostgreSQL, which writes that to its log."""

    def start(self, name: str, arguments: list[str], env: Mapping[str, str] | None = None) -> Part:
        return super().start(name, arguments, {**(env or {}), "PGAPPNAME": name})


class Lab:
    """A context manager. Made in the main thread, outside of an event loop: processes follow that thread."""

    def __init__(self, services: Services, folder: Path, size: Size) -> None:
        self.services = services
        self.folder = folder
        self.size = size
        self.segue = _Processes(
            folder, services.database_url, services.temporal_address, temporal.NAMESPACE, _SETTINGS
        )
        try:
            self.segue.up(slots=500)
        except BaseException:
            self.segue.close()
            raise

    async def __aenter__(self) -> Self:
        self.database = Database(self.services.database_url)
        self.look: psycopg.Connection[TupleRow] = psycopg.connect(
            self.services.database_url, autocommit=True, application_name="bench"
        )
        self.events = psycopg.connect(self.services.database_url, autocommit=True)
        self.events.execute(f'listen "{names.EVENTS_CHANNEL}"'.encode())
        self.wire = Wire(self.segue.port, self.segue.token)
        self.floor = Floor(self.services.temporal_address, temporal.NAMESPACE, self.folder)
        await self.floor.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.floor.__aexit__(kind, error, trace)
        self.wire.close()
        self.events.close()
        self.look.close()
        await self.database.dispose()

    @property
    def actor(self) -> Actor:
        """The owner, for what is written past the API."""
        return Actor(
            workspace_id=self.segue.workspace_id, member_id=UUID(str(self.segue.member_id)), role=Role.OWNER
        )

    def rows(self, query: LiteralString, *values: Any) -> list[TupleRow]:
        """Ask the database itself."""
        return self.look.execute(query, values).fetchall()

    async def until(self, what: str, look: Callable[[], T | None], pause: float = LOOK_SECONDS) -> T:
        """The first true answer; asking often costs what is measured. Raises `TimeoutError`."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        while True:
            found = look()
            if found:
                return found
            if time.monotonic() > deadline:
                raise TimeoutError(f"{what}: not within {DEADLINE_SECONDS:.0f} s")
            await asyncio.sleep(pause)

    async def ended(self, task_id: str) -> float:
        """Wait until the task is terminal in its table; the moment when that was seen.

        Told by the notification that streams end by: asking again and again would slow down what is measured.
        """
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not self.rows("select 1 from tasks where id = %s and ended_at is not null", task_id):
            if time.monotonic() > deadline:
                raise TimeoutError(f"task {task_id} has not ended within {DEADLINE_SECONDS:.0f} s")
            for _ in self.events.notifies(timeout=_LOST_SECONDS, stop_after=1):
                pass
        return time.time()

    async def quiet(self) -> None:
        """Wait until the outbox is empty and nothing is queued: what comes next is measured alone."""
        await self.until(
            "nothing is on its way",
            lambda: (
                not self.rows(
                    "select 1 from outbox union all select 1 from tasks where status = 'queued' limit 1"
                )
            ),
        )

    def ask(self, agent_id: str, issue_id: str, text: str) -> str:
        """Comment on the issue for this agent; returns the task."""
        body = {"body": f"[@Agent](mention://agent/{agent_id})\n{text}"}
        answer = self.wire.post(f"/issues/{issue_id}/comments", body)
        task_id: str = answer["triggered"][0]["task_id"]
        return task_id

    def cpu(self) -> Counter[str]:
        """Milliseconds of processor time so far; ``agents`` are those that ended, their shims included."""
        pids = self.services.pids | {name: part.pid for name, part in self.segue.parts.items()}
        pids |= dict(zip(("T's control", "T's runtime"), self.floor.pids, strict=True))
        used: Counter[str] = Counter()
        for name, pid in pids.items():
            process = psutil.Process(pid)
            family = [process, *process.children(recursive=True)] if name == "postgres" else [process]
            for member in family:
                times = member.cpu_times()
                used[name] += round((times.user + times.system) * 1000)
            if name == "postgres":  # connections that were closed
                gone = process.cpu_times()
                used[name] += round((gone.children_user + gone.children_system) * 1000)
        worker = psutil.Process(pids["r0"]).cpu_times()
        used["agents"] = round((worker.children_user + worker.children_system) * 1000)
        return used

    def attempt_folder(self, attempt_id: UUID) -> Path:
        """The attempt's directory on the machine."""
        return self.folder / "r0" / "attempts" / str(attempt_id)
