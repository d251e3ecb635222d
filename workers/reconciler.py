"""The reconciler: looks at the tables and at Temporal every few seconds and mends what a crash left.

It is the second way to every result, never the first: each thing it finds is logged, and a lease it
has to repair counts as a defect.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any
from uuid import UUID

import structlog
from prometheus_client import Counter
from sqlalchemy.ext.asyncio import AsyncConnection
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.service import RPCError, RPCStatusCode

from domain import names
from domain.reasons import Reason
from domain.steps import AsideInput
from store import leases, reconcile, recording
from store.database import Database
from store.rows import AnyRow

log = structlog.get_logger(__name__)

LEASES_REPAIRED = Counter(
    "segue_leases_repaired_total", "Leases of ended tasks that the reconciler had to free (defects)"
)
_RPC_TIMEOUT = timedelta(seconds=10)
_AT_ONCE = 8
#: Every this many rounds all waiters are looked at again.
_SWEEP_EVERY = 5


@dataclass(frozen=True)
class ReconcileRules:
    """Configured numbers: the period, and when a machine or a queue counts as gone."""

    period: timedelta = timedelta(seconds=3)
    offline_after: timedelta = timedelta(seconds=30)
    queue_expiry: timedelta = timedelta(hours=2)


class Reconciler:
    def __init__(self, database: Database, client: Client, rules: ReconcileRules) -> None:
        self._database = database
        self._client = client
        self._rules = rules
        self._round = 0

    async def run(self) -> None:
        """Reconcile until cancelled; a step that fails is logged and comes again with the next round."""
        while True:
            await self.once()
            await asyncio.sleep(self._rules.period.total_seconds())

    async def once(self) -> None:
        """One round of every step."""
        self._round += 1
        for step in (
            self._mark_offline,
            self._expire_dispatched,
            self._repair_leases,
            self._wake_granted,
            self._sweep,
            self._check_workflows,
            self._check_stops,
        ):
            try:
                await step()
            except Exception:
                log.exception("reconcile_step_failed", step=step.__name__)

    async def _in_transaction(self, query: Callable[[AsyncConnection], Awaitable[Any]]) -> Any:
        async with self._database.begin() as conn:
            return await query(conn)

    async def _mark_offline(self) -> None:
        silent = await self._in_transaction(
            lambda conn: reconcile.mark_offline(conn, self._rules.offline_after)
        )
        for runtime_id in silent:
            log.warning("runtime_offline", runtime_id=str(runtime_id))

    async def _expire_dispatched(self) -> None:
        await self._in_transaction(lambda conn: reconcile.expire_dispatched(conn, self._rules.queue_expiry))

    async def _repair_leases(self) -> None:
        repaired = await self._in_transaction(reconcile.repair_leases)
        if repaired:
            LEASES_REPAIRED.inc(repaired)
            log.error("leases_repaired", count=repaired)

    async def _wake_granted(self) -> None:
        woken = await self._in_transaction(reconcile.wake_granted)
        if woken:
            log.warning("granted_tasks_woken", count=woken)

    async def _sweep(self) -> None:
        if self._round % _SWEEP_EVERY:
            return
        for workspace_id in await self._in_transaction(reconcile.workspaces_with_waiters):
            await self._in_transaction(partial(leases.grant_all, workspace_id=workspace_id))

    # --- workflows that are not there -------------------------------------------------------------

    async def _check_workflows(self) -> None:
        open_tasks: Sequence[AnyRow] = await self._in_transaction(reconcile.tasks_to_check)
        await _few_at_a_time([self._check_task(task) for task in open_tasks])

    async def _check_task(self, task: AnyRow) -> None:
        status = await self._status(names.task_workflow_id(task.id))
        if status is WorkflowExecutionStatus.RUNNING:
            return
        if status is None and await self._in_transaction(lambda conn: reconcile.start_again(conn, task.id)):
            log.warning("task_started_again", task_id=str(task.id))
            return
        await self._set_aside(task.id, status)

    async def _set_aside(self, task_id: UUID, status: WorkflowExecutionStatus | None) -> None:
        found = status.name.lower() if status else "missing"
        step = AsideInput(
            task_id=task_id,
            attempt_id=None,
            cause=f"the workflow {names.task_workflow_id(task_id)} is {found}",
            reason=Reason.WORKFLOW_TERMINATED,
        )
        recorded = await self._in_transaction(lambda conn: recording.set_aside(conn, step))
        log.warning("task_set_aside", task_id=str(task_id), workflow=found, reason=str(recorded.reason))

    async def _check_stops(self) -> None:
        attempts: Sequence[AnyRow] = await self._in_transaction(reconcile.stops_to_check)
        await _few_at_a_time([self._check_stop(attempt) for attempt in attempts])

    async def _check_stop(self, attempt: AnyRow) -> None:
        status = await self._status(names.stop_workflow_id(attempt.id))
        if status is not WorkflowExecutionStatus.RUNNING:
            await self._in_transaction(lambda conn: reconcile.stop_again(conn, attempt))
            log.warning("stop_started_again", attempt_id=str(attempt.id))

    async def _status(self, workflow_id: str) -> WorkflowExecutionStatus | None:
        """The status of the workflow's latest run; None if the server has none."""
        try:
            handle = self._client.get_workflow_handle(workflow_id)
            return (await handle.describe(rpc_timeout=_RPC_TIMEOUT)).status
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                return None
            raise


async def _few_at_a_time(calls: Sequence[Awaitable[None]]) -> None:
    room = asyncio.Semaphore(_AT_ONCE)

    async def within(call: Awaitable[None]) -> None:
        async with room:
            await call

    results = await asyncio.gather(*(within(call) for call in calls), return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            log.warning("reconcile_check_failed", error=repr(result))
