"""The runtime worker's collection: a round now and then, and one by hand (`segue worker gc`)."""

import asyncio
from pathlib import Path
from random import uniform
from typing import Any

import structlog

from domain.errors import InvalidInput, SegueError
from machine.collection import Collector, Item, What
from machine.plane import Plane
from machine.root import RootDirectory
from workers.settings import Settings

log = structlog.get_logger(__name__)

#: The first round waits for a worker that has just started to settle, and no longer: a worker that is
#: restarted every hour must collect all the same.
_FIRST_SECONDS = 60.0


async def keep_collecting(root: RootDirectory, plane: Plane, settings: Settings) -> None:
    """A round every ``collect_seconds`` until cancelled. What goes wrong is tried again by the next one."""
    period = settings.collect_seconds
    if period == 0:
        return
    collector = Collector(root, plane, keep_attempts=settings.keep_attempts_seconds)
    reported: set[Path] = set()
    pause = min(period, _FIRST_SECONDS)
    try:
        while True:
            await asyncio.sleep(pause * uniform(0.9, 1.1))
            pause = period
            try:
                _tell(await collector.round(), reported)
            except (SegueError, OSError) as error:
                log.warning("collection_failed", error=str(error))
    finally:
        collector.stop()


def _tell(items: list[Item], reported: set[Path]) -> None:
    """Every removal and failure; a stranger once."""
    for item in items:
        fields = {"what": item.what.value, "path": str(item.path), "reason": item.reason}
        if item.error is not None:
            log.warning("collection_incomplete", error=item.error, **fields)
        elif item.removed:
            log.info("collected", bytes=item.bytes, **fields)
        elif item.what is What.STRANGER and item.path not in reported:
            reported.add(item.path)
            log.warning("collection_stranger", **fields)


async def collect_once(settings: Settings, *, dry_run: bool) -> list[dict[str, Any]]:
    """One round over a root, also beside its worker; every thing in it with its size, biggest first.

    Raises `InvalidInput` when the folder is no runtime's root.
    """
    path = settings.required_root()
    if not (path / "machine.json").is_file():
        raise InvalidInput(f"{path} is not the root of a runtime worker: it has no machine.json.")
    async with Plane(settings.api_url, settings.required_runtime_token()) as plane:
        collector = Collector(RootDirectory(path), plane, keep_attempts=settings.keep_attempts_seconds)
        items = await collector.round(dry_run=dry_run, measure=True)
    return [_row(item, dry_run=dry_run) for item in sorted(items, key=lambda one: -(one.bytes or 0))]


def _row(item: Item, *, dry_run: bool) -> dict[str, Any]:
    decision = "collect" if item.collect else "keep"
    if item.collect and not dry_run:
        decision = "collected" if item.removed else "failed"
    return {
        "decision": decision,
        "what": item.what.value,
        "id": str(item.id) if item.id is not None else None,
        "path": str(item.path),
        "bytes": item.bytes,
        "reason": item.reason,
        "error": item.error,
    }
