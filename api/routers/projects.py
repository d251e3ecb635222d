"""Projects and their resources."""

from datetime import datetime
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal
from uuid import UUID

from fastapi import APIRouter, Response
from pydantic import AfterValidator, BaseModel, Field, StringConstraints
from sqlalchemy import Row

from api import auth, pagination
from api.fields import Body, Name, Patch, Text
from api.pagination import Listing, Paging
from api.units import InCall, PeopleRoute
from domain.errors import UnprocessableInput
from store import localdirectories, projects, runtimes
from store.localdirectories import CheckStatus

router = APIRouter(prefix="/projects", tags=["projects"], route_class=PeopleRoute)


def _absolute(path: str) -> str:
    parts = PurePosixPath(path)
    if not parts.is_absolute() or len(parts.parts) < 2 or ".." in parts.parts:
        raise ValueError("must be an absolute path below the root, without `..`")
    return path


Line = Annotated[str, StringConstraints(min_length=1, max_length=2000, pattern=r"^[^\x00-\x1f]+$")]
DirectoryPath = Annotated[Line, AfterValidator(_absolute)]


class Resource(BaseModel):
    """``git_repo`` has url and ref, ``local_directory`` has runtime_id, path and what its runtime says.

    ``status``: `pending` until the runtime has looked, then `ok` with the ``real_path`` that runs
    work in, or `refused` with the ``reason``.
    """

    id: UUID
    type: Literal["git_repo", "local_directory"]
    url: str | None = None
    ref: str | None = None
    runtime_id: UUID | None = None
    path: str | None = None
    status: CheckStatus | None = None
    reason: str | None = None
    real_path: str | None = None
    created_at: datetime

    @classmethod
    def of(cls, row: Row[Any]) -> "Resource":
        local = row.kind == projects.LOCAL_DIRECTORY
        return cls(
            id=row.id,
            type=row.kind,
            url=row.url,
            ref=row.ref,
            runtime_id=row.runtime_id,
            path=row.path,
            status=localdirectories.status(row) if local else None,
            reason=row.refusal,
            real_path=row.real_path,
            created_at=row.created_at,
        )


class Project(BaseModel):
    id: UUID
    name: str
    description: str
    resources: list[Resource]
    created_at: datetime

    @classmethod
    def of(cls, row: Row[Any], resources: list[Row[Any]]) -> "Project":
        return cls(
            id=row.id,
            name=row.name,
            description=row.description,
            resources=[Resource.of(resource) for resource in resources],
            created_at=row.created_at,
        )


class NewProject(Body):
    name: Name
    description: Text = ""


class ProjectPatch(Patch):
    name: Name | None = None
    description: Text | None = None


class GitRepo(Body):
    type: Literal["git_repo"]
    url: Line
    ref: Line | None = None


class LocalDirectory(Body):
    type: Literal["local_directory"]
    runtime_id: UUID
    path: DirectoryPath


NewResource = Annotated[GitRepo | LocalDirectory, Field(discriminator="type")]


@router.get("")
async def list_projects(call: InCall, page: Paging) -> Listing[Project]:
    """All projects of the workspace."""
    rows = await projects.page(call.conn, call.actor.workspace_id, page)
    found = await projects.resources(call.conn, [row.id for row in rows])
    return pagination.listing(page, rows, lambda row: Project.of(row, found[row.id]))


@router.post("", status_code=201)
async def create_project(call: InCall, body: NewProject) -> Project:
    """Make a project."""
    return Project.of(await projects.create(call.conn, call.actor.workspace_id, body.model_dump()), [])


@router.get("/{project_id}")
async def get_project(call: InCall, project_id: UUID) -> Project:
    """One project with its resources."""
    row = await projects.get(call.conn, call.actor.workspace_id, project_id)
    return Project.of(row, (await projects.resources(call.conn, [project_id]))[project_id])


@router.patch("/{project_id}")
async def change_project(call: InCall, project_id: UUID, body: ProjectPatch) -> Project:
    """Change name or description."""
    before = await projects.get(call.conn, call.actor.workspace_id, project_id, lock=True)
    row = await projects.change(call.conn, before, body.changes())
    return Project.of(row, (await projects.resources(call.conn, [project_id]))[project_id])


@router.post("/{project_id}/resources", status_code=201)
async def add_resource(call: InCall, project_id: UUID, body: NewResource) -> Resource:
    """Add a repository or a local directory. People only."""
    auth.require_member(call.actor)
    project = await projects.get(call.conn, call.actor.workspace_id, project_id, lock=True)
    if isinstance(body, LocalDirectory):
        known = await runtimes.exists(call.conn, call.actor.workspace_id, body.runtime_id)
        if not known:
            raise UnprocessableInput("runtime_id: there is no such runtime in this workspace.")
    values = body.model_dump(exclude={"type"}) | {"kind": body.type}
    return Resource.of(await projects.add_resource(call.conn, project, values))


@router.post("/{project_id}/resources/{resource_id}/check")
async def check_resource(call: InCall, project_id: UUID, resource_id: UUID) -> Resource:
    """Have the runtime look at a local directory again, after it was mended or replaced. People only."""
    auth.require_member(call.actor)
    return Resource.of(
        await projects.check_again(call.conn, call.actor.workspace_id, project_id, resource_id)
    )


@router.delete("/{project_id}/resources/{resource_id}", status_code=204)
async def delete_resource(call: InCall, project_id: UUID, resource_id: UUID) -> Response:
    """Remove a resource. People only."""
    auth.require_member(call.actor)
    await projects.delete_resource(call.conn, call.actor.workspace_id, project_id, resource_id)
    return Response(status_code=204)
