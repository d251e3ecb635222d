"""Any agent that speaks the Agent Client Protocol: `acp_driver` around it, and its endings judged.

The agent's ``args`` are its command (``["codex-acp"]``, ``["gemini", "--acp"]``). The "executable" is the
running interpreter, and the driver a file of this package named by its absolute path: it works from a
checkout, from a wheel and from any directory.

Written against claude-agent-acp 0.49.0 and codex-acp 2.6.0 (recordings in ``tests/providers/captures``), and
against transcripts of Gemini CLI 0.61.0 and OpenCode 1.18.33.
"""

import json
import re
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from domain.reasons import Reason
from providers import acp_driver, classification
from providers.acp_parser import NEEDS_INPUT, REFUSAL, SYSTEM_ERROR, AcpParser
from providers.base import EndedRun, Launch, LaunchRequest, Limits, ParsedRun, Verdict
from providers.classification import NOTICE_LIMIT
from providers.codex_resets import stated_reset
from providers.lines import Json, object_of
from providers.sessions import NO_CONVERSATION

_PROGRAM = str(Path(acp_driver.__file__).resolve())
#: Isolated: neither the working directory's modules nor the person's can stand in for the driver's.
_FLAGS = ("-I",)

#: The driver's and the agent's words that settle the reason, whatever the text.
_CERTAIN = {
    "executable": Reason.RUNTIME_MISSING_EXECUTABLE,
    "command": Reason.MISSING_CONFIG,
    "protocol": Reason.RUNTIME_VERSION_UNSUPPORTED,
    "authentication": Reason.PROVIDER_AUTH_OR_ACCESS,
    "unloadable": Reason.RESUME_REJECTED,
    NO_CONVERSATION: Reason.RESUME_REJECTED,
    NEEDS_INPUT: Reason.NEEDS_INPUT,
    REFUSAL: Reason.REFUSAL,
    "max_tokens": Reason.CONTEXT_OVERFLOW,
    "max_turn_requests": Reason.ITERATION_LIMIT,
    # Nobody of ours asked for it: a cancel of ours is judged by the runner.
    "cancelled": Reason.PROCESS_FAILURE,
}
#: What the text or the status of a failed stage is asked first.
_LIKELY = {"load": Reason.RESUME_REJECTED, "model": Reason.MODEL_UNAVAILABLE}
#: An error while a session is loaded is the session's fault, unless its text is about one of these.
_NOT_THE_SESSION = frozenset(
    {
        Reason.PROVIDER_AUTH_OR_ACCESS,
        Reason.PROVIDER_QUOTA_LIMIT,
        Reason.PROVIDER_RATE_LIMIT,
        Reason.PROVIDER_NETWORK,
        Reason.PROVIDER_SERVER_ERROR,
        Reason.MISSING_CONFIG,
        Reason.DISK_FULL,
    }
)
#: Whole answers that are an API's error (codex-acp and others show it as text and end the turn).
_ERROR_ANSWER = re.compile(
    r"(?:api error|error|stream error|unexpected status|stream disconnected"
    r"|api call failed after \d+ retries|you['’]ve hit your usage limit)\b.{0,300}",
    re.IGNORECASE | re.DOTALL,
)
#: How agents mark a line of stderr as an error (upstream 6.5).
_BANNER = re.compile(r"⚠|❌|\bERROR\b|\bError\b|\bfatal\b")
_HARMLESS = re.compile(r"\b(?:INFO|DEBUG|TRACE)\b")
_BANNER_LINES = 8


class AcpProvider:
    """The adapter for agents behind the driver."""

    name = "acp"
    can_fork = False
    limits = Limits(
        # These agents start a second program, open a session and ask a model before the first event.
        startup=300.0,
        # The driver's own farewell: cancel, end of input, SIGTERM, SIGKILL.
        stop_grace=8.0,
    )

    def executable(self) -> str:
        return sys.executable

    def version_argv(self, binary: str) -> tuple[str, ...]:
        return (binary, *_FLAGS, _PROGRAM, "--version")

    def command(self, request: LaunchRequest) -> Launch:
        words = [request.binary, *_FLAGS, _PROGRAM]
        if request.session_id is not None:
            words.append(f"--load={request.session_id}")
        if request.model:
            words.append(f"--model={request.model}")
        return Launch(argv=(*words, "--", *request.args))

    def parser(self, requested_session_id: str | None = None) -> AcpParser:
        return AcpParser(requested_session_id)

    def classify(self, run: EndedRun) -> Verdict:
        """By the driver's last line; the agent's exit and its stderr speak only where that is silent."""
        if run.parsed.success:
            return _judge_success(run)
        if not run.parsed.result_seen:
            return classification.without_result(run)
        return _judge_failure(run)

    def session_paths(self, session_id: str, work_dir: str, env: Mapping[str, str]) -> tuple[str, ...] | None:  # noqa: ARG002
        """None: where such an agent keeps its sessions is its own affair."""
        return None


def _judge_success(run: EndedRun) -> Verdict:
    parsed = run.parsed
    reason = classification.by_notice(parsed.result_text) or _by_error_answer(parsed.result_text)
    if reason is not None:
        return classification.failed(
            reason, parsed.result_text, resets_at=_resets_at(run, reason, parsed.result_text)
        )
    if not parsed.result_text and not parsed.tools_used:
        complaint = _complaint(run.stderr_tail)
        if complaint is not None:
            return classification.failed(complaint.reason, complaint.line)
    return Verdict(reason=Reason.COMPLETED.value)


def _by_error_answer(text: str) -> Reason | None:
    """The reason of a final answer that is nothing but an error, as the API or the agent prints it."""
    answer = text.strip()
    if not answer or len(answer) > NOTICE_LIMIT:
        return None
    if not _is_error_object(answer) and not _ERROR_ANSWER.fullmatch(answer):
        return None
    said = classification.by_text(answer)
    return said.reason if said else None


def _is_error_object(answer: str) -> bool:
    try:
        value = json.loads(answer)
    except (ValueError, RecursionError):
        return False
    return isinstance(value, dict) and set(value) <= {"type", "error"} and _names_error(value)


def _names_error(value: Json) -> bool:
    error = object_of(value, "error")
    return bool(error.get("type") or error.get("code")) and "message" in error


def _complaint(stderr_tail: str) -> classification.Match | None:
    lines = [line for line in stderr_tail.splitlines() if _BANNER.search(line) and not _HARMLESS.search(line)]
    return classification.by_text("\n".join(lines[-_BANNER_LINES:]))


def _judge_failure(run: EndedRun) -> Verdict:
    parsed = run.parsed
    if parsed.error_kind == "exited":
        return _judge_exit(run)
    reason = _reason_of(parsed)
    refused = reason is Reason.RESUME_REJECTED and run.requested_session_id is not None
    text = parsed.error_text or f"The agent failed ({parsed.error_kind}) and said nothing about it."
    return classification.failed(
        reason, text, resume_refused=refused, resets_at=_resets_at(run, reason, text)
    )


def _resets_at(run: EndedRun, reason: Reason, text: str) -> datetime | None:
    if reason not in (Reason.PROVIDER_QUOTA_LIMIT, Reason.PROVIDER_RATE_LIMIT):
        return None
    return stated_reset(text, run.ended_at or datetime.now(UTC))


def _judge_exit(run: EndedRun) -> Verdict:
    """The agent left in the middle; its last words on stderr may say why."""
    said = classification.by_text(run.stderr_tail)
    if said is None:
        lines = [line.strip() for line in run.stderr_tail.splitlines() if line.strip()]
        evidence = lines[-1] if lines else ""
        return classification.failed(Reason.PROCESS_FAILURE, run.parsed.error_text, evidence=evidence)
    refused = said.reason is Reason.RESUME_REJECTED and run.requested_session_id is not None
    return classification.failed(said.reason, said.line, resume_refused=refused)


def _reason_of(parsed: ParsedRun) -> Reason:
    kind = parsed.error_kind or ""
    if kind in _CERTAIN:
        return _CERTAIN[kind]
    said = classification.by_text(parsed.error_text)
    by_text = said.reason if said else None
    if kind == "load" and by_text not in _NOT_THE_SESSION:
        return _LIKELY[kind]
    by_status = classification.by_status(parsed.error_status)
    if by_text in (Reason.CONTEXT_OVERFLOW, Reason.PROVIDER_QUOTA_LIMIT):
        return by_text
    fallback = Reason.PROVIDER_SERVER_ERROR if kind == SYSTEM_ERROR else Reason.UNKNOWN
    return by_status or by_text or _LIKELY.get(kind, fallback)
