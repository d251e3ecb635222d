r"""The agent's stdout as lines: bytes, split at ``\n`` and nowhere else, however long."""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

#: A longer line is counted and recorded as truncated. Well above the 64 MiB that must pass whole.
LINE_LIMIT = 96 * 1024 * 1024
CHUNK_BYTES = 256 * 1024
#: What is kept of a line that is over the limit; more than is shown, so that a secret at the end of
#: what is shown is still whole when it is looked for.
KEPT_BYTES = 16 * 1024
STDERR_TAIL_BYTES = 8192

_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")


@dataclass(frozen=True)
class Line:
    """One line without its newline. ``cut``: only its beginning is here, ``size`` is its true length."""

    content: bytes
    size: int
    cut: bool = False


class LineSplitter:
    """Chunks in, lines out. Memory is bounded by the limit; each byte is copied once."""

    def __init__(self, limit: int = LINE_LIMIT) -> None:
        self._limit = limit
        self._kept = min(limit, KEPT_BYTES)
        self._parts: list[bytes] = []
        self._size = 0

    def feed(self, chunk: bytes) -> Iterator[Line]:
        """The lines that ``chunk`` completes. Must be consumed to its end."""
        start = 0
        while (newline := chunk.find(b"\n", start)) >= 0:
            self._keep(chunk[start:newline])
            yield self._take()
            start = newline + 1
        if start < len(chunk):
            self._keep(chunk[start:])

    def finish(self) -> Line | None:
        """The torn last line, if there is one."""
        return self._take() if self._size else None

    def _keep(self, part: bytes) -> None:
        had_room = self._size <= self._limit
        self._size += len(part)
        if self._size <= self._limit:
            self._parts.append(part)
        elif had_room:
            self._parts = [b"".join([*self._parts, part])[: self._kept]]

    def _take(self) -> Line:
        line = Line(b"".join(self._parts), self._size, cut=self._size > self._limit)
        self._parts = []
        self._size = 0
        return line


class OutputFile:
    """Reads a file that grows, from its first byte on."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CREAT, 0o600)
        self.offset = 0

    def read(self, up_to: int | None = None) -> bytes:
        """The next chunk; empty at the present end, or at byte ``up_to``."""
        wanted = CHUNK_BYTES if up_to is None else min(CHUNK_BYTES, up_to - self.offset)
        chunk = os.pread(self._descriptor, wanted, self.offset) if wanted > 0 else b""
        self.offset += len(chunk)
        return chunk

    @property
    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    @property
    def modified_at(self) -> float:
        """When the agent last wrote (seconds since the epoch): no event read so far is younger."""
        return os.fstat(self._descriptor).st_mtime

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._descriptor)


def stderr_tail(path: Path, limit: int = STDERR_TAIL_BYTES) -> str:
    """The last ``limit`` bytes of a stderr file as text, without ANSI sequences; empty if there is none."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - limit))
            text = file.read(limit).decode("utf-8", "replace")
    except OSError:
        return ""
    return _ANSI.sub("", text).replace("\x00", "\N{REPLACEMENT CHARACTER}")
