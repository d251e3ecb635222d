"""How results reach people and programs: tables on a terminal, TSV in a pipe, or JSON.

Results go to stdout, everything else to stderr.
"""

import json
import os
import re
import sys
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

Json = dict[str, Any]

_BOLD, _DIM, _PLAIN = "\x1b[1m", "\x1b[2m", "\x1b[0m"
#: Escape sequences and control characters: what an agent wrote must not drive the person's terminal.
_CONTROL = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|[\x00-\x08\x0b-\x1f\x7f-\x9f]"
)
_WIDEST = 60
_UNITS = ((86400, "d"), (3600, "h"), (60, "m"), (1, "s"))


class Format(StrEnum):
    TEXT = "text"
    JSON = "json"
    JSONL = "jsonl"


@dataclass(frozen=True)
class Column:
    """A table column: its heading, and what to show of a row (a key, or a function of the row)."""

    heading: str
    value: str | Callable[[Json], Any]

    def of(self, row: Json) -> Any:
        return row.get(self.value) if isinstance(self.value, str) else self.value(row)


class Output:
    """Prints in one format; ``terminal`` says whether a person looks at stdout."""

    def __init__(self, form: Format) -> None:
        self.form = form
        self.terminal = sys.stdout.isatty()
        self._colour = self.terminal and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"

    @property
    def text(self) -> bool:
        return self.form is Format.TEXT

    def rows(self, items: Iterable[Json], columns: Sequence[Column]) -> None:
        """A list of things."""
        if self.form is Format.JSONL:
            for item in items:
                self.line(item)
        elif self.form is Format.JSON:
            print(_dumps(list(items), indent=2))
        else:
            self._table(list(items), columns)

    def one(self, item: Json, shown: Mapping[str, Any] | None = None) -> None:
        """One thing; ``shown`` is what text form shows of it (all of it if not given)."""
        if self.form is Format.TEXT:
            self._pairs(shown if shown is not None else item)
        else:
            print(_dumps(item, indent=2 if self.form is Format.JSON else None))
        # A verb may go on to wait for something, and what it has said is worth reading meanwhile.
        sys.stdout.flush()

    def line(self, item: Json) -> None:
        """One JSON object on a line of its own, at once."""
        print(_dumps(item), flush=True)

    def say(self, text: str) -> None:
        """A line of text, at once, made harmless for terminals."""
        print(harmless(text), flush=True)

    def bold(self, text: str) -> str:
        return f"{_BOLD}{text}{_PLAIN}" if self._colour else text

    def dim(self, text: str) -> str:
        return f"{_DIM}{text}{_PLAIN}" if self._colour else text

    def cell(self, value: Any) -> str:
        """A value as text: empty for null, times relative on a terminal."""
        if value is None:
            return ""
        if isinstance(value, bool):
            return "yes" if value else "no"
        if isinstance(value, list):
            return ", ".join(self.cell(one) for one in value)
        if isinstance(value, dict):
            return _dumps(value)
        return self._time(str(value)) if self.terminal else str(value)

    def _table(self, items: list[Json], columns: Sequence[Column]) -> None:
        table = [[_one_line(self.cell(column.of(item))) for column in columns] for item in items]
        if not self.terminal:
            for cells in table:
                print("\t".join(cells))
            return
        if not table:
            notice("nothing to show")
            return
        headings = [column.heading.upper() for column in columns]
        cut = [[_cut(cell, last=i == len(columns) - 1) for i, cell in enumerate(cells)] for cells in table]
        widths = [max(map(width, texts)) for texts in zip(headings, *cut, strict=True)]
        print(self.bold(_row(headings, widths)))
        for cells in cut:
            print(_row(cells, widths))

    def _pairs(self, shown: Mapping[str, Any]) -> None:
        longest = max((len(name) for name in shown), default=0)
        for name, value in shown.items():
            text = self.cell(value)
            if not self.terminal:
                print(f"{name}\t{_one_line(text)}")
            elif text:
                print(f"{self.dim(name.ljust(longest))}  {_indented(harmless(text), longest + 2)}")

    def _time(self, text: str) -> str:
        moment = moment_of(text)
        return text if moment is None else ago(moment)


def notice(text: str) -> None:
    """Something for the person, not part of the result."""
    print(harmless(text), file=sys.stderr, flush=True)


def moment_of(text: str) -> datetime | None:
    """The time that an RFC 3339 text states; None if it is another text."""
    if not re.match(r"\d{4}-\d\d-\d\dT\d\d:", text):
        return None
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return None


def ago(moment: datetime) -> str:
    """``3m ago`` or ``in 2h``."""
    seconds = int((datetime.now(UTC) - moment).total_seconds())
    for size, unit in _UNITS:
        if abs(seconds) >= size:
            return f"{seconds // size}{unit} ago" if seconds > 0 else f"in {-seconds // size}{unit}"
    return "now"


def harmless(text: str) -> str:
    """``text`` without escape sequences and control characters other than newline and tab."""
    return _CONTROL.sub("", text.replace("\r\n", "\n"))


def width(text: str) -> int:
    """Columns that ``text`` takes on a terminal."""
    wide = sum(unicodedata.east_asian_width(letter) in "WF" for letter in text)
    return len(text) + wide - sum(unicodedata.combining(letter) != 0 for letter in text)


def _row(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = [cell + " " * (size - width(cell)) for cell, size in zip(cells, widths, strict=True)]
    return "  ".join(padded).rstrip()


def _cut(text: str, *, last: bool) -> str:
    return text if last or len(text) <= _WIDEST else text[: _WIDEST - 1] + "…"


def _one_line(text: str) -> str:
    return " ".join(harmless(text).split())


def _indented(text: str, by: int) -> str:
    return text.rstrip().replace("\n", "\n" + " " * by)


def _dumps(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)
