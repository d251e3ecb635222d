"""Agent machines, as people see them."""

from datetime import datetime
from typing import Any, Literal
from uuid import UUID

from fastapi import APIRouter, Response
from pydantic import BaseModel, Field
from sqlalchemy import Row

from api import auth, pagination
from api.fields import Body, Name, Patch
from api.pagination import Listing, Paging
from api.units import Call, InCall, PeopleRoute
from domain.brief import ProviderInfo
from store import runtimes
from store.stopping import stop_all

router = APIRouter(prefix="/runtimes", tags=["runtimes"], route_class=PeopleRoute)


class Runtime(BaseModel):
    id: UUID
    name: str
    status: Literal["online", "offline", "draining"]
    providers: list[ProviderInfo]
    slots: int
    version: str | None
    free_bytes: int | None
    last_seen_at: datetime | None
    created_at: datetime

    @classmethod
    def of(cls, row: Row[Any]) -> "Runtime":
        return cls(
            id=row.id,
            name=row.name,
            status=row.status,
            providers=[ProviderInfo.model_validate(provider) for provider in row.providers],
            slots=row.slots,
            version=row.version,
            free_bytes=row.free_bytes,
            last_seen_at=row.last_seen_at,
            created_at=row.created_at,
        )


class NewRuntime(Body):
    name: Name
    #: The worker's own number holds once it has registered.
    slots: int | None = Field(default=None, ge=1, le=1000)


class CreatedRuntime(BaseModel):
    """``token`` is the worker's, shown this once; only its hash is stored."""

    runtime: Runtime
    token: str


class RuntimePatch(Patch):
    name: Name | None = None
    #: Holds until the worker registers again with its own number.
    slots: int | None = Field(default=None, ge=1, le=1000)
    #: False takes a drained runtime into service again.
    draining: bool | None = None


@router.get("")
async def list_runtimes(call: InCall, page: Paging) -> Listing[Runtime]:
    """All agent machines of the workspace."""
    rows = await runtimes.page(
        call.conn, call.actor.workspace_id, page, offline_after=call.deps.offline_after
    )
    return pagination.listing(page, rows, Runtime.of)


@router.post("", status_code=201)
async def create_runtime(call: InCall, body: NewRuntime) -> CreatedRuntime:
    """Make a runtime; its worker is started with the token. Owners and admins only."""
    auth.require_admin(call.actor)
    runtime_id, token = await runtimes.create(
        call.conn, workspace_id=call.actor.workspace_id, name=body.name, slots=body.slots
    )
    return CreatedRuntime(runtime=await _shown(call, runtime_id), token=token)


@router.get("/{runtime_id}")
async def get_runtime(call: InCall, runtime_id: UUID) -> Runtime:
    """One agent machine."""
    return await _shown(call, runtime_id)


@router.patch("/{runtime_id}")
async def change_runtime(call: InCall, runtime_id: UUID, body: RuntimePatch) -> Runtime:
    """Rename it, change its slots, or take it out of and into service. Owners and admins only."""
    auth.require_admin(call.actor)
    await runtimes.change(call.conn, call.actor.workspace_id, runtime_id, body.changes())
    return await _shown(call, runtime_id)


@router.post("/{runtime_id}/drain")
async def drain_runtime(call: InCall, runtime_id: UUID) -> Runtime:
    """Let what runs there go on and start nothing new. Owners and admins only."""
    auth.require_admin(call.actor)
    await runtimes.change(call.conn, call.actor.workspace_id, runtime_id, {"draining": True})
    return await _shown(call, runtime_id)


@router.delete("/{runtime_id}", status_code=204)
async def delete_runtime(call: InCall, runtime_id: UUID, *, force: bool = False) -> Response:
    """Remove it: its agents are unbound, its tokens revoked. Owners and admins only.

    409 while tasks on it have not ended; with ``force`` they are cancelled.
    """
    auth.require_admin(call.actor)
    open_tasks = await runtimes.delete(call.conn, call.actor.workspace_id, runtime_id, force=force)
    await stop_all(call.conn, open_tasks)
    return Response(status_code=204)


async def _shown(call: Call, runtime_id: UUID) -> Runtime:
    row = await runtimes.get(
        call.conn, call.actor.workspace_id, runtime_id, offline_after=call.deps.offline_after
    )
    return Runtime.of(row)
