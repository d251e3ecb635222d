"""`ChatWorkflow`: hands a chat's turns to their tasks, one child workflow each.

It decides nothing about order or context: those are the lane's leases and the tables, so a turn that
it never heard of (the reconciler sends it again) or hears of twice does no harm. It lives only while
turns come: after an idle time it ends, and the next turn starts it again. See the design's section 7.
"""

from collections import deque
from datetime import timedelta
from typing import NoReturn

from temporalio import workflow
from temporalio.common import (
    SearchAttributeKey,
    SearchAttributePair,
    TypedSearchAttributes,
    WorkflowIDReusePolicy,
)
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.workflow import ParentClosePolicy

with workflow.unsafe.imports_passed_through():  # pure and free of side effects: loaded once
    from domain import names
    from domain.steps import ChatInput, TaskInput, Turn

#: About 13 events a turn: far below what makes a history slow to replay.
TURNS_A_RUN = 50


@workflow.defn(name=names.CHAT_WORKFLOW)
class ChatWorkflow:
    """One per chat while it is in use; its id is the chat's, its tasks outlive it."""

    @workflow.init
    def __init__(self, chat: ChatInput) -> None:
        self._chat = chat
        self._pending = deque(chat.pending)
        self._known = {turn.task_id for turn in chat.pending}
        self._handed_on = 0
        self._closed = False

    @workflow.signal(name=names.TURN_SIGNAL)
    def turn(self, turn: Turn) -> None:
        """A message was sent. Heard twice, it is one turn."""
        self._closed = False  # a chat that was unarchived goes on
        if turn.task_id not in self._known:
            self._known.add(turn.task_id)
            self._pending.append(turn)

    @workflow.signal(name=names.CLOSE_SIGNAL)
    def close(self) -> None:
        """The chat was archived or deleted: end once everything that was sent is handed on."""
        self._closed = True

    @workflow.run
    async def run(self, chat: ChatInput) -> None:  # noqa: ARG002 - Temporal gives both the same input
        self._show("waiting for turns")
        while await self._has_turn():
            await self._hand_on(self._pending.popleft())
            if self._handed_on >= TURNS_A_RUN or workflow.info().is_continue_as_new_suggested():
                self._continue_as_new()

    async def _has_turn(self) -> bool:
        """Wait for the next turn; False when the chat is closed, or nobody has said anything for long."""
        try:
            await workflow.wait_condition(
                lambda: bool(self._pending) or self._closed,
                timeout=timedelta(seconds=self._chat.idle_seconds),
            )
        except TimeoutError:
            return False
        return bool(self._pending)

    async def _hand_on(self, turn: Turn) -> None:
        """Start the turn's task. It ends by itself, whatever becomes of this workflow."""
        try:
            started = await workflow.start_child_workflow(
                names.TASK_WORKFLOW,
                TaskInput(task_id=turn.task_id),
                id=names.task_workflow_id(turn.task_id),
                id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
                parent_close_policy=ParentClosePolicy.ABANDON,
                static_summary=turn.summary,
                search_attributes=_typed(turn.search_attributes),
            )
        except WorkflowAlreadyStartedError:
            workflow.logger.info("task_workflow_exists")
        else:
            self._show(f"last turn: {started.id}")
        self._handed_on += 1

    def _continue_as_new(self) -> NoReturn:
        """Go on with an empty history; what came meanwhile goes along."""
        workflow.continue_as_new(
            self._chat.model_copy(
                update={
                    "pending": list(self._pending),
                    "dispatched": self._chat.dispatched + self._handed_on,
                }
            )
        )

    def _show(self, now: str) -> None:
        """What the Temporal Web UI shows as the current details; costs no history event."""
        lines = [f"{self._chat.dispatched + self._handed_on} turns handed to their tasks", now]
        if self._chat.seed is not None:
            lines.append(f"continues {names.task_workflow_id(self._chat.seed.source_task_id)}")
        workflow.set_current_details("\n".join(f"- {line}" for line in lines))


def _typed(values: dict[str, str]) -> TypedSearchAttributes:
    pairs = [
        SearchAttributePair(SearchAttributeKey.for_keyword(name), value) for name, value in values.items()
    ]
    return TypedSearchAttributes(pairs)
