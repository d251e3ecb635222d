"""The waker: sends what the outbox holds to Temporal, few at a time, until it is accepted.

A start that exists already and a signal to a workflow that has closed count as accepted: the tables
decide what is true, and the reconciler mends what a lost message leaves.
"""

import asyncio
from collections.abc import Awaitable
from datetime import timedelta
from typing import Any

import structlog
from temporalio.client import Client, WorkflowHandle
from temporalio.common import (
    SearchAttributeKey,
    SearchAttributePair,
    TypedSearchAttributes,
    WorkflowIDReusePolicy,
)
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from domain import names
from domain.steps import ChatInput, StopInput, TaskInput, TurnMessage
from store import outbox
from store.database import Database
from store.outbox import OutboxItem, OutboxKind

log = structlog.get_logger(__name__)

#: NOTIFY normally wakes us at once; this is for a notification that got lost, and for backoffs.
_POLL_SECONDS = 1.0
#: A server that is slow must not hold a sender for ever; the row is tried again.
_RPC_TIMEOUT = timedelta(seconds=10)


class Waker:
    """Sends outbox rows; ``in_flight`` bounds how many at once (a burst makes the dev server refuse)."""

    def __init__(self, database: Database, client: Client, *, in_flight: int) -> None:
        self._database = database
        self._client = client
        self._in_flight = in_flight
        self._news = asyncio.Event()
        self._sending: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Send until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._listen())
            group.create_task(self._send_all())

    async def _listen(self) -> None:
        async for _ in self._database.listen(names.OUTBOX_CHANNEL):
            self._news.set()

    async def _send_all(self) -> None:
        while True:
            try:
                more = await self._claim()
            except Exception:
                log.exception("outbox_claim_failed")
                more = False
            if not more:
                await self._wait()

    async def _claim(self) -> bool:
        """Start sending what there is room for. True if that may not have been all."""
        room = self._in_flight - len(self._sending)
        if room <= 0:
            return False
        self._news.clear()
        async with self._database.begin() as conn:
            items = await outbox.claim(conn, room)
        for item in items:
            sending = asyncio.create_task(self._deliver(item))
            self._sending.add(sending)
            sending.add_done_callback(self._done)
        return len(items) == room  # asking again for nothing would stand in the way of what is being sent

    def _done(self, sending: asyncio.Task[None]) -> None:
        self._sending.discard(sending)
        self._news.set()

    async def _wait(self) -> None:
        try:
            await asyncio.wait_for(self._news.wait(), _POLL_SECONDS)
        except TimeoutError:
            return

    async def _deliver(self, item: OutboxItem) -> None:
        try:
            await self._send(item)
        except Exception as error:  # noqa: BLE001 - whatever it is, the row stays and is tried again
            log.warning(
                "outbox_send_failed", kind=item.kind, subject_id=str(item.subject_id), error=str(error)
            )
            await self._put_back(item, str(error))
            return
        async with self._database.begin() as conn:
            await outbox.sent(conn, [item.id])

    async def _put_back(self, item: OutboxItem, error: str) -> None:
        try:
            async with self._database.begin() as conn:
                await outbox.failed(conn, item, error)
        except Exception:
            log.exception("outbox_put_back_failed", item=item.id)  # its claim runs out by itself

    async def _send(self, item: OutboxItem) -> None:
        match item.kind:
            case OutboxKind.START:
                await self._start(item)
            case OutboxKind.WAKE:
                handle = self._task_handle(item)
                await _unless_gone(handle.signal(names.WAKE_SIGNAL, rpc_timeout=_RPC_TIMEOUT))
            case OutboxKind.CANCEL:
                await _unless_gone(self._task_handle(item).cancel(rpc_timeout=_RPC_TIMEOUT))
            case OutboxKind.STOP:
                await self._stop(item)
            case OutboxKind.TURN:
                await self._turn(TurnMessage.model_validate(item.payload))
            case OutboxKind.CHAT:
                await self._chat(ChatInput.model_validate(item.payload))
            case OutboxKind.CLOSE:
                handle = self._client.get_workflow_handle(names.chat_workflow_id(item.subject_id))
                await _unless_gone(handle.signal(names.CLOSE_SIGNAL, rpc_timeout=_RPC_TIMEOUT))

    def _task_handle(self, item: OutboxItem) -> WorkflowHandle[Any, Any]:
        return self._client.get_workflow_handle(names.task_workflow_id(item.subject_id))

    async def _start(self, item: OutboxItem) -> None:
        try:
            await self._client.start_workflow(
                names.TASK_WORKFLOW,
                TaskInput(task_id=item.subject_id),
                id=names.task_workflow_id(item.subject_id),
                task_queue=names.CONTROL_QUEUE,
                id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
                static_summary=item.payload.get("summary"),
                search_attributes=search_attributes(item.payload.get("search_attributes", {})),
                request_eager_start=True,
                rpc_timeout=_RPC_TIMEOUT,
            )
        except WorkflowAlreadyStartedError:
            log.info("task_workflow_exists", task_id=str(item.subject_id))

    async def _stop(self, item: OutboxItem) -> None:
        stop = StopInput.model_validate(item.payload)
        try:
            await self._client.start_workflow(
                names.STOP_WORKFLOW,
                stop,
                id=names.stop_workflow_id(stop.attempt_id),
                task_queue=names.CONTROL_QUEUE,
                id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
                static_summary=f"stop what is left of task {stop.task_id}",
                rpc_timeout=_RPC_TIMEOUT,
            )
        except WorkflowAlreadyStartedError:
            log.info("stop_workflow_exists", attempt_id=str(stop.attempt_id))

    async def _turn(self, message: TurnMessage) -> None:
        """Signal-with-start: the chat's workflow hears of the turn, or is started with it."""
        await self._client.start_workflow(
            names.CHAT_WORKFLOW,
            message.chat,
            **_chat_options(message.chat),
            start_signal=names.TURN_SIGNAL,
            start_signal_args=[message.turn],
        )

    async def _chat(self, chat: ChatInput) -> None:
        try:
            await self._client.start_workflow(names.CHAT_WORKFLOW, chat, **_chat_options(chat))
        except WorkflowAlreadyStartedError:
            log.info("chat_workflow_exists", chat_id=str(chat.chat_id))


def _chat_options(chat: ChatInput) -> dict[str, Any]:
    """A chat's workflow ends when nobody speaks and is started again by the next turn."""
    agent = chat.search_attributes.get("SegueAgent", "an agent")
    return {
        "id": names.chat_workflow_id(chat.chat_id),
        "task_queue": names.CONTROL_QUEUE,
        "id_reuse_policy": WorkflowIDReusePolicy.ALLOW_DUPLICATE,
        "static_summary": f"a chat with {agent}",
        "search_attributes": search_attributes(dict(chat.search_attributes)),
        "rpc_timeout": _RPC_TIMEOUT,
    }


def search_attributes(values: dict[str, str | None]) -> TypedSearchAttributes:
    return TypedSearchAttributes(
        [
            SearchAttributePair(SearchAttributeKey.for_keyword(name), value)
            for name, value in values.items()
            if value
        ]
    )


async def _unless_gone(call: Awaitable[None]) -> None:
    """Await the call; a workflow that has closed, or was never there, needs no message."""
    try:
        await call
    except RPCError as error:
        if error.status is not RPCStatusCode.NOT_FOUND:
            raise
