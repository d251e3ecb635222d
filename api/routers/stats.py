"""Numbers about the workspace's tasks."""

from fastapi import APIRouter
from pydantic import BaseModel

from api.units import InCall, PeopleRoute
from store import statistics

router = APIRouter(prefix="/stats", tags=["stats"], route_class=PeopleRoute)


class QueueWait(BaseModel):
    """Seconds from the task's creation to the machine, over the tasks of the last 24 hours."""

    count: int
    median_seconds: float | None
    p95_seconds: float | None


class Stats(BaseModel):
    """``reasons`` counts ended tasks, ``continuity`` attempts that started."""

    tasks: dict[str, int]
    reasons: dict[str, int]
    continuity: dict[str, int]
    queue_wait: QueueWait


@router.get("")
async def get_stats(call: InCall) -> Stats:
    """Tasks by status and reason, what became of their context, and how long they waited."""
    workspace_id = call.actor.workspace_id
    statuses, reasons = await statistics.task_counts(call.conn, workspace_id)
    wait = await statistics.queue_wait(call.conn, workspace_id)
    return Stats(
        tasks=statuses,
        reasons=reasons,
        continuity=await statistics.continuity_counts(call.conn, workspace_id),
        queue_wait=QueueWait(count=wait.count, median_seconds=wait.median, p95_seconds=wait.p95),
    )
