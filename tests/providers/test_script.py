"""The script adapter beside its agent: what its parser makes of odd lines."""

import json
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from domain.events import Event, EventType
from domain.reasons import Reason
from providers.base import EndedRun, Parser
from providers.script import ScriptProvider

SCRIPT = ScriptProvider()

#: The machine may be slow; a slow example is no failure.
AT_ANY_PACE = settings(deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow])


def _feed(parser: Parser, *messages: dict[str, Any]) -> list[Event]:
    return [event for message in messages for event in parser.feed(json.dumps(message).encode())]


def test_an_id_that_was_not_asked_for_counts_only_after_success() -> None:
    """Another session's id is held back until the result, and never adopted by a failure."""
    session = {"type": "session", "session_id": "new"}
    good, bad = SCRIPT.parser("old"), SCRIPT.parser("old")
    assert _feed(good, session) == []
    events = _feed(good, {"type": "result", "success": True, "text": "x"})
    assert [event.type for event in events] == [EventType.SESSION, EventType.RESULT]
    _feed(bad, session, {"type": "result", "success": False, "reason": "refusal"})
    assert bad.parsed().session_id is None


def test_a_result_needs_the_word_true() -> None:
    """Anything else is a failure."""
    parser = SCRIPT.parser()
    _feed(parser, {"type": "result", "success": "true"})
    assert SCRIPT.classify(EndedRun(parser.parsed(), 0, None)).reason == Reason.UNKNOWN


def test_a_reset_time_outside_of_the_calendar_is_none() -> None:
    """A quota without a usable reset time is one without any."""
    parser = SCRIPT.parser()
    (event,) = _feed(parser, {"type": "rate_limit", "status": "rejected", "resets_at": 1e300})
    assert event.data["resets_at"] is None
    assert parser.parsed().resets_at is None


def test_an_unknown_message_is_kept() -> None:
    """As a raw event."""
    (event,) = _feed(SCRIPT.parser(), {"type": "novelty"})
    assert event.type is EventType.RAW


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
_KINDS = st.sampled_from(["session", "text", "tool_use", "tool_result", "rate_limit", "result", "x"])
_MESSAGES = st.fixed_dictionaries(
    {"type": _KINDS},
    optional=dict.fromkeys(
        ["session_id", "text", "id", "input", "output", "resets_at", "success", "error", "reason", "usage"],
        _VALUES,
    ),
).map(lambda message: json.dumps(message).encode())


@AT_ANY_PACE
@given(st.lists(st.binary(max_size=60) | _MESSAGES, max_size=8))
def test_the_parser_takes_anything_and_is_a_function_of_it(output: list[bytes]) -> None:
    """No bytes make it raise or give up, and the same bytes make the same events."""
    first, second = SCRIPT.parser("s"), SCRIPT.parser("s")
    events = [event for line in output for event in first.feed(line)]
    assert events == [event for line in output for event in second.feed(line)]
    assert first.parsed() == second.parsed()
    assert not [event for event in events if "not understood" in event.data.get("note", "")]
    SCRIPT.classify(EndedRun(first.parsed(), 1, None))
