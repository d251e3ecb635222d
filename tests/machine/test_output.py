"""Lines out of bytes, and events out of lines: whole, bounded, and the same on every reading."""

from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.events import Event, EventType, NumberedEvent
from domain.reasons import Reason
from machine.ending import CANCELLED, Stop, StopCause, failure
from machine.journal import Close, Journal
from machine.output import Line, LineSplitter, OutputFile, stderr_tail
from machine.redaction import Redactor
from machine.transcript import Transcript
from providers.base import ParsedRun
from providers.script import ScriptParser

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def split(chunks: list[bytes], limit: int = 1000) -> list[Line]:
    splitter = LineSplitter(limit)
    lines = [line for chunk in chunks for line in splitter.feed(chunk)]
    torn = splitter.finish()
    return [*lines, *([torn] if torn else [])]


def chunked(data: bytes, sizes: list[int]) -> list[bytes]:
    chunks = []
    position = 0
    for size in sizes:
        chunks.append(data[position : position + size])
        position += size
    return [*chunks, data[position:]]


@given(st.binary(max_size=300), st.lists(st.integers(0, 50), max_size=10))
def test_lines_do_not_depend_on_chunks(data: bytes, sizes: list[int]) -> None:
    """However the bytes arrive, the lines are those between newlines, and nothing else splits."""
    expected = data.split(b"\n")
    if expected[-1] == b"":
        expected.pop()
    assert [line.content for line in split(chunked(data, sizes))] == expected


@given(st.lists(st.integers(1, 40), max_size=12))
def test_a_line_over_the_limit_is_cut_and_counted(sizes: list[int]) -> None:
    """Its true length is known, the next line is whole."""
    lines = split(chunked(b"a" * 200 + b"\nnext\n", sizes), limit=50)
    assert (lines[0].size, lines[0].cut) == (200, True)
    assert lines[1] == Line(b"next", 4)


def test_a_line_at_the_limit_is_whole() -> None:
    """The limit itself is allowed."""
    assert split([b"a" * 50 + b"\n"], limit=50) == [Line(b"a" * 50, 50)]


def transcribe(data: bytes, sizes: list[int], journal: Journal | None = None) -> list[NumberedEvent]:
    transcript = Transcript(ScriptParser(), Redactor(["top-secret-value-1"]), 5, line_limit=150)
    events = [e for chunk in chunked(data, sizes) for e in transcript.feed(chunk, NOW)]
    events += transcript.finish(NOW)
    if journal is not None and journal.close is not None:
        events += transcript.append(journal.close.events, NOW)
    return events


STREAM = b"\n".join(
    [
        b'{"type":"session","session_id":"3f0e5c1a-0000-4000-8000-000000000001"}',
        b'{"type":"text","text":"it ends with top-secret-"}',
        b'{"type":"text","text":"value-1 and goes on"}',
        b'{"type":"text","text":"' + b"z" * 200 + b'"}',
        b"\xff\xfe not json",
        b'{"type":"tool_use","id":"t","name":"n","input":{"k":"top-secret-value-1"}}',
        b'{"type":"text","text":"torn',
    ]
)


@given(st.lists(st.integers(0, 90), max_size=20))
def test_events_are_a_pure_function_of_the_bytes(sizes: list[int]) -> None:
    """Numbers, order and content are the same whatever the chunks; the journal's events come last."""
    once = transcribe(STREAM, [])
    again = transcribe(STREAM, sizes)
    assert again == once
    assert [event.seq for event in once] == list(range(5, 5 + len(once)))


def test_the_journal_completes_the_same_sequence(tmp_path: Path) -> None:
    """What the worker added itself is read back and numbered as it was."""
    own = Event(type=EventType.ERROR, data={"message": "stopped", "reason": "idle_watchdog", "evidence": ""})
    journal = Journal(tmp_path / "journal")
    journal.record_close(Close(len(STREAM), failure(Reason.IDLE_WATCHDOG, "stopped"), (own,)))
    first = transcribe(STREAM, [7, 80], journal)
    assert transcribe(STREAM, [], Journal(tmp_path / "journal")) == first
    assert first[-1].data == own.data


def test_a_parser_that_raises_ends_nothing() -> None:
    """An adapter's defect becomes a raw event."""

    class Broken:
        def feed(self, line: bytes) -> list[Event]:
            raise RuntimeError

        def parsed(self) -> ParsedRun:
            return ParsedRun()

    transcript = Transcript(Broken(), Redactor([]), 1)
    events = transcript.feed(b"one\ntwo\n", NOW)
    assert [event.data["line"] for event in events] == ["one", "two"]


def test_the_journal_keeps_the_first_stop(tmp_path: Path) -> None:
    """A cancel after a watchdog changes nothing, also after a restart."""
    journal = Journal(tmp_path / "journal")
    first = Stop(StopCause.IDLE_WATCHDOG, result_seen=False, detail="silent")
    journal.record_stop(first)
    journal.record_stop(Stop(StopCause.CANCELLED, result_seen=True))
    assert journal.stop == first
    assert Journal(tmp_path / "journal").stop == first


@pytest.mark.parametrize("torn", [b"{", b'{"close": {"offs', b"\x00\x00"])
def test_a_torn_journal_line_is_dropped_and_overwritten(tmp_path: Path, torn: bytes) -> None:
    """A write cut short by a crash or a full disk never fuses with the next one."""
    path = tmp_path / "journal"
    journal = Journal(path)
    journal.record_stop(Stop(StopCause.CANCELLED, result_seen=False))
    with path.open("ab") as file:
        file.write(torn)
    again = Journal(path)
    assert again.stop == journal.stop
    again.record_close(Close(3, CANCELLED))
    assert Journal(path).close == Close(3, CANCELLED)


def test_a_growing_file_is_read_from_its_first_byte(tmp_path: Path) -> None:
    """Reading goes on where it stood, and stops at a closed end."""
    path = tmp_path / "stdout"
    with OutputFile(path) as output:
        assert output.read() == b""
        path.write_bytes(b"abc")
        assert output.read() == b"abc"
        assert output.read() == b""
        with path.open("ab") as file:
            file.write(b"defgh")
        assert output.read(up_to=5) == b"de"
        assert output.read(up_to=5) == b""
        assert (output.offset, output.size) == (5, 8)


def test_the_stderr_tail_is_bounded_and_clean(tmp_path: Path) -> None:
    """The last 8 KiB, as text without colours, invalid bytes and NUL."""
    path = tmp_path / "stderr"
    path.write_bytes(b"x" * 20_000 + b"\x1b[31mred\x1b[0m \xff\x00 end")
    tail = stderr_tail(path)
    assert tail.endswith("red \ufffd\ufffd end")
    assert len(tail) <= 8192
    assert stderr_tail(tmp_path / "none") == ""
