"""What ``claude -p --output-format stream-json --verbose`` prints, as events.

One JSON object a line, keys in no fixed order. ``system/init`` comes first and names the session before
the API was asked; API errors are ``assistant`` messages that are marked as such; ``result`` comes last. A
success is a result with ``is_error`` false: ``subtype`` says "success" of API errors as well, and the exit
code is 0 after SIGINT.

Cost: ``total_cost_usd`` counts the whole session in 2.1.332 when it is resumed, but only the run in 2.1.197.
The run's own cost is the sum over ``model_usage_since_last_result`` where that is given; else the total,
when the version is known to count a run or no session was resumed; else unknown (null).
"""

import re
from datetime import datetime
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
    list_of,
    moment_of,
    number_of,
    object_of,
    objects_of,
    result_event,
    text_events,
    text_of,
    tool_input,
    tool_result_events,
    unknown_message,
)
from providers.sessions import NO_CONVERSATION, SessionGate

#: `ParsedRun.error_kind` beside Claude's own words.
NEEDS_INPUT = "needs_input"
REFUSAL = "refusal"

#: The tool that asks a person, who is not there.
_QUESTION_TOOL = "AskUserQuestion"
#: Words that say only that something went wrong, or that nothing did.
_VAGUE = frozenset({"", "success", "error_during_execution", "completed", "api_error", "unknown"})
#: The newest version seen to count ``total_cost_usd`` per run.
_COST_PER_RUN = (2, 1, 197)
_NO_CONVERSATION_TEXT = re.compile(
    r"No conversation found with session ID|--resume requires a valid session ID"
)


class ClaudeParser(JsonLinesParser):
    """The state of one Claude process, out of its lines alone."""

    def __init__(self, requested_session_id: str | None = None) -> None:
        self._requested = requested_session_id
        self._gate = SessionGate(requested_session_id)
        self._version = ""
        self._tools: set[str] = set()
        self._open: set[str] = set()
        self._question = ""
        self._api_error: Json = {}
        self._result: Json | None = None
        self._resets_at: datetime | None = None
        self._usage = Usage()
        #: Usage of API messages since the last result, by message: the best there is until the next one.
        self._unbilled: dict[str, Usage] = {}

    def read(self, message: Json) -> list[Event]:
        match text_of(message, "type"):
            case "system":
                return self._system(message)
            case "assistant":
                return self._assistant(message)
            case "user":
                return self._user(message)
            case "stream_event":
                # Pieces of messages that follow as a whole.
                return self._gate.accept()
            case "rate_limit_event":
                return [self._rate_limit(message)]
            case "result":
                return self._end(message)
            case _:
                return [unknown_message(message)]

    def parsed(self) -> ParsedRun:
        result = self._result
        success = result is not None and self._succeeded(result)
        text = "" if result is None else _result_text(result)
        failing = {} if success else self._failure(result)
        return ParsedRun(
            session_id=self._gate.session_id,
            revealed_session_id=self._gate.waiting_id if result is None else None,
            result_seen=result is not None,
            success=success,
            result_text=cut_text(text, RESULT_LIMIT),
            tools_used=len(self._tools),
            open_tools=len(self._open),
            usage=sum(self._unbilled.values(), self._usage),
            resets_at=self._resets_at,
            **failing,
        )

    def _system(self, message: Json) -> list[Event]:
        match text_of(message, "subtype"):
            case "init":
                self._init(message)
            case "api_retry":
                return [*self._gate.accept(), _retry_event(message)]
        return []

    def _init(self, message: Json) -> None:
        self._version = text_of(message, "claude_code_version")
        self._gate.reveal(
            text_of(message, "session_id"),
            model=text_of(message, "model"),
            version=self._version,
            cwd=text_of(message, "cwd"),
        )

    def _assistant(self, message: Json) -> list[Event]:
        events = self._gate.accept()
        facts = _parent(message)
        inner = object_of(message, "message")
        if _is_api_error(message):
            self._api_error = message
            return [*events, _api_error_event(message)]
        self._api_error = {}
        self._count(inner)
        for block in objects_of(inner, "content"):
            events += self._block(block, facts)
        return events

    def _block(self, block: Json, facts: Json) -> list[Event]:
        kind = text_of(block, "type")
        if kind == "text":
            return text_events(EventType.TEXT, "text", text_of(block, "text"), **facts)
        if kind == "thinking":
            return text_events(EventType.THINKING, "text", text_of(block, "thinking"), **facts)
        if kind.endswith("tool_use"):
            return [self._tool_use(block, facts)]
        if kind.endswith("tool_result"):
            return self._tool_result(block, facts)
        return []

    def _tool_use(self, block: Json, facts: Json) -> Event:
        tool_id, name = text_of(block, "id"), text_of(block, "name")
        self._tools.add(tool_id)
        self._open.add(tool_id)
        self._question = _question_of(block) if name == _QUESTION_TOOL else ""
        data = {"id": tool_id, "name": name, "input": tool_input(block.get("input")), **facts}
        return Event(type=EventType.TOOL_USE, data=data)

    def _user(self, message: Json) -> list[Event]:
        events = self._gate.accept()
        for block in objects_of(object_of(message, "message"), "content"):
            if text_of(block, "type").endswith("tool_result"):
                events += self._tool_result(block, _parent(message))
        return events

    def _tool_result(self, block: Json, facts: Json) -> list[Event]:
        tool_id = text_of(block, "tool_use_id")
        self._open.discard(tool_id)
        is_error = block.get("is_error") is True
        return tool_result_events(tool_id, _output_of(block), is_error=is_error, **facts)

    def _rate_limit(self, message: Json) -> Event:
        info = object_of(message, "rate_limit_info")
        status = text_of(info, "status")
        resets_at = moment_of(info, "resetsAt")
        self._resets_at = resets_at if status == "rejected" else None
        data = {
            "status": status,
            "resets_at": resets_at.isoformat() if resets_at else None,
            "message": text_of(info, "rateLimitType"),
        }
        return Event(type=EventType.RATE_LIMIT, data=data)

    def _end(self, message: Json) -> list[Event]:
        self._result = message
        self._open.clear()
        self._usage += self._usage_of(message)
        self._unbilled.clear()
        success = self._succeeded(message)
        events = self._succeed(message) if success else []
        events.append(Event(type=EventType.USAGE, data=self._usage.model_dump()))
        text = _result_text(message)
        session_id = self._gate.session_id
        facts = {"session_id": session_id} if session_id else {}
        return [*events, result_event(text, success=success, **facts)]

    def _succeed(self, result: Json) -> list[Event]:
        if not self._gate.revealed:
            self._gate.reveal(text_of(result, "session_id"))
        return self._gate.succeed()

    def _succeeded(self, result: Json) -> bool:
        return (
            result.get("is_error") is False
            and text_of(result, "subtype") == "success"
            and text_of(result, "stop_reason") != REFUSAL
            and not self._question
            and not self._ends_with_api_error(result)
        )

    def _ends_with_api_error(self, result: Json) -> bool:
        # Older versions called an API error a success (upstream #6924): then its message is the result.
        text = _api_error_text(self._api_error)
        return bool(text) and text == text_of(result, "result")

    def _failure(self, result: Json | None) -> dict[str, Any]:
        if result is None:
            return {}
        status = count_of(result, "api_error_status") or count_of(self._api_error, "api_error_status")
        kind = self._error_kind(result)
        text = self._question if kind == NEEDS_INPUT else _result_text(result)
        return {"error_kind": kind, "error_status": status or None, "error_text": text}

    def _error_kind(self, result: Json) -> str:
        if self._was_refused(result):
            return NO_CONVERSATION
        if text_of(result, "stop_reason") == REFUSAL:
            return REFUSAL
        words = (
            text_of(result, "terminal_reason"),
            text_of(result, "subtype"),
            text_of(self._api_error, "error"),
        )
        kind = next((word for word in words if word not in _VAGUE), "")
        if not kind and self._question and result.get("is_error") is False:
            return NEEDS_INPUT
        return kind or words[0] or words[1]

    def _was_refused(self, result: Json) -> bool:
        """Claude ended before it began: no ``init``, no turn."""
        if self._gate.revealed and self._tools:
            return False
        if _NO_CONVERSATION_TEXT.match(_result_text(result).removeprefix("Error: ")):
            return True
        began = self._gate.revealed or count_of(result, "num_turns") > 0
        return self._requested is not None and not began and not text_of(result, "result")

    def _count(self, inner: Json) -> None:
        usage = object_of(inner, "usage")
        if usage:
            self._unbilled[text_of(inner, "id")] = _tokens(usage)

    def _usage_of(self, result: Json) -> Usage:
        models = result.get("model_usage_since_last_result")
        if isinstance(models, dict):
            rows = [row for row in models.values() if isinstance(row, dict)]
            return sum((_model_usage(row) for row in rows), Usage(cost_usd=0.0))
        return _tokens(object_of(result, "usage")).model_copy(update={"cost_usd": self._cost_of(result)})

    def _cost_of(self, result: Json) -> float | None:
        known = self._requested is None or _version(self._version) <= _COST_PER_RUN
        if not known:
            return None
        total = number_of(result, "total_cost_usd")
        # The total of the process so far; what earlier results of it had is counted already.
        return None if total is None else max(total - (self._usage.cost_usd or 0.0), 0.0)


def _is_api_error(message: Json) -> bool:
    return message.get("is_api_error_message") is True or message.get("isApiErrorMessage") is True


def _api_error_text(message: Json) -> str:
    blocks = objects_of(object_of(message, "message"), "content")
    return "".join(text_of(block, "text") for block in blocks)


def _api_error_event(message: Json) -> Event:
    data: Json = {"message": _api_error_text(message)}
    status = count_of(message, "api_error_status")
    if status:
        data["status"] = status
    return Event(type=EventType.ERROR, data=data)


def _retry_event(message: Json) -> Event:
    status = count_of(message, "error_status")
    text = (
        f"The model's API failed ({status or text_of(message, 'error') or 'unknown'}); retry "
        f"{count_of(message, 'attempt')} of {count_of(message, 'max_retries')}"
        f" in {(number_of(message, 'retry_delay_ms') or 0) / 1000:.1f} s."
    )
    return Event(type=EventType.ERROR, data={"message": text, "transient": True})


def _parent(message: Json) -> Json:
    """``parent_id`` of what a subagent says: the tool call that it answers."""
    parent = text_of(message, "parent_tool_use_id")
    return {"parent_id": parent} if parent else {}


def _question_of(block: Json) -> str:
    questions = objects_of(object_of(block, "input"), "questions")
    asked = "\n".join(text_of(question, "question") for question in questions).strip()
    return asked or "The agent asked a question."


def _output_of(block: Json) -> str:
    content = block.get("content")
    if isinstance(content, str):
        return content
    if isinstance(content, dict):
        return _block_text(content)
    return "\n".join(_block_text(part) for part in objects_of(block, "content"))


def _block_text(block: Json) -> str:
    kind = text_of(block, "type")
    return text_of(block, "text") if kind == "text" else f"[{kind or 'unknown'}]"


def _result_text(result: Json) -> str:
    text = text_of(result, "result")
    if text:
        return text
    return "\n".join(error for error in list_of(result, "errors") if isinstance(error, str))


def _tokens(usage: Json) -> Usage:
    return Usage(
        input_tokens=count_of(usage, "input_tokens"),
        output_tokens=count_of(usage, "output_tokens"),
        cache_read_tokens=count_of(usage, "cache_read_input_tokens"),
        cache_write_tokens=count_of(usage, "cache_creation_input_tokens"),
    )


def _model_usage(row: Json) -> Usage:
    return Usage(
        input_tokens=count_of(row, "inputTokens"),
        output_tokens=count_of(row, "outputTokens"),
        cache_read_tokens=count_of(row, "cacheReadInputTokens"),
        cache_write_tokens=count_of(row, "cacheCreationInputTokens"),
        cost_usd=number_of(row, "costUSD"),
    )


def _version(text: str) -> tuple[int, ...]:
    """``2.1.197`` as numbers; a version that can't be read is newer than all."""
    try:
        return tuple(int(part) for part in text.split("."))
    except ValueError:
        return (2**31,)
