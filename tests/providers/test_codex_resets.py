"""When a limit ends, in each of the wordings."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from providers.codex_resets import stated_reset

NOW = datetime(2026, 11, 30, 21, 0, tzinfo=UTC)
#: One minute is added to a clock time, whose seconds are cut off.
MINUTE = timedelta(minutes=1)


@pytest.mark.parametrize(
    "text,expected",
    [
        ("You’ve hit your usage limit. Try again at 11:05 PM.", datetime(2026, 11, 30, 23, 6, tzinfo=UTC)),
        ("… to purchase more credits or try again at 12:00 PM.", datetime(2026, 11, 30, 12, 1, tzinfo=UTC)),
        ("or try again at Dec 1st, 2026 12:29 AM.", datetime(2026, 12, 1, 0, 30, tzinfo=UTC)),
        ("or try again at Jan 22nd, 2027 9:03 AM.", datetime(2027, 1, 22, 9, 4, tzinfo=UTC)),
        ("Usage limit reached; resets at 9:30 pm", datetime(2026, 11, 30, 21, 31, tzinfo=UTC)),
    ],
)
def test_a_clock_time_is_read(text: str, expected: datetime) -> None:
    """With a date, and without one for the day on which it is said."""
    assert stated_reset(text, NOW, UTC) == expected


@pytest.mark.parametrize(
    "text,seconds",
    [
        ("try again in 5 days 22 hours 11 minutes.", ((5 * 24 + 22) * 60 + 11) * 60.0),
        ("try again in 3h 20m", 200 * 60.0),
        ("try again in 3 hours 1 minute.", 181 * 60.0),
        ("Please try again in 6m0.5s. Visit", 360.5),
        ("Please try again in 1.5s.", 1.5),
        ("Please try again in 20ms.", 0.02),
        ("resets in 2 days, 1 hour", 49 * 3600.0),
        ('{"error": {"type": "usage_limit_reached", "resets_in_seconds": 602705}}', 602705.0),
        ('{"error": {"resets_at": 1796076000}}', 1796076000 - NOW.timestamp()),
    ],
)
def test_a_span_is_read(text: str, seconds: float) -> None:
    """Counted from the moment at which it is said."""
    assert stated_reset(text, NOW) == NOW + timedelta(seconds=seconds)


@pytest.mark.parametrize(
    "text",
    [
        "Try again later.",
        "try again in a while",
        "try again at Foo 3rd, 2026 1:00 PM",
        "try again at Feb 31st, 2026 1:00 PM",
        "try again at Dec 1st, 2226 1:00 PM",
        "try again in 99999999999 days",
        "please try again at 25:99 PM",
        "Limit 30000, Used 20000",
        "",
    ],
)
def test_what_states_no_moment_is_none(text: str) -> None:
    """Nor does a moment that can't be meant."""
    assert stated_reset(text, NOW, UTC) is None


def test_a_clock_time_is_that_of_the_zone() -> None:
    """Codex prints the machine's local time; the day is that of the zone, too."""
    zone = timezone(timedelta(hours=9))  # there it is 6 o'clock on the first of December
    assert stated_reset("try again at 7:00 AM", NOW, zone) == datetime(2026, 11, 30, 22, 1, tzinfo=UTC)


@settings(deadline=None, database=None)
@given(st.text(alphabet='try again inresets at0123456789 :APMdhms.,Dec"_{}', max_size=60))
def test_any_text_is_read(text: str) -> None:
    """Without an error, and to a moment of UTC or none."""
    moment = stated_reset(f"try again {text}", NOW)
    assert moment is None or moment.utcoffset() == timedelta(0)
