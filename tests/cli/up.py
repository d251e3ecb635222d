"""A `segue up` of the tests' own, as people start it."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from uuid import uuid4

import psutil

from cli.client import ApiClient
from cli.profiles import Connection
from workers.folder import StackFolder, StackRecord

#: For anything to happen on a machine that is ten times slower than usual.
PATIENCE = 240.0


class Up:
    """One `segue up` as a process of its own."""

    def __init__(self, data: Path, *options: str) -> None:
        self.folder = StackFolder(data)
        self.errors = data.with_name(f"{data.name}-{uuid4()}.stderr")
        with self.errors.open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "cli", "up", "--data", str(data), *options],
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )

    def ready(self) -> dict[str, str]:
        """Wait for the ready line; what it says."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.startswith("ready "), self.errors.read_text()
        return dict(word.split("=", 1) for word in line.split()[1:])

    @property
    def record(self) -> StackRecord:
        record = self.folder.read()
        assert record is not None
        return record

    def client(self) -> ApiClient:
        return ApiClient(Connection(self.record.api_url, self.record.token))

    def part(self, name: str) -> psutil.Process:
        """The process of a part that runs now."""
        return psutil.Process(json.loads(self.folder.part_file(name).read_text())["pid"])

    def everything(self) -> list[psutil.Process]:
        return [*psutil.Process(self.process.pid).children(recursive=True)]

    def end(self, number: signal.Signals = signal.SIGTERM) -> tuple[int, str]:
        """Send a signal and wait; the exit code, and what was still said on stdout."""
        self.process.send_signal(number)
        rest, _ = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, rest
