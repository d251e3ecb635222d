"""Claude Code (``claude -p``): its command, its ways to fail, its session files.

Written against 2.1.332 and 2.1.197 (recordings in ``tests/providers/captures``). What its output means
is in `claude_parser`.
"""

import glob
import os
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID

from domain.reasons import Reason
from providers import classification
from providers.arguments import Takes, foreign_args
from providers.base import EndedRun, Launch, LaunchRequest, Limits, ParsedRun, Verdict
from providers.claude_parser import NEEDS_INPUT, REFUSAL, ClaudeParser
from providers.sessions import NO_CONVERSATION

_FIXED = ("-p", "--output-format", "stream-json", "--verbose")
_BYPASS = ("--permission-mode", "bypassPermissions")

#: Flags that change how Claude talks to us, which session it takes or where it works: ours alone.
_OWN_FLAGS = {
    "-p": Takes.NOTHING,
    "--print": Takes.NOTHING,
    "--output-format": Takes.VALUE,
    "--input-format": Takes.VALUE,
    "--verbose": Takes.NOTHING,
    "--replay-user-messages": Takes.NOTHING,
    "-r": Takes.OPTIONAL_VALUE,
    "--resume": Takes.OPTIONAL_VALUE,
    "--resume-session-at": Takes.VALUE,
    "-c": Takes.NOTHING,
    "--continue": Takes.NOTHING,
    "--session-id": Takes.VALUE,
    "--fork-session": Takes.NOTHING,
    "--no-session-persistence": Takes.NOTHING,
    "--from-pr": Takes.OPTIONAL_VALUE,
    "--teleport": Takes.OPTIONAL_VALUE,
    "--cloud": Takes.OPTIONAL_VALUE,
    "--environment": Takes.VALUE,
    "--remote-control": Takes.OPTIONAL_VALUE,
    "--desktop": Takes.NOTHING,
    "--bg": Takes.NOTHING,
    "--background": Takes.NOTHING,
    "-w": Takes.OPTIONAL_VALUE,
    "--worktree": Takes.OPTIONAL_VALUE,
    "--tmux": Takes.NOTHING,
    "-h": Takes.NOTHING,
    "--help": Takes.NOTHING,
    "-v": Takes.NOTHING,
    "--version": Takes.NOTHING,
}
#: A person's choice among these replaces ours: headless, a permission that is not given is denied
#: and never waited for.
_PERMISSION_FLAGS = ("--permission-mode", "--dangerously-skip-permissions")

_ENV = {
    # An update in the middle of a night's runs changes the output format under us.
    "DISABLE_AUTOUPDATER": "1",
    # Without it each start looks up hosts that a closed network has not.
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    # Nobody is there when a background command ends after the result.
    "CLAUDE_CODE_DISABLE_BACKGROUND_TASKS": "1",
}
#: Claude refuses to bypass permissions as root unless it is told that this is a sandbox.
_ROOT_ENV = {"IS_SANDBOX": "1"}

#: Claude's own words that settle the reason, whatever the status or the text.
_CERTAIN = {
    NO_CONVERSATION: Reason.RESUME_REJECTED,
    NEEDS_INPUT: Reason.NEEDS_INPUT,
    REFUSAL: Reason.REFUSAL,
    "max_turns": Reason.ITERATION_LIMIT,
    "error_max_turns": Reason.ITERATION_LIMIT,
    # The budget counts the whole session, so going on in it would fail at once.
    "budget_exhausted": Reason.ITERATION_LIMIT,
    "error_max_budget_usd": Reason.ITERATION_LIMIT,
    "prompt_too_long": Reason.CONTEXT_OVERFLOW,
    "blocking_limit": Reason.CONTEXT_OVERFLOW,
    "image_error": Reason.API_INVALID_REQUEST,
    "aborted_tools": Reason.PROCESS_FAILURE,
    "aborted_streaming": Reason.PROCESS_FAILURE,
    "authentication_failed": Reason.PROVIDER_AUTH_OR_ACCESS,
    "billing_error": Reason.PROVIDER_QUOTA_LIMIT,
    "model_not_found": Reason.MODEL_UNAVAILABLE,
}
#: Words that only say the area; status and text know better.
_LIKELY = {
    "rate_limit": Reason.PROVIDER_RATE_LIMIT,
    "overloaded": Reason.PROVIDER_RATE_LIMIT,
    "server_error": Reason.PROVIDER_SERVER_ERROR,
    "invalid_request": Reason.API_INVALID_REQUEST,
}
#: What an API error's text may make of its status: a 400 may be about credit or context.
_FINER = (Reason.CONTEXT_OVERFLOW, Reason.PROVIDER_QUOTA_LIMIT)
#: ``Claude AI usage limit reached|<Unix time>`` of older versions.
_RESET_STAMP = re.compile(r"\|(\d{10})\b")


class ClaudeProvider:
    """The adapter for Claude Code. ``as_root`` is whether its processes run as root (default: as we do)."""

    name = "claude"
    can_fork = True
    limits = Limits()

    def __init__(self, *, as_root: bool | None = None) -> None:
        self._as_root = os.geteuid() == 0 if as_root is None else as_root

    def executable(self) -> str:
        return "claude"

    def version_argv(self, binary: str) -> tuple[str, ...]:
        return (binary, "--version")

    def command(self, request: LaunchRequest) -> Launch:
        """Our flags first, the agent's own ``args`` last: a flag with many values can't swallow ours.

        ``--permission-mode`` among them replaces ``bypassPermissions``; flags of the protocol are dropped.
        """
        extra = foreign_args(request.args, _OWN_FLAGS)
        words = [request.binary, *_FIXED]
        if not any(word.partition("=")[0] in _PERMISSION_FLAGS for word in extra):
            words += _BYPASS
        if request.model:
            words += ["--model", request.model]
        if request.session_id is not None:
            words += ["--resume", request.session_id]
            words += ["--fork-session"] if request.fork else []
        return Launch(argv=(*words, *extra), env={**_ENV, **(_ROOT_ENV if self._as_root else {})})

    def parser(self, requested_session_id: str | None = None) -> ClaudeParser:
        return ClaudeParser(requested_session_id)

    def classify(self, run: EndedRun) -> Verdict:
        """By the result event, never by the exit code: SIGINT gives 0, a success may be killed after it."""
        if run.parsed.success:
            return _judge_success(run.parsed)
        if not run.parsed.result_seen:
            return classification.without_result(run)
        return _judge_failure(run)

    def session_paths(
        self,
        session_id: str,
        work_dir: str,  # noqa: ARG002 - see below
        env: Mapping[str, str],
    ) -> tuple[str, ...] | None:
        """In any project's folder: newer versions resume a session from another directory, too."""
        if not _is_uuid(session_id):
            return ()
        root = env.get("CLAUDE_CONFIG_DIR") or str(Path(env.get("HOME") or Path.home(), ".claude"))
        return (str(Path(glob.escape(root), "projects", "*", f"{session_id}.jsonl")),)


def _judge_success(parsed: ParsedRun) -> Verdict:
    notice = classification.by_notice(parsed.result_text)
    if notice is None:
        return Verdict(reason=Reason.COMPLETED.value)
    return classification.failed(notice, parsed.result_text, resets_at=_resets_at(parsed, parsed.result_text))


def _judge_failure(run: EndedRun) -> Verdict:
    parsed = run.parsed
    text = parsed.error_text or run.stderr_tail
    reason = _reason_of(parsed, text)
    refused = reason is Reason.RESUME_REJECTED and run.requested_session_id is not None
    waits = reason in (Reason.PROVIDER_QUOTA_LIMIT, Reason.PROVIDER_RATE_LIMIT)
    return classification.failed(
        reason,
        text or f"Claude ended with {parsed.error_kind or 'an error'} and said nothing about it.",
        resume_refused=refused,
        resets_at=_resets_at(parsed, text) if waits else None,
    )


def _reason_of(parsed: ParsedRun, text: str) -> Reason:
    kind = parsed.error_kind or ""
    if kind in _CERTAIN:
        return _CERTAIN[kind]
    said = classification.by_text(text)
    by_text = said.reason if said else None
    by_status = classification.by_status(parsed.error_status)
    if by_text in _FINER:
        return by_text
    if by_status is Reason.PROVIDER_RATE_LIMIT and parsed.resets_at is not None:
        return Reason.PROVIDER_QUOTA_LIMIT
    return by_status or by_text or _LIKELY.get(kind, Reason.UNKNOWN)


def _resets_at(parsed: ParsedRun, text: str) -> datetime | None:
    stamp = _RESET_STAMP.search(text)
    if parsed.resets_at is None and stamp:
        return datetime.fromtimestamp(int(stamp[1]), UTC)
    return parsed.resets_at


def _is_uuid(text: str) -> bool:
    try:
        return str(UUID(text)) == text.lower()
    except ValueError:
        return False
