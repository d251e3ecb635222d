"""From bytes to numbered events: a pure function of the output, the journal and the first number."""

from datetime import UTC, datetime

import structlog

from domain.events import Event, EventType, NumberedEvent
from machine.output import LINE_LIMIT, Line, LineSplitter
from machine.redaction import Redactor, Seam
from providers.base import ParsedRun, Parser

log = structlog.get_logger()

#: How much of a line that could not be read is shown.
SHOWN_BYTES = 4096


class Transcript:
    """One process's events in order, redacted and numbered.

    Sizes of chunks and the time between them change nothing but ``at``. Fed by one caller at a time
    (perhaps from a thread); `parsed` may be read by others meanwhile.
    """

    def __init__(
        self, parser: Parser, redactor: Redactor, first_seq: int, line_limit: int = LINE_LIMIT
    ) -> None:
        self._parser = parser
        self._redactor = redactor
        self._seam = Seam(redactor)
        self._splitter = LineSplitter(line_limit)
        self._next_seq = first_seq
        #: What the parser knew after the last chunk.
        self.parsed: ParsedRun = parser.parsed()
        self.result_seq: int | None = None
        self.error_seq: int | None = None

    @property
    def last_seq(self) -> int:
        return self._next_seq - 1

    def feed(self, chunk: bytes, at: datetime) -> list[NumberedEvent]:
        """The events of the lines that ``chunk`` completes."""
        events = [event for line in self._splitter.feed(chunk) for event in self._read(line)]
        self.parsed = self._parser.parsed()
        return self._number(events, at)

    def finish(self, at: datetime) -> list[NumberedEvent]:
        """The events of a torn last line, and what was held back. Call once, after the last chunk."""
        torn = self._splitter.finish()
        events = self._read(torn) if torn else []
        self.parsed = self._parser.parsed()
        return self._number([*events, *self._seam.flush()], at)

    def append(self, events: tuple[Event, ...], at: datetime) -> list[NumberedEvent]:
        """The worker's own events from the journal, after `finish`."""
        return self._number([self._redactor.event(event) for event in events], at)

    def _read(self, line: Line) -> list[Event]:
        content = self._redactor.line(line.content)
        if line.cut:
            return self._seam.feed(_raw(content, line.size, "truncated: the line is over the limit"))
        return [safe for event in self._parse(content) for safe in self._seam.feed(event)]

    def _parse(self, content: bytes) -> list[Event]:
        try:
            return self._parser.feed(content)
        except Exception:
            # An adapter's defect must not end a run, and must do the same on every reading.
            log.exception("parser_failed")
            return [_raw(content, len(content), "not understood")]

    def _number(self, events: list[Event], at: datetime) -> list[NumberedEvent]:
        numbered = []
        for event in events:
            seq = self._next_seq
            self._next_seq += 1
            if event.type is EventType.RESULT:
                self.result_seq = seq
            elif event.type is EventType.ERROR:
                self.error_seq = seq
            numbered.append(NumberedEvent(type=event.type, data=event.data, seq=seq, at=at))
        return numbered


def _raw(content: bytes, size: int, note: str) -> Event:
    text = content[:SHOWN_BYTES].decode("utf-8", "replace").replace("\x00", "\N{REPLACEMENT CHARACTER}")
    return Event(type=EventType.RAW, data={"line": text, "note": note, "bytes": size})


def moment(seconds: float) -> datetime:
    """Seconds since the epoch as UTC."""
    return datetime.fromtimestamp(seconds, UTC)
