"""How one agent process ended: the facts, and the pure judgement over them."""

import errno
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

import structlog
from pydantic import BaseModel, ConfigDict

from domain.outcomes import OutcomeStatus
from domain.reasons import Reason
from providers.base import EndedRun, ParsedRun, Provider, Verdict

log = structlog.get_logger()

EVIDENCE_LIMIT = 2000


class StopCause(StrEnum):
    """Why the worker stopped a process; all but the last are also terminal reasons of a task."""

    CANCELLED = "cancelled"
    STARTUP_TIMEOUT = "startup_timeout"
    IDLE_WATCHDOG = "idle_watchdog"
    #: The result had come and the process did not leave: ended without harm to the outcome.
    LINGERING = "lingering"


@dataclass(frozen=True)
class Stop:
    """The decision to stop a process, taken before the first signal."""

    cause: StopCause
    #: A result had been read by then: it stands, whatever the stop was for.
    result_seen: bool
    detail: str = ""


@dataclass(frozen=True)
class ExitRecord:
    """How the agent's own process ended. Times are seconds since the epoch."""

    exit_code: int | None
    signal: int | None
    ended_at: float
    #: Why the command could not be executed: ``where``, ``errno`` and ``text``.
    not_started: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class EndFacts:
    """Everything the judgement depends on."""

    parsed: ParsedRun
    exit: ExitRecord | None
    stop: Stop | None
    stderr_tail: str
    requested_session_id: str | None


class Ending(BaseModel):
    """The judgement over one process; ``message`` and ``evidence`` go into an ``error`` event."""

    model_config = ConfigDict(frozen=True)

    status: OutcomeStatus
    reason: str
    message: str = ""
    evidence: str = ""
    resume_refused: bool = False
    #: A second process follows on a fresh session.
    goes_on: bool = False
    resets_at: datetime | None = None


def failure(reason: Reason, message: str, evidence: str = "") -> Ending:
    return Ending(
        status=OutcomeStatus.FAILED, reason=reason.value, message=message, evidence=evidence[:EVIDENCE_LIMIT]
    )


CANCELLED = Ending(status=OutcomeStatus.CANCELLED, reason=Reason.CANCELLED.value)
COMPLETED = Ending(status=OutcomeStatus.COMPLETED, reason=Reason.COMPLETED.value)


def judge(provider: Provider, facts: EndFacts) -> Ending:
    """Decide how the process ended.

    A cancel wins unless the result had been read before it; a result beats every watchdog; only a
    process that left neither an exit record nor a result ends as ``runtime_recovery``.
    """
    if facts.exit is not None and facts.exit.not_started:
        return _never_ran(facts.exit.not_started)
    if facts.stop is not None and not _result_stands(facts):
        return _stopped(facts)
    if facts.exit is None and not facts.parsed.result_seen:
        return failure(
            Reason.RUNTIME_RECOVERY,
            "The agent's process is gone and left no exit record.",
            _last_line(facts.stderr_tail),
        )
    return _from_verdict(_classify(provider, facts), facts)


def _result_stands(facts: EndFacts) -> bool:
    stop = facts.stop
    if stop is None or stop.cause is not StopCause.CANCELLED:
        return facts.parsed.result_seen
    return stop.result_seen


def _stopped(facts: EndFacts) -> Ending:
    stop = facts.stop
    if stop is None or stop.cause is StopCause.CANCELLED:
        return CANCELLED
    reason = Reason(facts.parsed.stall_reason or stop.cause.value)
    return failure(reason, stop.detail, facts.parsed.error_text or _last_line(facts.stderr_tail))


def _never_ran(complaint: Mapping[str, Any]) -> Ending:
    text = str(complaint.get("text", ""))
    if complaint.get("where") == "work_dir":
        return failure(Reason.PROCESS_FAILURE, "The working directory can't be entered any more.", text)
    if complaint.get("errno") in (errno.ENOENT, errno.EACCES, errno.ENOEXEC, errno.ENOTDIR):
        return failure(Reason.RUNTIME_MISSING_EXECUTABLE, "The agent's command could not be executed.", text)
    return failure(Reason.PROCESS_FAILURE, "The agent's process could not be started.", text)


def _classify(provider: Provider, facts: EndFacts) -> Verdict:
    ended = facts.exit
    # Without a record, or ended by us after its result, the exit status says nothing about the run.
    ours = ended is None or facts.stop is not None
    run = EndedRun(
        parsed=facts.parsed,
        exit_code=0 if ours or ended is None else ended.exit_code,
        signal=None if ours or ended is None else ended.signal,
        stderr_tail=facts.stderr_tail,
        requested_session_id=facts.requested_session_id,
        ended_at=None if ended is None else datetime.fromtimestamp(ended.ended_at, UTC),
    )
    try:
        return provider.classify(run)
    except Exception as error:
        log.exception("classifier_failed", provider=provider.name)
        return Verdict(Reason.UNKNOWN.value, "Segue could not judge how the run ended.", repr(error))


def _from_verdict(verdict: Verdict, facts: EndFacts) -> Ending:
    if verdict.reason == Reason.COMPLETED.value:
        if facts.parsed.result_seen and facts.parsed.success:
            return COMPLETED
        # A success needs a success result, whatever an adapter says (field notes O10, O11).
        return failure(
            Reason.EMPTY_OUTPUT, "The agent exited without a result.", _last_line(facts.stderr_tail)
        )
    return Ending(
        status=OutcomeStatus.FAILED,
        reason=verdict.reason,
        message=verdict.message,
        evidence=verdict.evidence[:EVIDENCE_LIMIT],
        resume_refused=verdict.resume_refused,
        resets_at=verdict.resets_at or facts.parsed.resets_at,
    )


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.split("\n") if line.strip()]
    return lines[-1][:EVIDENCE_LIMIT] if lines else ""
