"""The runtime's root directory: who owns it, which machine this is, and where things lie in it."""

import fcntl
import os
from pathlib import Path
from secrets import token_hex

import psutil

from domain.errors import RootLocked
from machine.records import create_record, read_record


def boot_id() -> str:
    """Names the present boot of this machine: a process recorded under another one is dead."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return f"boot-{int(psutil.boot_time())}"


class RootDirectory:
    """``<root>/attempts``, ``<root>/workdirs``, ``<root>/trash``, the lock and the machine's id.

    The path is resolved once, here: everything below is compared and stored in its real form.
    """

    def __init__(self, path: Path | str) -> None:
        asked = Path(path).expanduser()
        asked.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.path = asked.resolve()
        self.attempts = self.path / "attempts"
        self.workdirs = self.path / "workdirs"
        #: What is being deleted; whatever lies here is nobody's any more.
        self.trash = self.path / "trash"
        for directory in (self.attempts, self.workdirs, self.trash):
            directory.mkdir(mode=0o700, exist_ok=True)
        self.boot_id = boot_id()
        self.machine_id = self._machine_id()
        self._lock: int | None = None

    def lock(self) -> None:
        """Take the root for this process; the kernel gives it back when the process ends.

        Raises `RootLocked` when another worker holds it.
        """
        if self._lock is not None:
            return
        descriptor = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "unknown"
            os.close(descriptor)
            message = f"{self.path} is in use by the runtime worker with pid {holder}; use another --root"
            raise RootLocked(message) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        self._lock = descriptor

    def unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def free_bytes(self) -> int:
        """Bytes that an unprivileged process can still write below the root."""
        space = os.statvfs(self.path)
        return space.f_bavail * space.f_frsize

    def _machine_id(self) -> str:
        path = self.path / "machine.json"
        if not path.exists():
            create_record(path, {"machine_id": token_hex(16)})
        record = read_record(path)
        if record is None or not isinstance(record.get("machine_id"), str):
            message = f"{path} is damaged; delete it to register this root as a new machine"
            raise RootLocked(message)
        return str(record["machine_id"])
