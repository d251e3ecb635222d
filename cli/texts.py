"""Texts given on the command line: written there, or held by a file."""

import sys
from pathlib import Path

from domain.errors import InvalidInput

#: A word with one of these that is no file is a mistyped path, not a text.
_PATH_ENDINGS = (".md", ".txt", ".markdown")


def text_of(given: str | None) -> str | None:
    """The file's text if ``given`` names one, stdin's for ``-``, else ``given`` itself.

    Raises `InvalidInput` for what looks like a path and is no file, or isn't UTF-8.
    """
    if given is None:
        return None
    if given == "-":
        return sys.stdin.read()
    if not _is_file(given):
        _refuse_mistyped_path(given)
        return given
    try:
        return Path(given).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{given} is not UTF-8 text.") from error


def _is_file(given: str) -> bool:
    try:
        return Path(given).is_file()
    except (OSError, ValueError):  # too long for a name, or with a NUL
        return False


def _refuse_mistyped_path(given: str) -> None:
    one_word = len(given.split()) == 1
    if one_word and ("/" in given or given.endswith(_PATH_ENDINGS)):
        raise InvalidInput(
            f"There is no file {given}; give the text itself, an existing file, or - for stdin."
        )
