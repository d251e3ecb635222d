"""Starting one process of an attempt: everything up to the moment its shim has taken it."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import cache_from_source
from pathlib import Path

from domain.brief import Brief, StartRequest
from domain.prompts import compose
from domain.statuses import Continuity, ContinuityReason
from domain.steps import GateResult
from machine import shim
from machine.attempt import AgentProcess, AttemptDirectory, AttemptRecord
from machine.config import MachineConfig
from machine.environment import Identity, complete, settings
from machine.executables import find_executable
from machine.plane import Plane
from machine.processes import LINUX
from machine.redaction import secret_values
from machine.root import RootDirectory
from providers.base import LaunchRequest, Limits, Provider

TAKEN_POLL_SECONDS = 0.002
#: The shim needs nothing of the worker's environment but what its interpreter may need to load.
_SHIM_VARIABLES = ("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")


@dataclass(frozen=True)
class Machine:
    """What every run on this machine shares."""

    root: RootDirectory
    plane: Plane
    providers: Callable[[str], Provider]
    config: MachineConfig

    def limits(self, provider: Provider) -> Limits:
        return self.config.limits.get(provider.name, provider.limits)


@dataclass(frozen=True)
class Terms:
    """On what a process starts: which session, and what its prompt says about it."""

    session_id: str | None
    fork: bool
    continuity: Continuity
    continuity_reason: ContinuityReason | None


#: After a refused resume: a new session in the same directory, and the loss disclosed.
FRESH_AFTER_REFUSAL = Terms(
    session_id=None,
    fork=False,
    continuity=Continuity.LOST,
    continuity_reason=ContinuityReason.RESUME_REJECTED,
)


def terms_of(record: AttemptRecord) -> Terms:
    return Terms(record.session_id, record.fork, record.continuity, record.continuity_reason)


def record_of(brief: Brief, gate: GateResult, nonce: str, boot_id: str) -> AttemptRecord:
    """What is kept of a new attempt. A session that the gate missed is not asked for."""
    if not gate.ok or gate.work_dir is None or gate.device is None or gate.inode is None:
        message = "a run needs a directory that passed the gate"
        raise ValueError(message)
    lost = gate.reason if brief.session_id is not None else None
    return AttemptRecord(
        attempt_id=brief.attempt_id,
        nonce=nonce,
        boot_id=boot_id,
        provider=brief.provider,
        session_id=None if lost else brief.session_id,
        missing_session_id=brief.session_id if lost else None,
        fork=brief.fork and not lost,
        work_dir=gate.work_dir,
        device=gate.device,
        inode=gate.inode,
        continuity=Continuity.LOST if lost else brief.continuity,
        continuity_reason=lost or brief.continuity_reason,
    )


def start_request(record: AttemptRecord, root: RootDirectory) -> StartRequest:
    return StartRequest(
        machine_id=root.machine_id,
        boot_id=record.boot_id,
        nonce=record.nonce,
        work_dir=record.work_dir,
        device=record.device,
        inode=record.inode,
        continuity=record.continuity,
        continuity_reason=record.continuity_reason,
    )


@dataclass(frozen=True)
class Credentials:
    """What only the API knows of an attempt. Secret."""

    brief: Brief
    token: str


def prepare(
    machine: Machine,
    directory: AttemptDirectory,
    process: AgentProcess,
    credentials: Credentials,
    terms: Terms,
) -> None:
    """Write everything the shim needs. Raises `ProviderMissing`, or `OSError` (disk full)."""
    brief, token = credentials.brief, credentials.token
    provider = machine.providers(directory.record.provider)
    base = settings(brief, os.environ, machine.config.inherit)
    binary = find_executable(provider, machine.config.binaries, base["PATH"])
    request = LaunchRequest(
        binary=binary,
        work_dir=directory.record.work_dir,
        model=brief.model,
        args=brief.args,
        session_id=terms.session_id,
        fork=terms.fork,
    )
    command = provider.command(request)
    identity = Identity(brief, machine.config.api_url, token, directory.temporary)
    spec = shim.Spec(
        cwd=directory.record.work_dir,
        identity=(directory.record.device, directory.record.inode),
        argv=list(command.argv),
        env=complete(base, command.env, identity),
    )
    directory.keep_secrets(secret_values(brief.env, token))
    prompt = compose(brief.prompt, terms.continuity, terms.continuity_reason)
    process.fill(spec.encode(), prompt.encode("utf-8", "replace"))


class ShimChild:
    """A shim as this worker's child: something to collect, not something to keep alive or to end."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._ended = False

    def has_ended(self) -> bool:
        """Whether it has ended; its zombie is gone then."""
        if not self._ended:
            try:
                self._ended = os.waitpid(self.pid, os.WNOHANG)[0] != 0
            except ChildProcessError:
                self._ended = True
        return self._ended


def spawn_shim(process: AgentProcess, boot_id: str) -> ShimChild:
    """Start the shim in a session of its own. Raises `OSError`."""
    program = _compiled(shim.__file__)
    logging = os.O_WRONLY | os.O_APPEND | os.O_CREAT
    # Not `subprocess`: its objects complain when their process outlives them, which is the point here.
    pid = os.posix_spawn(
        sys.executable,
        [sys.executable, "-I", "-S", program, str(process.path), boot_id],
        {name: os.environ[name] for name in _SHIM_VARIABLES if name in os.environ},
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(process.shim_log), logging, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
        setsid=LINUX,
        # Blocked in the shim for good, and unblocked by it for the agent: see there.
        setsigmask=[signal.SIGHUP, signal.SIGINT, signal.SIGTERM],
    )
    return ShimChild(pid)


def _compiled(source: str) -> str:
    # Python compiles a program anew at each start, unless it is given what our import of it has left.
    compiled = Path(cache_from_source(source))
    fresh = compiled.exists() and compiled.stat().st_mtime >= Path(source).stat().st_mtime
    return str((compiled if fresh else Path(source)).resolve())


async def until_taken(process: AgentProcess, ours: ShimChild) -> bool:
    """Wait until a shim has taken the process; false when ours ended without any having done so."""
    while not process.taken:
        if ours.has_ended():
            return process.taken
        await asyncio.sleep(TAKEN_POLL_SECONDS)
    return True
