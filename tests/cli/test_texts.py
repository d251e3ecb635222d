"""Texts on the command line: given there, in a file, or on stdin."""

from pathlib import Path

import pytest

from cli.texts import text_of
from domain.errors import InvalidInput


def test_a_file_is_read_and_anything_else_is_the_text(tmp_path: Path) -> None:
    """``--body`` takes both; nothing given stays nothing."""
    file = tmp_path / "body.md"
    file.write_text("from the file\n", encoding="utf-8")
    assert text_of(str(file)) == "from the file\n"
    assert text_of("remember colour=teal\nsay hi") == "remember colour=teal\nsay hi"
    assert text_of("word") == "word"
    assert text_of("x" * 100_000) == "x" * 100_000
    assert text_of(None) is None


@pytest.mark.parametrize("given", ["docs/missing.md", "missing.txt"])
def test_a_mistyped_path_is_an_error_not_a_text(given: str) -> None:
    """One word that looks like a path and is no file is refused, saying what to give."""
    with pytest.raises(InvalidInput, match="no file"):
        text_of(given)
