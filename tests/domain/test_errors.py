"""The tree of errors, as drawn in its module's docstring."""

import inspect
import re

import pytest

from domain import errors
from domain.errors import MachineError, SegueError

_LINE = re.compile(r"^    (?P<branch>[│├└─ ]*)(?P<name>[A-Z]\w+) +(?P<code>\w+)(?: +(?P<status>\d{3}))?")

CLASSES = [
    value
    for _, value in inspect.getmembers(errors, inspect.isclass)
    if issubclass(value, SegueError) and value is not SegueError
]


def drawn() -> dict[str, tuple[str, str, int | None]]:
    """Of every class in the drawing: its parent's name, its code and its HTTP status."""
    tree: dict[str, tuple[str, str, int | None]] = {}
    above: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        found = _LINE.match(line)
        if found is None or found["name"] == "SegueError":
            continue
        depth = len(found["branch"]) // 4
        above[depth - 1 :] = [found["name"]]
        parent = above[depth - 2] if depth > 1 else "SegueError"
        status = int(found["status"]) if found["status"] else None
        tree[found["name"]] = (parent, found["code"], status)
    return tree


def test_the_drawing_is_complete() -> None:
    """Every class is drawn, and nothing else is."""
    assert set(drawn()) == {cls.__name__ for cls in CLASSES}


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_the_drawing_is_true(cls: type[SegueError]) -> None:
    """Parent, code and HTTP status are those of the class; machine errors are never sent."""
    parent, code, status = drawn()[cls.__name__]
    assert (cls.__base__.__name__ if cls.__base__ else None, cls.code) == (parent, code)
    if issubclass(cls, MachineError):
        assert status is None
    else:
        assert cls.http_status == status


def test_codes_are_unique() -> None:
    """Programs compare codes, so each names one error."""
    codes = [cls.code for cls in CLASSES]
    assert len(set(codes)) == len(codes)


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_every_error_says_what_it_is(cls: type[SegueError]) -> None:
    """Each has a title for people and a docstring for readers."""
    assert cls.title
    assert cls.__doc__
