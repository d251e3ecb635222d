"""`TaskWorkflow`: one task, from trigger to terminal reason.

Per attempt: ask for the leases and the pointer, prepare the directory on the machine, run the agent,
record. Waiting polls nothing: a grant's wake, a timer for an offline machine's limit, or a cancel
ends it. See the design's section 3.
"""

import asyncio
from datetime import datetime, timedelta

from temporalio import workflow
from temporalio.common import RetryPolicy, SearchAttributeKey
from temporalio.exceptions import ActivityError
from temporalio.workflow import ActivityCancellationType

with workflow.unsafe.imports_passed_through():  # pure and free of side effects: loaded once
    from domain import names
    from domain.outcomes import Outcome, OutcomeStatus
    from domain.reasons import Reason
    from domain.statuses import ContinuityReason
    from domain.steps import (
        AsideInput,
        GateInput,
        GateResult,
        Recorded,
        RecordInput,
        Resolution,
        Resolved,
        ResolveInput,
        RunInput,
        TaskInput,
    )
    from workflows.control import Control

_REASON = SearchAttributeKey.for_keyword("SegueReason")
#: A run may take as long as it needs; this only bounds what the server keeps (the design, section 4).
_RUN_START_TO_CLOSE = timedelta(days=30)
#: A redelivery is not a retry that people see: the same attempt is adopted.
_RUN_RETRY = RetryPolicy(initial_interval=timedelta(seconds=1), backoff_coefficient=1.0)
#: The gate is idempotent; a machine that is away for a moment is asked again.
_GATE_RETRY = RetryPolicy(initial_interval=timedelta(seconds=1), maximum_interval=timedelta(seconds=30))


@workflow.defn(name=names.TASK_WORKFLOW)
class TaskWorkflow:
    """Runs one task to its end. Started once per task id; a repeat finds it terminal and ends."""

    @workflow.init
    def __init__(self, task: TaskInput) -> None:
        self._task_id = task.task_id
        self._control = Control()
        self._woken = False
        self._steps: list[str] = []

    @workflow.signal(name=names.WAKE_SIGNAL)
    def wake(self) -> None:
        """Something that this task waited for has changed."""
        self._woken = True

    @workflow.run
    async def run(self, task: TaskInput) -> None:  # noqa: ARG002 - Temporal gives both the same input
        attempt = 1
        while True:
            resolution = await self._granted(attempt)
            if resolution is None:
                return
            recorded = await self._attempt(resolution)
            if recorded is None or recorded.decision.ends:
                self._finish(recorded)
                return
            self._show(f"attempt {resolution.attempt} ended, next one follows ({recorded.status})")
            attempt = resolution.attempt + 1
            if recorded.decision.at is not None:
                await self._pause(recorded.decision.at)

    # --- waiting ----------------------------------------------------------------------------------

    async def _granted(self, attempt: int) -> Resolution | None:
        """The granted attempt; None when the task has ended meanwhile."""
        while True:
            self._woken = False
            resolution = await self._resolve(attempt)
            if resolution.kind is Resolved.RUN:
                return resolution
            if resolution.kind is Resolved.END:
                return None
            self._show(f"waiting for {resolution.wait_kind}")
            await self._pause(resolution.look_again_at)
            if self._control.cancelled:
                self._finish(await self._record(None, _cancelled()))
                return None

    async def _resolve(self, attempt: int, rejected: ContinuityReason | None = None) -> Resolution:
        step = ResolveInput(task_id=self._task_id, attempt=attempt, rejected=rejected)
        return await self._control.call(names.RESOLVE_RESUME, step, Resolution)

    async def _pause(self, until: datetime | None) -> None:
        """Sleep until woken or cancelled, or until the moment comes."""
        if self._control.cancelled:
            return
        timeout = None
        if until is not None:
            timeout = max(until - workflow.now(), timedelta(0))
        try:
            await workflow.wait_condition(lambda: self._woken, timeout=timeout)
        except TimeoutError:
            return
        except asyncio.CancelledError:
            self._control.cancelled = True

    # --- one attempt ------------------------------------------------------------------------------

    async def _attempt(self, resolution: Resolution) -> Recorded | None:
        gated = await self._gate(resolution)
        if gated is None:
            return await self._record(resolution, _cancelled())
        resolution, gate = gated
        if gate.failure is not None:
            return await self._record(resolution, _failed(gate.failure), gate.failure_detail)
        outcome = await self._run_agent(resolution, gate)
        if isinstance(outcome, str):
            return await self._set_aside(resolution, outcome)
        return await self._record(resolution, outcome)

    async def _gate(self, resolution: Resolution) -> tuple[Resolution, GateResult] | None:
        """Prepare the directory; a refused one is replaced and asked about again. None: cancelled."""
        while True:
            self._show(f"attempt {resolution.attempt}: preparing {resolution.work_dir or 'a new directory'}")
            gate = await self._ask_gate(resolution)
            if gate is None or gate.ok or gate.failure is not None:
                return None if gate is None else (resolution, gate)
            again = await self._resolve(resolution.attempt, gate.reason or ContinuityReason.WORKDIR_GONE)
            if again.kind is not Resolved.RUN:
                return None
            resolution = again

    async def _ask_gate(self, resolution: Resolution) -> GateResult | None:
        if self._control.cancelled:
            return None
        assert resolution.attempt_id is not None, "a granted attempt has an id"
        try:
            gate: GateResult = await workflow.execute_activity(
                names.GATE_WORKDIR,
                GateInput(attempt_id=resolution.attempt_id),
                result_type=GateResult,
                task_queue=resolution.ops_queue,
                start_to_close_timeout=timedelta(seconds=resolution.timeouts.gate),
                retry_policy=_GATE_RETRY,
                summary=resolution.work_dir or "new directory",
            )
        except (ActivityError, asyncio.CancelledError):
            # Tries are unlimited, so only a cancel ends them without a result.
            self._control.cancelled = True
            return None
        return gate

    async def _run_agent(self, resolution: Resolution, gate: GateResult) -> Outcome | str:
        """The outcome, or why there is none."""
        assert resolution.attempt_id is not None, "a granted attempt has an id"
        self._show(f"attempt {resolution.attempt}: {resolution.continuity} in {gate.work_dir}")
        handle = workflow.start_activity(
            names.RUN_AGENT,
            RunInput(attempt_id=resolution.attempt_id, gate=gate),
            result_type=Outcome,
            task_queue=resolution.runs_queue,
            start_to_close_timeout=_RUN_START_TO_CLOSE,
            heartbeat_timeout=timedelta(seconds=resolution.timeouts.heartbeat),
            retry_policy=_RUN_RETRY,
            cancellation_type=ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
            summary=f"attempt {resolution.attempt} ({resolution.continuity})",
        )
        if self._control.cancelled:
            handle.cancel()
        while True:
            try:
                outcome: Outcome = await asyncio.shield(handle)
            except asyncio.CancelledError:
                if self._control.cancelled and handle.done():
                    return "cancelled before the machine answered"
                self._control.cancelled = True
                handle.cancel()
            except ActivityError as error:
                return str(error.cause or error)
            else:
                return outcome

    # --- recording --------------------------------------------------------------------------------

    async def _record(
        self, resolution: Resolution | None, outcome: Outcome, detail: str | None = None
    ) -> Recorded:
        step = RecordInput(
            task_id=self._task_id,
            attempt_id=resolution.attempt_id if resolution else None,
            outcome=outcome,
            detail=detail,
        )
        return await self._control.call(names.RECORD_TERMINAL, step, Recorded)

    async def _set_aside(self, resolution: Resolution, cause: str) -> Recorded:
        step = AsideInput(
            task_id=self._task_id,
            attempt_id=resolution.attempt_id,
            cause=cause,
            reason=Reason.RUNTIME_RECOVERY,
        )
        return await self._control.call(names.SET_ASIDE, step, Recorded)

    def _finish(self, recorded: Recorded | None) -> None:
        reason = recorded.reason if recorded else None
        if reason:
            workflow.upsert_search_attributes([_REASON.value_set(reason)])
            self._show(f"ended: {reason}")

    def _show(self, step: str) -> None:
        """What the Temporal Web UI shows as the current details; costs no history event."""
        self._steps.append(f"- {workflow.now():%H:%M:%S} {step}")
        workflow.set_current_details("\n".join(self._steps[-20:]))


def _cancelled() -> Outcome:
    return Outcome(status=OutcomeStatus.CANCELLED, reason=Reason.CANCELLED)


def _failed(reason: str) -> Outcome:
    return Outcome(status=OutcomeStatus.FAILED, reason=reason)
