"""Collection: what lies in the root and nobody needs any more is found, asked about, and removed.

The API decides (`domain.collection`); here is seen to it that only what is ours goes: a managed directory
lies directly under ``workdirs``, is no link, carries our marker, is named after the directory that the
marker names, and belongs to this runtime's workspace. Everything else is reported and left alone, and a
project's own directory is never even looked at.
"""

import asyncio
import os
import stat
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from uuid import UUID

import structlog

from domain.collection import (
    COLLECTION_BATCH,
    CollectionAnswer,
    CollectionRequest,
    DirectoryCandidate,
)
from machine.attempt import AttemptDirectory
from machine.plane import Plane
from machine.removal import Swapped, discard, empty_trash, names, opened, size
from machine.root import RootDirectory
from machine.workdirs import read_marker

log = structlog.get_logger()

#: A preparation takes a moment; one that is this old was cut short.
_HALF_MADE_SECONDS = 3600.0


class What(StrEnum):
    """The kinds of things that lie in a root."""

    DIRECTORY = "directory"
    ATTEMPT = "attempt"
    HALF_MADE = "half_made"
    TRASH = "trash"
    STRANGER = "stranger"


@dataclass(frozen=True)
class Item:
    """One thing in the root and what becomes of it. ``bytes`` is null where nobody counted."""

    what: What
    path: Path
    reason: str
    collect: bool = False
    id: UUID | None = None
    workspace_id: str | None = None
    #: Seconds since it was marked (a directory) or ended (an attempt).
    age: float = 0.0
    device: int = 0
    inode: int = 0
    bytes: int | None = None
    removed: bool = False
    error: str | None = None

    @property
    def asked(self) -> bool:
        """The API decides about it."""
        return self.id is not None and not self.reason


class Collector:
    """Rounds over one root. Several at once are fine: each thing is moved away by one of them."""

    def __init__(
        self,
        root: RootDirectory,
        plane: Plane,
        *,
        keep_attempts: float,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """``keep_attempts``: seconds for which the files of an ended attempt are kept."""
        self._root = root
        self._plane = plane
        self._keep_attempts = keep_attempts
        self._clock = clock
        self._stopped = threading.Event()

    def stop(self) -> None:
        """Let a round that is under way in a thread end soon; what it leaves is done by the next one."""
        self._stopped.set()

    async def round(self, *, dry_run: bool = False, measure: bool = False) -> list[Item]:
        """Look at everything, remove what may go, and tell of all. Raises what the API's call raises.

        A dry run changes nothing, here and there. ``measure`` counts the size of what is kept, too.
        """
        found = await asyncio.to_thread(self._survey)
        plain = [item for item in found if not item.asked]
        told = await asyncio.to_thread(self._settle, plain, dry_run=dry_run, measure=measure)
        for batch in _batches([item for item in found if item.asked]):
            answer = await self._plane.check_collection(_request(batch, dry_run=dry_run))
            decided = _decided(batch, answer)
            told += await asyncio.to_thread(self._settle, decided, dry_run=dry_run, measure=measure)
        return [*told, *await asyncio.to_thread(self._trash, dry_run=dry_run)]

    # --- looking ------------------------------------------------------------------------------------

    def _survey(self) -> list[Item]:
        return [*self._directories(), *self._attempts()]

    def _directories(self) -> Iterator[Item]:
        with opened(self._root.workdirs) as workdirs:
            for name in names(workdirs):
                path = self._root.workdirs / name
                try:
                    yield self._directory(path, workdirs)
                except OSError as error:
                    yield Item(What.STRANGER, path, error.strerror or str(error))

    def _directory(self, path: Path, workdirs: int) -> Item:
        if not stat.S_ISDIR(os.lstat(path.name, dir_fd=workdirs).st_mode):
            return Item(What.STRANGER, path, "not a directory")
        with opened(path.name, workdirs) as descriptor:
            found, marker = os.fstat(descriptor), read_marker(descriptor)
        if path.name.startswith(".new-"):
            return self._half_made(path, found)
        directory_id = _uuid(marker.values.get("directory_id"))
        workspace_id = marker.values.get("workspace_id")
        if directory_id is None or workspace_id is None:
            return Item(What.STRANGER, path, "no marker of ours")
        if not path.name.endswith(f"-{directory_id.hex}"):
            return Item(What.STRANGER, path, "the marker names another directory")
        return Item(
            What.DIRECTORY,
            path,
            "",
            id=directory_id,
            workspace_id=workspace_id,
            age=self._clock() - marker.written_at,
            device=found.st_dev,
            inode=found.st_ino,
        )

    def _attempts(self) -> Iterator[Item]:
        with opened(self._root.attempts) as attempts:
            for name in names(attempts):
                path = self._root.attempts / name
                try:
                    yield self._attempt(path, os.lstat(name, dir_fd=attempts))
                except OSError as error:
                    yield Item(What.STRANGER, path, error.strerror or str(error))

    def _attempt(self, path: Path, found: os.stat_result) -> Item:
        if not stat.S_ISDIR(found.st_mode):
            return Item(What.STRANGER, path, "not a directory")
        if path.name.startswith(".new-"):
            return self._half_made(path, found)
        attempt_id = _uuid(path.name)
        directory = AttemptDirectory.find(path.parent, attempt_id) if attempt_id is not None else None
        if directory is None:
            return Item(What.STRANGER, path, "no record of an attempt")
        return Item(
            What.ATTEMPT,
            path,
            self._why_kept(directory),
            id=attempt_id,
            age=self._age(directory),
            device=found.st_dev,
            inode=found.st_ino,
        )

    def _why_kept(self, directory: AttemptDirectory) -> str:
        """What needs no question; empty where the API is asked."""
        if self._age(directory) <= self._keep_attempts:
            return "recent"
        return "alive" if directory.lives(self._root.boot_id) or directory.is_read() else ""

    def _age(self, directory: AttemptDirectory) -> float:
        outcome = directory.path / "outcome.json"
        record = outcome if outcome.exists() else directory.path / "attempt.json"
        return self._clock() - record.stat().st_mtime

    def _half_made(self, path: Path, found: os.stat_result) -> Item:
        age = self._clock() - found.st_mtime
        old = age > _HALF_MADE_SECONDS
        reason = "cut short" if old else "recent"
        return Item(
            What.HALF_MADE, path, reason, collect=old, age=age, device=found.st_dev, inode=found.st_ino
        )

    # --- removing -----------------------------------------------------------------------------------

    def _settle(self, items: Sequence[Item], *, dry_run: bool, measure: bool) -> list[Item]:
        if dry_run:
            return [replace(item, bytes=size(item.path) if measure else None) for item in items]
        return [self._remove(item) if item.collect else _measured(item, wanted=measure) for item in items]

    def _goes_on(self) -> bool:
        return not self._stopped.is_set()

    def _remove(self, item: Item) -> Item:
        if self._stopped.is_set():
            return item
        try:
            name = discard(item.path, self._root.trash, device=item.device, inode=item.inode)
        except FileNotFoundError:
            return replace(item, removed=True, bytes=0)  # by another collector
        except Swapped as error:
            return replace(item, collect=False, reason="swapped", error=str(error))
        except OSError as error:
            return replace(item, error=error.strerror or str(error))
        removed = empty_trash(self._root.trash, name, go_on=self._goes_on)
        return replace(item, removed=True, bytes=removed.bytes, error="; ".join(removed.errors[:3]) or None)

    def _trash(self, *, dry_run: bool) -> list[Item]:
        """What a crash, or a file that could not be removed, has left."""
        left = sorted(self._root.trash.iterdir())
        if not left:
            return []
        if dry_run:
            return [Item(What.TRASH, path, "left over", collect=True, bytes=size(path)) for path in left]
        removed = empty_trash(self._root.trash, go_on=self._goes_on)
        error = "; ".join(removed.errors[:3]) or None
        return [
            Item(
                What.TRASH,
                self._root.trash,
                "left over",
                collect=True,
                bytes=removed.bytes,
                removed=not any(self._root.trash.iterdir()),
                error=error,
            )
        ]


def _measured(item: Item, *, wanted: bool) -> Item:
    return replace(item, bytes=size(item.path)) if wanted else item


def _batches(items: Sequence[Item]) -> Iterator[Sequence[Item]]:
    for start in range(0, len(items), COLLECTION_BATCH):
        yield items[start : start + COLLECTION_BATCH]


def _request(batch: Sequence[Item], *, dry_run: bool) -> CollectionRequest:
    return CollectionRequest(
        directories=[
            DirectoryCandidate(id=item.id, age_seconds=item.age)
            for item in batch
            if item.what is What.DIRECTORY and item.id is not None
        ],
        attempts=[item.id for item in batch if item.what is What.ATTEMPT and item.id is not None],
        dry_run=dry_run,
    )


def _decided(batch: Sequence[Item], answer: CollectionAnswer) -> list[Item]:
    decisions = {decision.id: decision for decision in (*answer.directories, *answer.attempts)}
    decided = []
    for item in batch:
        decision = decisions.get(item.id) if item.id is not None else None
        if item.workspace_id not in (None, str(answer.workspace_id)):
            decided.append(replace(item, what=What.STRANGER, reason="of another workspace"))
        elif decision is None:
            decided.append(replace(item, reason="not answered"))
        else:
            decided.append(replace(item, reason=decision.reason.value, collect=decision.collect))
    return decided


def _uuid(text: object) -> UUID | None:
    try:
        return UUID(str(text))
    except ValueError:
        return None
