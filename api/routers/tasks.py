"""Tasks: what they are doing, what they said, and stopping or repeating them."""

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Query, Request, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel
from sse_starlette import EventSourceResponse

from api import auth, pagination, streams
from api.deps import PREFIX, ApiDeps
from api.pagination import Listing, Paging
from api.streams import After, EventView, LastEventId
from api.units import InCall, PeopleRoute
from domain.permissions import Actor
from domain.statuses import TaskStatus
from store import enqueue, issues, tasks, taskviews, transcripts
from store.taskviews import TaskFilter, TaskView

router = APIRouter(prefix="/tasks", tags=["tasks"], route_class=PeopleRoute)
#: Streams live longer than a transaction may.
stream_router = APIRouter(prefix="/tasks", tags=["tasks"], route_class=APIRoute)


class TaskRef(BaseModel):
    task_id: UUID

    @classmethod
    def at(cls, response: Response, task_id: UUID) -> "TaskRef":
        """The answer that names the task, with its address as Location."""
        response.headers["Location"] = f"{PREFIX}/tasks/{task_id}"
        return cls(task_id=task_id)


class Transcript(BaseModel):
    """Events, oldest first; ``next`` is the ``after`` of the next page, null at the end so far."""

    items: list[EventView]
    next: int | None


@router.get("")
async def list_tasks(
    call: InCall,
    page: Paging,
    *,
    agent_id: UUID | None = None,
    issue_id: Annotated[str | None, Query(max_length=50, description="Id or key")] = None,
    chat_id: UUID | None = None,
    runtime_id: UUID | None = None,
    status: Annotated[list[TaskStatus] | None, Query()] = None,
    reason: Annotated[list[str] | None, Query(max_length=50)] = None,
) -> Listing[TaskView]:
    """The tasks that the caller may see, newest first."""
    issue = await issues.find(call.conn, call.actor.workspace_id, issue_id) if issue_id else None
    narrowed = TaskFilter(
        agent_id=agent_id,
        issue_id=issue.id if issue else None,
        chat_id=chat_id,
        runtime_id=runtime_id,
        status=status or (),
        reason=reason or (),
    )
    rows = await taskviews.page(call.conn, call.actor, page, narrowed, call.deps.links)
    return pagination.listing(page, rows, lambda view: view)


@router.get("/{task_id}")
async def get_task(call: InCall, task_id: UUID) -> TaskView:
    """One task with its attempts."""
    return await taskviews.get(call.conn, call.actor, task_id, call.deps.links)


@router.get("/{task_id}/events")
async def list_events(
    call: InCall,
    task_id: UUID,
    after: After = 0,
    limit: Annotated[int, Query(ge=1, le=1000)] = 200,
) -> Transcript:
    """The transcript above number ``after``, oldest first."""
    await taskviews.check_visible(call.conn, call.actor, task_id)
    rows = await transcripts.page(call.conn, call.actor.workspace_id, task_id, after, limit + 1)
    shown = [EventView.of(row) for row in rows[:limit]]
    return Transcript(items=shown, next=shown[-1].seq if len(rows) > limit else None)


@stream_router.get("/{task_id}/events/stream", response_class=EventSourceResponse)
async def stream_events(
    request: Request, task_id: UUID, after: After = 0, last_event_id: LastEventId = None
) -> EventSourceResponse:
    """The transcript as server-sent events: what there is above ``after``, then what comes.

    ``id`` is the number, ``event`` the type; ``event: end`` carries the task's final status.
    """
    deps: ApiDeps = request.app.state.deps

    async def check() -> Actor:
        async with deps.database.begin() as conn:
            actor = await auth.authenticate(conn, request, request.app.state.limiter)
            auth.admit_people(actor)
            await taskviews.check_visible(conn, actor, task_id)
            return actor

    auth.bearer_token(request)
    right = streams.Right(check, await check())
    start = streams.resume_point(last_event_id, after)
    events = streams.follow(deps.database, request.app.state.listeners, right, task_id, start)
    return EventSourceResponse(events, ping=streams.KEEP_ALIVE_SECONDS)


@router.post("/{task_id}/cancel", status_code=202)
async def cancel_task(call: InCall, task_id: UUID, response: Response) -> TaskRef:
    """Ask for the task's end; asking again gives the same answer. A task that ended is left as it is."""
    await tasks.request_cancel(call.conn, actor=call.actor, task_id=task_id)
    return TaskRef.at(response, task_id)


@router.post("/{task_id}/retry", status_code=202)
async def retry_task(call: InCall, task_id: UUID, response: Response) -> TaskRef:
    """A new task that goes on from this finished one's own session and directory."""
    retried = await enqueue.retry(call.conn, actor=call.actor, task_id=task_id)
    return TaskRef.at(response, retried)


@router.post("/{task_id}/retry-now", status_code=202)
async def retry_task_now(call: InCall, task_id: UUID, response: Response) -> TaskRef:
    """Don't wait any longer for the quota's reset or for the pause before a retry."""
    await tasks.retry_now(call.conn, actor=call.actor, task_id=task_id)
    return TaskRef.at(response, task_id)
