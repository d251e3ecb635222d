"""How workflows call control activities: as local activities, shielded from cancellation.

A task's cost is Temporal round trips, and local activities save a third of them (decision 0002). Each is
idempotent, so a try that timed out is repeated for ever: what it records must never be lost.
"""

import asyncio
from datetime import timedelta
from typing import Any, TypeVar

from temporalio import workflow
from temporalio.common import RetryPolicy

#: One statement batch; longer means the database is away, and the next try asks again.
_START_TO_CLOSE = timedelta(seconds=5)
#: Beyond this, waiting between tries is a timer in history instead of a blocked workflow task.
_LOCAL_RETRY_THRESHOLD = timedelta(seconds=5)
_RETRY = RetryPolicy(
    initial_interval=timedelta(milliseconds=500),
    backoff_coefficient=2.0,
    maximum_interval=timedelta(seconds=60),
)


T = TypeVar("T")


class Control:
    """Calls control activities and remembers that a cancel came while one was under way."""

    def __init__(self) -> None:
        self.cancelled = False

    async def call(self, activity: str, argument: Any, result: type[T]) -> T:
        """Run the activity to its end, whatever happens to the workflow meanwhile."""
        handle = workflow.start_local_activity(
            activity,
            argument,
            result_type=result,
            start_to_close_timeout=_START_TO_CLOSE,
            local_retry_threshold=_LOCAL_RETRY_THRESHOLD,
            retry_policy=_RETRY,
        )
        while True:
            try:
                return await asyncio.shield(handle)
            except asyncio.CancelledError:
                if handle.cancelled():
                    raise
                self.cancelled = True
