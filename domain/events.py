"""The normalised event: what every provider's output is turned into.

``data`` by type (all text is valid Unicode without NUL and without lone surrogates):

=============  ==============================================================================
session        ``session_id``; optional ``model``, ``version``, ``cwd``
text           ``text``; a long text is several events with ``part`` and ``parts``
thinking       ``text``; parts as above
tool_use       ``id``, ``name``, ``input``
tool_result    ``id``, ``output``, ``is_error``; parts as above
usage          ``input_tokens``, ``output_tokens``, ``cache_read_tokens``, ``cache_write_tokens``,
               ``cost_usd`` (null where the provider states none); totals of this run so far
rate_limit     ``status``, ``resets_at`` (RFC 3339 or null), ``message``
error          ``message``; written by the runner also ``reason`` and ``evidence``
result         ``success``, ``text``; optional ``reason``, ``session_id``
raw            ``line`` (what could not be read as an event, cut), ``note``, ``bytes``
=============  ==============================================================================
"""

from datetime import datetime
from enum import StrEnum
from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class EventType(StrEnum):
    SESSION = "session"
    TEXT = "text"
    THINKING = "thinking"
    TOOL_USE = "tool_use"
    TOOL_RESULT = "tool_result"
    USAGE = "usage"
    RATE_LIMIT = "rate_limit"
    ERROR = "error"
    RESULT = "result"
    RAW = "raw"


class Event(BaseModel):
    """One thing that happened in a run, before it has a number."""

    model_config = ConfigDict(frozen=True)

    type: EventType
    data: dict[str, Any] = Field(default_factory=dict)


class NumberedEvent(Event):
    """An event with its place in the task: ``seq`` counts from 1 over all attempts of a task."""

    seq: int = Field(ge=1)
    at: datetime


class EventBatch(BaseModel):
    """Body of ``POST /runtime/attempts/{id}/events``; seqs ascend without a gap."""

    events: list[NumberedEvent]


class EventsAcked(BaseModel):
    """All events up to ``acked_seq`` are stored."""

    acked_seq: int
