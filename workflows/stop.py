"""`StopAttemptWorkflow`: make sure that nothing of a set-aside attempt lives, then open its directory.

It has no deadline: the machine may be away for days, and until it has spoken nothing else may enter
the directory.
"""

from datetime import timedelta

from temporalio import workflow
from temporalio.common import RetryPolicy

with workflow.unsafe.imports_passed_through():  # pure and free of side effects: loaded once
    from domain import names
    from domain.steps import SettleInput, StopInput, StopResult
    from workflows.control import Control

#: Killing a tree and harvesting its output; a longer one is asked again, it is idempotent.
_STOP_START_TO_CLOSE = timedelta(minutes=5)
_STOP_RETRY = RetryPolicy(initial_interval=timedelta(seconds=1), maximum_interval=timedelta(seconds=60))


@workflow.defn(name=names.STOP_WORKFLOW)
class StopAttemptWorkflow:
    """Stop, harvest, settle."""

    @workflow.run
    async def run(self, stop: StopInput) -> None:
        result = await workflow.execute_activity(
            names.STOP_ATTEMPT,
            stop,
            result_type=StopResult,
            task_queue=stop.ops_queue,
            start_to_close_timeout=_STOP_START_TO_CLOSE,
            retry_policy=_STOP_RETRY,
        )
        settle = SettleInput(attempt_id=stop.attempt_id, result=result, settled_reason=stop.settled_reason)
        await Control().call(names.SETTLE_ATTEMPT, settle, type(None))
