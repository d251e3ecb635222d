"""Reading JSON lines that nobody promised to be well formed (field notes O2-O7).

Bytes in, JSON objects out. What is not a JSON object comes back as `Unreadable` and becomes a ``raw``
event, so nothing an agent prints is lost without a trace and nothing it prints stops a run. Every string
that leaves here can be stored: valid Unicode, without NUL and without lone surrogates. Numbers too: those
that JSON text in a database or a browser can't hold are kept as strings.
"""

import json
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from domain.events import Event, EventType
from providers.base import ParsedRun

Json = dict[str, Any]

#: How much of an unreadable line a ``raw`` event keeps, in bytes.
RAW_LIMIT = 4 * 1024
#: Longest text of one event, in bytes of UTF-8; a longer text becomes several events.
PART_LIMIT = 128 * 1024
#: Longest text of a ``result`` event, in bytes of UTF-8.
RESULT_LIMIT = 256 * 1024
#: Deeper values are cut: the stores and browsers behind us recurse, and so do we.
MAX_DEPTH = 64
#: A text is split at white space if there is any this close to the limit, so that a word (a secret
#: that is redacted event by event, for example) is not torn in two.
_SPLIT_WINDOW = 4 * 1024

_TOO_DEEP = "… (nested too deep)"
#: Beyond 2^53 a browser rounds, beyond 4,300 digits Python refuses.
_SAFE_DIGITS = 15
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")


@dataclass(frozen=True)
class Unreadable:
    """A line, or the rest of one, that is not a JSON object."""

    line: str
    size: int
    note: str

    def event(self) -> Event:
        return Event(type=EventType.RAW, data={"line": self.line, "note": self.note, "bytes": self.size})


def unreadable(line: bytes, note: str) -> Unreadable:
    """``line`` cut to `RAW_LIMIT`, with its full size in bytes."""
    return Unreadable(clean_text(line[:RAW_LIMIT].decode("utf-8", "replace")), len(line), note)


def read_line(line: bytes) -> list[Json | Unreadable]:
    """What one line holds: usually one object, sometimes more, perhaps none. Never raises."""
    text = line.decode("utf-8", "replace").removeprefix("\ufeff")
    found: list[Json | Unreadable] = []
    start = _skip_space(text, 0)
    while start < len(text):
        try:
            value, end = _DECODER.raw_decode(text, start)
        except (ValueError, RecursionError) as error:
            found.append(unreadable(_rest(line, text, start), _why(error)))
            break
        if not isinstance(value, dict):
            found.append(unreadable(_rest(line, text, start), "not a JSON object"))
            break
        found.append(_clean_object(value, line))
        start = _skip_space(text, end)
    return found


def clean_text(text: str) -> str:
    """``text`` with NUL and lone surrogates replaced by U+FFFD."""
    return _UNSTORABLE.sub("\ufffd", text)


def split_text(text: str, limit: int = PART_LIMIT) -> list[str]:
    """``text`` in parts of at most ``limit`` bytes of UTF-8 (at least 4); joined they are ``text`` again."""
    if len(text) * 4 <= limit:
        return [text]
    data = text.encode()
    parts = []
    start = 0
    while start < len(data):
        end = _split_point(data, start, limit)
        parts.append(data[start:end].decode())
        start = end
    return parts or [""]


def cut_text(text: str, limit: int) -> str:
    """The beginning of ``text``, at most ``limit`` bytes of UTF-8, cut between characters."""
    if len(text) * 4 <= limit:
        return text
    return text.encode()[:limit].decode("utf-8", "ignore")


def text_events(kind: EventType, field: str, text: str, **facts: Any) -> list[Event]:
    """Events of ``kind`` that together carry ``text`` in ``field``; none for an empty text."""
    parts = split_text(text)
    if len(parts) == 1:
        return [Event(type=kind, data={**facts, field: text})] if text else []
    return [
        Event(type=kind, data={**facts, field: part, "part": number, "parts": len(parts)})
        for number, part in enumerate(parts, 1)
    ]


def tool_result_events(tool_id: str, output: str, *, is_error: bool, **facts: Any) -> list[Event]:
    """The events of one tool result: at least one, also for an empty output."""
    facts = {"id": tool_id, "is_error": is_error, **facts}
    if not output:
        return [Event(type=EventType.TOOL_RESULT, data={**facts, "output": ""})]
    return text_events(EventType.TOOL_RESULT, "output", output, **facts)


def tool_input(value: Any) -> Any:
    """A tool's input as it is, or, when its JSON is larger than `PART_LIMIT`, its beginning with a note."""
    text = json.dumps(value, ensure_ascii=False)
    if len(text) * 4 <= PART_LIMIT:
        return value
    size = len(text.encode())
    if size <= PART_LIMIT:
        return value
    return {
        "note": f"input of {size} bytes cut to its first {PART_LIMIT}",
        "bytes": size,
        "json": cut_text(text, PART_LIMIT),
    }


def result_event(text: str, *, success: bool, **facts: Any) -> Event:
    """The ``result`` event; ``truncated`` says that its text is only the beginning."""
    shown = cut_text(text, RESULT_LIMIT)
    data = {"success": success, "text": shown, **facts}
    if shown != text:
        data["truncated"] = True
    return Event(type=EventType.RESULT, data=data)


def text_of(source: Json, key: str) -> str:
    """The string at ``key``; empty when there is none."""
    value = source.get(key)
    return value if isinstance(value, str) else ""


def object_of(source: Json, key: str) -> Json:
    """The object at ``key``; empty when there is none."""
    value = source.get(key)
    return value if isinstance(value, dict) else {}


def list_of(source: Json, key: str) -> list[Any]:
    """The array at ``key``; empty when there is none."""
    value = source.get(key)
    return value if isinstance(value, list) else []


def objects_of(source: Json, key: str) -> list[Json]:
    """The objects in the array at ``key``."""
    return [value for value in list_of(source, key) if isinstance(value, dict)]


def count_of(source: Json, key: str) -> int:
    """The non-negative whole number at ``key``; 0 when there is none."""
    value = source.get(key)
    is_count = isinstance(value, int) and not isinstance(value, bool)
    return max(value, 0) if is_count and value is not None else 0


def number_of(source: Json, key: str) -> float | None:
    """The number at ``key``."""
    value = source.get(key)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def moment_of(source: Json, key: str) -> datetime | None:
    """The UTC time of the Unix time stamp at ``key``, in seconds; None outside of the calendar."""
    seconds = number_of(source, key)
    if seconds is None:
        return None
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, OSError, ValueError):
        return None


def unknown_message(message: Json) -> Event:
    """The ``raw`` event of a message whose type the adapter doesn't know."""
    line = json.dumps(message, ensure_ascii=False).encode()
    return unreadable(line, "unknown message type").event()


class JsonLinesParser(ABC):
    """A `Parser` for an agent that prints one JSON object a line."""

    def feed(self, line: bytes) -> list[Event]:
        return [event for item in read_line(line) for event in self._events_of(item, line)]

    @abstractmethod
    def parsed(self) -> ParsedRun: ...

    @abstractmethod
    def read(self, message: Json) -> list[Event]:
        """The events of one of the agent's messages."""

    def _events_of(self, item: Json | Unreadable, line: bytes) -> list[Event]:
        if isinstance(item, Unreadable):
            return [item.event()]
        try:
            return self.read(item)
        except Exception as error:  # noqa: BLE001 - a defect here would fail each adoption of the run anew
            return [unreadable(line, f"not understood: {type(error).__name__}").event()]


def _why(error: Exception) -> str:
    return "nested too deep" if isinstance(error, RecursionError) else "not JSON"


def _rest(line: bytes, text: str, start: int) -> bytes:
    return text[start:].encode() if start else line


def _skip_space(text: str, start: int) -> int:
    while start < len(text) and text[start] in " \t\r\n":
        start += 1
    return start


def _split_point(data: bytes, start: int, limit: int) -> int:
    end = start + limit
    if end >= len(data):
        return len(data)
    space = max(data.rfind(mark, max(start, end - _SPLIT_WINDOW), end) for mark in (b"\n", b" "))
    if space > start:
        return space + 1
    while data[end] & 0xC0 == 0x80:  # a UTF-8 continuation byte
        end -= 1
    return end


def _clean_object(value: Json, line: bytes) -> Json:
    # Most lines are harmless, and looking at the bytes is much cheaper than walking every value.
    harmless = b"\\u" not in line and b"\x00" not in line
    shallow = line.count(b"{") + line.count(b"[") < MAX_DEPTH
    if harmless and shallow:
        return value
    return dict(_clean_items(value, 1))


def _clean_items(value: Json, depth: int) -> Iterator[tuple[str, Any]]:
    return ((clean_text(key), _clean(item, depth)) for key, item in value.items())


def _clean(value: Any, depth: int) -> Any:
    if isinstance(value, str):
        return clean_text(value)
    if not isinstance(value, dict | list):
        return value
    if depth >= MAX_DEPTH:
        return _TOO_DEEP
    if isinstance(value, dict):
        return dict(_clean_items(value, depth + 1))
    return [_clean(item, depth + 1) for item in value]


def _whole(text: str) -> int | str:
    return int(text) if len(text) <= _SAFE_DIGITS else clean_text(text)


def _fraction(text: str) -> float | str:
    value = float(text)
    return value if math.isfinite(value) else text


#: ``strict=False``: control characters inside strings are taken as they are.
_DECODER = json.JSONDecoder(strict=False, parse_int=_whole, parse_float=_fraction, parse_constant=str)
