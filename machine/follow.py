"""Reading one process's output while it grows, until nothing can write to it any more."""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from datetime import datetime

from domain.events import NumberedEvent
from machine.attempt import AgentProcess, ProcessState
from machine.delivery import Delivery
from machine.ending import Stop
from machine.journal import Journal
from machine.launch import Machine
from machine.output import OutputFile
from machine.processes import ExitBell, stop_tree
from machine.transcript import Transcript, moment
from machine.watchdog import Watchdog
from providers.base import Limits

#: A shim ends what its agent left and then itself; one that has not done so by then is ended.
SHIM_LIMIT_SECONDS = 30.0
#: After the bell, files follow within a moment.
HURRY_SECONDS = 0.002
PAUSE_GROWTH = 1.5
#: While the bell is silent the process lives; looked at all the same, since a bell is not a proof.
LOOK_SECONDS = 1.0
#: A line of more chunks is parsed beside the event loop.
LONG_LINE_CHUNKS = 4


class Follower:
    """Follows one process: output to events to `Delivery`, deadlines to ``on_stop``."""

    def __init__(
        self,
        machine: Machine,
        process: AgentProcess,
        transcript: Transcript,
        delivery: Delivery,
        *,
        journal: Journal,
        limits: Limits,
    ) -> None:
        self._config = machine.config
        self._boot_id = machine.root.boot_id
        self._process = process
        self._transcript = transcript
        self._delivery = delivery
        self._journal = journal
        self._limits = limits
        self._watchdog = Watchdog(limits)
        self._nudge = asyncio.Event()
        self._pause = self._config.poll_fastest
        self._barren_chunks = 0
        self._bell: ExitBell | None = None
        self._next_look = 0.0
        self._ended_at: float | None = None
        self.on_progress: Callable[[], None] = lambda: None
        self.on_stop: Callable[[Stop], Awaitable[None]] | None = None

    async def follow(self) -> tuple[int, datetime]:
        """Read to the end. Returns how many bytes count, and when the last of them was written."""
        closed_at = self._journal.close.offset if self._journal.close else None
        with OutputFile(self._process.stdout) as output:
            self._bell = ExitBell(self._process.agent() or self._process.shim(), self._hurry)
            watching = asyncio.create_task(self._watch(output))
            try:
                await self._read_to_end(output, closed_at)
            finally:
                self._bell.close()
                watching.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await watching
            at = moment(output.modified_at)
            await self._deliver(self._transcript.finish(at))
            return output.offset, at

    async def _read_to_end(self, output: OutputFile, closed_at: int | None) -> None:
        while True:
            # Asked before reading: what is read after the answer is all there will be.
            over = closed_at is not None or await self._is_over()
            chunk = output.read(closed_at)
            if chunk:
                await self._take(chunk, output)
            elif over:
                return
            else:
                await self._rest()

    async def _take(self, chunk: bytes, output: OutputFile) -> None:
        self._pause = self._config.poll_fastest
        at = moment(output.modified_at)
        ends_line = b"\n" in chunk
        if ends_line and self._barren_chunks >= LONG_LINE_CHUNKS:
            events = await asyncio.to_thread(self._transcript.feed, chunk, at)
        else:
            events = self._transcript.feed(chunk, at)
            await asyncio.sleep(0)
        self._barren_chunks = 0 if ends_line else self._barren_chunks + 1
        if events:
            self._watchdog.heard()
            self.on_progress()
        await self._deliver(events)

    async def _deliver(self, events: list[NumberedEvent]) -> None:
        for event in events:
            await self._delivery.put(event)

    async def _rest(self) -> None:
        self._delivery.check()
        self._nudge.clear()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._nudge.wait(), self._pause)
        self._pause = min(self._pause * PAUSE_GROWTH, self._config.poll_slowest)

    def _hurry(self) -> None:
        self._pause = HURRY_SECONDS
        self._nudge.set()

    async def _is_over(self) -> bool:
        """Whether every process that could still write is gone; strays of a dead shim are ended here."""
        if self._bell is not None and self._bell.armed and time.monotonic() < self._next_look:
            return False
        self._next_look = time.monotonic() + LOOK_SECONDS
        state = self._process.state(self._boot_id)
        if state is ProcessState.STARTED:
            return False
        if state in (ProcessState.SEALED, ProcessState.PREPARED):
            return True
        if self._process.reaped:
            return True
        if self._process.shim_alive(self._boot_id) and not self._is_shim_overdue():
            return False
        await stop_tree(self._process.tree(self._boot_id), self._limits.stop_grace)
        return True

    def _is_shim_overdue(self) -> bool:
        now = time.monotonic()
        self._ended_at = self._ended_at or now
        return now - self._ended_at > SHIM_LIMIT_SECONDS

    async def _watch(self, output: OutputFile) -> None:
        if self._process.state(self._boot_id) is not ProcessState.STARTED:
            return
        stop = self._journal.stop  # an earlier worker may have died over it
        while stop is None:
            await asyncio.sleep(self._watchdog.tick)
            if output.offset < output.size:
                self._watchdog.unread()
            stop = self._watchdog.check(self._transcript.parsed)
        if self.on_stop is not None:
            await self.on_stop(stop)
