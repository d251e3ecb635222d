"""What ``codex exec --json`` prints, as events.

``thread.started`` comes first and names the thread before anything was asked. Then come ``turn.started``,
items (each ``item.started`` and ``item.completed``, or only the latter), and at the end ``turn.completed`` or
``turn.failed``. While the model thinks nothing is printed. An ``error`` line is final unless it begins with
"Reconnecting"; an *item* of type ``error`` is a mere warning.

Usage: ``turn.completed`` counts the whole thread, and a fork goes on with its source's count. A run's own
usage is therefore the stated one only in a new thread. In a resumed or forked thread what came before is not
in the output: the first turn of the process counts as zero, and the ``usage`` event holds the thread's count
as ``thread_total``.
"""

import json
import re
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from domain.events import Event, EventType
from domain.outcomes import Usage
from domain.reasons import Reason
from providers.base import ParsedRun
from providers.lines import (
    RESULT_LIMIT,
    Json,
    JsonLinesParser,
    Unreadable,
    count_of,
    cut_text,
    moment_of,
    object_of,
    objects_of,
    read_line,
    result_event,
    text_events,
    text_of,
    tool_input,
    tool_result_events,
    unknown_message,
)
from providers.sessions import SessionGate

#: `ParsedRun.error_kind` while Codex tries to reach the API again.
RECONNECTING = "reconnecting"

_RECONNECTING = re.compile(r"Reconnecting(?:\.\.\.|…)")
#: Without a counter: Codex tries for ever.
_FOR_EVER = "waiting for network"
_STATUS = re.compile(r"(?:unexpected status|exceeded retry limit, last status:) (\d{3})\b")

#: Item types that are tool calls.
_TOOLS = frozenset(
    {
        "command_execution",
        "file_change",
        "mcp_tool_call",
        "collab_tool_call",
        "web_search",
        "image_generation",
    }
)
_FAILED = frozenset({"failed", "declined", "errored"})


@dataclass(frozen=True)
class _Failure:
    """An error message of Codex, taken apart."""

    text: str
    kind: str | None = None
    status: int | None = None
    resets_at: datetime | None = None


class CodexParser(JsonLinesParser):
    """The state of one Codex process, out of its lines alone.

    ``forked``: the thread is new, but its count of tokens is not.
    """

    def __init__(self, requested_session_id: str | None = None, *, forked: bool = False) -> None:
        self._requested = requested_session_id
        self._gate = SessionGate(requested_session_id)
        self._turn_started = False
        self._tools: set[str] = set()
        self._open: set[str] = set()
        self._answer = ""
        self._plan = ""
        self._error = _Failure("")
        self._waits = False
        self._end: Json | None = None
        self._total = Usage()
        self._before: Usage | None = None if requested_session_id or forked else Usage()

    def read(self, message: Json) -> list[Event]:
        match text_of(message, "type"):
            case "thread.started":
                return self._start_thread(text_of(message, "thread_id"))
            case "turn.started":
                return self._start_turn()
            case "item.started" | "item.updated" | "item.completed":
                return self._item(message)
            case "error":
                return self._complain(text_of(message, "message"))
            case "turn.completed":
                return self._succeed(message)
            case "turn.failed":
                return self._fail(message)
            case _:
                return [unknown_message(message)]

    def parsed(self) -> ParsedRun:
        success = self._succeeded
        error = _Failure("") if success else self._error
        return ParsedRun(
            session_id=self._gate.session_id,
            revealed_session_id=self._gate.waiting_id if self._turn_started else None,
            result_seen=self._end is not None,
            success=success,
            result_text=cut_text(self._answer if success else "", RESULT_LIMIT),
            error_kind=error.kind,
            error_status=error.status,
            error_text=error.text,
            tools_used=len(self._tools),
            open_tools=len(self._open),
            usage=self._usage,
            resets_at=error.resets_at,
            stall_reason=self._stall_reason(),
        )

    @property
    def _succeeded(self) -> bool:
        return self._end is not None and text_of(self._end, "type") == "turn.completed"

    def _stall_reason(self) -> str | None:
        if self._end is not None or not self._turn_started:
            return None
        if self._error.kind == RECONNECTING:
            return Reason.PROVIDER_NETWORK.value
        # A tool that never comes back is not Codex's own silence.
        return None if self._open else Reason.CODEX_SEMANTIC_INACTIVITY.value

    def _start_thread(self, thread_id: str) -> list[Event]:
        self._gate.reveal(thread_id)
        if self._requested is not None and thread_id != self._requested:
            self._before = Usage()  # a new thread instead of the one asked for
        return []

    def _start_turn(self) -> list[Event]:
        self._turn_started = True
        self._end = None
        self._answer = ""
        self._error = _Failure("")
        return []

    # -- items ------------------------------------------------------------------------------------

    def _item(self, message: Json) -> list[Event]:
        item = object_of(message, "item")
        kind = text_of(item, "type")
        completed = text_of(message, "type") == "item.completed"
        if kind == "error":
            return [_transient(text_of(item, "message"))] if completed else []
        events = self._work()
        if kind in _TOOLS:
            return [*events, *self._tool(item, completed=completed)]
        if kind == "todo_list":
            return [*events, *self._todo(item)]
        return [*events, *self._say(item, message)] if completed else events

    def _work(self) -> list[Event]:
        """The model has answered: the prompt was accepted, and the network is there."""
        self._waits = False
        if self._error.kind == RECONNECTING:
            self._error = _Failure("")
        return self._gate.accept() if self._turn_started else []

    def _say(self, item: Json, message: Json) -> list[Event]:
        match text_of(item, "type"):
            case "agent_message":
                self._answer = text_of(item, "text")
                return text_events(EventType.TEXT, "text", self._answer)
            case "reasoning" | "plan":
                return text_events(EventType.THINKING, "text", text_of(item, "text"))
            case _:
                return [unknown_message(message)]

    def _todo(self, item: Json) -> list[Event]:
        rows = (
            f"[{'x' if row.get('completed') is True else ' '}] {text_of(row, 'text')}"
            for row in objects_of(item, "items")
        )
        plan = "\n".join(rows)
        if plan == self._plan:
            return []
        self._plan = plan
        return text_events(EventType.THINKING, "text", plan)

    def _tool(self, item: Json, *, completed: bool) -> list[Event]:
        tool_id = text_of(item, "id")
        events = []
        if tool_id not in self._tools:
            self._tools.add(tool_id)
            self._open.add(tool_id)
            # What was said before a tool was used is not the answer.
            self._answer = ""
            data = {"id": tool_id, "name": _tool_name(item), "input": tool_input(_tool_input(item))}
            events.append(Event(type=EventType.TOOL_USE, data=data))
        if completed:
            self._open.discard(tool_id)
            events += _tool_result(tool_id, item)
        return events

    # -- errors and the end -----------------------------------------------------------------------

    def _complain(self, text: str) -> list[Event]:
        if not _RECONNECTING.match(text):
            self._error = _taken_apart(text)
            return [Event(type=EventType.ERROR, data={"message": text, **_status_of(self._error)})]
        self._error = _Failure(text, RECONNECTING)
        waited = self._waits
        self._waits = _FOR_EVER in text
        # Said again and again it is no sign of life: a watchdog must be able to end it.
        return [] if waited and self._waits else [_transient(text)]

    def _succeed(self, message: Json) -> list[Event]:
        self._end = message
        self._open.clear()
        self._total = _tokens(object_of(message, "usage"))
        if self._before is None:
            self._before = self._total
        usage = Event(type=EventType.USAGE, data=self._usage_data())
        return [*self._gate.succeed(), usage, self._result(self._answer, success=True)]

    def _fail(self, message: Json) -> list[Event]:
        self._end = message
        self._open.clear()
        text = text_of(object_of(message, "error"), "message")
        self._error = _taken_apart(text) if text else self._error
        return [self._result(self._error.text, success=False)]

    def _result(self, text: str, *, success: bool) -> Event:
        session_id = self._gate.session_id
        return result_event(text, success=success, **({"session_id": session_id} if session_id else {}))

    @property
    def _usage(self) -> Usage:
        before = self._before or self._total
        return Usage(
            input_tokens=max(self._total.input_tokens - before.input_tokens, 0),
            output_tokens=max(self._total.output_tokens - before.output_tokens, 0),
            cache_read_tokens=max(self._total.cache_read_tokens - before.cache_read_tokens, 0),
            cache_write_tokens=max(self._total.cache_write_tokens - before.cache_write_tokens, 0),
        )

    def _usage_data(self) -> Json:
        own = self._usage
        data = own.model_dump()
        return data if own == self._total else {**data, "thread_total": self._total.model_dump()}


def _transient(text: str) -> Event:
    return Event(type=EventType.ERROR, data={"message": text, "transient": True})


def _status_of(failure: _Failure) -> Json:
    return {"status": failure.status} if failure.status else {}


def _taken_apart(text: str) -> _Failure:
    """Codex prints the body of a 400 as it is, and names other statuses at the beginning."""
    body = _body(text)
    if body is not None:
        return body
    status = _STATUS.match(text)
    return _Failure(text, status=int(status[1]) if status else None)


def _body(text: str) -> _Failure | None:
    if not text.lstrip().startswith("{"):
        return None
    first = read_line(text.encode("utf-8", "replace"))[0]
    error = {} if isinstance(first, Unreadable) else object_of(first, "error")
    if isinstance(first, Unreadable) or not error:
        return None
    stated = count_of(first, "status") or count_of(first, "status_code")
    return _Failure(
        text=text_of(error, "message") or text,
        kind=text_of(error, "code") or text_of(error, "type") or None,
        status=stated or 400,
        resets_at=moment_of(error, "resets_at"),
    )


def _tool_name(item: Json) -> str:
    match text_of(item, "type"):
        case "mcp_tool_call":
            return f"mcp__{text_of(item, 'server')}__{text_of(item, 'tool')}"
        case "collab_tool_call":
            return text_of(item, "tool") or "collab_tool_call"
        case kind:
            return kind


def _tool_input(item: Json) -> Any:
    match text_of(item, "type"):
        case "command_execution":
            return {"command": text_of(item, "command")}
        case "file_change":
            return {"changes": objects_of(item, "changes")}
        case "mcp_tool_call":
            return item.get("arguments")
        case _:
            wanted = ("query", "action", "prompt", "receiver_thread_ids")
            return {key: item[key] for key in wanted if item.get(key) is not None}


def _tool_result(tool_id: str, item: Json) -> list[Event]:
    exit_code = item.get("exit_code")
    facts = {"exit_code": exit_code} if isinstance(exit_code, int) else {}
    is_error = text_of(item, "status") in _FAILED or bool(object_of(item, "error"))
    return tool_result_events(tool_id, _tool_output(item), is_error=is_error, **facts)


def _tool_output(item: Json) -> str:
    match text_of(item, "type"):
        case "command_execution":
            return text_of(item, "aggregated_output")
        case "file_change":
            changes = objects_of(item, "changes")
            return "\n".join(f"{text_of(change, 'kind')} {text_of(change, 'path')}" for change in changes)
        case "mcp_tool_call":
            return text_of(object_of(item, "error"), "message") or _mcp_text(object_of(item, "result"))
        case "web_search":
            return text_of(item, "query")
        case _:
            return ""


def _mcp_text(result: Json) -> str:
    blocks = objects_of(result, "content")
    texts = (text_of(block, "text") or f"[{text_of(block, 'type') or 'unknown'}]" for block in blocks)
    structured = result.get("structured_content")
    return "\n".join(texts) or ("" if structured is None else json.dumps(structured, ensure_ascii=False))


def _tokens(usage: Json) -> Usage:
    # Codex counts cached tokens among the input tokens, the others of our providers beside them.
    cached, written = count_of(usage, "cached_input_tokens"), count_of(usage, "cache_write_input_tokens")
    return Usage(
        input_tokens=max(count_of(usage, "input_tokens") - cached - written, 0),
        output_tokens=count_of(usage, "output_tokens"),
        cache_read_tokens=cached,
        cache_write_tokens=written,
    )
