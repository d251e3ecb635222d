"""Comments, and whom they start."""

from datetime import datetime
from typing import Any, Literal
from uuid import UUID

from fastapi import APIRouter, Response
from pydantic import BaseModel
from sqlalchemy import Row

from api import pagination
from api.fields import Body, FilledText
from api.pagination import Listing, Paging
from api.routers.issues import Triggered
from api.units import InCall, PeopleRoute
from store import comments, enqueue, issues

router = APIRouter(tags=["comments"], route_class=PeopleRoute)


class Author(BaseModel):
    type: Literal["member", "agent", "system"]
    id: UUID | None


class Comment(BaseModel):
    """``source_task_id`` is the task that wrote it."""

    id: UUID
    issue_id: UUID
    author: Author
    body: str
    parent_id: UUID | None
    source_task_id: UUID | None
    created_at: datetime
    edited_at: datetime | None

    @classmethod
    def of(cls, row: Row[Any]) -> "Comment":
        return cls(
            id=row.id,
            issue_id=row.issue_id,
            author=Author(type=row.author_type, id=row.author_id),
            body=row.body,
            parent_id=row.parent_id,
            source_task_id=row.source_task_id,
            created_at=row.created_at,
            edited_at=row.edited_at,
        )


class WrittenComment(BaseModel):
    comment: Comment
    triggered: list[Triggered]


class NewComment(Body):
    """``parent_id`` is the comment that this one replies to."""

    body: FilledText
    parent_id: UUID | None = None


class CommentEdit(Body):
    body: FilledText


@router.get("/issues/{issue}/comments")
async def list_comments(call: InCall, issue: str, page: Paging) -> Listing[Comment]:
    """The comments of an issue, newest first."""
    row = await issues.find(call.conn, call.actor.workspace_id, issue)
    rows = await comments.page(call.conn, row.id, page)
    return pagination.listing(page, rows, Comment.of)


@router.post("/issues/{issue}/comments", status_code=201)
async def add_comment(call: InCall, issue: str, body: NewComment) -> WrittenComment:
    """Comment, and start whom it is for: the agents that it mentions with
    ``[@Name](mention://agent/<id>)``, else the one it replies to, else the assigned one.
    """
    author_type, author_id = comments.author(call.actor)
    row, started = await comments.write(
        call.conn,
        call.actor,
        await issues.standing(call.conn, call.actor.workspace_id, issue),
        comments.Draft(body.body, author_type, author_id, body.parent_id, call.actor.task_id),
    )
    return _written(row, started)


@router.patch("/comments/{comment_id}")
async def edit_comment(call: InCall, comment_id: UUID, body: CommentEdit) -> WrittenComment:
    """Change one's own comment; agents that it mentions only now are started."""
    return _written(*await comments.edit(call.conn, call.actor, comment_id, body.body))


@router.delete("/comments/{comment_id}", status_code=204)
async def delete_comment(call: InCall, comment_id: UUID) -> Response:
    """Remove one's own comment (admins: anybody's). Queued tasks that it alone started are cancelled."""
    await comments.delete(call.conn, call.actor, comment_id)
    return Response(status_code=204)


def _written(row: Row[Any], started: list[enqueue.Triggered]) -> WrittenComment:
    return WrittenComment(comment=Comment.of(row), triggered=[Triggered.of(answer) for answer in started])
