"""Comments: written, routed to agents, edited and deleted."""

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from sqlalchemy import Row, Select, func, insert, select, text, update
from sqlalchemy.ext.asyncio import AsyncConnection

from domain.errors import NotAllowed, NotFound, UnprocessableInput
from domain.permissions import Actor
from domain.routing import CommentRouting, mentions, route_comment
from domain.triggers import TriggerType
from store import issues, triggers
from store.enqueue import Triggered
from store.ids import new_id
from store.models import Comment, Issue, Task, TaskComment
from store.pages import Page, newest_first
from store.stopping import stop_all
from store.taskstates import not_started

_COLUMNS = tuple(Comment.__table__.c)
_INSERT = insert(Comment).returning(*_COLUMNS)


@dataclass(frozen=True)
class Draft:
    """A comment that is to be written. ``author_type`` is ``member``, ``agent`` or ``system``."""

    body: str
    author_type: str
    author_id: UUID | None
    parent_id: UUID | None = None
    source_task_id: UUID | None = None


async def add(
    conn: AsyncConnection,
    *,
    actor: Actor,
    issue_id: UUID,
    body: str,
    author_type: str,
    author_id: UUID | None,
    parent_id: UUID | None = None,
    source_task_id: UUID | None = None,
) -> tuple[Row[Any], list[Triggered]]:
    """Write a comment and start the agents it is for, with ``actor``'s rights.

    Raises `NotFound` for an issue that is gone, `UnprocessableInput` for a parent that is not one
    of its comments.
    """
    issue = await issues.standing(conn, actor.workspace_id, issue_id)
    draft = Draft(body, author_type, author_id, parent_id, source_task_id)
    return await write(conn, actor, issue, draft)


async def write(
    conn: AsyncConnection, actor: Actor, issue: Row[Any], draft: Draft
) -> tuple[Row[Any], list[Triggered]]:
    """`add` for an issue that the caller has loaded with `issues.standing`."""
    thread = await _thread(conn, issue.id, draft.parent_id)
    rows = await conn.execute(
        _INSERT,
        {
            "id": new_id(),
            "workspace_id": issue.workspace_id,
            "issue_id": issue.id,
            "author_type": draft.author_type,
            "author_id": draft.author_id,
            "body": draft.body,
            "parent_id": draft.parent_id,
            "source_task_id": draft.source_task_id,
        },
    )
    comment = rows.one()
    targets = route_comment(_routing_facts(issue, draft, thread))
    return comment, await _start(conn, actor, comment, targets)


async def _start(
    conn: AsyncConnection, actor: Actor, comment: Row[Any], targets: list[str]
) -> list[Triggered]:
    if not targets:
        return []
    mentioned = any(link.kind == "agent" for link in mentions(comment.body))
    return await triggers.start(
        conn,
        actor=actor,
        targets=targets,
        cause=triggers.Cause(
            issue_id=comment.issue_id,
            trigger_type=TriggerType.MENTION if mentioned else TriggerType.COMMENT,
            comment_id=comment.id,
        ),
        suppressed=await _self(conn, comment, targets),
    )


async def _self(conn: AsyncConnection, comment: Row[Any], targets: list[str]) -> UUID | None:
    """The writing agent, if it names itself on the issue it works on: it would run for ever."""
    if comment.author_type != "agent" or str(comment.author_id) not in targets:
        return None
    if comment.source_task_id is None:
        return None
    own = await triggers.task_issue(conn, comment.source_task_id) == comment.issue_id
    author_id: UUID = comment.author_id
    return author_id if own else None


def _routing_facts(issue: Row[Any], draft: Draft, thread: Row[Any] | None) -> CommentRouting:
    assigned_agent = issue.assignee_id if issue.assignee_type == "agent" else None
    return CommentRouting(
        body=draft.body,
        author_is_member=draft.author_type == "member",
        author_agent_id=draft.author_id if draft.author_type == "agent" else None,
        parent_agent_id=thread.author_id if thread and thread.author_type == "agent" else None,
        is_reply=thread is not None,
        thread_agent_ids=_thread_agents(thread) if thread else (),
        assignee_agent_id=assigned_agent,
    )


def _thread_agents(thread: Row[Any]) -> list[UUID]:
    """Whose thread it is: the root's agent, else who the root names, else whom it started."""
    if thread.root_author_type == "agent":
        return [thread.root_author_id]
    named = [link.target for link in mentions(thread.root_body) if link.kind == "agent"]
    if named:
        return [UUID(target) for target in named if _is_uuid(target)]
    return list(thread.root_agent_ids)


def _is_uuid(value: str) -> bool:
    try:
        UUID(value)
    except ValueError:
        return False
    return True


_THREAD = text(
    """
    with recursive up as (
        select id, parent_id, author_type, author_id, body, 0 as depth
        from comments where id = :parent_id and issue_id = :issue_id and deleted_at is null
        union all
        select above.id, above.parent_id, above.author_type, above.author_id, above.body, up.depth + 1
        from comments above join up on above.id = up.parent_id
    ), root as (select * from up order by depth desc limit 1)
    select up.author_type, up.author_id, root.author_type as root_author_type,
           root.author_id as root_author_id, root.body as root_body,
           array(
               select tasks.agent_id from task_comments join tasks on tasks.id = task_comments.task_id
               where task_comments.comment_id = root.id
               group by tasks.agent_id order by min(tasks.created_at)
           ) as root_agent_ids
    from up, root where up.depth = 0
    """
)


async def _thread(conn: AsyncConnection, issue_id: UUID, parent_id: UUID | None) -> Row[Any] | None:
    """The comment replied to and the root of its thread, or None for a new thread."""
    if parent_id is None:
        return None
    rows = await conn.execute(_THREAD, {"issue_id": issue_id, "parent_id": parent_id})
    row = rows.one_or_none()
    if row is None:
        raise UnprocessableInput("parent_id: there is no such comment on this issue.")
    return row


async def page(conn: AsyncConnection, issue_id: UUID, part: Page) -> list[Row[Any]]:
    query = select(*_COLUMNS).where(Comment.issue_id == issue_id, Comment.deleted_at.is_(None))
    return list(await conn.execute(newest_first(query, Comment, part)))


async def edit(
    conn: AsyncConnection, actor: Actor, comment_id: UUID, body: str
) -> tuple[Row[Any], list[Triggered]]:
    """Change one's own comment. Agents that it names now and did not reach before are started.

    A run that has not read the comment yet will read the new text. Raises `NotFound`, `NotAllowed`.
    """
    comment = await _own(conn, actor, comment_id)
    rows = await conn.execute(
        update(Comment)
        .where(Comment.id == comment.id)
        .values(body=body, edited_at=func.now())
        .returning(*_COLUMNS)
    )
    changed = rows.one()
    issue = await issues.standing(conn, actor.workspace_id, comment.issue_id)
    draft = Draft(body, changed.author_type, changed.author_id)
    known = {link.target for link in mentions(comment.body)}
    reached = {str(agent_id) for agent_id in await _reached(conn, comment.id)}
    explicit = {link.target for link in mentions(body) if link.kind == "agent"} - known - reached
    targets = [target for target in route_comment(_routing_facts(issue, draft, None)) if target in explicit]
    return changed, await _start(conn, actor, changed, targets)


async def _reached(conn: AsyncConnection, comment_id: UUID) -> list[UUID]:
    return list(
        await conn.scalars(
            select(Task.agent_id)
            .join(TaskComment, TaskComment.task_id == Task.id)
            .where(TaskComment.comment_id == comment_id)
        )
    )


async def delete(conn: AsyncConnection, actor: Actor, comment_id: UUID) -> None:
    """Remove one's own comment (admins: anybody's), and stop queued tasks that it alone had started.

    Raises `NotFound`, `NotAllowed`. Work that has begun goes on.
    """
    comment = await _own(conn, actor, comment_id, admins_too=True)
    await conn.execute(update(Comment).where(Comment.id == comment.id).values(deleted_at=func.now()))
    await stop_all(conn, await _left_without_input(conn, comment.id))


async def _left_without_input(conn: AsyncConnection, comment_id: UUID) -> list[UUID]:
    others = (
        select(TaskComment.comment_id)
        .join(Comment, Comment.id == TaskComment.comment_id)
        .where(TaskComment.task_id == Task.id, Comment.deleted_at.is_(None))
    )
    return list(
        await conn.scalars(
            select(Task.id)
            .join(TaskComment, TaskComment.task_id == Task.id)
            .where(
                TaskComment.comment_id == comment_id,
                Task.trigger_type.in_([TriggerType.COMMENT, TriggerType.MENTION]),
                Task.attempt == 0,
                not_started(),
                ~others.exists(),
            )
        )
    )


async def _own(
    conn: AsyncConnection, actor: Actor, comment_id: UUID, *, admins_too: bool = False
) -> Row[Any]:
    """The locked row of a comment that the caller wrote."""
    query: Select[Any] = (
        select(*_COLUMNS)
        .join(Issue, Issue.id == Comment.issue_id)
        .where(
            Comment.id == comment_id,
            Comment.workspace_id == actor.workspace_id,
            Comment.deleted_at.is_(None),
            Issue.deleted_at.is_(None),
        )
        .with_for_update(of=Comment, key_share=True)
    )
    comment: Row[Any] | None = (await conn.execute(query)).one_or_none()
    if comment is None:
        raise NotFound("There is no such comment in this workspace.")
    author_type, author_id = author(actor)
    wrote_it = comment.author_type == author_type and comment.author_id == author_id
    if not wrote_it and not (admins_too and actor.is_admin):
        raise NotAllowed("Only the author of a comment may change it.")
    return comment


def author(actor: Actor) -> tuple[str, UUID | None]:
    """Whom the caller writes as: a task token writes as its agent."""
    if actor.agent_id is not None:
        return "agent", actor.agent_id
    return "member", actor.member_id
