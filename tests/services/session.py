"""One test session's services: started by the first test that asks, shared by all pytest workers."""

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from tests.services import keeper

#: Names the session's folder to the pytest workers, which inherit it.
FOLDER_VARIABLE = "SEGUE_TEST_SESSION_DIR"
START_SECONDS = 120.0
#: A Unix socket's path may have 107 bytes, and PostgreSQL's socket lies below this folder.
LONGEST_FOLDER = 60

#: Referenced to the end: a collected handle of a running process is a warning, so a failing test.
_KEEPERS: list["subprocess.Popen[bytes]"] = []


class ServiceError(RuntimeError):
    """A service did not start; the message has the end of its log."""


@dataclass(frozen=True)
class Launch:
    """How to run a service. ``address`` is what tests are given once ``is_ready`` says so."""

    command: list[str]
    address: str
    stop_signal: str
    is_ready: Callable[[], bool]
    user: int | None = None


@dataclass(frozen=True)
class Session:
    """The folder that a test session's services live in."""

    folder: Path

    @classmethod
    def inherited(cls) -> "Session":
        """The session that this pytest worker belongs to."""
        return cls(Path(os.environ[FOLDER_VARIABLE]))

    @property
    def token(self) -> str:
        """What tells this session from all others; fit for a database name."""
        return self.folder.name.rpartition("-")[2]

    def address_of(self, name: str, launch: Callable[[Path], Launch]) -> str:
        """The address of service ``name``, which is started if nobody has done it yet.

        ``launch`` prepares the service's folder. Raises `ServiceError`.
        """
        with self.exclusively(name):
            answer = self.folder / f"{name}.address"
            if not answer.exists():
                answer.write_text(self._start(name, launch))
            return answer.read_text()

    @contextmanager
    def exclusively(self, name: str) -> Iterator[None]:
        """Keep the session's other pytest workers out of what ``name`` stands for."""
        with (self.folder / f"{name}.lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _start(self, name: str, launch: Callable[[Path], Launch]) -> str:
        folder = self.folder / name
        shutil.rmtree(folder, ignore_errors=True)  # what a failed start left
        folder.mkdir()
        plan = launch(folder)
        guard = _start_keeper(self.folder, folder, plan)
        deadline = time.monotonic() + START_SECONDS
        while not plan.is_ready():
            if guard.poll() is not None or time.monotonic() > deadline:
                raise ServiceError(f"{name} did not start:\n{_end_of_log(folder)}")
            time.sleep(0.05)
        return plan.address


class SessionOwner:
    """Held by the pytest process that people start; its end is the end of every service."""

    def __init__(self) -> None:
        self.session = Session(_make_folder())
        self._lifeline = (self.session.folder / "lifeline").open("w")
        fcntl.flock(self._lifeline, fcntl.LOCK_EX)
        os.environ[FOLDER_VARIABLE] = str(self.session.folder)

    def close(self) -> None:
        """End the services, and return when their processes are gone."""
        keepers = [path.open() for path in self.session.folder.glob("*.alive")]
        self._lifeline.close()
        for alive in keepers:
            _wait_until_released(alive)
        shutil.rmtree(self.session.folder, ignore_errors=True)
        os.environ.pop(FOLDER_VARIABLE, None)


def _make_folder() -> Path:
    parent = tempfile.gettempdir()
    folder = Path(
        tempfile.mkdtemp(prefix="segue-tests-", dir=parent if len(parent) < LONGEST_FOLDER else "/tmp")
    )
    # PostgreSQL refuses to run as root, so its own user must be able to reach what lies inside.
    folder.chmod(0o755)
    return folder


def _start_keeper(session: Path, folder: Path, plan: Launch) -> "subprocess.Popen[bytes]":
    options = [
        "--folder",
        folder,
        "--alive",
        session / f"{folder.name}.alive",
        "--lifeline",
        session / "lifeline",
    ]
    options += ["--stop-signal", plan.stop_signal]
    if plan.user is not None:
        options += ["--user", str(plan.user)]
    guard = subprocess.Popen(
        [sys.executable, "-I", "-S", keeper.__file__, *map(str, options), "--", *plan.command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    _KEEPERS.append(guard)
    return guard


def _end_of_log(folder: Path) -> str:
    log = folder / "log"
    return log.read_text(errors="replace")[-4000:] if log.exists() else "(no log)"


def _wait_until_released(alive: IO[str]) -> None:
    """Wait for a keeper's end: it holds this lock, and the kernel drops it with the process."""
    deadline = time.monotonic() + 2 * keeper.STOP_SECONDS + 10
    with alive:
        while time.monotonic() < deadline:
            try:
                fcntl.flock(alive, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(0.05)
            else:
                return
    raise ServiceError(f"{alive.name}: the service did not end")
