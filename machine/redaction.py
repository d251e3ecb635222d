"""Secrets are taken out before anything leaves the machine.

By value: what the agent's environment holds (`secret_values`) and the task's token, as they are, as
JSON writes them, in base64 and percent-encoded. By pattern: the usual shapes of keys and tokens.

Long secrets (`STRONG_LENGTH`) are already replaced in the raw line, before a provider splits a long text
into parts. A secret that an agent streams in pieces over consecutive texts is caught by `Seam`.

Not covered: a secret that the agent transforms in another way (reversed, hex, spelled out), one shorter
than `SHORTEST` characters, and the first two characters of one that is cut just there by the stream.
"""

import base64
import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any
from urllib.parse import quote, urlsplit

from domain.events import Event, EventType

PLACEHOLDER = "[redacted]"
SHORTEST = 6
#: From here on a value is taken for no ordinary word, so the raw line may be changed: a short value
#: there could hit the structure of the agent's own JSON ("result", for example).
STRONG_LENGTH = 16
#: A text that ends with so many first characters of a secret waits for its continuation.
SEAM_LENGTH = 3
#: A hostile stream may not make us hold events for ever.
HELD_LIMIT = 1024

#: Variables that configure rather than authorise; a URL with credentials stays secret.
_PLAIN_NAME = re.compile(r"(?:_BASE_URL|_ENDPOINT|_MODEL|_REGION|_DIR|_HOME|_PATH)$")

PATTERNS = re.compile(
    r"""
    \bsk-(?:ant-|proj-|or-)?[A-Za-z0-9_-]{16,}
    | \bgh[pousr]_[A-Za-z0-9]{20,}
    | \bgithub_pat_[A-Za-z0-9_]{20,}
    | \bglpat-[A-Za-z0-9_-]{16,}
    | \bxox[abeoprs]-[A-Za-z0-9-]{10,}
    | \b(?:AKIA|ASIA)[A-Z0-9]{16}\b
    | \bAIza[A-Za-z0-9_-]{30,}
    | \bsg[tur]_[A-Za-z0-9_-]{16,}
    | \beyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}
    | -----BEGIN[ ](?:[A-Z0-9]+[ ])*PRIVATE[ ]KEY-----
      (?:(?!-----BEGIN)[\s\S])*?
      (?:-----END[ ](?:[A-Z0-9]+[ ])*PRIVATE[ ]KEY-----|\Z)
    """,
    re.VERBOSE,
)
_BEARER = re.compile(r"(\b[Bb]earer\s+)[A-Za-z0-9._~+/-]{12,}=*")
# Of the scheme only the last character: a whole one takes quadratic time in a long dotted text.
_URL_PASSWORD = re.compile(r"([A-Za-z0-9+.-]://[^\s/:@]{1,128}:)[^\s/@]{3,}(@)")
#: One of these is in every text that a pattern can match; looking for them is cheap.
_HINTS = (
    *("sk-", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "glpat-", "xox", "AKIA", "ASIA", "AIza"),
    *("sgt_", "sgu_", "sgr_", "eyJ", "PRIVATE KEY", "earer", "://"),
)


def secret_values(env: Mapping[str, str], *more: str) -> tuple[str, ...]:
    """The values to redact: all of an agent's ``env`` but plain settings, and ``more``; longest first."""
    values = {value for name, value in env.items() if _is_secret(name, value)} | set(more)
    lines = {line.strip() for value in values for line in value.splitlines()}
    return tuple(sorted((v for v in values | lines if len(v) >= SHORTEST), key=lambda v: (-len(v), v)))


def _is_secret(name: str, value: str) -> bool:
    if not _PLAIN_NAME.search(name):
        return True
    parts = urlsplit(value)
    return bool(parts.password or parts.username or parts.query)


def _is_strong(value: str) -> bool:
    # Digits alone could be a bare JSON number, which a placeholder would break.
    return len(value) >= STRONG_LENGTH and not value.isdigit()


def _forms(value: str) -> set[str]:
    encoded = value.encode("utf-8", "surrogateescape")
    escaped = {json.dumps(value, ensure_ascii=ascii_only)[1:-1] for ascii_only in (True, False)}
    forms = {value, *escaped, quote(encoded, safe="")}
    if len(value) >= STRONG_LENGTH:
        forms |= _base64_forms(encoded)
    return {form for form in forms if len(form) >= SHORTEST}


def _base64_forms(encoded: bytes) -> set[str]:
    # Inside a longer encoded text ("user:secret") the value starts at one of three places; the
    # characters that its neighbours share are left out.
    forms = set()
    for shift in range(3):
        text = base64.b64encode(b"\0" * shift + encoded).decode().rstrip("=")
        inner = text[(0, 2, 3)[shift] : len(text) - (1 if (shift + len(encoded)) % 3 else 0)]
        forms |= {inner, inner.translate(str.maketrans("+/", "-_"))}
    return forms


class Redactor:
    """Replaces secrets in lines, texts and events. Pure: the same input gives the same output."""

    def __init__(self, values: Iterable[str]) -> None:
        self.values = tuple(values)
        forms = {form for value in self.values for form in _forms(value)}
        self._forms = sorted(forms, key=lambda form: (-len(form), form))
        strong = {form for value in self.values if _is_strong(value) for form in _forms(value)}
        ordered = sorted(strong, key=lambda form: (-len(form), form))
        self._strong = [form.encode("utf-8", "surrogateescape") for form in ordered]

    def line(self, line: bytes) -> bytes:
        """A raw line without the long secrets."""
        for form in self._strong:
            if form in line:
                line = line.replace(form, PLACEHOLDER.encode())
        return line

    def text(self, text: str) -> str:
        for form in self._forms:
            if form in text:
                text = text.replace(form, PLACEHOLDER)
        if any(hint in text for hint in _HINTS):
            text = PATTERNS.sub(PLACEHOLDER, text)
            text = _BEARER.sub(rf"\1{PLACEHOLDER}", text)
            text = _URL_PASSWORD.sub(rf"\1{PLACEHOLDER}\2", text)
        return text

    def event(self, event: Event) -> Event:
        """The event with every string of its data redacted, keys of nested objects too."""
        data = {key: _mapped(value, self.text) for key, value in event.data.items()}
        return event if data == event.data else event.model_copy(update={"data": data})


def _mapped(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {_mapped(key, change): _mapped(item, change) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_mapped(item, change) for item in value]
    return value


_SEAMED = {EventType.TEXT: "text", EventType.THINKING: "text", EventType.TOOL_RESULT: "output"}


class Seam:
    """Joins what a stream tore: holds a text back while it ends like the beginning of a secret.

    Only the events decide, never the time, so that a second reading gives the same events. A held text is
    let go by the next event, whatever that is.
    """

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._held: list[Event] = []

    def feed(self, event: Event) -> list[Event]:
        """The events that may go out now, redacted."""
        if self._held and _stream_of(self._held[-1]) != _stream_of(event):
            return [*self.flush(), *self.feed(event)]
        self._held.append(event)
        return [] if self._is_open() else self.flush()

    def flush(self) -> list[Event]:
        """Everything held, redacted as the one text that it is."""
        held, self._held = self._held, []
        if len(held) > 1:
            held = self._heal(held)
        return [self._redactor.event(event) for event in held]

    def _is_open(self) -> bool:
        if len(self._held) >= HELD_LIMIT:
            return False
        joined = self._joined()
        return bool(joined) and any(_ends_with_beginning(joined, value) for value in self._redactor.values)

    def _joined(self) -> str:
        longest = max(map(len, self._redactor.values), default=0)
        joined = ""
        for event in reversed(self._held):
            joined = _text_of(event) + joined
            if len(joined) >= longest:
                break
        return joined

    def _heal(self, events: list[Event]) -> list[Event]:
        texts = [_text_of(event) for event in events]
        whole = "".join(texts)
        gone = [span for value in self._redactor.values for span in _spans(whole, value)]
        healed = []
        start = 0
        for event, text in zip(events, texts, strict=True):
            healed.append(_with_text(event, _without(text, start, gone)))
            start += len(text)
        return healed


def _stream_of(event: Event) -> tuple[EventType, Any] | None:
    return (event.type, event.data.get("id")) if event.type in _SEAMED else None


def _text_of(event: Event) -> str:
    field = _SEAMED.get(event.type)
    text = event.data.get(field) if field else None
    return text if isinstance(text, str) else ""


def _with_text(event: Event, text: str) -> Event:
    return event.model_copy(update={"data": {**event.data, _SEAMED[event.type]: text}})


def _ends_with_beginning(text: str, value: str) -> bool:
    tail = text[-(len(value) - 1) :]
    beginning = value[:SEAM_LENGTH]
    start = tail.find(beginning)
    while start >= 0:
        if value.startswith(tail[start:]):
            return True
        start = tail.find(beginning, start + 1)
    return False


def _spans(text: str, value: str) -> list[tuple[int, int]]:
    spans = []
    start = text.find(value)
    while start >= 0:
        spans.append((start, start + len(value)))
        start = text.find(value, start + len(value))
    return spans


def _without(text: str, offset: int, gone: list[tuple[int, int]]) -> str:
    """``text``, from ``offset`` of the whole, without the spans; each is shown once, where it starts."""
    pieces = []
    position = 0
    for start, end in sorted(gone):
        low, high = max(start - offset, 0), min(end - offset, len(text))
        if low >= high or high <= position:
            continue
        pieces.append(text[position : max(low, position)])
        if start >= offset:
            pieces.append(PLACEHOLDER)
        position = high
    return "".join([*pieces, text[position:]])
