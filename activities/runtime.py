"""Activities of a runtime worker: the machine's side of an attempt, behind Temporal's words for it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import UUID

import structlog
from temporalio import activity
from temporalio.exceptions import ApplicationError

from domain import names
from domain.brief import Brief
from domain.errors import AttemptElsewhere, NotFound, RunDetached
from domain.outcomes import Outcome, OutcomeStatus
from domain.reasons import Reason
from domain.steps import GateInput, GateResult, RunInput, StopInput, StopResult
from machine.plane import Plane
from machine.run import Run
from machine.supervisor import Supervisor

log = structlog.get_logger()

#: Independent of the agent's output, and well under the throttle, so that a cancel is seen within 1 s.
BEAT_SECONDS = 0.5
_KEPT_BRIEFS = 64
#: A stop that left something alive is tried again by its workflow.
_STOP_FAILED = "StopIncomplete"


class RuntimeActivities:
    """Bound to one supervisor, which keeps the runs; an activity only waits for one of them."""

    def __init__(self, supervisor: Supervisor, plane: Plane) -> None:
        self._supervisor = supervisor
        self._plane = plane
        #: Briefs between gate and run, so that the usual attempt asks for its brief once.
        self._briefs: dict[UUID, Brief] = {}

    @activity.defn(name=names.GATE_WORKDIR)
    async def gate_workdir(self, step: GateInput) -> GateResult:
        try:
            brief = await self._plane.brief(step.attempt_id)
        except NotFound:
            # Ended meanwhile: whatever is answered, the API won't let it start.
            return GateResult(ok=False, failure=Reason.CANCELLED)
        self._keep(brief)
        return await self._supervisor.gate(brief)

    def _keep(self, brief: Brief) -> None:
        """Keep the brief for the run that follows; one whose run never came makes room for others."""
        self._briefs[brief.attempt_id] = brief
        while len(self._briefs) > _KEPT_BRIEFS:
            del self._briefs[next(iter(self._briefs))]

    @activity.defn(name=names.RUN_AGENT)
    async def run_agent(self, step: RunInput) -> Outcome:
        """Start, adopt or join the attempt's run and wait for its outcome; heartbeat meanwhile."""
        async with _heartbeat(step.attempt_id):
            brief = self._briefs.pop(step.attempt_id, None)
            try:
                run = await self._supervisor.attach(step.attempt_id, brief=brief, gate=step.gate)
                return await self._follow(run)
            except NotFound:
                return _not_standing()
            except AttemptElsewhere as error:
                raise ApplicationError(str(error), type="AttemptElsewhere", non_retryable=True) from error
            except RunDetached as error:
                raise ApplicationError(str(error), type="RunDetached") from error

    async def _follow(self, run: Run) -> Outcome:
        try:
            return await run.wait()
        except asyncio.CancelledError:
            details = activity.cancellation_details()
            if details is None or not details.cancel_requested:
                log.info("run_detached", attempt_id=str(run.attempt_id), why=_why(details))
                raise
        # The worker may be stopping at the same moment: then it detaches, and the stop goes on there.
        await asyncio.shield(run.cancel())
        return await run.wait()

    @activity.defn(name=names.STOP_ATTEMPT)
    async def stop_attempt(self, step: StopInput) -> StopResult:
        """Kill by record and marker, harvest. Fails, to be asked again, while something survives."""
        result = await self._supervisor.stop_attempt(step.attempt_id)
        if not result.stopped:
            raise ApplicationError("processes of the attempt survive SIGKILL", type=_STOP_FAILED)
        return result


def _why(details: activity.ActivityCancellationDetails | None) -> list[str]:
    if details is None:
        return []
    words = ("not_found", "timed_out", "worker_shutdown", "paused", "reset")
    return [word for word in words if getattr(details, word, False)]


def _not_standing() -> Outcome:
    """The API refuses the attempt, so nothing was started; the control side has its reason already."""
    return Outcome(status=OutcomeStatus.CANCELLED, reason=Reason.CANCELLED)


@asynccontextmanager
async def _heartbeat(attempt_id: UUID) -> AsyncIterator[None]:
    """Beat from a task of its own: a silent agent is alive all the same."""
    beating = asyncio.create_task(_beat(attempt_id))
    try:
        yield
    finally:
        beating.cancel()


async def _beat(attempt_id: UUID) -> None:
    while True:
        activity.heartbeat(str(attempt_id))
        await asyncio.sleep(BEAT_SECONDS)
