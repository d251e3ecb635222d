"""Removing a directory tree: never through a link, however deep it is, and again after a crash.

What is to go is renamed into the trash first, in one step: from then on nobody finds it where it was, and
whatever lies in the trash may be removed by anybody at any time. Below the trash nothing recurses: each
subdirectory is moved up beside its parent and taken in turn.
"""

import contextlib
import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from secrets import token_hex

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_BLOCK = 512  # the unit of st_blocks, whatever the file system's own is


@dataclass
class Removed:
    """Bytes given back, and what could not be removed and stays in the trash for the next time."""

    bytes: int = 0
    errors: list[str] = field(default_factory=list)


class Swapped(OSError):
    """What stands at the path now is not what was looked at."""


@contextlib.contextmanager
def opened(path: Path | str, within: int | None = None) -> Iterator[int]:
    """A descriptor of a directory; its last component is no link. Raises `OSError`."""
    descriptor = os.open(path, _DIRECTORY, dir_fd=within)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def names(directory: int) -> list[str]:
    """What lies in an open directory, sorted."""
    with os.scandir(directory) as entries:
        return sorted(entry.name for entry in entries)


def discard(path: Path, trash: Path, *, device: int, inode: int) -> str:
    """Move the directory that has this identity into the trash; its name there.

    Raises `FileNotFoundError` when somebody else has moved it, `Swapped` when another thing is in its place,
    and `OSError`.
    """
    name = f"{path.name}.{token_hex(8)}"
    with opened(path.parent) as parent, opened(trash) as bin_:
        _check(os.lstat(path.name, dir_fd=parent), path, device, inode)
        # Another parent is written into the directory itself, which its owner may have forbidden.
        _make_writable(path.name, parent)
        os.rename(path.name, name, src_dir_fd=parent, dst_dir_fd=bin_)
        try:
            _check(os.lstat(name, dir_fd=bin_), path, device, inode)
        except Swapped:
            # Swapped between the look and the move: what was moved is not ours to take.
            os.rename(name, path.name, src_dir_fd=bin_, dst_dir_fd=parent)
            raise
    return name


def _check(found: os.stat_result, path: Path, device: int, inode: int) -> None:
    if not stat.S_ISDIR(found.st_mode) or (found.st_dev, found.st_ino) != (device, inode):
        message = f"{path} is another thing than it was a moment ago"
        raise Swapped(message)


def empty_trash(trash: Path, only: str | None = None, *, go_on: Callable[[], bool] = lambda: True) -> Removed:
    """Remove what lies in the trash (or one name of it). Two that do so at once don't hinder each other.

    ``go_on`` is asked before each directory: false leaves the rest for the next time.
    """
    removed = Removed()
    with opened(trash) as bin_:
        pending = [only] if only is not None else names(bin_)
        while pending and go_on():
            _remove(bin_, pending.pop(), pending, removed)
    return removed


def _remove(bin_: int, name: str, pending: list[str], removed: Removed) -> None:
    """One entry of the trash; its subdirectories become further entries."""
    with _noted(name, removed):
        found = os.lstat(name, dir_fd=bin_)
        if not stat.S_ISDIR(found.st_mode):
            os.unlink(name, dir_fd=bin_)
            return
        _make_writable(name, bin_)
        with opened(name, bin_) as directory:
            removed.bytes += _clear(directory, bin_, pending, removed)
        os.rmdir(name, dir_fd=bin_)
        removed.bytes += found.st_blocks * _BLOCK


def _clear(directory: int, bin_: int, pending: list[str], removed: Removed) -> int:
    freed = 0
    # The listing first: what is moved away while it is read could be missed or seen twice.
    with os.scandir(directory) as entries:
        listed = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    for name, is_directory in listed:
        with _noted(name, removed):
            if is_directory:
                aside = token_hex(12)
                _make_writable(name, directory)
                os.rename(name, aside, src_dir_fd=directory, dst_dir_fd=bin_)
                pending.append(aside)
            else:
                found = os.lstat(name, dir_fd=directory)
                os.unlink(name, dir_fd=directory)
                freed += found.st_blocks * _BLOCK if found.st_nlink == 1 else 0
    return freed


@contextlib.contextmanager
def _noted(name: str, removed: Removed) -> Iterator[None]:
    """Go on with the rest; what is gone already is fine."""
    try:
        yield
    except FileNotFoundError:
        pass
    except OSError as error:
        removed.errors.append(f"{name}: {error.strerror or error}")


def _make_writable(name: str, within: int) -> None:
    """Tools make directories that even their owner can't change (module caches); a link stays untouched."""
    descriptor = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=within)
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode) and mode & stat.S_IRWXU != stat.S_IRWXU:
            # chmod takes no O_PATH descriptor, but its name in /proc.
            Path(f"/proc/self/fd/{descriptor}").chmod(stat.S_IMODE(mode) | stat.S_IRWXU)
    finally:
        os.close(descriptor)


def size(path: Path) -> int:
    """Bytes that a tree takes on its disk, links not followed; what can't be read counts nothing."""
    total, seen, pending = 0, set(), [] if path.is_symlink() else [os.fspath(path)]
    while pending:
        with contextlib.suppress(OSError), os.scandir(pending.pop()) as entries:
            for entry in entries:
                found = entry.stat(follow_symlinks=False)
                if entry.is_dir(follow_symlinks=False):
                    pending.append(entry.path)
                elif found.st_nlink > 1:
                    if (found.st_dev, found.st_ino) in seen:
                        continue
                    seen.add((found.st_dev, found.st_ino))
                total += found.st_blocks * _BLOCK
    return total
