"""Agent machines: made by people, kept up to date by their own workers."""

from datetime import timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import ColumnElement, Row, case, func, insert, literal, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from domain.brief import HeartbeatRequest, RegisterRequest
from domain.errors import Conflict, NotFound
from store import leases, localdirectories, tokens
from store.constraints import refused_as
from store.ids import new_id
from store.models import Agent, Chat, Runtime, Task
from store.pages import Page, newest_first
from store.taskstates import is_open

_TAKEN = {"ix_runtimes_workspace_id_name": "There is a runtime with this name already."}
_NAMED_TASKS = 5  # open tasks that a refusal names


def status(offline_after: float, runtime: Any = Runtime) -> ColumnElement[str]:
    """``online``, ``offline`` (silent for ``offline_after`` seconds, or never seen) or ``draining``."""
    silent = runtime.last_seen_at < func.now() - timedelta(seconds=offline_after)
    return case(
        (runtime.last_seen_at.is_(None) | silent, literal("offline")),
        (runtime.draining, literal("draining")),
        else_=literal("online"),
    )


async def create(
    conn: AsyncConnection, *, workspace_id: UUID, name: str, slots: int | None = None
) -> tuple[UUID, str]:
    """A new runtime and its token. Raises `Conflict` if the name is taken."""
    runtime_id = new_id()
    values: dict[str, Any] = {"id": runtime_id, "workspace_id": workspace_id, "name": name}
    if slots is not None:
        values["slots"] = slots
    with refused_as(_TAKEN):
        await conn.execute(insert(Runtime).values(**values))
    _, token = await tokens.create_runtime_token(conn, workspace_id=workspace_id, runtime_id=runtime_id)
    return runtime_id, token


async def get(
    conn: AsyncConnection, workspace_id: UUID, runtime_id: UUID, *, offline_after: float
) -> Row[Any]:
    """One runtime with its ``status``. Raises `NotFound`."""
    query = _select(workspace_id, offline_after).where(Runtime.id == runtime_id)
    row = (await conn.execute(query)).one_or_none()
    if row is None:
        raise _unknown()
    return row


async def page(
    conn: AsyncConnection, workspace_id: UUID, part: Page, *, offline_after: float
) -> list[Row[Any]]:
    return list(await conn.execute(newest_first(_select(workspace_id, offline_after), Runtime, part)))


def _select(workspace_id: UUID, offline_after: float) -> Any:
    return select(*Runtime.__table__.c, status(offline_after).label("status")).where(
        Runtime.workspace_id == workspace_id, Runtime.deleted_at.is_(None)
    )


async def exists(conn: AsyncConnection, workspace_id: UUID, runtime_id: UUID) -> bool:
    query = select(Runtime.id).where(
        Runtime.id == runtime_id, Runtime.workspace_id == workspace_id, Runtime.deleted_at.is_(None)
    )
    return (await conn.execute(query)).one_or_none() is not None


async def change(conn: AsyncConnection, workspace_id: UUID, runtime_id: UUID, values: dict[str, Any]) -> None:
    """Set ``name``, ``slots`` or ``draining``; what that makes room for is granted to who waits.

    Raises `NotFound`, and `Conflict` if the name is taken.
    """
    before = (await conn.execute(_locked(runtime_id, workspace_id))).one_or_none()
    if before is None:
        raise _unknown()
    if not values:
        return
    with refused_as(_TAKEN):
        await conn.execute(update(Runtime).where(Runtime.id == runtime_id).values(**values))
    if values.get("slots", 0) > before.slots or (before.draining and values.get("draining") is False):
        await leases.grant_for_runtime(conn, workspace_id, runtime_id)


def _locked(runtime_id: UUID, workspace_id: UUID) -> Any:
    """Not its key: a grant that refers to the runtime must not wait while we wait for leases."""
    return (
        select(Runtime.id, Runtime.name, Runtime.slots, Runtime.online, Runtime.draining, Runtime.machine_id)
        .where(Runtime.id == runtime_id, Runtime.workspace_id == workspace_id, Runtime.deleted_at.is_(None))
        .with_for_update(key_share=True)
    )


async def delete(conn: AsyncConnection, workspace_id: UUID, runtime_id: UUID, *, force: bool) -> list[UUID]:
    """Remove a runtime: its agents are unbound and its tokens revoked. Returns its open tasks' ids.

    Raises `NotFound`, and without ``force`` `Conflict` while tasks on it have not ended.
    """
    if (await conn.execute(_locked(runtime_id, workspace_id))).one_or_none() is None:
        raise _unknown()
    open_tasks = await _open_tasks(conn, runtime_id)
    if open_tasks and not force:
        named = ", ".join(str(task_id) for task_id in open_tasks[:_NAMED_TASKS])
        more = f" and {len(open_tasks) - _NAMED_TASKS} more" if len(open_tasks) > _NAMED_TASKS else ""
        raise Conflict(
            f"{len(open_tasks)} tasks on this runtime have not ended: {named}{more}. "
            "Cancel them, or delete with ?force=true, which cancels them too."
        )
    await conn.execute(
        update(Runtime)
        .where(Runtime.id == runtime_id)
        .values(deleted_at=func.now(), online=False, offline_since=func.now())
    )
    await conn.execute(update(Agent).where(Agent.runtime_id == runtime_id).values(runtime_id=None))
    # A chat that went on from a run there goes on with its agent's own runtime, and says what is lost.
    await conn.execute(update(Chat).where(Chat.runtime_id == runtime_id).values(runtime_id=None))
    await tokens.revoke_runtime_tokens(conn, runtime_id)
    return open_tasks


async def _open_tasks(conn: AsyncConnection, runtime_id: UUID) -> list[UUID]:
    query = select(Task.id).where(Task.runtime_id == runtime_id, is_open()).order_by(Task.id)
    return list(await conn.scalars(query))


# --- the worker's own calls -----------------------------------------------------------------------


async def register(
    conn: AsyncConnection, workspace_id: UUID, runtime_id: UUID, request: RegisterRequest
) -> Row[Any]:
    """Note which machine runs this runtime now. The worker's slots hold until people change them.

    Raises `NotFound` for a deleted runtime.
    """
    before = (await conn.execute(_locked(runtime_id, workspace_id))).one_or_none()
    if before is None:
        raise _unknown()
    await conn.execute(
        update(Runtime)
        .where(Runtime.id == runtime_id)
        .values(
            machine_id=request.machine_id,
            boot_id=request.boot_id,
            version=request.version,
            slots=request.slots,
            providers=[provider.model_dump() for provider in request.providers],
            **_SEEN,
        )
    )
    if before.machine_id is not None and before.machine_id != request.machine_id:
        await localdirectories.ask_again(conn, runtime_id)
    if not before.online or request.slots > before.slots:
        await leases.grant_for_runtime(conn, workspace_id, runtime_id)
    return before


async def beat(
    conn: AsyncConnection, workspace_id: UUID, runtime_id: UUID, request: HeartbeatRequest
) -> Row[Any]:
    """The worker is alive: ``draining``, ``slots`` and the server's time for its answer.

    Raises `NotFound` for a deleted runtime, and `Conflict` when another machine has registered as
    this runtime since: two workers would take each other's work.
    """
    before = (await conn.execute(_locked(runtime_id, workspace_id))).one_or_none()
    if before is None:
        raise _unknown()
    if before.machine_id != request.machine_id:
        raise Conflict(
            "Another machine has registered as this runtime. Each machine needs a runtime and a token of "
            "its own: `segue runtime create`; restart this worker if it is the right one."
        )
    rows: Any = await conn.execute(
        update(Runtime)
        .where(Runtime.id == runtime_id)
        .values(free_bytes=request.free_bytes, **_SEEN)
        .returning(Runtime.draining, Runtime.slots, Runtime.last_seen_at)
    )
    if not before.online:
        await leases.grant_for_runtime(conn, workspace_id, runtime_id)
    row: Row[Any] = rows.one()
    return row


_SEEN: dict[str, Any] = {"last_seen_at": func.now(), "online": True, "offline_since": None}


def _unknown() -> NotFound:
    return NotFound("There is no such runtime in this workspace.")
