"""Projects' own directories, looked at by the machine that they are on."""

import asyncio
from collections.abc import Sequence

import structlog

from domain.brief import LocalDirectoryCheck, LocalDirectoryQuestion
from domain.errors import LocalDirectoryRefused, SegueError
from machine.plane import Plane
from machine.root import RootDirectory
from machine.workdirs import canonical_local_directory

log = structlog.get_logger(__name__)


class Places:
    """Answers what heartbeats ask. A path that hangs (a network's) must not hold up the heartbeat."""

    def __init__(self, root: RootDirectory, plane: Plane) -> None:
        self._root = root
        self._plane = plane
        self._looking: asyncio.Task[None] | None = None

    def look_at(self, questions: Sequence[LocalDirectoryQuestion]) -> None:
        """Look at them, unless earlier ones are still looked at: what has no answer is asked again."""
        if questions and (self._looking is None or self._looking.done()):
            self._looking = asyncio.create_task(self._answer(questions))

    async def _answer(self, questions: Sequence[LocalDirectoryQuestion]) -> None:
        for question in questions:
            check = await asyncio.to_thread(_check, question.path, self._root)
            try:
                await self._plane.answer_local_directory(question.id, check)
            except SegueError as error:
                log.warning("local_directory_untold", path=question.path, error=str(error))
                continue
            log.info("local_directory_checked", path=question.path, real=check.path, refusal=check.refusal)


def _check(path: str, root: RootDirectory) -> LocalDirectoryCheck:
    try:
        real, device, inode = canonical_local_directory(path, root)
    except LocalDirectoryRefused as refusal:
        return LocalDirectoryCheck(refusal=str(refusal))
    except OSError as error:
        return LocalDirectoryCheck(refusal=f"{path}: {error.strerror}")
    return LocalDirectoryCheck(path=real, device=device, inode=inode)
