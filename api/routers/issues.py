"""Issues; an issue answers to its id and to its key."""

from datetime import datetime
from typing import Annotated, Any, ClassVar, Literal
from uuid import UUID

from fastapi import APIRouter, Query, Response
from pydantic import AliasChoices, BaseModel, Field
from sqlalchemy import Row

from api import auth, pagination
from api.fields import Body, Patch, Text, Title
from api.pagination import Listing, Paging
from api.routers.tasks import TaskRef
from api.units import Call, InCall, PeopleRoute
from domain import names
from domain.routing import TriggerOutcome
from store import enqueue, issues, taskviews, triggers
from store.issues import IssueFilter
from store.taskviews import TaskFilter, TaskView

router = APIRouter(prefix="/issues", tags=["issues"], route_class=PeopleRoute)

Status = Literal["backlog", "todo", "in_progress", "in_review", "done", "blocked", "cancelled"]
Priority = Literal["urgent", "high", "medium", "low", "none"]
Stage = Annotated[int, Field(ge=0, le=1_000_000)]
Handoff = Field(default=None, validation_alias=AliasChoices("handoff_note", "handoff"))


class Assignee(BaseModel):
    type: Literal["agent", "member"]
    id: UUID


class Issue(BaseModel):
    id: UUID
    key: str
    title: str
    body: str
    status: Status
    priority: Priority
    assignee: Assignee | None
    parent_id: UUID | None
    project_id: UUID | None
    stage: int | None
    created_at: datetime
    updated_at: datetime

    @classmethod
    def of(cls, row: Row[Any]) -> "Issue":
        assignee = None
        if row.assignee_type is not None:
            assignee = Assignee(type=row.assignee_type, id=row.assignee_id)
        return cls(
            id=row.id,
            key=names.issue_key(row.issue_prefix, row.number),
            title=row.title,
            body=row.body,
            status=row.status,
            priority=row.priority,
            assignee=assignee,
            parent_id=row.parent_id,
            project_id=row.project_id,
            stage=row.stage,
            created_at=row.created_at,
            updated_at=row.updated_at,
        )


class Triggered(BaseModel):
    """What became of one agent that the write was for; ``reason`` says why it was blocked."""

    agent_id: UUID
    task_id: UUID | None
    outcome: TriggerOutcome
    reason: str | None

    @classmethod
    def of(cls, answer: enqueue.Triggered) -> "Triggered":
        return cls(
            agent_id=answer.agent_id, task_id=answer.task_id, outcome=answer.outcome, reason=answer.reason
        )


class WrittenIssue(BaseModel):
    issue: Issue
    triggered: list[Triggered]


class NewIssue(Body):
    """``handoff_note`` goes to the run that this starts, and to no other."""

    title: Title
    body: Text = ""
    status: Status = "todo"
    priority: Priority = "none"
    assignee: Assignee | None = None
    parent_id: UUID | str | None = None
    project_id: UUID | None = None
    stage: Stage | None = None
    handoff_note: Text | None = Handoff


class IssuePatch(Patch):
    """``handoff_note`` goes to the run that this starts, and to no other."""

    nullable: ClassVar[frozenset[str]] = frozenset(
        {"assignee", "parent_id", "project_id", "stage", "handoff_note"}
    )

    title: Title | None = None
    body: Text | None = None
    status: Status | None = None
    priority: Priority | None = None
    assignee: Assignee | None = None
    parent_id: UUID | str | None = None
    project_id: UUID | None = None
    stage: Stage | None = None
    handoff_note: Text | None = Handoff


class Rerun(Body):
    task_id: UUID | None = None


@router.get("")
async def list_issues(
    call: InCall,
    page: Paging,
    *,
    status: Annotated[list[Status] | None, Query()] = None,
    assignee_id: UUID | None = None,
    project_id: UUID | None = None,
    parent_id: UUID | None = None,
) -> Listing[Issue]:
    """The workspace's issues, newest first."""
    narrowed = IssueFilter(
        status=status or (), assignee_id=assignee_id, project_id=project_id, parent_id=parent_id
    )
    rows = await issues.page(call.conn, call.actor.workspace_id, page, narrowed)
    return pagination.listing(page, rows, Issue.of)


@router.post("", status_code=201)
async def create_issue(call: InCall, body: NewIssue) -> WrittenIssue:
    """Make an issue; an assigned agent starts unless it is in the backlog."""
    values = await _columns(call, body.model_dump(exclude={"handoff_note"}))
    row = await issues.create(call.conn, call.actor, values)
    started = await triggers.on_issue_write(
        call.conn, actor=call.actor, issue=row, handoff_note=body.handoff_note
    )
    return _written(row, started)


@router.get("/{issue}")
async def get_issue(call: InCall, issue: str) -> Issue:
    """One issue."""
    return Issue.of(await issues.find(call.conn, call.actor.workspace_id, issue))


@router.patch("/{issue}")
async def change_issue(call: InCall, issue: str, body: IssuePatch) -> WrittenIssue:
    """Change an issue. A newly assigned agent starts, and so does the assigned one of an issue that
    leaves the backlog. No change ever cancels a run.
    """
    before = await issues.find(call.conn, call.actor.workspace_id, issue, lock=True)
    changes = body.changes()
    handoff_note = changes.pop("handoff_note", None)
    if changes.get("assignee") is not None:
        changes["assignee"] = changes["assignee"].model_dump()
    row = await issues.change(call.conn, call.actor, before, await _columns(call, changes))
    started = await triggers.on_issue_write(
        call.conn, actor=call.actor, issue=row, before=before, handoff_note=handoff_note
    )
    return _written(row, started)


@router.delete("/{issue}", status_code=204)
async def delete_issue(call: InCall, issue: str) -> Response:
    """Remove an issue and cancel its tasks; its children stay. People only."""
    auth.require_member(call.actor)
    await issues.delete(call.conn, call.actor.workspace_id, issue)
    return Response(status_code=204)


@router.get("/{issue}/children")
async def list_children(call: InCall, issue: str, page: Paging) -> Listing[Issue]:
    """The issues directly below this one, newest first."""
    row = await issues.find(call.conn, call.actor.workspace_id, issue)
    narrowed = IssueFilter(parent_id=row.id)
    rows = await issues.page(call.conn, call.actor.workspace_id, page, narrowed)
    return pagination.listing(page, rows, Issue.of)


@router.get("/{issue}/tasks")
async def list_issue_tasks(call: InCall, issue: str, page: Paging) -> Listing[TaskView]:
    """The issue's tasks that the caller may see, newest first."""
    row = await issues.find(call.conn, call.actor.workspace_id, issue)
    narrowed = TaskFilter(issue_id=row.id)
    rows = await taskviews.page(call.conn, call.actor, page, narrowed, call.deps.links)
    return pagination.listing(page, rows, lambda view: view)


@router.post("/{issue}/rerun", status_code=202)
async def rerun_issue(call: InCall, issue: str, response: Response, body: Rerun | None = None) -> TaskRef:
    """Run the assigned agent afresh (new session, new directory), or retry the task that is named."""
    row = await issues.standing(call.conn, call.actor.workspace_id, issue)
    task_id = await enqueue.rerun(
        call.conn, actor=call.actor, issue_id=row.id, task_id=body.task_id if body else None
    )
    return TaskRef.at(response, task_id)


def _written(row: Row[Any], started: list[enqueue.Triggered]) -> WrittenIssue:
    return WrittenIssue(issue=Issue.of(row), triggered=[Triggered.of(answer) for answer in started])


async def _columns(call: Call, values: dict[str, Any]) -> dict[str, Any]:
    """The body's fields as columns: a parent may be named by its key."""
    if "assignee" in values:
        assignee = values.pop("assignee")
        values["assignee_type"] = assignee["type"] if assignee else None
        values["assignee_id"] = assignee["id"] if assignee else None
    if isinstance(values.get("parent_id"), str):
        values["parent_id"] = await issues.parent_id(call.conn, call.actor.workspace_id, values["parent_id"])
    return values
