"""Deadlines over an agent's silence, counted only while the machine and this worker were awake."""

import time
from collections.abc import Callable

from machine.ending import Stop, StopCause
from providers.base import Limits, ParsedRun

#: A longer gap between two looks means that this process did not run (suspend, SIGSTOP, a starved VM).
LONGEST_STEP_SECONDS = 5.0
SLOWEST_TICK_SECONDS = 1.0


class AwakeClock:
    """Seconds awake. Linux's monotonic clock stands still in suspend; the step limit covers the rest."""

    def __init__(self, source: Callable[[], float] = time.monotonic) -> None:
        self._source = source
        self._last = source()
        self._awake = 0.0

    def now(self) -> float:
        current = self._source()
        self._awake += min(max(current - self._last, 0.0), LONGEST_STEP_SECONDS)
        self._last = current
        return self._awake


class Watchdog:
    """Says when a process must be stopped. Life is what the agent itself writes, nothing else."""

    def __init__(self, limits: Limits, clock: AwakeClock | None = None) -> None:
        self._limits = limits
        self._clock = clock or AwakeClock()
        self._quiet_since = self._clock.now()
        self._spoken = False
        self._result_at: float | None = None
        shortest = min(limits.startup, limits.idle, limits.tool_idle, limits.after_result)
        #: How often to ask.
        self.tick = max(0.01, min(SLOWEST_TICK_SECONDS, shortest / 10))

    def heard(self) -> None:
        """The agent wrote an event."""
        self._quiet_since = self._clock.now()
        self._spoken = True

    def unread(self) -> None:
        """There is output that was not read yet: no deadline may pass over it."""
        self._quiet_since = self._clock.now()

    def check(self, parsed: ParsedRun) -> Stop | None:
        """The stop that is due, or null. ``parsed`` is what has been read so far."""
        now = self._clock.now()
        if parsed.result_seen:
            return self._check_leaving(now)
        quiet = now - self._quiet_since
        if not self._spoken:
            limit, cause = self._limits.startup, StopCause.STARTUP_TIMEOUT
        else:
            limit = self._limits.tool_idle if parsed.open_tools > 0 else self._limits.idle
            cause = StopCause.IDLE_WATCHDOG
        if quiet <= limit:
            return None
        return Stop(cause, result_seen=False, detail=_explain(cause, limit, parsed.open_tools))

    def _check_leaving(self, now: float) -> Stop | None:
        if self._result_at is None:
            self._result_at = now
        if now - self._result_at <= self._limits.after_result:
            return None
        return Stop(StopCause.LINGERING, result_seen=True)


def _explain(cause: StopCause, limit: float, open_tools: int) -> str:
    if cause is StopCause.STARTUP_TIMEOUT:
        return f"The agent printed nothing for {limit:g} seconds after its start and was stopped."
    where = " while a tool call was open" if open_tools > 0 else ""
    return f"The agent was silent for {limit:g} seconds{where} and was stopped."
