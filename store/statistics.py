"""Counts of tasks: for a workspace's people, and for the operator's metrics."""

from collections import Counter
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from store.models import Attempt, Outbox, Task

_RECENT = timedelta(hours=24)


@dataclass(frozen=True)
class QueueWait:
    """Seconds between creation and dispatch."""

    count: int
    median: float | None
    p95: float | None


async def task_counts(
    conn: AsyncConnection, workspace_id: UUID | None = None
) -> tuple[dict[str, int], dict[str, int]]:
    """Tasks by status, and ended tasks by reason; of all workspaces without an id."""
    query = select(Task.status, Task.reason, func.count().label("tasks")).group_by(Task.status, Task.reason)
    if workspace_id is not None:
        query = query.where(Task.workspace_id == workspace_id)
    statuses: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    for row in await conn.execute(query):
        statuses[row.status] += row.tasks
        if row.reason is not None:
            reasons[row.reason] += row.tasks
    return dict(statuses), dict(reasons)


async def continuity_counts(conn: AsyncConnection, workspace_id: UUID) -> dict[str, int]:
    """Attempts that started, by what became of the pointer."""
    rows = await conn.execute(
        select(Attempt.continuity, func.count().label("attempts"))
        .where(Attempt.workspace_id == workspace_id, Attempt.started_at.is_not(None))
        .group_by(Attempt.continuity)
    )
    return {row.continuity: row.attempts for row in rows}


async def queue_wait(conn: AsyncConnection, workspace_id: UUID) -> QueueWait:
    waited: Any = func.extract("epoch", Task.dispatched_at - Task.created_at)
    rows = await conn.execute(
        select(
            func.count().label("tasks"),
            func.percentile_cont(0.5).within_group(waited).label("median"),
            func.percentile_cont(0.95).within_group(waited).label("p95"),
        ).where(
            Task.workspace_id == workspace_id,
            Task.dispatched_at.is_not(None),
            Task.created_at > func.now() - _RECENT,
        )
    )
    row = rows.one()
    return QueueWait(row.tasks, row.median, row.p95)


async def unsent_outbox(conn: AsyncConnection) -> int:
    """Rows that Temporal has not been told about yet."""
    count: int | None = await conn.scalar(select(func.count()).select_from(Outbox))
    return count or 0
