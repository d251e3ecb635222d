"""Processes named so that no other can be meant: pid, start time and boot; and how a tree of them ends.

A bare pid is never signalled: it is held by a pidfd and compared with its recorded start time first.
Nothing is ever matched by a process name. Elsewhere than on Linux, psutil stands in for ``/proc``.
"""

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import psutil

MARKER = "SEGUE_ATTEMPT_ID"
LINUX = sys.platform == "linux"
#: How far psutil's creation time may lie from what the shim's clock said (where /proc is missing).
CLOCK_TOLERANCE_SECONDS = 2.0
_ENDED_STATES = frozenset({b"Z", b"X", b"x"})


@dataclass(frozen=True)
class ProcessIdentity:
    """One process for all time. ``start_time`` is in clock ticks since boot (Linux)."""

    pid: int
    start_time: int | None
    boot_id: str
    #: Seconds since the epoch by the clock of who recorded it; the identity where start_time is null.
    at: float = 0.0

    @classmethod
    def from_record(cls, record: dict[str, Any], boot_id: str) -> "ProcessIdentity":
        return cls(
            pid=int(record["pid"]),
            start_time=record.get("start_time"),
            boot_id=boot_id,
            at=float(record.get("at", 0.0)),
        )

    def alive(self, boot_id: str) -> bool:
        """Whether this very process still runs; a zombie does not."""
        return self.boot_id == boot_id and self._is_now(_observe(self.pid))

    def send(self, number: signal.Signals, boot_id: str) -> bool:
        """Signal this process and no other; false when it is gone or not ours to signal."""
        if self.boot_id != boot_id:
            return False
        with contextlib.suppress(OSError), _held(self.pid) as handle:
            if self._is_now(_observe(self.pid)):
                handle.send(number)
                return True
        return False

    def send_group(self, number: signal.Signals, boot_id: str) -> bool:
        """Signal the process group that this process leads."""
        if not self.alive(boot_id):
            return False
        with contextlib.suppress(OSError):
            if os.getpgid(self.pid) == self.pid:
                os.killpg(self.pid, number)
                return True
        return False

    def _is_now(self, seen: "_Seen | None") -> bool:
        if seen is None or seen.ended:
            return False
        if self.start_time is not None:
            return seen.start_time == self.start_time
        return abs(seen.created - self.at) <= CLOCK_TOLERANCE_SECONDS


@dataclass(frozen=True)
class _Seen:
    start_time: int | None
    ended: bool
    created: float = 0.0


class _Handle:
    def __init__(self, pid: int, descriptor: int | None) -> None:
        self._pid = pid
        self._descriptor = descriptor

    def send(self, number: signal.Signals) -> None:
        if self._descriptor is None:
            os.kill(self._pid, number)
        else:
            signal.pidfd_send_signal(self._descriptor, number)


@contextlib.contextmanager
def _held(pid: int) -> Iterator[_Handle]:
    # A pid can't be given to another process while a pidfd's process is what we look at.
    descriptor = os.pidfd_open(pid) if LINUX else None
    try:
        yield _Handle(pid, descriptor)
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _observe(pid: int) -> _Seen | None:
    if not LINUX:
        return _observe_portably(pid)
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    return _Seen(start_time=int(fields[19]), ended=fields[0] in _ENDED_STATES)


def _observe_portably(pid: int) -> _Seen | None:
    try:
        process = psutil.Process(pid)
        return _Seen(None, process.status() == psutil.STATUS_ZOMBIE, process.create_time())
    except psutil.Error:
        return None


def identify(pid: int, boot_id: str) -> ProcessIdentity | None:
    """The identity of the process that has ``pid`` now; null when there is none or it has ended."""
    seen = _observe(pid)
    if seen is None or seen.ended:
        return None
    return ProcessIdentity(pid, seen.start_time, boot_id, seen.created)


def descendants(parent: ProcessIdentity, boot_id: str) -> list[ProcessIdentity]:
    """Every living process below ``parent``; none when it is dead (its children belong to init then)."""
    if not parent.alive(boot_id):
        return []
    try:
        below = psutil.Process(parent.pid).children(recursive=True)
    except psutil.Error:
        return []
    return [found for child in below if (found := identify(child.pid, boot_id))]


def marked(attempt_id: UUID, boot_id: str) -> list[ProcessIdentity]:
    """Every living process whose environment carries the attempt's marker (as far as we may read it)."""
    wanted = f"{MARKER}={attempt_id}"
    found = (identify(pid, boot_id) for pid in psutil.pids() if pid != os.getpid() and _carries(pid, wanted))
    return [identity for identity in found if identity]


def _carries(pid: int, wanted: str) -> bool:
    if not LINUX:
        return _carries_portably(pid, wanted)
    try:
        return wanted.encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False


def _carries_portably(pid: int, wanted: str) -> bool:
    name, _, value = wanted.partition("=")
    try:
        return psutil.Process(pid).environ().get(name) == value
    except (psutil.Error, OSError):
        return False


class ExitBell:
    """Calls back at once when a process ends (Linux; elsewhere never: polling must do)."""

    def __init__(self, process: ProcessIdentity | None, ring: Callable[[], None]) -> None:
        self._ring = ring
        self._descriptor: int | None = None
        if process is not None and LINUX:
            with contextlib.suppress(OSError):
                self._descriptor = os.pidfd_open(process.pid)
                asyncio.get_running_loop().add_reader(self._descriptor, self._rung)

    @property
    def armed(self) -> bool:
        """It will ring; until then the process has not ended."""
        return self._descriptor is not None

    def close(self) -> None:
        if self._descriptor is not None:
            asyncio.get_running_loop().remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = None

    def _rung(self) -> None:
        self.close()
        self._ring()


@dataclass(frozen=True)
class ProcessTree:
    """All processes of one attempt, however they got away from each other."""

    attempt_id: UUID
    shim: ProcessIdentity | None
    agent: ProcessIdentity | None
    boot_id: str

    def living(self) -> list[ProcessIdentity]:
        """The agent, what lives below the shim, and what carries the marker; never the shim itself."""
        found: dict[int, ProcessIdentity] = {}
        if self.agent is not None and self.agent.alive(self.boot_id):
            found[self.agent.pid] = self.agent
        if self.shim is not None:
            found.update({p.pid: p for p in descendants(self.shim, self.boot_id)})
        found.update({p.pid: p for p in marked(self.attempt_id, self.boot_id)})
        if self.shim is not None:
            found.pop(self.shim.pid, None)
        return list(found.values())


async def stop_tree(tree: ProcessTree, grace: float, patience: float = 15.0) -> list[ProcessIdentity]:
    """End every process of ``tree``; return the survivors, which must be none.

    SIGTERM to the agent's group, ``grace`` seconds, SIGKILL to the group, then SIGKILL to everything
    else until a walk finds nothing, for at most ``patience`` seconds (a process in uninterruptible
    sleep can't be killed). A living shim is left to record the exit and end by itself first.
    """
    if tree.agent is not None:
        await _end_group(tree.agent, tree.boot_id, grace)
    survivors = await _kill_rest(tree, patience)
    if tree.shim is not None:
        await _see_off(tree.shim, tree.boot_id, patience)
    return survivors


async def _end_group(agent: ProcessIdentity, boot_id: str, grace: float) -> None:
    if agent.send_group(signal.SIGTERM, boot_id):
        agent.send_group(signal.SIGCONT, boot_id)  # a stopped process would sleep through its SIGTERM
        await _wait_until_gone(agent, boot_id, grace)
    agent.send_group(signal.SIGKILL, boot_id)


async def _kill_rest(tree: ProcessTree, patience: float) -> list[ProcessIdentity]:
    deadline = time.monotonic() + patience
    pause = 0.01
    while left := await asyncio.to_thread(tree.living):
        if time.monotonic() > deadline:
            return left
        for process in left:
            process.send(signal.SIGKILL, tree.boot_id)
        await asyncio.sleep(pause)
        pause = min(pause * 2, 0.25)
    return []


async def _see_off(shim: ProcessIdentity, boot_id: str, patience: float) -> None:
    await _wait_until_gone(shim, boot_id, patience)
    shim.send(signal.SIGKILL, boot_id)


async def _wait_until_gone(process: ProcessIdentity, boot_id: str, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    pause = 0.002
    while process.alive(boot_id) and time.monotonic() < deadline:
        await asyncio.sleep(pause)
        pause = min(pause * 2, 0.05)
