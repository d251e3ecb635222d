"""An attempt's directory: everything that must outlive the worker, and what it says about the run.

::

    <root>/attempts/<attempt_id>/
        attempt.json   who and what, with the nonce that claims the attempt in the API; no secret
        start.json     the number of the attempt's first event
        secrets.json   values to redact (0600), until the outcome is kept
        outcome.json   how it ended, written after the last event was acknowledged
        tail.lock      held by the one worker that reads the output
        tmp/           the agent's TMPDIR
        1/, 2/         one directory a process; the second only when a resume was refused
            spec prompt stdout stderr journal shim.json agent.json exit.json reaped shim.log
"""

import asyncio
import contextlib
import fcntl
import os
import shutil
from collections.abc import AsyncIterator
from enum import StrEnum
from pathlib import Path
from secrets import token_hex
from uuid import UUID

from pydantic import BaseModel, ConfigDict

from domain.outcomes import Outcome
from domain.statuses import Continuity, ContinuityReason
from machine.ending import ExitRecord
from machine.journal import Journal
from machine.processes import ProcessIdentity, ProcessTree
from machine.records import create_record, read_record, sync_directory, write_private, write_record

LOCK_POLL_SECONDS = 0.05


class ProcessState(StrEnum):
    """What the files and the kernel say about one process."""

    #: No shim has taken it yet.
    PREPARED = "prepared"
    #: The agent was forbidden to start before a shim took it.
    SEALED = "sealed"
    STARTED = "started"
    ENDED = "ended"
    #: Proven dead without an exit record: another boot, or pid gone or given to another process.
    DEAD = "dead"


class AttemptRecord(BaseModel):
    """What a later worker must know to look after the run; free of secrets and prompts."""

    model_config = ConfigDict(frozen=True)

    attempt_id: UUID
    nonce: str
    boot_id: str
    provider: str
    #: The session to resume; null: a new one.
    session_id: str | None
    #: The session that was asked for, but is not on this machine.
    missing_session_id: str | None
    fork: bool
    work_dir: str
    device: int
    inode: int
    continuity: Continuity
    continuity_reason: ContinuityReason | None


class AgentProcess:
    """The directory of one process of an attempt."""

    def __init__(self, path: Path, attempt_id: UUID, number: int) -> None:
        self.path = path
        self.attempt_id = attempt_id
        self.number = number
        self.spec = path / "spec"
        self.prompt = path / "prompt"
        self.stdout = path / "stdout"
        self.stderr = path / "stderr"
        self.shim_log = path / "shim.log"

    def journal(self) -> Journal:
        return Journal(self.path / "journal")

    def fill(self, spec: bytes, prompt: bytes) -> None:
        """Write what the shim needs. May be repeated as long as no shim has taken the process."""
        self.path.mkdir(mode=0o700, exist_ok=True)
        write_private(self.prompt, prompt)
        self.stdout.touch(mode=0o600)
        self.stderr.touch(mode=0o600)
        write_private(self.spec, spec)

    def seal(self, why: str) -> bool:
        """Take the process so that no shim can any more; false when it had been taken already."""
        self.path.mkdir(mode=0o700, exist_ok=True)
        sealed = create_record(self.path / "shim.json", {"sealed": why})
        if sealed or self.taken:
            self.spec.unlink(missing_ok=True)
        return sealed

    @property
    def sealed(self) -> str | None:
        """What it was sealed for, when it was."""
        record = read_record(self.path / "shim.json")
        return str(record["sealed"]) if record and "sealed" in record else None

    @property
    def taken(self) -> bool:
        return (self.path / "shim.json").exists()

    @property
    def reaped(self) -> bool:
        """The shim saw to it that nothing was left below it."""
        return (self.path / "reaped").exists()

    def shim(self) -> ProcessIdentity | None:
        record = read_record(self.path / "shim.json")
        if record is None or "pid" not in record:
            return None
        return ProcessIdentity.from_record(record, str(record["boot_id"]))

    def agent(self) -> ProcessIdentity | None:
        record = read_record(self.path / "agent.json")
        shim = self.shim()
        if record is None or shim is None:
            return None
        return ProcessIdentity.from_record(record, shim.boot_id)

    def tree(self, boot_id: str) -> ProcessTree:
        return ProcessTree(self.attempt_id, self.shim(), self.agent(), boot_id)

    def exit(self) -> ExitRecord | None:
        record = read_record(self.path / "exit.json")
        return ExitRecord(**record) if record else None

    def state(self, boot_id: str) -> ProcessState:
        if (self.path / "exit.json").exists():
            return ProcessState.ENDED
        if not self.taken:
            return ProcessState.PREPARED
        shim = self.shim()
        if shim is None:
            return ProcessState.SEALED
        if shim.alive(boot_id) or self._agent_alive(boot_id):
            return ProcessState.STARTED
        # The exit may have been recorded between the two looks.
        recorded = (self.path / "exit.json").exists()
        return ProcessState.ENDED if recorded else ProcessState.DEAD

    def shim_alive(self, boot_id: str) -> bool:
        shim = self.shim()
        return shim is not None and shim.alive(boot_id)

    def _agent_alive(self, boot_id: str) -> bool:
        agent = self.agent()
        return agent is not None and agent.alive(boot_id)


class AttemptDirectory:
    """The files of one attempt on this machine."""

    def __init__(self, path: Path, record: AttemptRecord) -> None:
        self.path = path
        self.record = record
        self.temporary = path / "tmp"

    @classmethod
    def create(cls, attempts: Path, record: AttemptRecord) -> "AttemptDirectory":
        """Make the directory, exclusively and complete in one step. Raises `FileExistsError`."""
        path = attempts / str(record.attempt_id)
        aside = attempts / f".new-{token_hex(8)}"
        aside.mkdir(mode=0o700)
        try:
            write_record(aside / "attempt.json", record.model_dump(mode="json"), sync_parent=False)
            (aside / "tmp").mkdir(mode=0o700)
            (aside / "1").mkdir(mode=0o700)
            if path.exists():
                raise FileExistsError(path)
            aside.rename(path)  # refused by the kernel when a full directory of that name exists
        except OSError:
            shutil.rmtree(aside, ignore_errors=True)
            if path.exists():
                raise FileExistsError(path) from None
            raise
        sync_directory(attempts)
        return cls(path, record)

    @classmethod
    def find(cls, attempts: Path, attempt_id: UUID) -> "AttemptDirectory | None":
        path = attempts / str(attempt_id)
        record = read_record(path / "attempt.json")
        return cls(path, AttemptRecord.model_validate(record)) if record else None

    @property
    def attempt_id(self) -> UUID:
        return self.record.attempt_id

    def process(self, number: int) -> AgentProcess:
        return AgentProcess(self.path / str(number), self.attempt_id, number)

    def latest_process(self) -> AgentProcess:
        return self.process(2 if (self.path / "2").exists() else 1)

    @property
    def started(self) -> bool:
        """A shim has taken the attempt (or was forbidden to): it must never be started again."""
        return self.process(1).taken

    def secrets(self) -> tuple[str, ...]:
        record = read_record(self.path / "secrets.json")
        return tuple(record["values"]) if record else ()

    def keep_secrets(self, values: tuple[str, ...]) -> None:
        write_record(self.path / "secrets.json", {"values": values}, durable=False)

    def first_seq(self) -> int | None:
        """Where this attempt's numbering begins; null before the API accepted the start."""
        record = read_record(self.path / "start.json")
        return int(record["first_seq"]) if record else None

    def keep_first_seq(self, first_seq: int) -> None:
        write_record(self.path / "start.json", {"first_seq": first_seq}, durable=False)

    def outcome(self) -> Outcome | None:
        record = read_record(self.path / "outcome.json")
        return Outcome.model_validate(record) if record else None

    def keep_outcome(self, outcome: Outcome) -> None:
        """Keep how it ended for who asks again, and drop what only a living run needs."""
        # Not synced: after a power loss it would be read out of the files again, and be the same.
        write_record(self.path / "outcome.json", outcome.model_dump(mode="json"), durable=False)
        (self.path / "secrets.json").unlink(missing_ok=True)
        shutil.rmtree(self.temporary, ignore_errors=True)

    def remove(self) -> None:
        """Undo `create`; only for an attempt that never started."""
        shutil.rmtree(self.path, ignore_errors=True)

    def is_read(self) -> bool:
        """Somebody follows the run, in this process or another."""
        try:
            descriptor = os.open(self.path / "tail.lock", os.O_RDWR)
        except FileNotFoundError:
            return False
        try:
            return not _try_lock(descriptor)
        finally:
            os.close(descriptor)

    def lives(self, boot_id: str) -> bool:
        """One of its processes has started and not been seen to end."""
        states = (self.process(number).state(boot_id) for number in (1, 2))
        return ProcessState.STARTED in states

    @contextlib.asynccontextmanager
    async def tail_lock(self) -> AsyncIterator[None]:
        """Wait to be the one who reads this attempt's output; the kernel frees it with its holder."""
        descriptor = os.open(self.path / "tail.lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            while not _try_lock(descriptor):  # noqa: ASYNC110 - the kernel tells nobody about a free lock
                await asyncio.sleep(LOCK_POLL_SECONDS)
            yield
        finally:
            os.close(descriptor)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
