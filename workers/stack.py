"""The embedded stack: PostgreSQL, Temporal, api, control worker and one runtime worker on one machine.

Each part is a child process; the data lies in one folder (`workers.folder`). Agent processes are nobody's
child here: they go on when the stack stops, and the runtime worker finds them again.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import httpx
import psycopg
import structlog

from domain.errors import SegueError, Unavailable
from store import schema
from workers import bootstrap, ports, postgres, temporal
from workers.folder import Ports, StackFolder, StackRecord
from workers.part import Part, PartSpec, rotate, stop_left_over
from workers.settings import CONFIG_VARIABLE, MIB

log = structlog.get_logger(__name__)

Notify = Callable[[str], None]

#: Order of starting; stopping goes the other way round.
POSTGRES, TEMPORAL, API, CONTROL, RUNTIME = "postgres", "temporal", "api", "control", "runtime"
NAMES = (POSTGRES, TEMPORAL, API, CONTROL, RUNTIME)

#: For one part to answer, on a machine that is ten times slower than usual.
_START_SECONDS = 180.0
_POLL_SECONDS = 0.2
_ROTATE_SECONDS = 10.0
#: A part that dies this often while the stack starts will not come up by itself.
_HOPELESS_DEATHS = 4
#: Of our own variables a part gets those that tune it, never another stack's addresses and tokens.
_KEPT_VARIABLES = frozenset(
    {
        CONFIG_VARIABLE,
        *(
            f"SEGUE_{name}"
            for name in (
                "LOG_LEVEL", "OFFLINE_AFTER", "QUEUE_EXPIRY", "HEARTBEAT_TIMEOUT", "GATE_TIMEOUT", "SLOTS",
                "RECONCILE_SECONDS", "WAKER_IN_FLIGHT", "MAX_ATTEMPTS", "BEAT_SECONDS", "MIN_FREE_BYTES",
                "ALLOWED_HOSTS", "SCRIPT_HOME", "COLLECT_SECONDS", "KEEP_ATTEMPTS_SECONDS",
                "KEEP_SETTLED_SECONDS", "KEEP_UNUSED_SECONDS", "KEEP_ORPHANS_SECONDS",
            )
        ),
    }
)  # fmt: skip


class StartFailed(SegueError):
    """A part did not come up; the message has the end of its log."""

    code = "start_failed"


@dataclass(frozen=True)
class Ready:
    """Where the stack answers."""

    api: str
    ui: str
    temporal: str

    def __str__(self) -> str:
        return f"ready api={self.api} ui={self.ui} temporal={self.temporal}"


@dataclass
class Stops:
    """What the person wants: the first signal ends the stack in order, the second at once."""

    asked: asyncio.Event = field(default_factory=asyncio.Event)
    at_once: asyncio.Event = field(default_factory=asyncio.Event)

    def signalled(self) -> None:
        (self.at_once if self.asked.is_set() else self.asked).set()


class Stack:
    """One embedded stack on one folder."""

    def __init__(self, folder: StackFolder, asked: Ports, notify: Notify) -> None:
        self._folder = folder
        self._asked = asked
        self._notify = notify
        self._parts: dict[str, Part] = {}
        self._stops = Stops()

    async def run(self, announce: Callable[[Ready], None]) -> bool:
        """Start, announce, and serve until told to stop. False: it was stopped before it was ready.

        Raises `Conflict` when the folder or a port is taken, `StartFailed` when a part does not come up.
        """
        self._folder.make()
        with self._folder.lock(), _signals(self._stops.signalled):
            try:
                ready = await self._unless_stopped(self._start())
                if ready is not None:
                    announce(ready)
                    await self._serve()
            finally:
                await self._stop()
        return ready is not None

    # --- starting ---

    async def _start(self) -> Ready:
        record = await self._prepare()
        await self._begin(_postgres_spec(self._folder))
        await self._begin(_temporal_spec(self._folder, record.ports))
        await self._until(POSTGRES, lambda: _database_ready(self._folder))
        await asyncio.to_thread(schema.upgrade, record.database_url)
        record = await bootstrap.ensure(record, self._folder)
        await self._until(TEMPORAL, lambda: temporal.ready(record.temporal_address))
        started = datetime.now(UTC)
        for spec in (_api_spec(record), _control_spec(record), _runtime_spec(record, self._folder)):
            await self._begin(spec)
        async with httpx.AsyncClient(base_url=record.api_url, timeout=10, trust_env=False) as http:
            await self._until(API, lambda: _api_ready(http))
            await self._until(RUNTIME, lambda: _runtime_online(http, record, started))
        return Ready(record.api_url, record.ui_url, record.temporal_address)

    async def _prepare(self) -> StackRecord:
        """End what a killed stack left, choose the ports, and note them."""
        old = self._folder.read() or StackRecord()
        placeholder = _every_spec(self._folder, old)
        for spec in reversed(placeholder):
            await asyncio.to_thread(stop_left_over, spec, self._folder)
        chosen = ports.choose(self._asked, old.ports, self._notify)
        record = bootstrap.with_secret_key(old.with_ports(chosen), self._folder)
        self._folder.write(record)
        return record

    async def _begin(self, spec: PartSpec) -> None:
        part = self._parts[spec.name] = Part(spec, self._folder)
        await part.start()

    async def _until(self, name: str, check: Callable[[], Awaitable[None]]) -> None:
        """Wait until ``check`` stops raising `Unavailable`."""
        part = self._parts[name]
        deadline = asyncio.get_running_loop().time() + _START_SECONDS
        while True:
            try:
                return await check()
            except Unavailable as error:
                late = asyncio.get_running_loop().time() > deadline
                if late or part.deaths >= _HOPELESS_DEATHS:
                    raise StartFailed(self._why(part, str(error))) from error
            await asyncio.sleep(_POLL_SECONDS)

    def _why(self, part: Part, error: str) -> str:
        file = self._folder.log_file(part.spec.name)
        return f"{part.spec.name} did not come up: {error}\nThe end of {file}:\n{part.log_end()}"

    async def _unless_stopped(self, start: Awaitable[Ready]) -> Ready | None:
        starting = asyncio.ensure_future(start)
        stopped = asyncio.create_task(self._stops.asked.wait())
        await asyncio.wait({starting, stopped}, return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if starting.done():
            return starting.result()
        starting.cancel()
        with suppress(asyncio.CancelledError):
            await starting
        return None

    # --- serving and stopping ---

    async def _serve(self) -> None:
        log.info("stack_ready", pids={name: part.pid for name, part in self._parts.items()})
        while not self._stops.asked.is_set():
            for name in (*self._parts, "stack"):
                rotate(self._folder.log_file(name))
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stops.asked.wait(), _ROTATE_SECONDS)
        self._notify("stopping; running agents go on, and the next start finds them (again to stop at once)")

    async def _stop(self) -> None:
        """End the parts in order; a second signal ends what is left at once."""
        orderly = asyncio.create_task(self._stop_in_order())
        hurried = asyncio.create_task(self._stops.at_once.wait())
        await asyncio.wait({orderly, hurried}, return_when=asyncio.FIRST_COMPLETED)
        hurried.cancel()
        if not orderly.done():
            orderly.cancel()
            await asyncio.gather(*(part.stop(at_once=True) for part in self._parts.values()))
        _remove_sockets(self._folder)
        log.info("stack_stopped")

    async def _stop_in_order(self) -> None:
        for part in reversed(list(self._parts.values())):
            await part.stop()


async def run(
    data: Path, asked: Ports, *, announce: Callable[[Ready], None], notify: Notify = lambda _text: None
) -> bool:
    """Run the stack on ``data`` until it is told to stop; see `Stack.run`."""
    return await Stack(StackFolder(data), asked, notify).run(announce)


# --- the parts ---


def _every_spec(folder: StackFolder, record: StackRecord) -> list[PartSpec]:
    return [
        _postgres_spec(folder),
        _temporal_spec(folder, record.ports),
        _api_spec(record),
        _control_spec(record),
        _runtime_spec(record, folder),
    ]


def _postgres_spec(folder: StackFolder) -> PartSpec:
    return PartSpec(
        POSTGRES,
        _module("workers.postgres", str(folder.postgres)),
        _environment(),
        # Fast and immediate shutdown; neither loses anything that was committed.
        stop_signal=signal.SIGINT,
        kill_signal=signal.SIGQUIT,
        stop_seconds=30.0,
    )


def _temporal_spec(folder: StackFolder, chosen: Ports) -> PartSpec:
    arguments = temporal.arguments(folder.temporal_file, chosen)
    return PartSpec(TEMPORAL, _module("workers.temporal", *arguments), _environment(), stop_seconds=15.0)


def _api_spec(record: StackRecord) -> PartSpec:
    environment = _server_environment(record) | {
        "SEGUE_API_HOST": "127.0.0.1",
        "SEGUE_API_PORT": str(record.ports.api),
    }
    return PartSpec(API, _module("cli", "api"), environment, stop_seconds=15.0)


def _control_spec(record: StackRecord) -> PartSpec:
    return PartSpec(CONTROL, _module("cli", "worker", "control"), _server_environment(record))


def _runtime_spec(record: StackRecord, folder: StackFolder) -> PartSpec:
    environment = _environment() | _temporal_environment(record)
    environment |= {
        "SEGUE_API_URL": record.api_url,
        "SEGUE_RUNTIME_TOKEN": record.runtime_token,
        "SEGUE_ROOT": str(folder.runtime_root),
        "SEGUE_MIN_FREE_BYTES": os.environ.get("SEGUE_MIN_FREE_BYTES", str(512 * MIB)),
    }
    return PartSpec(RUNTIME, _module("cli", "worker", "runtime"), environment, stop_seconds=30.0, umask=-1)


def _module(name: str, *arguments: str) -> list[str]:
    # -P: a folder named like one of our packages in the working directory must not be taken for it.
    return [sys.executable, "-P", "-m", name, *arguments]


def _environment() -> dict[str, str]:
    """Ours, without what would lead a part to another stack or another Temporal server."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name in _KEPT_VARIABLES or not name.startswith(("SEGUE_", "TEMPORAL_"))
    }
    return kept | {"NO_COLOR": "1"}  # parts write to log files


def _temporal_environment(record: StackRecord) -> dict[str, str]:
    return {
        "SEGUE_TEMPORAL_ADDRESS": record.temporal_address,
        "SEGUE_TEMPORAL_NAMESPACE": temporal.NAMESPACE,
        "SEGUE_TEMPORAL_UI_URL": record.ui_url,
    }


def _server_environment(record: StackRecord) -> dict[str, str]:
    return (
        _environment()
        | _temporal_environment(record)
        | {"SEGUE_DATABASE_URL": record.database_url, "SEGUE_SECRET_KEY": record.secret_key}
    )


# --- are they ready? ---


async def _database_ready(folder: StackFolder) -> None:
    """Raise `Unavailable` until the server answers; makes our database on the first start."""
    try:
        address = postgres.url(folder.postgres, "postgres")
        async with await psycopg.AsyncConnection.connect(address, autocommit=True, connect_timeout=5) as conn:
            cursor = await conn.execute("select 1 from pg_database where datname = %s", [postgres.DATABASE])
            if await cursor.fetchone() is None:
                await conn.execute(f'create database "{postgres.DATABASE}"'.encode())
    except psycopg.OperationalError as error:
        raise Unavailable(f"the database does not answer: {error}") from error


async def _api_ready(http: httpx.AsyncClient) -> None:
    try:
        answer = await http.get("/readyz")
    except httpx.TransportError as error:
        raise Unavailable(f"the api does not answer: {error}") from error
    if answer.status_code != 200:
        raise Unavailable(f"the api is not ready: {answer.text}")


async def _runtime_online(http: httpx.AsyncClient, record: StackRecord, since: datetime) -> None:
    """Raise `Unavailable` until the runtime worker of *this* start was heard of."""
    path = f"/api/v1/runtimes/{record.runtime_id}"
    try:
        answer = await http.get(path, headers={"Authorization": f"Bearer {record.token}"})
        answer.raise_for_status()
    except httpx.HTTPError as error:
        raise Unavailable(f"the api does not know the runtime: {error}") from error
    seen = answer.json()["last_seen_at"]
    if answer.json()["status"] == "offline" or seen is None or datetime.fromisoformat(seen) < since:
        raise Unavailable("the runtime worker was not heard of yet")


# --- signals and leftovers ---


@contextmanager
def _signals(handler: Callable[[], None]) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    for number in numbers:
        loop.add_signal_handler(number, handler)
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


def _remove_sockets(folder: StackFolder) -> None:
    sockets = postgres.socket_folder(folder.postgres)
    if sockets != folder.postgres:
        with suppress(OSError):
            sockets.rmdir()
