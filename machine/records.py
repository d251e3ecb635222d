"""Small JSON records on disk, written so that a reader never sees half of one."""

import asyncio
import errno
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from secrets import token_hex
from typing import Any

import structlog

log = structlog.get_logger()

DISK_RETRY_SECONDS = 2.0


def write_record(
    path: Path, record: Mapping[str, Any], *, durable: bool = True, sync_parent: bool = True
) -> None:
    """Replace ``path`` by ``record`` in one step (mode 0600). Raises `OSError`; then the old one stands.

    ``durable`` syncs file and directory: needed for what must be known after a power loss, and only there.
    Who moves the directory into place afterwards syncs its new parent instead.
    """
    temporary = _written_aside(path, json.dumps(record).encode(), durable=durable)
    try:
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    if durable and sync_parent:
        sync_directory(path.parent)


def create_record(path: Path, record: Mapping[str, Any]) -> bool:
    """Make ``path`` unless it exists: true if this call made it. Complete and durable when visible."""
    temporary = _written_aside(path, json.dumps(record).encode(), durable=True)
    try:
        os.link(temporary, path)
    except FileExistsError:
        return False
    finally:
        temporary.unlink(missing_ok=True)
    sync_directory(path.parent)
    return True


def read_record(path: Path) -> dict[str, Any] | None:
    """The record, or null when there is none or it was lost half-written with the machine's power."""
    try:
        found = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def is_disk_full(error: OSError) -> bool:
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


async def persist(action: Callable[[], None]) -> None:
    """Write what must not be lost. A full disk is waited for: the run is not at fault."""
    while True:
        try:
            action()
        except OSError as error:
            if not is_disk_full(error):
                raise
            log.warning("disk_full", error=str(error))
            await asyncio.sleep(DISK_RETRY_SECONDS)
        else:
            return


def write_private(path: Path, content: bytes) -> None:
    """Replace a file by one that only its owner may read, in one step."""
    _written_aside(path, content, durable=False).replace(path)


def sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _written_aside(path: Path, content: bytes, *, durable: bool) -> Path:
    temporary = path.with_name(f".{path.name}.{token_hex(4)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            if durable:
                os.fsync(file.fileno())
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    return temporary
