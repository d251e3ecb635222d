"""Stopping the tasks of something that goes away: its issue, agent, runtime or comment."""

from collections.abc import Iterable
from typing import Any
from uuid import UUID

from sqlalchemy import Row
from sqlalchemy.ext.asyncio import AsyncConnection

from domain.statuses import TaskStatus
from store import tasks


async def stop_all(conn: AsyncConnection, task_ids: Iterable[UUID]) -> None:
    """Stop those of the tasks that have not ended, whoever may see them: their ground is gone."""
    await stop_locked(conn, await lock_all(conn, task_ids))


async def lock_all(conn: AsyncConnection, task_ids: Iterable[UUID]) -> list[Row[Any]]:
    """Lock the tasks' rows, in the order of their ids.

    All of them before the first is stopped: that takes the lock of the leases, and whoever holds
    that one must not wait for a task's row.
    """
    found = [await tasks.lock(conn, task_id) for task_id in sorted(task_ids)]
    return [task for task in found if task is not None]


async def stop_locked(conn: AsyncConnection, locked: Iterable[Row[Any]]) -> None:
    """`stop_all` for tasks whose rows are locked."""
    for task in locked:
        if not TaskStatus(task.status).terminal and task.cancel_requested_at is None:
            await tasks.stop(conn, task)
