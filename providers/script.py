"""The built-in ``script`` agent: `script_agent` run by this Python, and its output read.

There is nothing to install, so the "executable" is the running interpreter and the program is a file of
this package, named by its absolute path: it works from a checkout, from a wheel, and from any directory.
"""

import glob
import sys
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

from domain.events import Event, EventType
from domain.outcomes import Usage
from domain.reasons import Reason
from providers import classification, script_agent
from providers.arguments import Takes, foreign_args
from providers.base import EndedRun, Launch, LaunchRequest, Limits, ParsedRun, Verdict
from providers.lines import (
    RESULT_LIMIT,
    Json,
    JsonLinesParser,
    count_of,
    cut_text,
    moment_of,
    object_of,
    result_event,
    text_events,
    text_of,
    tool_input,
    tool_result_events,
    unknown_message,
)
from providers.sessions import NO_CONVERSATION, SessionGate

_PROGRAM = str(Path(script_agent.__file__).resolve())
#: Isolated, and without site-packages: the program needs none, and starts in half the time.
_FLAGS = ("-I", "-S")
#: Set by `ScriptProvider.command` alone.
_OWN_FLAGS = {"--resume": Takes.VALUE, "--fork": Takes.NOTHING, "--version": Takes.NOTHING}
#: Reasons that end a task without a failure, which a failing result can't claim.
_NO_FAILURE = (Reason.COMPLETED, Reason.CANCELLED)


class ScriptProvider:
    """The adapter for the toy agent."""

    name = "script"
    can_fork = True
    limits = Limits()

    def executable(self) -> str:
        return sys.executable

    def version_argv(self, binary: str) -> tuple[str, ...]:
        return (binary, *_FLAGS, _PROGRAM, "--version")

    def command(self, request: LaunchRequest) -> Launch:
        words = [request.binary, *_FLAGS, _PROGRAM]
        if request.session_id is not None:
            words += ["--resume", request.session_id]
            words += ["--fork"] if request.fork else []
        if request.model:
            words += ["--model", request.model]
        return Launch(argv=(*words, *foreign_args(request.args, _OWN_FLAGS)))

    def parser(self, requested_session_id: str | None = None) -> "ScriptParser":
        return ScriptParser(requested_session_id)

    def classify(self, run: EndedRun) -> Verdict:
        parsed = run.parsed
        if parsed.success:
            return Verdict(reason=Reason.COMPLETED.value)
        if not parsed.result_seen:
            return classification.without_result(run)
        reason = _reason_of(parsed.error_kind)
        refused = reason is Reason.RESUME_REJECTED and run.requested_session_id is not None
        return classification.failed(
            reason, parsed.error_text, resume_refused=refused, resets_at=parsed.resets_at
        )

    def session_paths(self, session_id: str, work_dir: str, env: Mapping[str, str]) -> tuple[str, ...] | None:
        if not script_agent.is_session_id(session_id):
            return ()
        home = env.get("SEGUE_SCRIPT_HOME") or str(Path(env.get("HOME") or Path.home(), ".segue-script"))
        return (glob.escape(script_agent.session_file(home, work_dir, session_id)),)


class ScriptParser(JsonLinesParser):
    """Reads the toy agent's lines; its events are nearly ours already."""

    def __init__(self, requested_session_id: str | None = None) -> None:
        self._gate = SessionGate(requested_session_id)
        self._open: set[str] = set()
        self._tools = 0
        self._resets_at: datetime | None = None
        self._result: Json | None = None

    def read(self, message: Json) -> list[Event]:
        match text_of(message, "type"):
            case "session":
                return self._session(message)
            case "text":
                return text_events(EventType.TEXT, "text", text_of(message, "text"))
            case "tool_use":
                return [self._tool_use(message)]
            case "tool_result":
                return self._tool_result(message)
            case "rate_limit":
                return [self._rate_limit(message)]
            case "result":
                return self._end(message)
            case _:
                return [unknown_message(message)]

    def parsed(self) -> ParsedRun:
        result = self._result or {}
        success = result.get("success") is True
        return ParsedRun(
            session_id=self._gate.session_id,
            result_seen=self._result is not None,
            success=success,
            result_text=cut_text(text_of(result, "text"), RESULT_LIMIT),
            error_kind=None if success else _kind_of(result),
            error_text="" if success else text_of(result, "error"),
            tools_used=self._tools,
            open_tools=len(self._open),
            usage=self._usage(),
            resets_at=self._resets_at,
        )

    def _session(self, message: Json) -> list[Event]:
        # The agent has stored the turn before it prints this line, so the prompt is accepted.
        self._gate.reveal(
            text_of(message, "session_id"),
            model=text_of(message, "model"),
            version=text_of(message, "version"),
            cwd=text_of(message, "cwd"),
        )
        return self._gate.accept()

    def _tool_use(self, message: Json) -> Event:
        tool_id = text_of(message, "id")
        self._tools += 1
        self._open.add(tool_id)
        data = {
            "id": tool_id,
            "name": text_of(message, "name"),
            "input": tool_input(object_of(message, "input")),
        }
        return Event(type=EventType.TOOL_USE, data=data)

    def _tool_result(self, message: Json) -> list[Event]:
        tool_id = text_of(message, "id")
        self._open.discard(tool_id)
        is_error = message.get("is_error") is True
        return tool_result_events(tool_id, text_of(message, "output"), is_error=is_error)

    def _rate_limit(self, message: Json) -> Event:
        self._resets_at = moment_of(message, "resets_at")
        data = {
            "status": text_of(message, "status"),
            "resets_at": self._resets_at.isoformat() if self._resets_at else None,
            "message": text_of(message, "message"),
        }
        return Event(type=EventType.RATE_LIMIT, data=data)

    def _end(self, message: Json) -> list[Event]:
        self._result = message
        self._open.clear()
        success = message.get("success") is True
        events = self._gate.succeed() if success else []
        if object_of(message, "usage"):
            events.append(Event(type=EventType.USAGE, data=self._usage().model_dump()))
        text = text_of(message, "text" if success else "error")
        return [*events, result_event(text, success=success, **self._facts(message))]

    def _facts(self, message: Json) -> dict[str, str]:
        known = {"reason": text_of(message, "reason"), "session_id": self._gate.session_id or ""}
        return {key: value for key, value in known.items() if value}

    def _usage(self) -> Usage:
        usage = object_of(self._result or {}, "usage")
        return Usage(
            input_tokens=count_of(usage, "input_tokens"),
            output_tokens=count_of(usage, "output_tokens"),
        )


def _kind_of(result: Json) -> str | None:
    if text_of(result, "error").startswith(script_agent.NOT_FOUND):
        return NO_CONVERSATION
    return text_of(result, "reason") or None


def _reason_of(kind: str | None) -> Reason:
    if kind == NO_CONVERSATION:
        return Reason.RESUME_REJECTED
    try:
        reason = Reason(kind or "")
    except ValueError:
        return Reason.UNKNOWN
    return Reason.UNKNOWN if reason in _NO_FAILURE else reason
