"""A stage for workflows: real Temporal workers whose activities answer from a script.

What the activities decide is tested with the database elsewhere; here it is the workflow's own logic:
what it asks, in which order, and what it does with each answer.
"""

import asyncio
import inspect
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

from temporalio import activity
from temporalio.client import Client, WorkflowHandle
from temporalio.worker import Worker

from domain import names
from domain.outcomes import Outcome, OutcomeStatus
from domain.reasons import Reason
from domain.retry import END, RetryAction, RetryDecision
from domain.statuses import Continuity, WaitKind
from domain.steps import (
    AsideInput,
    ChatInput,
    GateInput,
    GateResult,
    Recorded,
    RecordInput,
    Resolution,
    Resolved,
    ResolveInput,
    RunInput,
    SettleInput,
    StopInput,
    StopResult,
    TaskInput,
    Timeouts,
    Turn,
)
from workers.control import sandbox
from workflows.chat import ChatWorkflow
from workflows.stop import StopAttemptWorkflow
from workflows.task import TaskWorkflow

Answer = Any
Behaviour = Callable[[Any], Awaitable[Any]]


class Stage:
    """Answers by activity name, in order; every call is kept in ``calls``.

    The last answer stays: a local activity is executed again when its workflow task could not be
    completed (a cancel came meanwhile), and the real ones then answer the same.
    """

    def __init__(self, client: Client) -> None:
        self.client = client
        self.task_id = uuid4()
        self.attempt_id = uuid4()
        self.queue = f"control-{self.task_id}"
        self.calls: list[tuple[str, Any]] = []
        self.called: dict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self._answers: dict[str, list[Answer]] = defaultdict(list)

    def script(self, name: str, *answers: Answer) -> None:
        """What the activity answers, call by call; an async function is called with the input."""
        self._answers[name] += answers

    def called_names(self) -> list[str]:
        return [name for name, _ in self.calls]

    def inputs(self, name: str) -> list[Any]:
        return [step for called, step in self.calls if called == name]

    # --- usual answers ----------------------------------------------------------------------------

    def run(self, attempt: int = 1, **more: Any) -> Resolution:
        return Resolution(
            kind=Resolved.RUN,
            attempt_id=self.attempt_id,
            attempt=attempt,
            ops_queue=f"{self.queue}-ops",
            runs_queue=f"{self.queue}-runs",
            continuity=Continuity.FIRST,
            timeouts=Timeouts(heartbeat=5.0, gate=30.0),
            **more,
        )

    def wait(self, **more: Any) -> Resolution:
        return Resolution(kind=Resolved.WAIT, wait_kind=WaitKind.LANE, **more)

    def gate(self, **more: Any) -> GateResult:
        return GateResult(ok=True, work_dir="/w/one", device=1, inode=2, **more)

    # --- the workers ------------------------------------------------------------------------------

    @asynccontextmanager
    async def open(self, *, machine: bool = True) -> AsyncIterator["Stage"]:
        """Run the control worker, and the machine's two queues unless it is away."""
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._control_worker())
            if machine:
                await stack.enter_async_context(self.machine())
            yield self

    def _control_worker(self) -> Worker:
        return Worker(
            self.client,
            task_queue=self.queue,
            workflows=[TaskWorkflow, ChatWorkflow, StopAttemptWorkflow],
            activities=[self._resolve, self._record, self._aside, self._settle],
            workflow_runner=sandbox(),
        )

    @asynccontextmanager
    async def machine(self) -> AsyncIterator[None]:
        ops = Worker(self.client, task_queue=f"{self.queue}-ops", activities=[self._gate, self._stop])
        runs = Worker(
            self.client,
            task_queue=f"{self.queue}-runs",
            activities=[self._run],
            max_heartbeat_throttle_interval=timedelta(seconds=0.2),
        )
        async with ops, runs:
            yield

    async def start(self) -> WorkflowHandle[Any, Any]:
        return await self.client.start_workflow(
            names.TASK_WORKFLOW,
            TaskInput(task_id=self.task_id),
            id=names.task_workflow_id(self.task_id),
            task_queue=self.queue,
            static_summary="a test",
        )

    async def turn(self, chat: ChatInput, task_id: UUID) -> WorkflowHandle[Any, Any]:
        """Send a turn as the waker does: the chat's workflow hears of it, or is started with it."""
        return await self.client.start_workflow(
            names.CHAT_WORKFLOW,
            chat,
            id=names.chat_workflow_id(chat.chat_id),
            task_queue=self.queue,
            start_signal=names.TURN_SIGNAL,
            start_signal_args=[Turn(task_id=task_id, summary="a turn")],
        )

    async def _answer(self, name: str, step: Any) -> Any:
        self.calls.append((name, step))
        self.called[name].set()
        answers = self._answers[name]
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, BaseException):
            raise answer
        return await answer(step) if callable(answer) else answer

    @activity.defn(name=names.RESOLVE_RESUME)
    async def _resolve(self, step: ResolveInput) -> Resolution:
        result: Resolution = await self._answer(names.RESOLVE_RESUME, step)
        return result

    @activity.defn(name=names.GATE_WORKDIR)
    async def _gate(self, step: GateInput) -> GateResult:
        result: GateResult = await self._answer(names.GATE_WORKDIR, step)
        return result

    @activity.defn(name=names.RUN_AGENT)
    async def _run(self, step: RunInput) -> Outcome:
        result: Outcome = await self._answer(names.RUN_AGENT, step)
        return result

    @activity.defn(name=names.RECORD_TERMINAL)
    async def _record(self, step: RecordInput) -> Recorded:
        result: Recorded = await self._answer(names.RECORD_TERMINAL, step)
        return result

    @activity.defn(name=names.SET_ASIDE)
    async def _aside(self, step: AsideInput) -> Recorded:
        result: Recorded = await self._answer(names.SET_ASIDE, step)
        return result

    @activity.defn(name=names.STOP_ATTEMPT)
    async def _stop(self, step: StopInput) -> StopResult:
        result: StopResult = await self._answer(names.STOP_ATTEMPT, step)
        return result

    @activity.defn(name=names.SETTLE_ATTEMPT)
    async def _settle(self, step: SettleInput) -> None:
        await self._answer(names.SETTLE_ATTEMPT, step)


def done(reason: str = Reason.COMPLETED) -> Outcome:
    statuses = {
        Reason.COMPLETED: OutcomeStatus.COMPLETED,
        Reason.CANCELLED: OutcomeStatus.CANCELLED,
    }
    return Outcome(status=statuses.get(Reason(reason), OutcomeStatus.FAILED), reason=reason)


def ended(status: str = "completed", reason: str | None = None) -> Recorded:
    return Recorded(decision=END, status=status, reason=reason or status)


def again(action: RetryAction = RetryAction.NOW, **more: Any) -> Recorded:
    return Recorded(decision=RetryDecision(action=action, **more), status="retry_wait")


async def until_cancelled(_: RunInput) -> Outcome:
    """An agent that runs until it is stopped, then says so: what the real activity does."""
    try:
        while True:
            activity.heartbeat()
            await asyncio.sleep(0.05)
    except asyncio.CancelledError:
        return done(Reason.CANCELLED)


async def until(condition: Callable[[], Any]) -> None:
    """Wait until the condition, plain or async, holds; pytest's own limit ends a wait for nothing."""
    while True:
        found = condition()
        if await found if inspect.isawaitable(found) else found:
            return
        await asyncio.sleep(0.05)
