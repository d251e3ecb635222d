"""The worker's own part in a run, kept beside the agent's output.

What the worker does to a run (stopping it, judging it) is not in the bytes that the agent wrote. It is
appended here, synced, before it takes effect, so that a worker that reads the output again from the
first byte comes to the same events, the same numbers and the same outcome.
"""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from domain.events import Event
from machine.ending import Ending, Stop, StopCause


@dataclass(frozen=True)
class Close:
    """The end of one process's output: nothing after byte ``offset`` counts; ``events`` come last."""

    offset: int
    ending: Ending
    events: tuple[Event, ...] = ()


class Journal:
    """JSON lines, append only. One writer (the holder of the tail lock)."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._valid_bytes = 0
        self.stop: Stop | None = None
        self.close: Close | None = None
        for record in self._read():
            self._apply(record)

    def record_stop(self, stop: Stop) -> None:
        """Note the first stop; later ones change nothing. Raises `OSError` (disk full)."""
        if self.stop is None:
            note = {"cause": stop.cause.value, "result_seen": stop.result_seen, "detail": stop.detail}
            self._append({"stop": note}, sync=True)

    def record_close(self, close: Close) -> None:
        """Note the end, once. Raises `OSError` (disk full)."""
        if self.close is None:
            events = [event.model_dump(mode="json") for event in close.events]
            ending = close.ending.model_dump(mode="json")
            # Without events of its own the close can be read out of the files again: no need to sync.
            self._append(
                {"close": {"offset": close.offset, "ending": ending, "events": events}}, sync=bool(events)
            )

    def _append(self, record: dict[str, Any], *, sync: bool) -> None:
        line = json.dumps(record).encode() + b"\n"
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            # A torn line of an earlier, failed append must not fuse with this one (field notes W14).
            os.ftruncate(descriptor, self._valid_bytes)
            written = 0
            while written < len(line):
                written += os.pwrite(descriptor, line[written:], self._valid_bytes + written)
            if sync:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
        self._valid_bytes += len(line)
        self._apply(record)

    def _read(self) -> list[dict[str, Any]]:
        try:
            content = self._path.read_bytes()
        except FileNotFoundError:
            return []
        records = []
        for line in content.split(b"\n")[:-1]:
            try:
                records.append(json.loads(line))
            except ValueError:
                break
            self._valid_bytes += len(line) + 1
        return records

    def _apply(self, record: dict[str, Any]) -> None:
        if stop := record.get("stop"):
            self.stop = Stop(StopCause(stop["cause"]), bool(stop["result_seen"]), stop["detail"])
        if close := record.get("close"):
            events = tuple(Event.model_validate(event) for event in close["events"])
            self.close = Close(int(close["offset"]), Ending.model_validate(close["ending"]), events)
