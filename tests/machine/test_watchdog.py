"""Deadlines by the awake clock, with a clock that the test moves."""

from machine.ending import StopCause
from machine.watchdog import LONGEST_STEP_SECONDS, AwakeClock, Watchdog
from providers.base import Limits, ParsedRun

LIMITS = Limits(startup=10, idle=20, tool_idle=40, after_result=5)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def stop_after(dog: Watchdog, clock: Clock, seconds: float, parsed: ParsedRun) -> StopCause | None:
    """Let time pass in small steps; the cause of the first stop."""
    end = clock.now + seconds
    while clock.now < end:
        clock.now += 1
        if stop := dog.check(parsed):
            return stop.cause
    return None


def watchdog() -> tuple[Watchdog, Clock]:
    clock = Clock()
    return Watchdog(LIMITS, AwakeClock(clock)), clock


def test_the_start_up_deadline_counts_until_the_first_event() -> None:
    """Silence from the start is start-up, not idleness."""
    dog, clock = watchdog()
    assert stop_after(dog, clock, 10, ParsedRun()) is None
    assert stop_after(dog, clock, 2, ParsedRun()) is StopCause.STARTUP_TIMEOUT


def test_each_event_starts_the_idle_time_anew() -> None:
    """Life is what the agent writes."""
    dog, clock = watchdog()
    for _ in range(5):
        dog.heard()
        assert stop_after(dog, clock, 19, ParsedRun()) is None
    assert stop_after(dog, clock, 5, ParsedRun()) is StopCause.IDLE_WATCHDOG


def test_an_open_tool_call_may_take_longer() -> None:
    """The tool limit counts as long as a call is open."""
    dog, clock = watchdog()
    dog.heard()
    assert stop_after(dog, clock, 39, ParsedRun(open_tools=1)) is None
    assert stop_after(dog, clock, 5, ParsedRun(open_tools=1)) is StopCause.IDLE_WATCHDOG


def test_unread_output_is_life() -> None:
    """While reading waits for the API, no deadline passes."""
    dog, clock = watchdog()
    for _ in range(10):
        dog.unread()
        assert stop_after(dog, clock, 9, ParsedRun()) is None


def test_a_result_ends_every_deadline_but_its_own() -> None:
    """After the result only leaving counts."""
    dog, clock = watchdog()
    dog.heard()
    done = ParsedRun(result_seen=True, success=True)
    assert stop_after(dog, clock, 5, done) is None
    assert stop_after(dog, clock, 3, done) is StopCause.LINGERING


def test_sleep_is_not_silence() -> None:
    """An hour during which nobody looked counts as one step."""
    dog, clock = watchdog()
    dog.heard()
    clock.now += 3600
    assert dog.check(ParsedRun()) is None
    assert LIMITS.idle > LONGEST_STEP_SECONDS
