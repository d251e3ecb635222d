"""From a prepared attempt to a living process: the claim in the API, the files, the shim."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

import structlog

from domain.brief import Brief, StartAnswer
from domain.errors import AttemptElsewhere, ProviderMissing
from domain.reasons import Reason
from machine.attempt import AgentProcess, AttemptDirectory
from machine.ending import Ending, failure
from machine.launch import (
    TAKEN_POLL_SECONDS,
    Credentials,
    Machine,
    ShimChild,
    Terms,
    prepare,
    spawn_shim,
    start_request,
    until_taken,
)
from machine.output import stderr_tail
from machine.plane import insist
from machine.records import is_disk_full, persist

log = structlog.get_logger()

T = TypeVar("T")

#: What a process was sealed for (`AgentProcess.sealed`).
SEALED_BY_CANCEL = "cancelled"
SEALED_UNSTARTABLE = "could not be started"
#: A shim ends at once when there is nothing left for it to do.
SHIM_LEAVES_SECONDS = 5.0


class CancelledBeforeStart(Exception):
    """Nothing was started, and nothing will be."""


class Starter:
    """Starts the processes of one attempt; a cancel is heeded at every step before the shim's.

    ``lifecycle`` is held while a shim is started, so that a stop comes either before it or after it.
    """

    def __init__(
        self,
        machine: Machine,
        directory: AttemptDirectory,
        brief: Brief | None,
        *,
        lifecycle: asyncio.Lock,
        cancelled: asyncio.Event,
    ) -> None:
        self._machine = machine
        self._directory = directory
        self._brief = brief
        self._lifecycle = lifecycle
        self._cancelled = cancelled
        self._boot_id = machine.root.boot_id
        self._token: str | None = None
        #: What the API had of the attempt when it was claimed just now; null after an adoption.
        self.acked_seq: int | None = None
        self._shims: list[ShimChild] = []

    async def first_seq(self) -> int:
        """Claim the attempt in the API, if it has not been, and learn where its numbering begins.

        Raises `CancelledBeforeStart`, `NotFound`, and `AttemptElsewhere`; after the last one nothing of
        the attempt is left on this machine.
        """
        first = self._directory.process(1)
        known = self._directory.first_seq()
        if known is not None:
            return known
        if self._cancelled.is_set():
            first.seal(SEALED_BY_CANCEL)
        if first.sealed == SEALED_BY_CANCEL:
            raise CancelledBeforeStart
        if first.taken or self._directory.record.boot_id != self._boot_id:
            claimed = await self._stated_first_seq()
        else:
            answer = await self._claim()
            claimed, self.acked_seq = answer.first_seq, answer.acked_seq
        await persist(lambda: self._directory.keep_first_seq(claimed))
        return claimed

    async def launch(self, process: AgentProcess, terms: Terms) -> Ending | None:
        """Start the process, or seal it; answers how it ended when it could not be started."""
        if self._directory.record.boot_id != self._boot_id:
            process.seal(SEALED_UNSTARTABLE)
            return failure(Reason.RUNTIME_RECOVERY, "The machine was restarted before the agent was started.")
        try:
            credentials = await self._credentials()
            await asyncio.to_thread(prepare, self._machine, self._directory, process, credentials, terms)
        except CancelledBeforeStart:
            process.seal(SEALED_BY_CANCEL)
            return None
        except ProviderMissing as error:
            return self._unstartable(process, Reason.RUNTIME_MISSING_EXECUTABLE, str(error))
        except OSError as error:
            return self._unstartable(process, _reason_of(error), str(error))
        async with self._lifecycle:
            if self._cancelled.is_set():
                process.seal(SEALED_BY_CANCEL)
                return None
            return await self._spawn(process)

    async def collect(self) -> None:
        """Take the exit status of our own shims, which would stay zombies otherwise."""
        deadline = time.monotonic() + SHIM_LEAVES_SECONDS
        while self._any_shim_lives() and time.monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(TAKEN_POLL_SECONDS)  # a matter of milliseconds, and no event to wait for

    def _any_shim_lives(self) -> bool:
        return not all(shim.has_ended() for shim in self._shims)

    async def _stated_first_seq(self) -> int:
        state = await insist(
            lambda: self._machine.plane.state(self._directory.attempt_id),
            what="state",
            cap=self._machine.config.retry_cap,
        )
        return state.first_seq

    async def _claim(self) -> StartAnswer:
        attempt_id = self._directory.attempt_id
        request = start_request(self._directory.record, self._machine.root)
        try:
            answer = await self._ask("start", lambda: self._machine.plane.start(attempt_id, request))
        except AttemptElsewhere:
            if not self._directory.started:
                self._directory.remove()
            raise
        self._token = answer.token
        return answer

    async def brief(self) -> Brief:
        """The attempt's brief, fetched when nobody gave it. Raises `NotFound`."""
        if self._brief is None:
            attempt_id = self._directory.attempt_id
            self._brief = await insist(
                lambda: self._machine.plane.brief(attempt_id),
                what="brief",
                cap=self._machine.config.retry_cap,
            )
        return self._brief

    async def _credentials(self) -> Credentials:
        token = self._token or (await self._claim()).token
        attempt_id = self._directory.attempt_id
        if self._brief is None:
            self._brief = await self._ask("brief", lambda: self._machine.plane.brief(attempt_id))
        return Credentials(self._brief, token)

    async def _ask(self, what: str, call: Callable[[], Awaitable[T]]) -> T:
        """Ask the API until it answers, or until a cancel makes the question needless."""
        asking = asyncio.ensure_future(insist(call, what=what, cap=self._machine.config.retry_cap))
        cancelled = asyncio.ensure_future(self._cancelled.wait())
        try:
            await asyncio.wait([asking, cancelled], return_when=asyncio.FIRST_COMPLETED)
            if asking.done():
                return asking.result()
            raise CancelledBeforeStart
        finally:
            asking.cancel()
            cancelled.cancel()

    async def _spawn(self, process: AgentProcess) -> Ending | None:
        try:
            shim = await asyncio.to_thread(spawn_shim, process, self._boot_id)
        except OSError as error:
            return self._unstartable(process, _reason_of(error), str(error))
        self._shims.append(shim)
        if not await until_taken(process, shim):
            return self._unstartable(process, Reason.PROCESS_FAILURE, stderr_tail(process.shim_log))
        self._discard_spec_unless_read(process, shim.pid)
        log.info("run_started", attempt_id=str(self._directory.attempt_id), process=process.number)
        return None

    def _discard_spec_unless_read(self, process: AgentProcess, ours: int) -> None:
        taker = process.shim()
        if taker is not None and taker.pid != ours:
            process.spec.unlink(missing_ok=True)  # an earlier worker's shim was quicker, and has its own

    def _unstartable(self, process: AgentProcess, reason: Reason, evidence: str) -> Ending | None:
        if not process.seal(SEALED_UNSTARTABLE) and process.shim() is not None:
            return None  # an earlier worker's shim was quicker: there is a run to follow
        return failure(reason, "The agent could not be started.", evidence)


def _reason_of(error: OSError) -> Reason:
    return Reason.DISK_FULL if is_disk_full(error) else Reason.PROCESS_FAILURE
