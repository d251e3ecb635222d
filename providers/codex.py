"""Codex (``codex exec``): its command, its ways to fail, its session files.

Written against 0.171.0 (recordings in ``tests/providers/captures/codex``). What its output means is in
`codex_parser`, how it states the end of a limit in `codex_resets`.
"""

import glob
import re
from collections.abc import Mapping
from datetime import UTC, datetime, tzinfo
from pathlib import Path
from uuid import UUID

from domain.reasons import Reason
from providers import classification
from providers.arguments import Takes, foreign_args
from providers.base import EndedRun, Launch, LaunchRequest, Limits, ParsedRun, Verdict
from providers.codex_parser import RECONNECTING, CodexParser
from providers.codex_resets import stated_reset

#: What would reach hosts beside the model's API, which a closed network has not, or change the CLI under us.
_QUIET = tuple(
    word
    for setting in (
        "check_for_update_on_startup=false",
        "analytics.enabled=false",
        "features.plugins=false",
        "features.apps=false",
        "features.remote_plugin=false",
        "features.plugin_sharing=false",
    )
    for word in ("-c", setting)
)
_FIXED = ("--json", "--skip-git-repo-check")
_BYPASS = "--dangerously-bypass-approvals-and-sandbox"

#: Flags that change how Codex talks to us, which session it takes or where it works: ours alone. Codex
#: refuses a flag that is given twice.
_OWN_FLAGS = {
    "--json": Takes.NOTHING,
    "--experimental-json": Takes.NOTHING,
    "--skip-git-repo-check": Takes.NOTHING,
    "--last": Takes.NOTHING,
    "--all": Takes.NOTHING,
    "--ephemeral": Takes.NOTHING,
    "--remote": Takes.VALUE,
    "--remote-auth-token-env": Takes.VALUE,
    "-C": Takes.VALUE,
    "--cd": Takes.VALUE,
    "--worktree": Takes.NOTHING,
    "-h": Takes.NOTHING,
    "--help": Takes.NOTHING,
    "-V": Takes.NOTHING,
    "--version": Takes.NOTHING,
}
_MODEL_FLAGS = {"-m": Takes.VALUE, "--model": Takes.VALUE}
#: A person's choice among these replaces ours. ``exec`` never waits for an approval: what is not permitted
#: fails.
_PERMISSIONS = re.compile(
    rf"(?:-s.*|--sandbox(?:=.*)?|--approve-for-me|--full-auto|--yolo|{_BYPASS}"
    r"|(?:-c|--config=)?(?:sandbox_mode|approval_policy)\s*=.*)",
    re.DOTALL,
)

#: Error codes of the API that settle the reason, whatever the status or the text.
_CERTAIN = {
    "context_length_exceeded": Reason.CONTEXT_OVERFLOW,
    "insufficient_quota": Reason.PROVIDER_QUOTA_LIMIT,
    "usage_limit_reached": Reason.PROVIDER_QUOTA_LIMIT,
    "usage_not_included": Reason.PROVIDER_AUTH_OR_ACCESS,
    "rate_limit_exceeded": Reason.PROVIDER_RATE_LIMIT,
    "server_is_overloaded": Reason.PROVIDER_RATE_LIMIT,
    "model_not_found": Reason.MODEL_UNAVAILABLE,
    "invalid_prompt": Reason.REFUSAL,
    "cyber_policy": Reason.REFUSAL,
}
#: Codex's own sentences, of which `classification` knows nothing. Each begins the message.
_SENTENCES = tuple(
    (re.compile(pattern, re.IGNORECASE), reason)
    for pattern, reason in (
        (r"codex ran out of room in the model['’]s context window", Reason.CONTEXT_OVERFLOW),
        (r"you(?:['’]ve)? hit your (?:usage limit|spend cap)", Reason.PROVIDER_QUOTA_LIMIT),
        (r"your workspace is out of credits", Reason.PROVIDER_QUOTA_LIMIT),
        (r"to use codex with your chatgpt plan", Reason.PROVIDER_AUTH_OR_ACCESS),
        (r"access blocked by cloudflare", Reason.PROVIDER_AUTH_OR_ACCESS),
        (r"image poisoning", Reason.API_INVALID_REQUEST),
        (r"invalid prompt\b|this (?:request|content) (?:was|has been) flagged", Reason.REFUSAL),
        (r"connection failed:|error while reading the server response", Reason.PROVIDER_NETWORK),
        (r"turn aborted|interrupted \(ctrl-c\)", Reason.PROCESS_FAILURE),
    )
)
#: What an API error's text may make of its status: a 400 may be about credit or context.
_FINER = (Reason.CONTEXT_OVERFLOW, Reason.PROVIDER_QUOTA_LIMIT)

_NOT_RESUMED = re.compile(r"^Error: thread/(?:resume|fork)\b.*?failed: (.*)$", re.MULTILINE)
_BUSY = re.compile(r"already has an active writer")
_TOO_LONG = re.compile(r"^Error: turn/start\b.*Input exceeds the maximum length.*$", re.MULTILINE)


class CodexProvider:
    """The adapter for Codex. ``zone`` is that of the clock times it prints (default: this machine's)."""

    name = "codex"
    can_fork = True
    #: Nothing is printed while the model thinks, before the first item as well as between two: start-up
    #: is no shorter than idleness, and that is the silence after which upstream gives Codex up.
    limits = Limits(startup=10 * 60.0, idle=10 * 60.0)
    #: Threads were seen to be named and used without a file to resume them from.
    verify_session_after_run = True

    def __init__(self, zone: tzinfo | None = None) -> None:
        self._zone = zone

    def executable(self) -> str:
        return "codex"

    def version_argv(self, binary: str) -> tuple[str, ...]:
        return (binary, "--version")

    def command(self, request: LaunchRequest) -> Launch:
        """Everything before the subcommand, where Codex takes more flags than behind ``resume``.

        The agent's own ``args`` come after our settings, so that they may turn plugins on again, and before
        our flags, so that one with many values can't swallow a word of ours.
        """
        own = {**_OWN_FLAGS, **_MODEL_FLAGS} if request.model else _OWN_FLAGS
        extra = foreign_args(request.args, own)
        words = [request.binary, "exec", *_QUIET, *extra]
        if request.model:
            words += ["-m", request.model]
        words += _FIXED
        if not any(_PERMISSIONS.fullmatch(word) for word in extra):
            words.append(_BYPASS)
        if request.session_id is not None:
            words += ["fork" if request.fork else "resume", request.session_id]
        return Launch(argv=(*words, "-"))

    def parser(self, requested_session_id: str | None = None) -> CodexParser:
        return CodexParser(requested_session_id)

    def fork_parser(self) -> CodexParser:
        return CodexParser(forked=True)

    def classify(self, run: EndedRun) -> Verdict:
        """By the turn's end, never by the exit code: a thread that silently replaced another gives 0."""
        if run.parsed.success:
            return _judge_success(run.parsed)
        if run.parsed.result_seen:
            return self._judge_failure(run)
        return self._judge_broken_off(run)

    def session_paths(
        self,
        session_id: str,
        work_dir: str,  # noqa: ARG002 - threads are kept by date, and resumed from anywhere
        env: Mapping[str, str],
    ) -> tuple[str, ...] | None:
        """By date. An archived thread is left out: Codex refuses to resume it."""
        thread_id = _canonical(session_id)
        if thread_id is None:
            return ()
        root = env.get("CODEX_HOME") or str(Path(env.get("HOME") or Path.home(), ".codex"))
        return (str(Path(glob.escape(root), "sessions", "*", "*", "*", f"rollout-*-{thread_id}.jsonl")),)

    def _judge_failure(self, run: EndedRun) -> Verdict:
        text = run.parsed.error_text
        reason = _reason_of(run.parsed)
        waits = reason in (Reason.PROVIDER_QUOTA_LIMIT, Reason.PROVIDER_RATE_LIMIT)
        return classification.failed(
            reason,
            text or "Codex ended its turn with an error and said nothing about it.",
            resets_at=self._resets_at(run) if waits else None,
        )

    def _judge_broken_off(self, run: EndedRun) -> Verdict:
        """A process without the end of a turn."""
        if run.signal is not None or run.exit_code == 0:
            return classification.without_result(run)
        refused = _NOT_RESUMED.search(run.stderr_tail)
        if refused:
            return _judge_refusal(refused[1], run)
        too_long = _TOO_LONG.search(run.stderr_tail)
        if too_long:
            # The thread has not seen it and stays as good as it was.
            return classification.failed(Reason.PROCESS_FAILURE, too_long[0])
        if run.parsed.error_text and run.parsed.error_kind != RECONNECTING:
            return self._judge_failure(run)
        return classification.without_result(run)

    def _resets_at(self, run: EndedRun) -> datetime | None:
        said_at = run.ended_at or datetime.now(UTC)
        return run.parsed.resets_at or stated_reset(run.parsed.error_text, said_at, self._zone)


def _judge_success(parsed: ParsedRun) -> Verdict:
    notice = classification.by_notice(parsed.result_text)
    if notice is None:
        return Verdict(reason=Reason.COMPLETED.value)
    return classification.failed(notice, parsed.result_text)


def _judge_refusal(text: str, run: EndedRun) -> Verdict:
    if _BUSY.search(text):
        message = f"Another Codex process works in this thread: {text}"
        return classification.failed(Reason.PROCESS_FAILURE, message, evidence=text)
    said = classification.by_text(text)
    if said is not None and said.reason in (Reason.DISK_FULL, Reason.PROVIDER_AUTH_OR_ACCESS):
        return classification.failed(said.reason, text)
    refused = run.requested_session_id is not None
    return classification.failed(Reason.RESUME_REJECTED, text, resume_refused=refused)


def _reason_of(parsed: ParsedRun) -> Reason:
    certain = _CERTAIN.get(parsed.error_kind or "")
    if certain is not None:
        return certain
    text = parsed.error_text
    sentence = next((reason for pattern, reason in _SENTENCES if pattern.match(text)), None)
    if sentence is not None:
        return sentence
    said = classification.by_text(text)
    by_text = said.reason if said else None
    if by_text in _FINER:
        return by_text
    return classification.by_status(parsed.error_status) or by_text or Reason.UNKNOWN


def _canonical(text: str) -> str | None:
    """The id as Codex writes it; None for what Codex would take for a thread's name."""
    try:
        canonical = str(UUID(text))
    except ValueError:
        return None
    return canonical if canonical == text.lower() else None
