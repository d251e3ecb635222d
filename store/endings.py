"""How a task ends: what its row will say for ever."""

from dataclasses import dataclass

from domain.statuses import TaskStatus


@dataclass(frozen=True)
class Ending:
    """``reason`` is set for every end, ``error`` and ``evidence`` for a failure."""

    status: TaskStatus
    reason: str
    error: str | None = None
    evidence: str | None = None
    result: str | None = None
