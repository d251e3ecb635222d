"""The control worker: workflows, control activities, the waker and the reconciler in one process."""

import asyncio
import signal
from datetime import timedelta

import structlog
from prometheus_client import start_http_server
from temporalio.client import Client
from temporalio.worker import Worker
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions

from activities.control import ControlActivities
from domain import names
from domain.retry import RetryPolicy
from domain.steps import Timeouts
from store.database import Database
from store.dispatch import DispatchRules
from workers.reconciler import Reconciler, ReconcileRules
from workers.settings import Settings, connect_temporal
from workers.waker import Waker
from workflows.chat import ChatWorkflow
from workflows.stop import StopAttemptWorkflow
from workflows.task import TaskWorkflow

log = structlog.get_logger(__name__)

_CACHED_WORKFLOWS = 200  # more grows memory, not speed (temporal facts B)
_CONNECT_PAUSE_SECONDS = 1.0


async def run(settings: Settings) -> None:
    """Run until SIGINT or SIGTERM."""
    stopping = stop_on_signals()
    if settings.control_metrics_port is not None:
        start_http_server(settings.control_metrics_port, addr="127.0.0.1")
    database = Database(settings.required_database_url())
    try:
        client = await connect_patiently(settings, stopping)
        if client is not None:
            await _serve(settings, database, client, stopping)
    finally:
        await database.dispose()


async def _serve(settings: Settings, database: Database, client: Client, stopping: asyncio.Event) -> None:
    waker = Waker(database, client, in_flight=settings.waker_in_flight)
    reconciler = Reconciler(database, client, reconcile_rules(settings))
    async with build_worker(settings, database, client):
        loops = [asyncio.create_task(waker.run()), asyncio.create_task(reconciler.run())]
        stop = asyncio.create_task(stopping.wait())
        log.info("control_worker_ready")
        done, _ = await asyncio.wait([*loops, stop], return_when=asyncio.FIRST_COMPLETED)
        for task in [*loops, stop]:
            task.cancel()
        for task in done - {stop}:
            task.result()  # a loop that ended by itself is an error: say which


def build_worker(settings: Settings, database: Database, client: Client) -> Worker:
    activities = ControlActivities(database, dispatch_rules(settings), retry_policy(settings))
    return Worker(
        client,
        task_queue=names.CONTROL_QUEUE,
        workflows=[TaskWorkflow, ChatWorkflow, StopAttemptWorkflow],
        activities=[
            activities.resolve_resume,
            activities.record_terminal,
            activities.set_aside,
            activities.settle_attempt,
        ],
        workflow_runner=sandbox(),
        max_cached_workflows=_CACHED_WORKFLOWS,
        graceful_shutdown_timeout=timedelta(seconds=10),
    )


def sandbox() -> SandboxedWorkflowRunner:
    """Our pure package and pydantic are loaded once instead of for every run: half the CPU (facts B)."""
    return SandboxedWorkflowRunner(
        restrictions=SandboxRestrictions.default.with_passthrough_modules(
            "domain", "workflows", "pydantic", "pydantic_core", "annotated_types"
        )
    )


def dispatch_rules(settings: Settings) -> DispatchRules:
    return DispatchRules(
        queue_expiry=timedelta(seconds=settings.queue_expiry),
        max_attempts=settings.max_attempts,
        timeouts=Timeouts(heartbeat=settings.heartbeat_timeout, gate=settings.gate_timeout),
    )


def retry_policy(settings: Settings) -> RetryPolicy:
    return RetryPolicy(max_attempts=settings.max_attempts)


def reconcile_rules(settings: Settings) -> ReconcileRules:
    return ReconcileRules(
        period=timedelta(seconds=settings.reconcile_seconds),
        offline_after=timedelta(seconds=settings.offline_after),
        queue_expiry=timedelta(seconds=settings.queue_expiry),
    )


def stop_on_signals() -> asyncio.Event:
    """An event that the first SIGINT or SIGTERM sets."""
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopping.set)
    return stopping


async def connect_patiently(settings: Settings, stopping: asyncio.Event) -> Client | None:
    """Connect to Temporal, however long it takes to answer. None: asked to stop first."""
    while not stopping.is_set():
        try:
            return await connect_temporal(settings)
        except RuntimeError as error:  # what the SDK raises for a server that isn't there
            log.warning("temporal_unreachable", address=settings.temporal_address, error=str(error))
            await asyncio.sleep(_CONNECT_PAUSE_SECONDS)
    return None
