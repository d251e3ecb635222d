"""A person's extra arguments, without the flags that an adapter sets itself.

An agent's ``args`` may tune a CLI, but not change how it is spoken to or which session it takes.
"""

from collections.abc import Iterable, Mapping
from enum import Enum, auto


class Takes(Enum):
    """How a flag takes a value when it is not written ``--flag=value``."""

    NOTHING = auto()
    VALUE = auto()
    #: The next word is its value unless it is a flag.
    OPTIONAL_VALUE = auto()


def foreign_args(args: Iterable[str], own: Mapping[str, Takes]) -> tuple[str, ...]:
    """``args`` without the flags in ``own`` and their values, and without ``--`` and all that follows it.

    Knows ``--flag value``, ``--flag=value``, ``-f value``, ``-fvalue`` and bundled short flags; of a bundle
    that begins with one of ours nothing is left. What follows ``--`` would be taken for the prompt, which
    goes to stdin.
    """
    kept: list[str] = []
    words = list(args)
    place = 0
    while place < len(words) and words[place] != "--":
        word = words[place]
        place += 1
        flag = _own_flag(word, own)
        if flag is None:
            kept.append(word)
        elif flag == word and _has_value(own[flag], words[place : place + 1]):
            place += 1
    return tuple(kept)


def _own_flag(word: str, own: Mapping[str, Takes]) -> str | None:
    name = word.partition("=")[0] if word.startswith("--") else word[:2]
    return name if name in own else None


def _has_value(takes: Takes, following: list[str]) -> bool:
    if takes is Takes.OPTIONAL_VALUE:
        return bool(following) and not following[0].startswith("-")
    return takes is Takes.VALUE
