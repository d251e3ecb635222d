"""T: two local and two remote activities that do nothing, in the order of a task's steps.

And the shape that was not chosen: the same four steps, all of them remote (decision 0002).
"""

from dataclasses import dataclass
from datetime import timedelta

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.workflow import ActivityCancellationType

CONTROL_QUEUE = "floor-control"
OPS_QUEUE = "floor-ops"
RUNS_QUEUE = "floor-runs"
RESOLVE, GATE, RUN, RECORD = "floor_resolve", "floor_gate", "floor_run", "floor_record"

_CONTROL = timedelta(seconds=5)
_REMOTE = timedelta(days=30)
_HEARTBEAT = timedelta(seconds=30)
_RETRY = RetryPolicy(initial_interval=timedelta(seconds=1), backoff_coefficient=1.0)


@dataclass(frozen=True)
class RunTimes:
    """When the run's body began, when its agent's first line came (if there is one), when it was over."""

    began: float
    first_line: float
    ended: float


@dataclass(frozen=True)
class FloorTimes:
    """Moments of one T, in seconds since the epoch, by the one clock of the machine."""

    run: RunTimes
    recorded: float


@workflow.defn(name="FloorTask")
class FloorTask:
    """What `TaskWorkflow` asks of Temporal, and nothing else."""

    @workflow.run
    async def run(self, spawns: bool) -> FloorTimes:  # noqa: FBT001 - a workflow's input
        await workflow.execute_local_activity(RESOLVE, result_type=float, start_to_close_timeout=_CONTROL)
        await _gate()
        times = await _run(spawns)
        recorded = await workflow.execute_local_activity(
            RECORD, result_type=float, start_to_close_timeout=_CONTROL
        )
        return FloorTimes(times, recorded)


@workflow.defn(name="FloorRemoteTask")
class FloorRemoteTask:
    """T with its control steps as remote activities too, on the queue of its workflow tasks.

    That queue is polled by the worker that has the workflow, so the server may hand these two over with the
    answer to the workflow task (eager execution): the best that remote activities can do.
    """

    @workflow.run
    async def run(self, spawns: bool) -> FloorTimes:  # noqa: FBT001 - a workflow's input
        await _remote_control(RESOLVE)
        await _gate()
        times = await _run(spawns)
        return FloorTimes(times, await _remote_control(RECORD))


async def _remote_control(activity: str) -> float:
    ended: float = await workflow.execute_activity(
        activity, result_type=float, start_to_close_timeout=_CONTROL, retry_policy=_RETRY
    )
    return ended


async def _gate() -> None:
    await workflow.execute_activity(
        GATE, task_queue=OPS_QUEUE, result_type=float, start_to_close_timeout=_REMOTE, retry_policy=_RETRY
    )


async def _run(spawns: bool) -> RunTimes:  # noqa: FBT001 - the workflow's input, handed on
    times: RunTimes = await workflow.execute_activity(
        RUN,
        spawns,
        task_queue=RUNS_QUEUE,
        result_type=RunTimes,
        start_to_close_timeout=_REMOTE,
        heartbeat_timeout=_HEARTBEAT,
        retry_policy=_RETRY,
        cancellation_type=ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
    )
    return times


@workflow.defn(name="FloorSignal")
class FloorSignal:
    """Ends with the signal that it waits for."""

    def __init__(self) -> None:
        self._signalled = False

    @workflow.signal
    def go(self) -> None:
        self._signalled = True

    @workflow.run
    async def run(self) -> None:
        await workflow.wait_condition(lambda: self._signalled)
