"""Output: what a pipe gets, and what a terminal is spared."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from cli.output import Column, Format, Output, ago, harmless, width

_COLUMNS = (Column("name", "name"), Column("size", lambda row: row["n"] * 2))
_ROWS: list[dict[str, Any]] = [{"name": "a\tb\nc", "n": 1}, {"name": None, "n": 2}]


def test_pipe_gets_tab_separated_lines(capsys: pytest.CaptureFixture[str]) -> None:
    """One line a row and no heading; text can't break the columns."""
    Output(Format.TEXT).rows(_ROWS, _COLUMNS)
    assert capsys.readouterr().out == "a b c\t2\n\t4\n"


def test_json_is_the_rows_themselves(capsys: pytest.CaptureFixture[str]) -> None:
    """Programs get everything that the API said, as one array."""
    Output(Format.JSON).rows(_ROWS, _COLUMNS)
    assert json.loads(capsys.readouterr().out) == _ROWS


def test_jsonl_is_one_object_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    """Each line is an object of its own."""
    Output(Format.JSONL).rows(_ROWS, _COLUMNS)
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == _ROWS


def test_one_thing_as_text_shows_what_was_chosen(capsys: pytest.CaptureFixture[str]) -> None:
    """A pipe gets every field, also an empty one, so that lines can be counted on."""
    Output(Format.TEXT).one({"id": 1}, {"id": "1", "result": None, "words": ["a", "b"]})
    assert capsys.readouterr().out == "id\t1\nresult\t\nwords\ta, b\n"


@pytest.mark.parametrize(
    "hostile",
    ["\x1b[2Jgone", "\x1b]0;title\x07gone", "go\x00ne", "\x9b2Jgone".replace("2J", ""), "go\x08ne"],
)
def test_control_sequences_never_reach_the_terminal(hostile: str) -> None:
    """An agent's text must not move the cursor, set titles or delete what was printed."""
    assert harmless(hostile) == "gone"


def test_ordinary_text_stays_as_it_is() -> None:
    """Lines, tabs and other scripts are text."""
    assert harmless("a\tb\r\nc — 漢字 é") == "a\tb\nc — 漢字 é"


def test_width_counts_terminal_columns() -> None:
    """Wide letters take two columns, combining marks none."""
    assert (width("abc"), width("漢字"), width("e\u0301")) == (3, 4, 1)


def test_times_are_relative() -> None:
    """People read how long ago, or how long until."""
    now = datetime.now(UTC)
    assert ago(now - timedelta(minutes=3, seconds=5)) == "3m ago"
    assert ago(now + timedelta(hours=2, seconds=5)) == "in 2h"
