"""Issues: numbered in their workspace, found by id or key, never really deleted."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from sqlalchemy import Row, Select, func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from domain.errors import NotFound, UnprocessableInput
from domain.permissions import Actor
from store.ids import new_id
from store.models import Agent, Issue, Member, Project, Task, Workspace
from store.pages import Page, newest_first
from store.stopping import lock_all, stop_locked
from store.taskstates import is_open
from store.visibility import agent_visible

_KEY = re.compile(r"([A-Za-z][A-Za-z0-9]*)-([0-9]{1,9})", re.ASCII)
_COLUMNS = (*Issue.__table__.c, Workspace.issue_prefix)


@dataclass(frozen=True)
class IssueFilter:
    """What a list of issues is narrowed to; None is everything."""

    status: Sequence[str] = ()
    assignee_id: UUID | None = None
    project_id: UUID | None = None
    parent_id: UUID | None = None


async def find(conn: AsyncConnection, workspace_id: UUID, ref: str, *, lock: bool = False) -> Row[Any]:
    """The issue with this id or key (``SEG-12``), with the workspace's prefix. Raises `NotFound`.

    ``lock`` keeps other writers of the issue out, but not comments and tasks that refer to it.
    """
    query = _where(_select(workspace_id), ref)
    if lock:
        query = query.with_for_update(of=Issue, key_share=True)
    row: Row[Any] | None = (await conn.execute(query)).one_or_none()
    if row is None:
        raise _unknown()
    return row


async def standing(conn: AsyncConnection, workspace_id: UUID, ref: UUID | str) -> Row[Any]:
    """The issue, kept from being deleted until the transaction ends. Raises `NotFound`."""
    query = _where(_select(workspace_id), str(ref)).with_for_update(of=Issue, read=True, key_share=True)
    row: Row[Any] | None = (await conn.execute(query)).one_or_none()
    if row is None:
        raise _unknown()
    return row


async def parent_id(conn: AsyncConnection, workspace_id: UUID, ref: str) -> UUID:
    """The id of a parent that was named by its key. Raises `UnprocessableInput`."""
    parent: UUID = (await _parent(conn, workspace_id, ref)).id
    return parent


async def page(
    conn: AsyncConnection, workspace_id: UUID, part: Page, narrowed: IssueFilter
) -> list[Row[Any]]:
    query = _select(workspace_id)
    if narrowed.status:
        query = query.where(Issue.status.in_(narrowed.status))
    if narrowed.assignee_id is not None:
        query = query.where(Issue.assignee_id == narrowed.assignee_id)
    if narrowed.project_id is not None:
        query = query.where(Issue.project_id == narrowed.project_id)
    if narrowed.parent_id is not None:
        query = query.where(Issue.parent_id == narrowed.parent_id)
    return list(await conn.execute(newest_first(query, Issue, part)))


def _select(workspace_id: UUID) -> Select[Any]:
    return (
        select(*_COLUMNS)
        .join(Workspace, Workspace.id == Issue.workspace_id)
        .where(Issue.workspace_id == workspace_id, Issue.deleted_at.is_(None))
    )


def _where(query: Select[Any], ref: str) -> Select[Any]:
    key = _KEY.fullmatch(ref)
    if key is None:
        return query.where(Issue.id == _uuid(ref))
    prefix, number = key.groups()
    return query.where(Workspace.issue_prefix == prefix.upper(), Issue.number == int(number))


def _uuid(ref: str) -> UUID:
    try:
        return UUID(ref)
    except ValueError:
        raise _unknown() from None


def _unknown() -> NotFound:
    return NotFound("There is no such issue in this workspace.")


async def create(conn: AsyncConnection, actor: Actor, values: dict[str, Any]) -> Row[Any]:
    """A new issue with the next number; a sub-issue without a project takes its parent's.

    Raises `UnprocessableInput` when its parent, project or assignee is not here.
    """
    values = dict(values)
    if values.get("parent_id") is not None:
        parent = await _parent(conn, actor.workspace_id, values["parent_id"])
        if values.get("project_id") is None:
            values["project_id"] = parent.project_id
    await _check_references(conn, actor, values)
    number, prefix = await _next_number(conn, actor.workspace_id)
    issue_id = new_id()
    await conn.execute(
        insert(Issue).values(
            id=issue_id,
            workspace_id=actor.workspace_id,
            number=number,
            creator_type="agent" if actor.agent_id is not None else "member",
            creator_id=actor.agent_id or actor.member_id,
            **values,
        )
    )
    return await find(conn, actor.workspace_id, f"{prefix}-{number}")


async def _next_number(conn: AsyncConnection, workspace_id: UUID) -> tuple[int, str]:
    """Taken last before the insert: the workspace's row stays locked until the transaction ends."""
    rows = await conn.execute(
        update(Workspace)
        .where(Workspace.id == workspace_id)
        .values(issue_counter=Workspace.issue_counter + 1)
        .returning(Workspace.issue_counter, Workspace.issue_prefix)
    )
    row = rows.one()
    return row.issue_counter, row.issue_prefix


async def change(conn: AsyncConnection, actor: Actor, issue: Row[Any], values: dict[str, Any]) -> Row[Any]:
    """Change a locked issue and answer its new row. Raises `UnprocessableInput`."""
    if not values:
        return issue
    if values.get("parent_id") is not None:
        await _check_no_cycle(conn, actor.workspace_id, issue.id, values["parent_id"])
    await _check_references(conn, actor, values)
    await conn.execute(update(Issue).where(Issue.id == issue.id).values(updated_at=func.now(), **values))
    return await find(conn, actor.workspace_id, str(issue.id))


async def _parent(conn: AsyncConnection, workspace_id: UUID, ref: UUID | str) -> Row[Any]:
    try:
        return await standing(conn, workspace_id, ref)
    except NotFound as error:
        raise UnprocessableInput("parent_id: there is no such issue in this workspace.") from error


async def _check_no_cycle(conn: AsyncConnection, workspace_id: UUID, issue_id: UUID, parent_id: UUID) -> None:
    await _parent(conn, workspace_id, parent_id)
    above = select(Issue.id, Issue.parent_id).where(Issue.id == parent_id).cte("above", recursive=True)
    above = above.union(select(Issue.id, Issue.parent_id).join(above, Issue.id == above.c.parent_id))
    if await conn.scalar(select(above.c.id).where(above.c.id == issue_id)) is not None:
        raise UnprocessableInput("parent_id: an issue can't be below itself.")


async def _check_references(conn: AsyncConnection, actor: Actor, values: dict[str, Any]) -> None:
    project_id = values.get("project_id")
    if project_id is not None:
        project = select(Project.id).where(
            Project.id == project_id, Project.workspace_id == actor.workspace_id
        )
        if await conn.scalar(project) is None:
            raise UnprocessableInput("project_id: there is no such project in this workspace.")
    assignee_id = values.get("assignee_id")
    if assignee_id is not None:
        assignee: Select[Any] = select(Member.id).where(
            Member.id == assignee_id, Member.workspace_id == actor.workspace_id
        )
        if values["assignee_type"] == "agent":
            assignee = select(Agent.id).where(
                Agent.id == assignee_id,
                Agent.workspace_id == actor.workspace_id,
                Agent.archived_at.is_(None),
                agent_visible(actor),
            )
        if await conn.scalar(assignee) is None:
            raise UnprocessableInput(
                f"assignee: there is no such {values['assignee_type']} in this workspace."
            )


async def delete(conn: AsyncConnection, workspace_id: UUID, ref: str) -> None:
    """Remove an issue: its children stand alone from now on, its tasks are stopped.

    Raises `NotFound`. Its tasks are locked before the issue, as recording does it, and looked for
    again after: from then on no comment can start a new one.
    """
    issue = await find(conn, workspace_id, ref)
    locked = await lock_all(conn, await _open_tasks(conn, issue.id))
    still_there = await conn.scalar(
        select(Issue.id).where(Issue.id == issue.id, Issue.deleted_at.is_(None)).with_for_update()
    )
    if still_there is None:
        raise _unknown()
    late = set(await _open_tasks(conn, issue.id)) - {task.id for task in locked}
    locked += await lock_all(conn, late)
    await conn.execute(
        update(Issue).where(Issue.id == issue.id).values(deleted_at=func.now(), updated_at=func.now())
    )
    await conn.execute(update(Issue).where(Issue.parent_id == issue.id).values(parent_id=None))
    await stop_locked(conn, locked)


async def _open_tasks(conn: AsyncConnection, issue_id: UUID) -> list[UUID]:
    return list(await conn.scalars(select(Task.id).where(Task.issue_id == issue_id, is_open())))
