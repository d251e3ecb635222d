"""Working directories: making them, and the gate that says whether a run may use one.

A managed directory is ``<root>/workdirs/<slug>-<directory id>``: ASCII, since agent CLIs fold other
characters together when they name a project by its path (field notes W1, W2); with the full random id,
so that no two can meet (W7) and a repeated preparation finds its own. It carries ``.segue/marker.json``,
written before the directory can be seen, which says whose it is. A project's own directory
(``kind`` ``local``) is used as it is and never marked.
"""

import glob
import json
import os
import pwd
import re
import shutil
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex

from domain.brief import Brief
from domain.errors import LocalDirectoryRefused
from domain.reasons import Reason
from domain.statuses import ContinuityReason
from domain.steps import GateResult
from machine.records import is_disk_full, sync_directory, write_record
from machine.root import RootDirectory
from providers.base import Provider

MARKER_DIRECTORY = ".segue"
SLUG_LENGTH = 24
_MARKER_LIMIT = 64 * 1024
#: Refused with everything below them.
_SYSTEM = tuple(
    map(
        Path,
        (
            "/bin",
            "/boot",
            "/dev",
            "/etc",
            "/lib",
            "/lib32",
            "/lib64",
            "/proc",
            "/run",
            "/sbin",
            "/sys",
            "/usr",
        ),
    )
)
#: Refused themselves; what is in them may be a project's.
_SHARED = frozenset(
    {"/", "/home", "/media", "/mnt", "/opt", "/srv", "/tmp", "/var", "/var/tmp"}  # noqa: S108 - refused
)
_NOFOLLOW = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True)
class _Place:
    path: str
    device: int
    inode: int


@dataclass(frozen=True)
class Marker:
    """Whose a managed directory is, and when that was written (seconds since the epoch)."""

    values: Mapping[str, str]
    written_at: float


class _Refused(Exception):
    """Why a directory can't be used, for the log and the person."""


def gate(
    root: RootDirectory, brief: Brief, provider: Provider, env: Mapping[str, str], disk_floor: int
) -> GateResult:
    """Prepare or check the attempt's directory and its session. Idempotent; never changes the row.

    ``ok`` with a reason: the directory is good, the session is not (``session_missing``). Not ``ok``
    with a reason: the directory can't be reused (``workdir_gone``). With a failure: nothing can run.
    """
    free = root.free_bytes()
    if free < disk_floor:
        detail = f"{free // 2**20} MiB free under {root.path}, {disk_floor // 2**20} MiB are needed"
        return GateResult(ok=False, failure=Reason.DISK_FULL.value, failure_detail=detail)
    try:
        place = _place(root, brief)
    except _Refused as refusal:
        return _refusal(brief, str(refusal))
    except OSError as error:
        return _machine_failure(error)
    session_lost = not session_exists(provider, brief.session_id, place.path, env)
    return GateResult(
        ok=True,
        work_dir=place.path,
        device=place.device,
        inode=place.inode,
        reason=ContinuityReason.SESSION_MISSING if session_lost else None,
    )


def same_directory(path: str, device: int, inode: int) -> bool:
    """Whether ``path`` is still the directory the gate saw: no symlink, same device and inode."""
    try:
        found = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and (found.st_dev, found.st_ino) == (device, inode)


def canonical_local_directory(path: str, root: RootDirectory) -> tuple[str, int, int]:
    """Real path, device and inode of a project's own directory, as it is registered.

    Raises `LocalDirectoryRefused` when it is missing or unusable, belongs to the system, is somebody's
    whole home, or would contain or lie in our root.
    """
    asked = Path(path)
    if not asked.is_absolute():
        message = f"{path!r} is not absolute; give the full path on the agent's machine"
        raise LocalDirectoryRefused(message)
    try:
        real = asked.resolve(strict=True)
    except (OSError, RuntimeError) as error:
        why = error.strerror if isinstance(error, OSError) else "a loop of symbolic links"
        message = f"{path}: {why}"
        raise LocalDirectoryRefused(message) from None
    _check_territory(real, root)
    if not real.is_dir() or not os.access(real, os.R_OK | os.W_OK | os.X_OK):
        message = f"{real} is not a directory that the runtime worker can read and write"
        raise LocalDirectoryRefused(message)
    if _read_marker(str(real)).values:
        message = f"{real} is a working directory that Segue manages; name a project's own"
        raise LocalDirectoryRefused(message)
    found = real.stat()
    return str(real), found.st_dev, found.st_ino


def _check_territory(real: Path, root: RootDirectory) -> None:
    """An agent may change everything below its directory: it must be a project's, and only that."""
    if real.is_relative_to(root.path) or root.path.is_relative_to(real):
        message = f"{real} and the runtime's root {root.path} must not contain each other"
        raise LocalDirectoryRefused(message)
    if any(real.is_relative_to(system) for system in _SYSTEM) or str(real) in _SHARED:
        message = f"{real} belongs to the system; name a project's directory"
        raise LocalDirectoryRefused(message)
    if any(home.is_relative_to(real) for home in _homes()):
        message = f"{real} is or contains somebody's home directory; name a project's directory"
        raise LocalDirectoryRefused(message)


def _homes() -> set[Path]:
    homes = {Path(entry.pw_dir) for entry in pwd.getpwall()} | {Path(os.path.expanduser("~"))}  # noqa: PTH111 - Path.home() raises for a user that has none
    # Accounts of services have homes like / and /nonexistent; what is above them is no home's parent.
    return {home.resolve() for home in homes if home.is_absolute() and home.is_dir()}


def _place(root: RootDirectory, brief: Brief) -> _Place:
    row = brief.directory
    if row.kind == "local":
        return _check_local(brief)
    if row.path is None:
        return _make(root, brief)
    return _check_managed(root, brief, row.path)


def _make(root: RootDirectory, brief: Brief) -> _Place:
    path = root.workdirs / f"{_slug(brief)}-{brief.directory.id.hex}"
    aside = root.workdirs / f".new-{token_hex(8)}"
    aside.mkdir(mode=0o700)
    try:
        _mark(aside, brief)
        aside.rename(path)
    except OSError:
        shutil.rmtree(aside, ignore_errors=True)
        if not os.path.lexists(path):
            raise
        # An earlier execution of this very preparation made it.
        return _check_managed(root, brief, str(path))
    sync_directory(root.workdirs)
    return _seen(str(path))


def _mark(directory: Path, brief: Brief) -> None:
    private = directory / MARKER_DIRECTORY
    private.mkdir(mode=0o700)
    (private / ".gitignore").write_text("*\n")
    marker = {
        "workspace_id": str(brief.workspace_id),
        "agent_id": str(brief.agent_id),
        "lane_id": str(brief.lane_id),
        "directory_id": str(brief.directory.id),
    }
    write_record(private / "marker.json", marker, sync_parent=False)


def _check_managed(root: RootDirectory, brief: Brief, path: str) -> _Place:
    place = _seen(path)
    if not Path(path).is_relative_to(root.workdirs) or Path(path) == root.workdirs:
        message = f"{path} does not lie under {root.workdirs}"
        raise _Refused(message)
    _check_identity(brief, place)
    _check_marker(brief, path)
    return place


def _check_local(brief: Brief) -> _Place:
    path = brief.directory.path
    if path is None:
        message = "the project's local directory has no path"
        raise _Refused(message)
    place = _seen(path)
    _check_identity(brief, place)
    if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        message = f"{path} can't be read and written by the runtime worker"
        raise _Refused(message)
    return place


def _seen(path: str) -> _Place:
    try:
        found = os.lstat(path)
    except OSError as error:
        message = f"{path}: {error.strerror}"
        raise _Refused(message) from None
    if not stat.S_ISDIR(found.st_mode):
        message = f"{path} is not a directory"
        raise _Refused(message)
    if os.path.realpath(path) != path:
        message = f"{path} leads through a symbolic link"
        raise _Refused(message)
    return _Place(path, found.st_dev, found.st_ino)


def _check_identity(brief: Brief, place: _Place) -> None:
    known = (brief.directory.device, brief.directory.inode)
    if None not in known and known != (place.device, place.inode):
        message = f"{place.path} is another directory than the one that was used before"
        raise _Refused(message)


def _check_marker(brief: Brief, path: str) -> None:
    marker = _read_marker(path).values
    lanes = {str(brief.lane_id), *map(str, brief.directory.accepted_lane_ids)}
    ours = (
        marker.get("workspace_id") == str(brief.workspace_id)
        and marker.get("agent_id") == str(brief.agent_id)
        and marker.get("lane_id") in lanes
    )
    if not ours:
        message = f"{path} carries no marker of this workspace, agent and lane"
        raise _Refused(message)


def _read_marker(path: str) -> Marker:
    try:
        directory = os.open(path, _NOFOLLOW | os.O_DIRECTORY)
    except OSError:
        return Marker({}, 0.0)
    try:
        return read_marker(directory)
    finally:
        os.close(directory)


def read_marker(directory: int) -> Marker:
    """The marker in an open directory; empty when there is none that can be read.

    An agent can write here: nothing is followed through a link, and little is read.
    """
    try:
        private = os.open(MARKER_DIRECTORY, _NOFOLLOW | os.O_DIRECTORY, dir_fd=directory)
        try:
            descriptor = os.open("marker.json", _NOFOLLOW | os.O_NONBLOCK, dir_fd=private)
        finally:
            os.close(private)
        with os.fdopen(descriptor, "rb") as file:
            values = json.loads(file.read(_MARKER_LIMIT))
            written_at = os.fstat(file.fileno()).st_mtime
    except (OSError, ValueError, RecursionError):
        return Marker({}, 0.0)
    return Marker(values if isinstance(values, dict) else {}, written_at)


def session_exists(provider: Provider, session_id: str | None, work_dir: str, env: Mapping[str, str]) -> bool:
    """Whether the provider's own store has this session; true where it can't be looked into."""
    if session_id is None:
        return True
    patterns = provider.session_paths(session_id, work_dir, env)
    if patterns is None:
        return True
    # Patterns are absolute, which Path.glob does not take.
    found = (path for pattern in patterns for path in glob.iglob(pattern, recursive=True))  # noqa: PTH207
    return any(_has_content(Path(path)) for path in found)


def _has_content(path: Path) -> bool:
    try:
        found = path.stat()
    except OSError:
        return False
    return stat.S_ISREG(found.st_mode) and found.st_size > 0


def _refusal(brief: Brief, why: str) -> GateResult:
    if brief.directory.kind == "local":
        return GateResult(ok=False, failure=Reason.LOCAL_DIRECTORY_ERROR.value, failure_detail=why)
    return GateResult(ok=False, reason=ContinuityReason.WORKDIR_GONE)


def _machine_failure(error: OSError) -> GateResult:
    reason = Reason.DISK_FULL if is_disk_full(error) else Reason.PROCESS_FAILURE
    return GateResult(ok=False, failure=reason.value, failure_detail=str(error))


def _slug(brief: Brief) -> str:
    source = f"{brief.issue_key or 'chat'}-{brief.agent_name}"
    return re.sub(r"[^a-z0-9]+", "-", source.lower())[:SLUG_LENGTH].strip("-") or "work"
