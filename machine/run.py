"""One attempt's life in this worker: start or adopt, follow, judge. Knows nothing of Temporal.

A `Run` may be dropped at any moment (`Run.detach`, or the worker's death): the process and its files go
on, and another `Run` over the same directory comes to the same events, numbers and outcome.
"""

import asyncio
import contextlib
import os
import time
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

import structlog

from domain.brief import Brief
from domain.errors import NotFound, RunDetached
from domain.events import Event, EventType
from domain.outcomes import Outcome, OutcomeStatus, Usage
from domain.reasons import Reason
from machine.attempt import AgentProcess, AttemptDirectory, ProcessState
from machine.delivery import Delivery
from machine.ending import CANCELLED, EndFacts, Ending, Stop, StopCause, failure, judge
from machine.environment import settings
from machine.follow import Follower
from machine.journal import Close, Journal
from machine.launch import FRESH_AFTER_REFUSAL, TAKEN_POLL_SECONDS, Machine, Terms, terms_of
from machine.output import stderr_tail
from machine.plane import insist
from machine.processes import ProcessIdentity, stop_tree
from machine.records import persist
from machine.redaction import Redactor
from machine.start import SEALED_BY_CANCEL, CancelledBeforeStart, Starter
from machine.transcript import Transcript, moment
from machine.workdirs import session_exists
from providers.base import parser_for, verifies_session

log = structlog.get_logger()

LAST_PROCESS = 2
AGENT_RECORD_SECONDS = 10.0
#: How long a session's file may be late, and how often it is looked for.
STORED_SECONDS = 2.0
STORED_POLL_SECONDS = 0.05


@dataclass(frozen=True)
class _Chapter:
    """One process of the attempt, read to its end."""

    process: AgentProcess
    terms: Terms
    transcript: Transcript
    ending: Ending

    @property
    def session_id(self) -> str | None:
        return _trusted_session(self.transcript, self.terms)


@dataclass(frozen=True)
class _SessionUsed:
    """The session that the run can be gone on with; ``missing``: it named one that is not stored."""

    session_id: str | None
    missing: bool = False


class Run:
    """Follows one attempt to its `Outcome`. Made inside a running event loop, it starts at once."""

    def __init__(
        self,
        machine: Machine,
        directory: AttemptDirectory,
        brief: Brief | None = None,
        *,
        must_stand: bool = True,
    ) -> None:
        self.attempt_id: UUID = directory.attempt_id
        #: The provider's session, as soon as it may be trusted.
        self.session_id: str | None = None
        self._machine = machine
        self._directory = directory
        self._must_stand = must_stand
        self._provider = machine.providers(directory.record.provider)
        self._limits = machine.limits(self._provider)
        self._boot_id = machine.root.boot_id
        self._lifecycle = asyncio.Lock()
        self._cancelled = asyncio.Event()
        self._detached = False
        self._starter = Starter(
            machine, directory, brief, lifecycle=self._lifecycle, cancelled=self._cancelled
        )
        self._journals: dict[int, Journal] = {}
        self._transcript: Transcript | None = None
        self._pin: asyncio.Task[None] | None = None
        self.task: asyncio.Task[Outcome] = asyncio.create_task(self._live())

    @property
    def done(self) -> bool:
        return self.task.done()

    async def wait(self) -> Outcome:
        """The outcome, after its last event was acknowledged.

        Raises `RunDetached` after `detach`, `NotFound` when the attempt no longer stands, and
        `AttemptElsewhere` when it was started by someone else. The run survives the waiter's own cancel.
        """
        try:
            return await asyncio.shield(self.task)
        except asyncio.CancelledError:
            waiter = asyncio.current_task()
            if self._detached and self.task.cancelled() and not (waiter and waiter.cancelling()):
                message = f"attempt {self.attempt_id} is no longer followed by this worker"
                raise RunDetached(message) from None
            raise

    async def cancel(self) -> list[ProcessIdentity]:
        """Stop the attempt: returns the processes that could not be killed, which must be none.

        The outcome follows (`wait`): ``cancelled``, or what a result that had already been read says.
        """
        self._cancelled.set()
        async with self._lifecycle:
            if not self._directory.path.exists():
                return []  # started elsewhere: nothing of it is on this machine
            process = self._directory.latest_process()
            if process.seal(SEALED_BY_CANCEL):
                return []
            seen = self._transcript is not None and self._transcript.parsed.result_seen
            return await self._stop(process, Stop(StopCause.CANCELLED, result_seen=seen))

    async def detach(self) -> None:
        """Let go: the process and its files stay, for whoever adopts them."""
        self._detached = True
        self.task.cancel()
        await asyncio.wait([self.task])

    async def _live(self) -> Outcome:
        async with self._directory.tail_lock():
            kept = self._directory.outcome()
            if kept is not None:
                return kept
            try:
                outcome = await self._play()
            finally:
                await self._drop_pin()
            await persist(lambda: self._directory.keep_outcome(outcome))
        log.info("run_ended", attempt_id=str(self.attempt_id), reason=outcome.reason)
        return outcome

    async def _play(self) -> Outcome:
        try:
            next_seq = await self._starter.first_seq()
        except CancelledBeforeStart:
            return Outcome(status=CANCELLED.status, reason=CANCELLED.reason)
        delivery = Delivery(
            self._machine.plane,
            self.attempt_id,
            self._machine.config,
            must_stand=self._must_stand,
            acked_seq=self._starter.acked_seq,
        )
        async with delivery:
            chapters: list[_Chapter] = []
            terms = terms_of(self._directory.record)
            while True:
                chapter = await self._read_chapter(len(chapters) + 1, next_seq, terms, delivery)
                chapters.append(chapter)
                if not self._goes_on(chapter):
                    break
                next_seq = chapter.transcript.last_seq + 1
                terms = FRESH_AFTER_REFUSAL
            await delivery.flush()
        await self._starter.collect()
        return self._outcome(chapters, await self._session_used(chapters[-1]))

    # -- following --------------------------------------------------------------------------------

    async def _read_chapter(self, number: int, first_seq: int, terms: Terms, delivery: Delivery) -> _Chapter:
        process = self._directory.process(number)
        journal = self._journal(process)
        ending = None
        if journal.close is None and not process.taken:
            ending = await self._starter.launch(process, terms)
        transcript = Transcript(
            parser_for(self._provider, terms.session_id, fork=terms.fork),
            Redactor(self._directory.secrets()),
            first_seq,
            self._machine.config.line_limit,
        )
        self._transcript = transcript
        follower = Follower(
            self._machine, process, transcript, delivery, journal=journal, limits=self._limits
        )
        follower.on_progress = lambda: self._reveal(transcript, terms)
        follower.on_stop = lambda stop: self._stop_overdue(process, stop)
        offset, at = await follower.follow()
        if journal.close is None:
            ending = ending or self._judge(process, journal, transcript, terms)
            await self._close(journal, offset, ending)
        assert journal.close is not None
        ended = process.exit()
        for event in transcript.append(
            journal.close.events, max(at, moment(ended.ended_at)) if ended else at
        ):
            await delivery.put(event)
        return _Chapter(process, terms, transcript, journal.close.ending)

    def _judge(self, process: AgentProcess, journal: Journal, transcript: Transcript, terms: Terms) -> Ending:
        if process.sealed == SEALED_BY_CANCEL:
            return CANCELLED
        if process.sealed is not None:
            return failure(Reason.RUNTIME_RECOVERY, "The agent could not be started.")
        facts = EndFacts(
            parsed=transcript.parsed,
            exit=process.exit(),
            stop=journal.stop,
            stderr_tail=stderr_tail(process.stderr),
            requested_session_id=terms.session_id,
        )
        ending = judge(self._provider, facts)
        if ending.resume_refused and transcript.parsed.tools_used == 0 and process.number < LAST_PROCESS:
            return ending.model_copy(update={"goes_on": not self._cancelled.is_set()})
        return ending

    async def _close(self, journal: Journal, offset: int, ending: Ending) -> None:
        events: tuple[Event, ...] = ()
        if ending.status is OutcomeStatus.FAILED:
            data = {"message": ending.message, "reason": ending.reason, "evidence": ending.evidence}
            if ending.goes_on:
                data["next"] = "A new session is started in the same directory."
            events = (Event(type=EventType.ERROR, data=data),)
        await persist(lambda: journal.record_close(Close(offset, ending, events)))

    def _goes_on(self, chapter: _Chapter) -> bool:
        """Whether a second process follows: once, after a refused resume, on a fresh session."""
        if not chapter.ending.goes_on:
            return False
        successor = self._directory.process(chapter.process.number + 1)
        successor.path.mkdir(mode=0o700, exist_ok=True)
        if self._cancelled.is_set():
            successor.seal(SEALED_BY_CANCEL)
        return True

    def _reveal(self, transcript: Transcript, terms: Terms) -> None:
        session_id = _trusted_session(transcript, terms)
        if session_id is None or session_id == self.session_id:
            return
        self.session_id = session_id
        if self._pin is not None:
            self._pin.cancel()
        self._pin = asyncio.create_task(self._pin_session(session_id))

    async def _pin_session(self, session_id: str) -> None:
        with contextlib.suppress(NotFound):
            if verifies_session(self._provider) and not await self._is_stored(session_id):
                return
            await insist(
                lambda: self._machine.plane.pin_session(self.attempt_id, session_id),
                what="session",
                cap=self._machine.config.retry_cap,
            )

    async def _drop_pin(self) -> None:
        # The outcome carries the session too, so an unfinished pin is no loss.
        if self._pin is not None:
            self._pin.cancel()
            await asyncio.wait([self._pin])

    # -- stopping ---------------------------------------------------------------------------------

    async def _stop_overdue(self, process: AgentProcess, stop: Stop) -> None:
        async with self._lifecycle:
            await self._stop(process, stop)

    async def _stop(self, process: AgentProcess, stop: Stop) -> list[ProcessIdentity]:
        if process.state(self._boot_id) is ProcessState.STARTED:
            log.info("run_stopping", attempt_id=str(self.attempt_id), cause=stop.cause.value)
            journal = self._journal(process)
            await persist(lambda: journal.record_stop(stop))
            await self._until_agent_known(process)
        survivors = await stop_tree(process.tree(self._boot_id), self._limits.stop_grace)
        if survivors:
            log.error("run_survives", attempt_id=str(self.attempt_id), pids=[p.pid for p in survivors])
        return survivors

    async def _until_agent_known(self, process: AgentProcess) -> None:
        # A moment after its shim has taken the process the agent is recorded: it must get its SIGTERM.
        deadline = time.monotonic() + AGENT_RECORD_SECONDS
        while process.agent() is None and process.shim_alive(self._boot_id):
            if time.monotonic() > deadline:
                return
            await asyncio.sleep(TAKEN_POLL_SECONDS)

    # -- keeping ----------------------------------------------------------------------------------

    def _journal(self, process: AgentProcess) -> Journal:
        return self._journals.setdefault(process.number, process.journal())

    async def _session_used(self, chapter: _Chapter) -> _SessionUsed:
        """The trusted session; else one that was only named, if the provider has stored it all the same.

        A run that dies before its first answer has its prompt in the session's file already: without
        this a turn cancelled early would be forgotten. And some providers name a session that they
        never store: such a one can't be gone on with, whatever the run said.
        """
        trusted = chapter.session_id
        named = trusted or chapter.transcript.parsed.revealed_session_id
        if named is None or (trusted is not None and not verifies_session(self._provider)):
            return _SessionUsed(trusted)
        try:
            stored = await self._is_stored(named)
        except NotFound:
            return _SessionUsed(trusted)
        if stored or trusted is None:
            return _SessionUsed(named if stored else None)
        log.warning("session_rollout_missing", attempt_id=str(self.attempt_id), session_id=trusted)
        return _SessionUsed(trusted, missing=True)

    async def _is_stored(self, session_id: str) -> bool:
        """Whether the provider's store has the session, now or within a moment. Raises `NotFound`."""
        brief = await self._starter.brief()
        env = settings(brief, os.environ, self._machine.config.inherit)
        work_dir = self._directory.record.work_dir
        deadline = time.monotonic() + (STORED_SECONDS if verifies_session(self._provider) else 0.0)
        while not await asyncio.to_thread(session_exists, self._provider, session_id, work_dir, env):
            if time.monotonic() >= deadline:
                return False
            await asyncio.sleep(STORED_POLL_SECONDS)
        return True

    def _outcome(self, chapters: list[_Chapter], session: _SessionUsed) -> Outcome:
        last = chapters[-1]
        ended = last.process.exit()
        failed = last.ending.status is OutcomeStatus.FAILED
        return Outcome(
            status=last.ending.status,
            reason=last.ending.reason,
            session_id=session.session_id,
            session_rollout_missing=session.missing,
            refused_session_id=self._refused_session(chapters),
            result_seq=last.transcript.result_seq,
            error_seq=last.transcript.error_seq if failed else None,
            last_seq=last.transcript.last_seq,
            tools_used=sum(chapter.transcript.parsed.tools_used for chapter in chapters),
            exit_code=ended.exit_code if ended else None,
            signal=ended.signal if ended else None,
            usage=sum((chapter.transcript.parsed.usage for chapter in chapters), Usage()),
            resets_at=last.ending.resets_at,
            started_at=_started_at(chapters[0].process),
            ended_at=moment(ended.ended_at) if ended else None,
        )

    def _refused_session(self, chapters: list[_Chapter]) -> str | None:
        refused = (chapter.terms.session_id for chapter in chapters if chapter.ending.resume_refused)
        return next(refused, self._directory.record.missing_session_id)


def _trusted_session(transcript: Transcript, terms: Terms) -> str | None:
    """The emitted session id, unless a resume was asked for, the ids differ and the run did not succeed."""
    emitted = transcript.parsed.session_id
    wanted = None if terms.fork else terms.session_id
    if emitted is None or wanted is None or emitted == wanted:
        return emitted
    parsed = transcript.parsed
    return emitted if parsed.result_seen and parsed.success else None


def _started_at(process: AgentProcess) -> datetime | None:
    shim = process.shim()
    return moment(shim.at) if shim else None
