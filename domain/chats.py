"""The words of chats: what messages are, and their place in a turn.

A message owns its task: one turn is the person's message, perhaps a notice, and exactly one reply.
"""

import unicodedata
from enum import IntEnum, StrEnum

#: A message that is exactly this starts a new context and runs nothing.
NEW_CONTEXT = "/new"
#: Longer titles are cut, at a character's boundary.
TITLE_LIMIT = 120
DEFAULT_TITLE = "New chat"
_ELLIPSIS = "…"


class ChatStatus(StrEnum):
    ACTIVE = "active"
    ARCHIVED = "archived"


class MessageRole(StrEnum):
    USER = "user"
    ASSISTANT = "assistant"
    SYSTEM = "system"


class MessageKind(StrEnum):
    """``no_response``: the agent ended without a word; ``failure``: its run failed, ``reason`` says why."""

    MESSAGE = "message"
    NO_RESPONSE = "no_response"
    FAILURE = "failure"
    NOTICE = "notice"


class MessageState(StrEnum):
    """A turn that was taken back before it started gives its text back as a draft."""

    SHOWN = "shown"
    DRAFT = "draft"
    REMOVED = "removed"


class Part(IntEnum):
    """The order inside one turn."""

    QUESTION = 0
    NOTICE = 1
    REPLY = 2
    #: After the turn: the notice that a new context begins.
    AFTER = 3


def title_of(text: str) -> str:
    """A title from a message or an issue's title: its first line with words, cut to `TITLE_LIMIT`.

    Cut between characters as people see them: a combining mark stays with its letter.
    """
    lines = (" ".join(line.split()) for line in text.splitlines())
    line = next((line for line in lines if line), "")
    return _cut(line, TITLE_LIMIT) or DEFAULT_TITLE


_JOINER = "\u200d"
_VARIATION = range(0xFE00, 0xFE10)
_SKIN_TONES = range(0x1F3FB, 0x1F400)


def _cut(line: str, limit: int) -> str:
    if len(line) <= limit:
        return line
    end = limit - len(_ELLIPSIS)
    while end > 0 and _joined(line, end):
        end -= 1
    return line[:end].rstrip() + _ELLIPSIS


def _joined(line: str, at: int) -> bool:
    """Does a cut before ``at`` go through one character that people see as a whole?"""
    after, before = line[at], line[at - 1]
    return (
        unicodedata.combining(after) != 0
        or _JOINER in (after, before)
        or ord(after) in _VARIATION
        or ord(after) in _SKIN_TONES
    )
