"""Projects, and the repositories and directories that belong to them."""

from typing import Any
from uuid import UUID

from sqlalchemy import Row, insert, select, update
from sqlalchemy import delete as sql_delete
from sqlalchemy.ext.asyncio import AsyncConnection

from domain.errors import Conflict, NotFound
from store import leases, localdirectories
from store.ids import new_id
from store.models import Directory, Project, ProjectResource
from store.pages import Page, newest_first

LOCAL_DIRECTORY = "local_directory"
GIT_REPO = "git_repo"


async def create(conn: AsyncConnection, workspace_id: UUID, values: dict[str, Any]) -> Row[Any]:
    rows = await conn.execute(
        insert(Project)
        .values(id=new_id(), workspace_id=workspace_id, **values)
        .returning(*Project.__table__.c)
    )
    return rows.one()


async def get(conn: AsyncConnection, workspace_id: UUID, project_id: UUID, *, lock: bool = False) -> Row[Any]:
    """One project. Raises `NotFound`."""
    query = _select(workspace_id).where(Project.id == project_id)
    row: Row[Any] | None = (
        await conn.execute(query.with_for_update(key_share=True) if lock else query)
    ).one_or_none()
    if row is None:
        raise NotFound("There is no such project in this workspace.")
    return row


async def page(conn: AsyncConnection, workspace_id: UUID, part: Page) -> list[Row[Any]]:
    return list(await conn.execute(newest_first(_select(workspace_id), Project, part)))


def _select(workspace_id: UUID) -> Any:
    return select(*Project.__table__.c).where(Project.workspace_id == workspace_id)


async def change(conn: AsyncConnection, project: Row[Any], values: dict[str, Any]) -> Row[Any]:
    if not values:
        return project
    rows = await conn.execute(
        update(Project).where(Project.id == project.id).values(**values).returning(*Project.__table__.c)
    )
    return rows.one()


async def resources(conn: AsyncConnection, project_ids: list[UUID]) -> dict[UUID, list[Row[Any]]]:
    """The resources of each project, oldest first."""
    found: dict[UUID, list[Row[Any]]] = {project_id: [] for project_id in project_ids}
    query = _resources().where(ProjectResource.project_id.in_(project_ids)).order_by(ProjectResource.id)
    for row in await conn.execute(query):
        found[row.project_id].append(row)
    return found


def _resources() -> Any:
    """With the ``real_path`` of a local directory that its runtime has accepted."""
    return select(*ProjectResource.__table__.c, Directory.path.label("real_path")).outerjoin(
        Directory, Directory.id == ProjectResource.directory_id
    )


async def add_resource(conn: AsyncConnection, project: Row[Any], values: dict[str, Any]) -> Row[Any]:
    """A new resource of a locked project.

    Raises `Conflict` for a second local directory on one runtime: a run could not tell which to use.
    """
    if values["kind"] == LOCAL_DIRECTORY:
        taken = select(ProjectResource.id).where(
            ProjectResource.project_id == project.id, ProjectResource.runtime_id == values["runtime_id"]
        )
        if (await conn.execute(taken)).first() is not None:
            raise Conflict("This project has a local directory on this runtime already; delete it first.")
    resource_id = new_id()
    await conn.execute(
        insert(ProjectResource).values(
            id=resource_id, workspace_id=project.workspace_id, project_id=project.id, **values
        )
    )
    return await _resource(conn, project.workspace_id, project.id, resource_id)


async def delete_resource(
    conn: AsyncConnection, workspace_id: UUID, project_id: UUID, resource_id: UUID
) -> None:
    """Remove a resource; tasks that waited for its check go on without it. Raises `NotFound`."""
    await leases.lock(conn, workspace_id)
    gone = await conn.execute(
        sql_delete(ProjectResource).where(
            ProjectResource.id == resource_id,
            ProjectResource.project_id == project_id,
            ProjectResource.workspace_id == workspace_id,
        )
    )
    if gone.rowcount == 0:
        raise _unknown_resource()
    await leases.grant_for_check(conn, workspace_id, resource_id)


async def check_again(
    conn: AsyncConnection, workspace_id: UUID, project_id: UUID, resource_id: UUID
) -> Row[Any]:
    """Have a local directory looked at again. Raises `NotFound`, and `Conflict` for another resource."""
    resource = await _resource(conn, workspace_id, project_id, resource_id)
    if resource.kind != LOCAL_DIRECTORY:
        raise Conflict("Only a local directory is looked at by its runtime.")
    await localdirectories.ask_again(conn, resource.runtime_id, resource_id)
    return await _resource(conn, workspace_id, project_id, resource_id)


async def _resource(
    conn: AsyncConnection, workspace_id: UUID, project_id: UUID, resource_id: UUID
) -> Row[Any]:
    query = _resources().where(
        ProjectResource.id == resource_id,
        ProjectResource.project_id == project_id,
        ProjectResource.workspace_id == workspace_id,
    )
    row: Row[Any] | None = (await conn.execute(query)).one_or_none()
    if row is None:
        raise _unknown_resource()
    return row


def _unknown_resource() -> NotFound:
    return NotFound("This project has no such resource.")
