"""When a limit ends, out of the words that Codex and OpenAI's API say it with.

Codex names a moment of the machine's local time, cut to the minute: ``try again at 3:28 PM`` when it is
today, else ``try again at Dec 1st, 2026 12:29 AM``. Older versions and the API name a span: ``try again in
5 days 22 hours 11 minutes``, ``try again in 6m0.5s``. Bodies of HTTP answers hold ``resets_at`` (Unix time)
or ``resets_in_seconds``.
"""

import re
from datetime import UTC, datetime, timedelta, tzinfo

_SAYS = r"\b(?:try again|resets?)\s+"
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_CLOCK = re.compile(
    _SAYS + r"(?:at|on)\s+"
    r"(?:(?P<month>[a-z]{3})[a-z]*\.?\s+(?P<day>\d{1,2})(?:st|nd|rd|th)?,?\s+(?P<year>\d{4}),?\s+(?:at\s+)?)?"
    r"(?P<hour>\d{1,2}):(?P<minute>\d{2})\s*(?P<half>[ap]m)\b",
    re.IGNORECASE,
)
_SPAN = re.compile(
    _SAYS + r"in\s+(?P<span>(?:\d+(?:\.\d+)?\s*(?:ms|days?|d|hours?|h|minutes?|min|m|seconds?|s)\b[\s,]*"
    r"|\d+(?:\.\d+)?[dhms](?=\d))+)",
    re.IGNORECASE,
)
_SPAN_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|d|h|m|s)", re.IGNORECASE)
_STAMP = re.compile(r"\"resets_at\"\s*:\s*(\d{9,11})\b")
_SECONDS = re.compile(r"\"resets_in_seconds\"\s*:\s*(\d{1,9})\b")

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
#: Codex cuts the seconds off, so the moment that it states is up to this much too early.
_CUT = timedelta(minutes=1)
#: No limit is longer; what is stated beyond it was misread.
_LONGEST = timedelta(days=400)


def stated_reset(text: str, now: datetime, zone: tzinfo | None = None) -> datetime | None:
    """The moment (UTC) at which ``text`` says that its limit ends; None when it says none.

    ``now`` is when it was said, with a time zone. Clock times are those of ``zone``, by default of this
    machine's own.
    """
    moment = _from_body(text, now) or _from_clock(text, now, zone) or _from_span(text, now)
    if moment is None or not now - _LONGEST < moment < now + _LONGEST:
        return None
    return moment


def _from_body(text: str, now: datetime) -> datetime | None:
    stamp = _STAMP.search(text)
    if stamp:
        return datetime.fromtimestamp(int(stamp[1]), UTC)
    seconds = _SECONDS.search(text)
    return _later(now, float(seconds[1])) if seconds else None


def _from_clock(text: str, now: datetime, zone: tzinfo | None) -> datetime | None:
    found = _CLOCK.search(text)
    if found is None:
        return None
    local = now.astimezone(zone)
    try:
        month = _MONTHS.index(found["month"].lower()) + 1 if found["month"] else local.month
        stated = datetime(
            int(found["year"] or local.year),
            month,
            int(found["day"] or local.day),
            int(found["hour"]) % 12 + (12 if found["half"].lower() == "pm" else 0),
            int(found["minute"]),
            tzinfo=zone,  # without one, astimezone takes the machine's
        )
        return stated.astimezone(UTC) + _CUT
    except (OverflowError, OSError, ValueError):
        return None


def _from_span(text: str, now: datetime) -> datetime | None:
    found = _SPAN.search(text)
    if found is None:
        return None
    return _later(now, sum(float(n) * _UNITS[unit.lower()] for n, unit in _SPAN_PART.findall(found["span"])))


def _later(now: datetime, seconds: float) -> datetime | None:
    if seconds >= _LONGEST.total_seconds():
        return None
    return now.astimezone(UTC) + timedelta(seconds=seconds)
