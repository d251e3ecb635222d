"""The runtime worker: one agent machine's process. It knows the API and Temporal, and no database.

Order at the start: take the root, register, look after the runs that live, then poll for new ones.
At the stop: poll no more, let go of every run, exit. The agents go on and are adopted.
"""

import asyncio
from dataclasses import replace
from datetime import timedelta
from importlib.metadata import version

import structlog
from temporalio.client import Client
from temporalio.worker import Worker

from activities.runtime import RuntimeActivities
from domain.brief import HeartbeatRequest, RegisterAnswer, RegisterRequest
from domain.errors import Conflict, SegueError
from machine.config import MachineConfig
from machine.inventory import installed
from machine.plane import Plane, insist
from machine.root import RootDirectory
from machine.supervisor import Supervisor
from providers import registry
from providers.base import Limits
from workers import collector
from workers.control import connect_patiently, stop_on_signals
from workers.places import Places
from workers.settings import ProviderSettings, Settings

log = structlog.get_logger(__name__)

#: Throttling is what delays a cancel; 1 s is the promise (temporal facts C).
_THROTTLE = timedelta(seconds=1)
#: Gates, stops and collections at once; short, so that this queue never fills.
_OPS_AT_ONCE = 20
#: The runs queue must never fill: the `runtime` lease is the machine's capacity, this only exceeds it.
_RUNS_AT_ONCE = 2000


async def run(settings: Settings) -> None:
    """Run until SIGINT or SIGTERM. Raises `RootLocked` when another worker holds the root."""
    stopping = stop_on_signals()
    root = RootDirectory(settings.required_root())
    root.lock()
    plane = Plane(settings.api_url, settings.required_runtime_token())
    try:
        await _serve(settings, root, plane, stopping)
    finally:
        await plane.close()
        root.unlock()


async def _serve(settings: Settings, root: RootDirectory, plane: Plane, stopping: asyncio.Event) -> None:
    config = machine_config(settings)
    identity = await _register(settings, root, plane, config, stopping)
    if identity is None:
        return
    supervisor = Supervisor(root, plane, registry.get, config)
    adopted = await supervisor.look_after_living()
    log.info("runs_adopted", attempt_ids=[str(attempt_id) for attempt_id in adopted])
    beating = asyncio.create_task(
        _beat(identity, root, plane, supervisor, settings=settings, stopping=stopping)
    )
    collecting = asyncio.create_task(collector.keep_collecting(root, plane, settings))
    try:
        client = await connect_patiently(
            settings.model_copy(update={"temporal_namespace": identity.temporal_namespace}), stopping
        )
        if client is not None:
            await _poll(client, identity, supervisor, plane, stopping)
    finally:
        beating.cancel()
        collecting.cancel()
        await supervisor.detach_all()


async def _poll(
    client: Client,
    identity: RegisterAnswer,
    supervisor: Supervisor,
    plane: Plane,
    stopping: asyncio.Event,
) -> None:
    activities = RuntimeActivities(supervisor, plane)
    ops = Worker(
        client,
        task_queue=identity.ops_queue,
        activities=[activities.gate_workdir, activities.stop_attempt],
        max_concurrent_activities=_OPS_AT_ONCE,
        graceful_shutdown_timeout=timedelta(seconds=5),
    )
    runs = Worker(
        client,
        task_queue=identity.runs_queue,
        activities=[activities.run_agent],
        max_concurrent_activities=_RUNS_AT_ONCE,
        max_heartbeat_throttle_interval=_THROTTLE,
        default_heartbeat_throttle_interval=_THROTTLE,
    )
    async with ops, runs:
        log.info("runtime_worker_ready", runtime_id=str(identity.runtime_id), name=identity.name)
        await stopping.wait()
        log.info("runtime_worker_stopping", running=len(supervisor.running()))


async def _register(
    settings: Settings,
    root: RootDirectory,
    plane: Plane,
    config: MachineConfig,
    stopping: asyncio.Event,
) -> RegisterAnswer | None:
    """Tell the API which machine this is; as long as it takes. None: asked to stop first."""
    request = RegisterRequest(
        machine_id=root.machine_id,
        boot_id=root.boot_id,
        slots=settings.slots,
        providers=await asyncio.to_thread(
            installed, [registry.get(name) for name in registry.names()], config
        ),
        version=version("segue"),
    )
    asking = asyncio.create_task(
        insist(lambda: plane.register(request), what="register", cap=config.retry_cap)
    )
    stop = asyncio.create_task(stopping.wait())
    await asyncio.wait([asking, stop], return_when=asyncio.FIRST_COMPLETED)
    stop.cancel()
    if asking.done():
        return asking.result()
    asking.cancel()
    return None


async def _beat(
    identity: RegisterAnswer,
    root: RootDirectory,
    plane: Plane,
    supervisor: Supervisor,
    *,
    settings: Settings,
    stopping: asyncio.Event,
) -> None:
    """Heartbeat to the API until cancelled; an API that is away for a while changes nothing here."""
    places = Places(root, plane)
    while True:
        request = HeartbeatRequest(
            machine_id=root.machine_id,
            boot_id=root.boot_id,
            running=supervisor.running(),
            free_bytes=root.free_bytes(),
        )
        try:
            answer = await plane.heartbeat(request)
            places.look_at(answer.local_directories)
        except Conflict as error:
            # Another machine has registered with this token since: two must not take one's work.
            log.error("runtime_replaced", error=str(error))  # noqa: TRY400 - no trace: nothing is broken
            stopping.set()
        except SegueError as error:
            log.warning("heartbeat_failed", error=str(error))
        await asyncio.sleep(min(settings.beat_seconds, identity.heartbeat_seconds))


def machine_config(settings: Settings) -> MachineConfig:
    """The machine's part of the settings."""
    return MachineConfig(
        api_url=settings.api_url,
        binaries={name: one.path for name, one in settings.providers.items() if one.path},
        limits={name: _limits(name, one) for name, one in settings.providers.items()},
        disk_floor=settings.min_free_bytes,
    )


def _limits(name: str, configured: ProviderSettings) -> Limits:
    """The provider's own watchdog limits, where the configuration says nothing else."""
    given = {
        "startup": configured.startup_seconds,
        "idle": configured.idle_seconds,
        "tool_idle": configured.tool_idle_seconds,
    }
    return replace(
        registry.get(name).limits, **{key: value for key, value in given.items() if value is not None}
    )
