"""One part of the embedded stack: a child process that is started again with backoff when it dies."""

import asyncio
import json
import os
import shutil
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import psutil
import structlog

from workers import lifeline
from workers.folder import StackFolder

log = structlog.get_logger(__name__)

_FIRST_BACKOFF = 0.5
_LONGEST_BACKOFF = 15.0
#: A part that lived this long starts its backoff anew.
_HEALTHY_SECONDS = 60.0
_KILL_SECONDS = 10.0
_LOG_BYTES = 16 * 1024 * 1024
_LOG_GENERATIONS = 3
#: Start times are read with this precision when a left-over process is recognised.
_SAME_START_SECONDS = 2.0


@dataclass(frozen=True)
class PartSpec:
    """What to run, and how to end it."""

    name: str
    argv: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)
    #: Ends the part in order; ``kill_signal`` ends it at once, still safely.
    stop_signal: signal.Signals = signal.SIGTERM
    kill_signal: signal.Signals = signal.SIGKILL
    stop_seconds: float = 20.0
    #: Files are private; -1 leaves the mask as the person has it.
    umask: int = 0o077


class Part:
    """A supervised child. Its output goes to its own log file; it is no child of the terminal."""

    def __init__(self, spec: PartSpec, folder: StackFolder) -> None:
        self.spec = spec
        self.deaths = 0
        self._folder = folder
        self._process: asyncio.subprocess.Process | None = None
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        process = self._process
        return process.pid if process is not None and process.returncode is None else None

    async def start(self) -> None:
        """Start the process, and keep it running until `stop`."""
        await self._spawn()
        self._task = asyncio.create_task(self._supervise(), name=f"part-{self.spec.name}")

    async def stop(self, *, at_once: bool = False) -> None:
        """End the process: in order, then by force. Returns when it is gone."""
        self._stopping.set()
        first = self.spec.kill_signal if at_once else self.spec.stop_signal
        steps = [(first, self.spec.stop_seconds), (self.spec.kill_signal, _KILL_SECONDS)]
        for number, seconds in [*steps, (signal.SIGKILL, _KILL_SECONDS)]:
            if self._task is None or self._task.done():
                break
            self.send(number)
            await asyncio.wait([self._task], timeout=seconds)
        self._folder.part_file(self.spec.name).unlink(missing_ok=True)

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the process, if there is one."""
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.send_signal(number)

    def log_end(self, size: int = 2000) -> str:
        """The last part of the log, for an error message."""
        file = self._folder.log_file(self.spec.name)
        return file.read_text(errors="replace")[-size:] if file.exists() else ""

    async def _supervise(self) -> None:
        backoff = _FIRST_BACKOFF
        while True:
            started = time.monotonic()
            code = await self._wait()
            if self._stopping.is_set():
                return
            self.deaths += 1
            if time.monotonic() - started > _HEALTHY_SECONDS:
                backoff = _FIRST_BACKOFF
            log.warning("part_died", part=self.spec.name, exit_code=code, restart_seconds=backoff)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), backoff)
                return
            backoff = min(backoff * 2, _LONGEST_BACKOFF)
            await self._spawn()
            if self._stopping.is_set():
                self.send(self.spec.stop_signal)

    async def _wait(self) -> int:
        assert self._process is not None, "started before it is supervised"
        return await self._process.wait()

    async def _spawn(self) -> None:
        name = self.spec.name
        rotate(self._folder.log_file(name))
        env = dict(self.spec.env) | {lifeline.STACK_VARIABLE: str(os.getpid())}
        with self._folder.log_file(name).open("ab") as output:
            self._process = await asyncio.create_subprocess_exec(
                *self.spec.argv,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=env,
                cwd=self._folder.path,
                umask=self.spec.umask,
                # Ctrl-C in the terminal is for the stack alone, which ends its parts in order.
                start_new_session=True,
            )
        _remember(self._folder.part_file(name), self._process.pid)
        log.info("part_started", part=name, pid=self._process.pid)


def rotate(file: Path) -> None:
    """Begin the log anew when it has grown too large. The part goes on writing to the same file."""
    if not file.exists() or file.stat().st_size < _LOG_BYTES:
        return
    old = [file.with_suffix(f".{number}.log") for number in range(1, _LOG_GENERATIONS + 1)]
    for newer, older in reversed(list(pairwise(old))):
        if newer.exists():
            newer.replace(older)
    shutil.copyfile(file, old[0])
    os.truncate(file, 0)


def stop_left_over(spec: PartSpec, folder: StackFolder) -> None:
    """End the process that a killed stack left in ``folder``; blocks until it is gone."""
    process = _left_over(folder.part_file(spec.name))
    if process is None:
        return
    log.info("left_over_stopped", part=spec.name, pid=process.pid)
    steps = [(spec.stop_signal, spec.stop_seconds), (spec.kill_signal, _KILL_SECONDS)]
    for number, seconds in [*steps, (signal.SIGKILL, _KILL_SECONDS)]:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(number)
        with suppress(psutil.TimeoutExpired):
            process.wait(seconds)
            return


def _remember(file: Path, pid: int) -> None:
    with suppress(psutil.NoSuchProcess):
        file.write_text(json.dumps({"pid": pid, "started": psutil.Process(pid).create_time()}))


def _left_over(file: Path) -> psutil.Process | None:
    """The recorded process if it still lives; another one with the same number is left alone."""
    try:
        record = json.loads(file.read_text())
        process = psutil.Process(int(record["pid"]))
        same = abs(process.create_time() - float(record["started"])) < _SAME_START_SECONDS
    except (OSError, ValueError, KeyError, TypeError, psutil.NoSuchProcess):
        return None
    return process if same and process.status() != psutil.STATUS_ZOMBIE else None
