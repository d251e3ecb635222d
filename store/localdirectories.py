"""Projects' own directories: asked of their runtimes, answered once, shared by all who name the same one.

A resource is *pending* until its runtime has looked, then it names the row of the real path (*ok*), or
says why not (*refused*). The row is the lease key, so that two projects, agents or issues on one
directory take turns.
"""

from enum import StrEnum
from typing import Any
from uuid import UUID

from sqlalchemy import Row, func, select, text, update
from sqlalchemy.dialects.postgresql import insert as pg_insert
from sqlalchemy.ext.asyncio import AsyncConnection

from domain.brief import LocalDirectoryCheck, LocalDirectoryQuestion
from domain.errors import NotFound
from store import leases
from store.ids import new_id
from store.models import Directory, ProjectResource

_LOCAL = text("project_resources.kind = 'local_directory'")
#: Of one heartbeat's answer; the next one names the rest.
_AT_ONCE = 50
_MANAGED = "it is a directory that Segue manages; a project needs one of its own"


class CheckStatus(StrEnum):
    """How far a local directory is."""

    PENDING = "pending"
    OK = "ok"
    REFUSED = "refused"


def status(resource: Row[Any]) -> CheckStatus:
    if resource.checked_at is None:
        return CheckStatus.PENDING
    return CheckStatus.OK if resource.directory_id is not None else CheckStatus.REFUSED


async def unchecked(conn: AsyncConnection, runtime_id: UUID) -> list[LocalDirectoryQuestion]:
    """What this runtime has not looked at yet, oldest first."""
    rows = await conn.execute(
        select(ProjectResource.id, ProjectResource.path)
        .where(_LOCAL, text("project_resources.checked_at is null"), ProjectResource.runtime_id == runtime_id)
        .order_by(ProjectResource.id)
        .limit(_AT_ONCE)
    )
    return [LocalDirectoryQuestion(id=row.id, path=row.path) for row in rows]


async def answer(
    conn: AsyncConnection,
    *,
    workspace_id: UUID,
    runtime_id: UUID,
    resource_id: UUID,
    check: LocalDirectoryCheck,
) -> None:
    """Note what the runtime found, and let those who waited for it go on. The last answer holds.

    Raises `NotFound` for a resource that is deleted or another runtime's.
    """
    # The lock first: a grant that is under way reads resource and directory as one.
    await leases.lock(conn, workspace_id)
    directory_id, refusal = None, check.refusal
    if refusal is None:
        directory_id = await _row(conn, workspace_id, runtime_id, check)
        refusal = _MANAGED if directory_id is None else None
    noted = await conn.execute(
        update(ProjectResource)
        .where(ProjectResource.id == resource_id, ProjectResource.runtime_id == runtime_id, _LOCAL)
        .values(checked_at=func.now(), directory_id=directory_id, refusal=refusal)
    )
    if noted.rowcount == 0:
        raise NotFound("There is no such local directory of this runtime.")
    await leases.grant_for_check(conn, workspace_id, resource_id)


async def ask_again(conn: AsyncConnection, runtime_id: UUID, resource_id: UUID | None = None) -> None:
    """Let the runtime look again: at one, or at all of them (it runs on another machine now)."""
    query = update(ProjectResource).where(_LOCAL, ProjectResource.runtime_id == runtime_id)
    if resource_id is not None:
        query = query.where(ProjectResource.id == resource_id)
    await conn.execute(query.values(checked_at=None, directory_id=None, refusal=None))


async def _row(
    conn: AsyncConnection, workspace_id: UUID, runtime_id: UUID, check: LocalDirectoryCheck
) -> UUID | None:
    """The directory's row, with the identity seen now; None when the path is a managed directory's."""
    new = pg_insert(Directory).values(
        id=new_id(),
        workspace_id=workspace_id,
        runtime_id=runtime_id,
        kind="local",
        path=check.path,
        device=check.device,
        inode=check.inode,
    )
    rows = await conn.execute(
        new.on_conflict_do_update(
            index_elements=[Directory.runtime_id, Directory.path],
            index_where=text("path is not null and gone_at is null"),
            set_={"device": new.excluded.device, "inode": new.excluded.inode},
            where=Directory.kind == "local",
        ).returning(Directory.id)
    )
    directory_id: UUID | None = rows.scalar_one_or_none()
    return directory_id
