"""Activities of the control worker: one database transaction each."""

from temporalio import activity

from domain import names
from domain.retry import RetryPolicy
from domain.steps import AsideInput, Recorded, RecordInput, Resolution, ResolveInput, SettleInput
from store import dispatch, recording
from store.database import Database


class ControlActivities:
    """Bound to a database and to the configured rules."""

    def __init__(self, database: Database, rules: dispatch.DispatchRules, policy: RetryPolicy) -> None:
        self._database = database
        self._rules = rules
        self._policy = policy

    @activity.defn(name=names.RESOLVE_RESUME)
    async def resolve_resume(self, step: ResolveInput) -> Resolution:
        async with self._database.begin() as conn:
            return await dispatch.resolve(conn, step, self._rules)

    @activity.defn(name=names.RECORD_TERMINAL)
    async def record_terminal(self, step: RecordInput) -> Recorded:
        async with self._database.begin() as conn:
            return await recording.record(conn, step, self._policy)

    @activity.defn(name=names.SET_ASIDE)
    async def set_aside(self, step: AsideInput) -> Recorded:
        async with self._database.begin() as conn:
            return await recording.set_aside(conn, step)

    @activity.defn(name=names.SETTLE_ATTEMPT)
    async def settle_attempt(self, step: SettleInput) -> None:
        async with self._database.begin() as conn:
            await recording.settle(conn, step)
