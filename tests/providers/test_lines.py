"""Reading lines that nobody promised to be well formed."""

import json
import math
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from domain.events import EventType
from providers import lines
from providers.lines import PART_LIMIT, RAW_LIMIT, Unreadable, read_line, split_text

#: The machine may be slow; a slow example is no failure.
AT_ANY_PACE = settings(deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow])


def _only(line: bytes) -> dict[str, Any]:
    (found,) = read_line(line)
    assert isinstance(found, dict)
    return found


def _only_unreadable(line: bytes) -> Unreadable:
    (found,) = read_line(line)
    assert isinstance(found, Unreadable)
    return found


def test_an_object_is_read_as_it_is() -> None:
    """A well-formed line gives its object, with characters of every plane."""
    value = {"text": "añ→😀\u2028", "list": [1, 2.5, None, True], "deep": {"a": {}}}
    assert _only(json.dumps(value, ensure_ascii=False).encode()) == value
    assert _only(json.dumps(value).encode()) == value


@pytest.mark.parametrize("line", [b"", b"  \t", b"\r"])
def test_a_blank_line_holds_nothing(line: bytes) -> None:
    """White space is neither an event nor an error."""
    assert read_line(line) == []


def test_invalid_utf8_is_replaced() -> None:
    """Bytes that are no UTF-8 become U+FFFD; the rest of the object is kept."""
    assert _only(b'{"text": "a\xff\xfeb"}') == {"text": "a\ufffd\ufffdb"}


@pytest.mark.parametrize(
    "line",
    [b'{"k\x00": "a\x00b"}', b'{"k\\u0000": "a\\u0000b"}', b'{"k\\ud800": "a\\udfffb"}'],
    ids=["raw NUL", "escaped NUL", "lone surrogate"],
)
def test_what_cannot_be_stored_is_replaced_in_keys_and_values(line: bytes) -> None:
    """NUL and lone surrogates become U+FFFD wherever they stand."""
    assert _only(line) == {"k\ufffd": "a\ufffdb"}


def test_a_pair_of_surrogates_is_a_character() -> None:
    """An escaped pair is one character, not two replacements."""
    assert _only(b'{"t": "\\ud83d\\ude00"}') == {"t": "😀"}


def test_control_characters_in_strings_are_taken() -> None:
    """A raw tab or carriage return in a string does not make the line unreadable."""
    assert _only(b'{"t": "a\tb\rc"}') == {"t": "a\tb\rc"}


def test_two_objects_on_a_line_are_both_read() -> None:
    """Objects that were printed without a newline between them are two."""
    assert read_line(b'{"a": 1}{"b": 2} {"c": 3}') == [{"a": 1}, {"b": 2}, {"c": 3}]


def test_what_follows_an_object_is_kept() -> None:
    """Rubbish behind an object does not cost the object, and is not lost."""
    first, rest = read_line(b'{"a": 1} oops')
    assert first == {"a": 1}
    assert rest == Unreadable("oops", 4, "not JSON")


@pytest.mark.parametrize("line", [b"plain words", b"123", b'"text"', b"[1]", b'{"torn": "of', b"\xff\xfe"])
def test_what_is_no_object_is_unreadable(line: bytes) -> None:
    """Everything but an object becomes a raw event that tells the size."""
    event = _only_unreadable(line).event()
    assert event.type is EventType.RAW
    assert event.data["bytes"] == len(line)
    assert event.data["line"] == line.decode("utf-8", "replace")


def test_an_unreadable_line_is_cut() -> None:
    """A raw event keeps 4 KiB of a line, and its full size."""
    found = _only_unreadable(b"x" * 100_000)
    assert (len(found.line), found.size) == (RAW_LIMIT, 100_000)


def test_deep_nesting_is_unreadable_or_cut() -> None:
    """Nesting that exhausts the decoder makes a raw event; less of it is cut at a fixed depth."""
    assert _only_unreadable(b'{"a":' * 100_000).note == "nested too deep"
    depth = 0
    value: Any = _only(b'{"a":' * 500 + b"1" + b"}" * 500)
    while isinstance(value, dict):
        value = value["a"]
        depth += 1
    assert depth == lines.MAX_DEPTH
    assert "too deep" in value


def test_numbers_that_cannot_be_stored_become_text() -> None:
    """Huge integers, infinities and NaN are kept as strings."""
    huge = "9" * 5000
    line = f'{{"a": {huge}, "b": NaN, "c": -Infinity, "d": 1e999, "e": 123456789012345}}'
    assert _only(line.encode()) == {
        "a": huge,
        "b": "NaN",
        "c": "-Infinity",
        "d": "1e999",
        "e": 123456789012345,
    }


@AT_ANY_PACE
@given(st.binary())
def test_reading_never_raises_and_gives_what_can_be_stored(line: bytes) -> None:
    """Whatever the bytes, the answer is UTF-8 without NUL."""
    for found in read_line(line):
        shown = found.line if isinstance(found, Unreadable) else json.dumps(found, ensure_ascii=False)
        assert "\x00" not in shown
        shown.encode()


@AT_ANY_PACE
@given(
    st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), st.lists, max_leaves=8)
)
def test_objects_of_any_value_are_read(value: object) -> None:
    """What Python's own encoder writes is read back, but for what can't be stored."""
    found = _only(json.dumps({"v": value}).encode())
    if isinstance(value, str):
        assert found["v"] == lines.clean_text(value)
    elif isinstance(value, float) and math.isfinite(value):
        assert found["v"] == value


@AT_ANY_PACE
@given(st.text(), st.integers(min_value=4, max_value=64))
def test_parts_are_small_and_lose_nothing(text: str, limit: int) -> None:
    """Parts keep to the limit in bytes, and joined they are the text."""
    text = lines.clean_text(text)
    parts = split_text(text, limit)
    assert "".join(parts) == text
    assert all(len(part.encode()) <= limit for part in parts)


def test_parts_end_at_white_space_if_they_can() -> None:
    """A word at the limit is not torn in two."""
    text = "x" * (PART_LIMIT - 10) + " " + "secret-word-of-forty-characters-and-more"
    assert split_text(text)[1] == "secret-word-of-forty-characters-and-more"


def test_a_long_text_is_several_events() -> None:
    """Each part says which one it is, and of how many."""
    events = lines.text_events(EventType.TEXT, "text", "é" * PART_LIMIT)
    assert [(event.data["part"], event.data["parts"]) for event in events] == [(1, 2), (2, 2)]
    assert "".join(event.data["text"] for event in events) == "é" * PART_LIMIT


def test_a_large_tool_input_is_cut_with_a_note() -> None:
    """The beginning of the input's JSON is kept, with its size."""
    cut = lines.tool_input({"text": "x" * 200_000})
    assert cut["bytes"] == 200_012
    assert len(cut["json"]) == PART_LIMIT
    assert lines.tool_input({"text": "small"}) == {"text": "small"}


def test_a_long_result_is_cut_and_says_so() -> None:
    """The result event keeps 256 KiB; the whole text is in the text events."""
    event = lines.result_event("x" * 300_000, success=True)
    assert len(event.data["text"]) == lines.RESULT_LIMIT
    assert event.data["truncated"] is True
    assert "truncated" not in lines.result_event("short", success=True).data
