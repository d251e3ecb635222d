"""Issues: numbered in their workspace, found by id or key, never really deleted."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from sqlalchemy import Row, Select, bindparam, func, insert, select, text, update
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

# Made once: every comment needs one of them.
_ISSUES: Select[Any] = (
    select(*_COLUMNS)
    .join(Workspace, Workspace.id == Issue.workspace_id)
    .where(Issue.workspace_id == bindparam("workspace"), Issue.deleted_at.is_(None))
)
_BY_ID = _ISSUES.where(Issue.id == bindparam("wanted"))
_BY_KEY = _ISSUES.where(Workspace.issue_prefix == bindparam("prefix"), Issue.number == bindparam("wanted"))
_STANDING_BY_ID = _BY_ID.with_for_update(of=Issue, read=True, key_share=True)
_STANDING_BY_KEY = _BY_KEY.with_for_update(of=Issue, read=True, key_share=True)


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
    by_id, by_key = _BY_ID, _BY_KEY
    if lock:
        by_id = by_id.with_for_update(of=Issue, key_share=True)
        by_key = by_key.with_for_update(of=Issue, key_share=True)
    return await _one(conn, workspace_id, ref, by_id, by_key)


async def standing(conn: AsyncConnection, workspace_id: UUID, ref: UUID | str) -> Row[Any]:
    """The issue, kept from being deleted until the transaction ends. Raises `NotFound`."""
    return await _one(conn, workspace_id, str(ref), _STANDING_BY_ID, _STANDING_BY_KEY)


async def _one(
    conn: AsyncConnection, workspace_id: UUID, ref: str, by_id: Select[Any], by_key: Select[Any]
) -> Row[Any]:
    key = _KEY.fullmatch(ref)
    if key is None:
        rows = await conn.execute(by_id, {"workspace": workspace_id, "wanted": _uuid(ref)})
    else:
        prefix, number = key[1].upper(), int(key[2])
        rows = await conn.execute(by_key, {"workspace": workspace_id, "prefix": prefix, "wanted": number})
    row: Row[Any] | None = rows.one_or_none()
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
    query = _ISSUES
    if narrowed.status:
        query = query.where(Issue.status.in_(narrowed.status))
    if narrowed.assignee_id is not None:
        query = query.where(Issue.assignee_id == narrowed.assignee_id)
    if narrowed.project_id is not None:
        query = query.where(Issue.project_id == narrowed.project_id)
    if narrowed.parent_id is not None:
        query = query.where(Issue.parent_id == narrowed.parent_id)
    return list(await conn.execute(newest_first(query, Issue, part), {"workspace": workspace_id}))


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


_PARENTS_LOCK = text("select pg_advisory_xact_lock(hashtextextended('segue.parents:' || :id, 0))")


async def _check_no_cycle(conn: AsyncConnection, workspace_id: UUID, issue_id: UUID, parent_id: UUID) -> None:
    await _parent(conn, workspace_id, parent_id)
    # Two moves that are each harmless make a cycle together, so they are decided one after the other.
    await conn.execute(_PARENTS_LOCK, {"id": str(workspace_id)})
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
