"""Series of seconds, what is made of them, and the table that they end in."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

MILLISECONDS = 1000.0


@dataclass(frozen=True)
class Size:
    """How much is measured; a run takes a few minutes with the usual numbers."""

    rounds: int = 15
    lanes: int = 20
    tasks_a_lane: int = 3
    throughput_rounds: int = 3
    burst: int = 100
    burst_slots: int = 20
    burst_rounds: int = 3
    few_tasks: int = 1_000
    many_tasks: int = 1_000_000
    batches: int = 20
    sleepers: int = 20
    shape_rounds: int = 10
    shapes_in_turn: int = 10


#: Proves that a benchmark works; its numbers mean nothing.
TINY = Size(
    rounds=1,
    lanes=2,
    tasks_a_lane=1,
    throughput_rounds=1,
    burst=4,
    burst_slots=2,
    burst_rounds=1,
    few_tasks=100,
    many_tasks=2_000,
    batches=2,
    sleepers=2,
    shape_rounds=2,
    shapes_in_turn=1,
)


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which ``share`` of the values lie, between the two nearest ones."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def spread(values: Sequence[float], scale: float = MILLISECONDS) -> str:
    """``p10/median/p90``, in milliseconds unless another scale is given."""
    return "/".join(f"{percentile(values, share) * scale:.0f}" for share in (0.1, 0.5, 0.9))


@dataclass(frozen=True)
class Row:
    """One line of the table: a number, its goal, and whether it is met."""

    what: str
    goal: str
    measured: str
    met: bool | None
    floor: str = ""
    ours: str = ""
    notes: list[str] = field(default_factory=list)


def at_most(
    what: str, limit: float, *, floor: Sequence[float], ours: Sequence[float], notes: Sequence[str] = ()
) -> Row:
    """Ours may take ``limit`` times what the floor takes, by the medians."""
    ratio = statistics.median(ours) / statistics.median(floor)
    return Row(
        what,
        f"<= {limit} x",
        f"{ratio:.2f} x",
        ratio <= limit,
        spread(floor),
        spread(ours),
        list(notes),
    )


def at_least(
    what: str, limit: float, *, floor: Sequence[float], ours: Sequence[float], notes: Sequence[str] = ()
) -> Row:
    """Ours must reach ``limit`` times the floor's rate, by the medians (numbers per second)."""
    ratio = statistics.median(ours) / statistics.median(floor)
    return Row(
        what,
        f">= {limit} x",
        f"{ratio:.2f} x",
        ratio >= limit,
        f"{spread(floor, 1)} per s",
        f"{spread(ours, 1)} per s",
        list(notes),
    )


def within(what: str, goal: str, limit: float, ours: Sequence[float], notes: Sequence[str] = ()) -> Row:
    """The median must not exceed ``limit`` (seconds), which was made of floors of the same run."""
    middle = statistics.median(ours)
    return Row(
        what,
        goal,
        f"{middle * MILLISECONDS:.0f} ms",
        middle <= limit,
        f"{limit * MILLISECONDS:.0f}",
        spread(ours),
        list(notes),
    )


def count(what: str, goal: int | None, value: int, notes: Sequence[str] = ()) -> Row:
    """An exact number, and the most it may be."""
    met = None if goal is None else value <= goal
    return Row(what, "counted" if goal is None else f"<= {goal}", str(value), met, notes=list(notes))


def informative(
    what: str,
    *,
    floor: Sequence[float],
    ours: Sequence[float],
    scale: float = MILLISECONDS,
    unit: str = "",
    notes: Sequence[str] = (),
) -> Row:
    """A ratio without a goal, which explains another one or a decision."""
    ratio = statistics.median(ours) / statistics.median(floor)
    before, after = (f"{spread(side, scale)} {unit}".rstrip() for side in (floor, ours))
    return Row(what, "(explains)", f"{ratio:.2f} x", None, before, after, list(notes))


def table(rows: Sequence[Row]) -> str:
    """All rows as text, with their notes below."""
    head = ("what", "goal", "measured", "", "floor p10/50/90", "ours p10/50/90")
    cells = [head, *(_cells(row) for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(head))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in cells]
    notes = [f"  {row.what}: {note}" for row in rows for note in row.notes]
    return "\n".join([*(line.rstrip() for line in lines), *(["", "Notes"] if notes else []), *notes])


def _cells(row: Row) -> tuple[str, ...]:
    verdict = {True: "met", False: "MISSED", None: ""}[row.met]
    return (row.what, row.goal, row.measured, verdict, row.floor, row.ours)
