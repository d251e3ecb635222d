"""Events on their way to the API: in order, in batches, each once, in bounded memory, for ever."""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Self
from uuid import UUID

import structlog

from domain.errors import InvalidInput, NotAllowed, NotFound, TooLarge
from domain.events import EventType, NumberedEvent
from machine.config import MachineConfig
from machine.plane import Plane, insist

log = structlog.get_logger()


class Delivery:
    """Posts the events of one attempt. A context manager; leaving it drops what was not posted.

    ``acked_seq`` is what the API has already; when it is not given, the API is asked, and whether the
    attempt still stands with it (``must_stand``).

    `put` blocks while too much is waiting. When the attempt is gone (`NotFound`) or elsewhere, `put`,
    `flush` and `check` raise that error.
    """

    def __init__(
        self,
        plane: Plane,
        attempt_id: UUID,
        config: MachineConfig,
        *,
        must_stand: bool = True,
        acked_seq: int | None = None,
    ) -> None:
        self._plane = plane
        self._attempt_id = attempt_id
        self._config = config
        self._must_stand = must_stand
        self._waiting: deque[tuple[int, bytes]] = deque()
        self._waiting_bytes = 0
        self._must_ask = acked_seq is None
        self._acked_seq = acked_seq or 0
        self._changed = asyncio.Event()
        self._posted = asyncio.Event()
        self._urgent = False
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._work())
        self._task.add_done_callback(lambda _: self._posted.set())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await self._task

    async def put(self, event: NumberedEvent) -> None:
        """Queue one event; events that the API has already are dropped."""
        await self._until(lambda: not self._is_full())
        if event.seq <= self._acked_seq:
            return
        encoded = event.model_dump_json().encode()
        self._waiting.append((event.seq, encoded))
        self._waiting_bytes += len(encoded)
        self._changed.set()

    async def flush(self) -> None:
        """Wait until everything put so far is acknowledged."""
        self._urgent = True
        self._changed.set()
        try:
            await self._until(lambda: not self._waiting)
        finally:
            self._urgent = False

    async def _until(self, condition: Callable[[], bool]) -> None:
        while True:
            self.check()
            if condition():
                return
            self._posted.clear()
            await self._posted.wait()

    def check(self) -> None:
        """Raise what ended the delivery, if anything did."""
        if self._task is not None and self._task.done() and not self._task.cancelled():
            error = self._task.exception()
            if error is not None:
                raise error

    def _is_full(self) -> bool:
        too_many = len(self._waiting) >= self._config.unposted_events
        return too_many or self._waiting_bytes >= self._config.unposted_bytes

    async def _work(self) -> None:
        if self._must_ask:
            await self._catch_up()
        clock = asyncio.get_running_loop().time
        next_post = 0.0
        while True:
            if not self._waiting:
                self._changed.clear()
                await self._changed.wait()
                continue
            await self._gather(next_post)
            next_post = clock() + self._config.batch_seconds
            await self._post(self._batch())

    async def _catch_up(self) -> None:
        state = await insist(
            lambda: self._plane.state(self._attempt_id), what="state", cap=self._config.retry_cap
        )
        if self._must_stand and not state.standing:
            message = f"attempt {self._attempt_id} no longer stands"
            raise NotFound(message)
        self._drop(state.acked_seq)

    async def _gather(self, until: float) -> None:
        """Let a batch fill up to the interval after the last one; a lone event goes at once."""
        clock = asyncio.get_running_loop().time
        while not (self._urgent or self._is_full() or self._has_batch()):
            left = until - clock()
            if left <= 0:
                return
            self._changed.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), left)

    def _has_batch(self) -> bool:
        enough = len(self._waiting) >= self._config.batch_events
        return enough or self._waiting_bytes >= self._config.batch_bytes

    def _batch(self) -> list[bytes]:
        batch: list[bytes] = []
        size = 0
        for _, encoded in self._waiting:
            is_full = len(batch) >= self._config.batch_events
            if batch and (is_full or size + len(encoded) > self._config.batch_bytes):
                break
            batch.append(encoded)
            size += len(encoded)
        return batch

    async def _post(self, batch: list[bytes]) -> None:
        """Post one batch until it is accepted; one that is too large in halves."""
        try:
            answer = await insist(
                lambda: self._plane.events(self._attempt_id, batch),
                what="events",
                cap=self._config.retry_cap,
                # A defect on one side must not cost the run: the file is the buffer until it is mended.
                also=(InvalidInput, NotAllowed),
            )
        except TooLarge:
            if len(batch) == 1:
                batch = [self._stand_in(batch[0])]
            await self._post(batch[: max(1, len(batch) // 2)])
            return
        self._drop(answer.acked_seq)

    def _stand_in(self, encoded: bytes) -> bytes:
        """A note in the place of an event that the API will never take: numbers may not have gaps."""
        log.error("event_too_large", attempt_id=str(self._attempt_id), bytes=len(encoded))
        event = NumberedEvent.model_validate_json(encoded)
        data = {"line": "", "note": "refused by the API as too large", "bytes": len(encoded)}
        return event.model_copy(update={"type": EventType.RAW, "data": data}).model_dump_json().encode()

    def _drop(self, acked_seq: int) -> None:
        self._acked_seq = max(self._acked_seq, acked_seq)
        while self._waiting and self._waiting[0][0] <= self._acked_seq:
            self._waiting_bytes -= len(self._waiting.popleft()[1])
        self._posted.set()
