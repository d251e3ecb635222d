"""What ``acp_driver`` prints, as events. The driver moves messages; what they mean is decided here.

Agents differ in what they tell: a tool's input comes with the call or with a later update, its output as
text, as a value, as content blocks or as pieces of a terminal. A ``tool_use`` is therefore held back until
its input is known or anything else happens.

The answer is the agent's last message after its last tool call. Text without a message id that follows one
with an id is the agent program's own notice (codex-acp), not the model's answer.

Usage is of the turn in all agents seen, although the protocol's words could mean the session. The cost that
agents state is the session's, so it is the run's only for a new session.
"""

import json
import re
from typing import Any

from domain.events import Event, EventType
from domain.outcomes import Usage
from providers.base import ParsedRun
from providers.lines import (
    RESULT_LIMIT,
    Json,
    JsonLinesParser,
    count_of,
    cut_text,
    number_of,
    object_of,
    objects_of,
    result_event,
    text_events,
    text_of,
    tool_input,
    tool_result_events,
    unknown_message,
    unreadable,
)
from providers.sessions import NO_CONVERSATION, SessionGate

#: `ParsedRun.error_kind` beside the driver's own words: how a turn ended without reaching its end.
END_TURN = "end_turn"
REFUSAL = "refusal"
NEEDS_INPUT = "needs_input"
SYSTEM_ERROR = "system_error"

#: Errors with these codes may be about a session that is not there (upstream 6.6).
_SESSION_CODES = frozenset({-32603, -32602, -32002})
_SESSION_STAGES = ("load", "model", "prompt")
_NO_SESSION = re.compile(
    r"session not found|no session found|unknown session|no conversation found|no rollout found"
    r"|invalid session (?:identifier|id)|session\b[^\n]{0,80}\b(?:does not exist|not found)",
    re.IGNORECASE,
)
#: What an error's data may say in words.
_DETAIL_KEYS = ("details", "detail", "message", "error", "reason")
#: What an output that is an object keeps its text in.
_OUTPUT_KEYS = ("output", "formatted_output", "aggregated_output", "stdout", "text", "error")
_MARKS = {"completed": "x", "in_progress": "~"}


class AcpParser(JsonLinesParser):
    """The state of one driver process, out of its lines alone."""

    def __init__(self, requested_session_id: str | None = None) -> None:
        self._requested = requested_session_id
        self._gate = SessionGate(requested_session_id)
        self._version = ""
        self._tools: set[str] = set()
        self._open: dict[str, _Call] = {}
        self._answer = _Answer()
        self._question = ""
        self._system_error = False
        self._cost: float | None = None
        self._end: Json | None = None
        self._stopped: Json = {}

    def read(self, message: Json) -> list[Event]:
        match text_of(message, "type"):
            case "agent":
                self._version = text_of(message, "version")
                return []
            case "session":
                return self._session(message)
            case "text":
                return self._text(message)
            case "thinking":
                return [*self._told(), *text_events(EventType.THINKING, "text", text_of(message, "text"))]
            case "update":
                return self._update(object_of(message, "update"))
            case "permission":
                return self._permission(message)
            case "question":
                self._question = text_of(message, "text") or "The agent asked a question."
                return self._told()
            case "noise":
                return [_noise_event(message)]
            case "result" | "error" | "stopped":
                return self._finish(message)
            case _:
                return [unknown_message(message)]

    def parsed(self) -> ParsedRun:
        failing = self._failure()
        success = self._end is not None and not failing
        return ParsedRun(
            session_id=self._gate.session_id,
            result_seen=self._end is not None,
            success=success,
            result_text=self._answer.text if success else "",
            tools_used=len(self._tools),
            open_tools=len(self._open),
            usage=self._usage(),
            **failing,
        )

    def _session(self, message: Json) -> list[Event]:
        # The driver has seen the agent work on the prompt before it prints this line.
        model = text_of(message, "model")
        self._gate.reveal(text_of(message, "session_id"), model=model, version=self._version)
        return self._gate.accept()

    def _text(self, message: Json) -> list[Event]:
        text = text_of(message, "text")
        self._answer.add(text, text_of(message, "message_id"))
        return [*self._told(), *text_events(EventType.TEXT, "text", text)]

    def _update(self, update: Json) -> list[Event]:
        match text_of(update, "sessionUpdate"):
            case "tool_call":
                return self._call(update)
            case "tool_call_update":
                return self._call_update(update)
            case "plan":
                return [*self._told(), *text_events(EventType.THINKING, "text", _plan_text(update))]
            case "usage_update":
                self._count_cost(object_of(update, "cost"))
                return []
            case "session_info_update":
                self._look_at_status(update)
                return []
            case _:
                return [unknown_message(update)]

    # -- tools ------------------------------------------------------------------------------------

    def _call(self, update: Json) -> list[Event]:
        tool_id = text_of(update, "toolCallId")
        if tool_id in self._tools:
            return self._call_update(update)
        events = self._told()
        self._tools.add(tool_id)
        self._answer = _Answer()
        self._question = ""
        self._open[tool_id] = _Call(tool_id)
        return [*events, *self._call_update(update)]

    def _call_update(self, update: Json) -> list[Event]:
        tool_id = text_of(update, "toolCallId")
        call = self._open.get(tool_id)
        if call is None:
            # Something more about a call that has ended, or about one that we never heard of.
            return [] if tool_id in self._tools else self._call(update)
        call.take(update)
        if not call.ended:
            return [call.use()] if call.has_input and not call.told else []
        del self._open[tool_id]
        return [*([] if call.told else [call.use()]), *call.result()]

    def _told(self) -> list[Event]:
        """The calls that wait for an input that may never come."""
        return [call.use() for call in self._open.values() if not call.told]

    def _permission(self, message: Json) -> list[Event]:
        asked = object_of(message, "tool_call")
        call = self._open.get(text_of(asked, "toolCallId"))
        if call is not None:
            call.take(asked)  # what is to be permitted is sometimes all that is told of the input
        return [*self._told(), _permission_event(asked, text_of(message, "option"))]

    # -- the end ----------------------------------------------------------------------------------

    def _finish(self, message: Json) -> list[Event]:
        events = self._told()
        self._open.clear()
        if text_of(message, "type") == "stopped":
            self._stopped = message  # not a result: the runner knows what it stopped the run for
            return [*events, *self._usage_events()]
        self._end = message
        failing = self._failure()
        if not failing:
            events += self._gate.succeed()
        events += self._usage_events()
        text = failing["error_text"] if failing else self._answer.text
        session_id = self._gate.session_id
        facts = {"session_id": session_id} if session_id else {}
        return [*events, result_event(text, success=not failing, **facts)]

    def _failure(self) -> dict[str, Any]:
        end = self._end
        if end is None:
            return {}
        if text_of(end, "type") == "error":
            return self._error(end)
        stop_reason = text_of(end, "stop_reason")
        if stop_reason != END_TURN:
            return self._early_end(stop_reason)
        if self._system_error:
            return {"error_kind": SYSTEM_ERROR, "error_text": self._answer.notice or self._answer.text}
        if self._question:
            return {"error_kind": NEEDS_INPUT, "error_text": self._question}
        return {}

    def _early_end(self, stop_reason: str) -> dict[str, Any]:
        text = f"The agent ended its turn with {stop_reason or 'no reason'}."
        silent = not self._tools and not self._answer.text and self._gate.session_id is None
        if stop_reason == REFUSAL and silent and self._requested is not None:
            # Some agents answer so when the session to go on in is lost (upstream 6.6).
            return {"error_kind": NO_CONVERSATION, "error_text": text}
        said = f"{text}\n{self._answer.text}".strip()
        return {"error_kind": stop_reason or "no stop reason", "error_text": said}

    def _error(self, end: Json) -> dict[str, Any]:
        text = _error_text(end)
        stated = end.get("code")
        code = stated if isinstance(stated, int) else None
        status = code if code is not None and 400 <= code <= 599 else None
        kind = text_of(end, "kind")
        if kind in _SESSION_STAGES and code in _SESSION_CODES and _NO_SESSION.search(text):
            kind = NO_CONVERSATION
        return {"error_kind": kind, "error_status": status, "error_text": text}

    def _look_at_status(self, update: Json) -> None:
        """codex-acp tells of a failed turn by its thread's status alone; the turn "ends" as others do."""
        status = object_of(object_of(object_of(update, "_meta"), "codex"), "threadStatus")
        if text_of(status, "type") in ("active", "systemError"):
            self._system_error = text_of(status, "type") == "systemError"

    def _count_cost(self, cost: Json) -> None:
        if self._requested is None and text_of(cost, "currency") == "USD":
            self._cost = number_of(cost, "amount")

    def _usage_events(self) -> list[Event]:
        usage = self._usage()
        return [] if usage == Usage() else [Event(type=EventType.USAGE, data=usage.model_dump())]

    def _usage(self) -> Usage:
        end = self._end or self._stopped
        usage = object_of(end, "usage")
        # Gemini CLI's own place for it.
        quota = object_of(object_of(object_of(end, "meta"), "quota"), "token_count")
        return Usage(
            input_tokens=count_of(usage, "inputTokens") or count_of(quota, "input_tokens"),
            output_tokens=count_of(usage, "outputTokens") or count_of(quota, "output_tokens"),
            cache_read_tokens=count_of(usage, "cachedReadTokens"),
            cache_write_tokens=count_of(usage, "cachedWriteTokens"),
            cost_usd=self._cost,
        )


class _Answer:
    """The text after the last tool call."""

    def __init__(self) -> None:
        self._message_id = ""
        self._text = ""
        #: The newest text that belongs to no message.
        self.notice = ""

    def add(self, text: str, message_id: str) -> None:
        if not message_id:
            self.notice = cut_text(text, RESULT_LIMIT)
        if self._message_id and not message_id:
            return
        if message_id != self._message_id:
            self._message_id, self._text = message_id, ""
        if len(self._text) < RESULT_LIMIT:
            self._text += text

    @property
    def text(self) -> str:
        return cut_text(self._text.strip(), RESULT_LIMIT)


class _Call:
    """A tool call that has not ended."""

    def __init__(self, tool_id: str) -> None:
        self._id = tool_id
        self._known: Json = {}
        self._name = ""
        self._terminal = ""
        self.told = False
        self.ended = False

    @property
    def has_input(self) -> bool:
        return bool(self._known.get("rawInput"))

    def take(self, update: Json) -> None:
        """Later words replace earlier ones; what an update leaves out stays."""
        self._known.update({key: value for key, value in update.items() if value is not None})
        meta = object_of(update, "_meta")
        self._name = _tool_name(update, meta) or self._name
        if len(self._terminal) < RESULT_LIMIT:
            self._terminal += text_of(object_of(meta, "terminal_output_delta"), "data")
        self.ended = text_of(self._known, "status") in ("completed", "failed")

    def use(self) -> Event:
        self.told = True
        title = text_of(self._known, "title")
        name = self._name or text_of(self._known, "kind") or title or "tool"
        given = self._known.get("rawInput") or _locations(self._known)
        data: Json = {"id": self._id, "name": name, "input": tool_input(given)}
        if title and title != name:
            data["title"] = title
        return Event(type=EventType.TOOL_USE, data=data)

    def result(self) -> list[Event]:
        is_error = text_of(self._known, "status") == "failed"
        return tool_result_events(self._id, self._output(), is_error=is_error)

    def _output(self) -> str:
        raw = self._known.get("rawOutput")
        content = "\n".join(filter(None, map(_content_text, objects_of(self._known, "content"))))
        return _raw_text(raw) or self._terminal or content or _as_json(raw)


def _tool_name(update: Json, meta: Json) -> str:
    claude = text_of(object_of(meta, "claudeCode"), "toolName")
    return claude or text_of(update, "name")


def _locations(known: Json) -> Json:
    paths = [text_of(location, "path") for location in objects_of(known, "locations")]
    return {"paths": paths} if paths else {}


def _raw_text(raw: Any) -> str:
    if isinstance(raw, str):
        return raw
    if isinstance(raw, dict):
        return next(filter(None, (text_of(raw, key) for key in _OUTPUT_KEYS)), "")
    return ""


def _as_json(raw: Any) -> str:
    return "" if raw in (None, "", [], {}) else json.dumps(raw, ensure_ascii=False)


def _content_text(block: Json) -> str:
    match text_of(block, "type"):
        case "content":
            inner = object_of(block, "content")
            return text_of(inner, "text") or f"[{text_of(inner, 'type') or 'unknown'}]"
        case "diff":
            return f"[diff of {text_of(block, 'path')}]"
        case "terminal":
            return ""
        case kind:
            return f"[{kind or 'unknown'}]"


def _plan_text(update: Json) -> str:
    entries = objects_of(update, "entries")
    lines = [f"[{_MARKS.get(text_of(e, 'status'), ' ')}] {text_of(e, 'content')}" for e in entries]
    return "\n".join(["Plan:", *lines]) if lines else ""


def _permission_event(asked: Json, option: str) -> Event:
    note = f"permission granted: {option}" if option else "permission refused: nothing in it can be granted"
    return unreadable(text_of(asked, "title").encode(), note).event()


def _noise_event(message: Json) -> Event:
    note = f"from the agent: {text_of(message, 'note')}"
    event = unreadable(text_of(message, "text").encode(), note).event()
    return event.model_copy(update={"data": {**event.data, "bytes": count_of(message, "bytes")}})


def _error_text(end: Json) -> str:
    message = text_of(end, "message")
    details = _details(end.get("data"))
    # One line, since evidence is a line and "Internal error" alone proves nothing.
    return message if not details or details in message else f"{message}: {details}"


def _details(data: Any) -> str:
    if isinstance(data, str):
        return data
    if not isinstance(data, dict):
        return ""
    words = (data.get(key) for key in _DETAIL_KEYS)
    return "\n".join(word if isinstance(word, str) else _details(word) for word in words if word)
