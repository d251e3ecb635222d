"""``segue admin``: the first workspace, member and token of a deployment, straight to the database."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, TypeVar
from uuid import UUID

import typer

from cli.invocation import Invocation, verb
from cli.processes import answering_database_url
from domain.errors import NotFound
from domain.statuses import Role

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection

group = typer.Typer(help="Bootstrap, straight to the database (SEGUE_DATABASE_URL).", no_args_is_help=True)
workspaces = typer.Typer(help="Workspaces.", no_args_is_help=True)
members = typer.Typer(help="Members.", no_args_is_help=True)
tokens = typer.Typer(help="Members' tokens.", no_args_is_help=True)
group.add_typer(workspaces, name="workspace")
group.add_typer(members, name="member")
group.add_typer(tokens, name="token")

Workspace = Annotated[str, typer.Option(metavar="W", help="The workspace's slug or id.")]
Result = TypeVar("Result")


@verb(workspaces, "create")
def create_workspace(
    invocation: Invocation,
    *,
    name: Annotated[str, typer.Argument(metavar="NAME")],
    slug: Annotated[str | None, typer.Option(help="Its short name; made of NAME if not given.")] = None,
    prefix: Annotated[str, typer.Option(help="Of its issues' keys.")] = "SEG",
) -> None:
    """Make a workspace."""
    from store import members as store

    made = _in_transaction(
        lambda conn: store.create_workspace(conn, name=name, slug=slug, issue_prefix=prefix)
    )
    invocation.output.one({"id": str(made), "name": name})


@verb(members, "add")
def add_member(
    invocation: Invocation,
    *,
    name: Annotated[str, typer.Argument(metavar="NAME")],
    email: Annotated[str, typer.Option(help="Unique in the workspace.")],
    workspace: Workspace = "default",
    role: Annotated[Role, typer.Option(help="What they may do.")] = Role.MEMBER,
) -> None:
    """Add a person to a workspace."""
    from store import members as store

    async def add(conn: "AsyncConnection") -> UUID:
        workspace_id = await _workspace_id(conn, workspace)
        return await store.add_member(conn, workspace_id=workspace_id, name=name, email=email, role=role)

    invocation.output.one({"id": str(_in_transaction(add)), "name": name, "role": role})


@verb(tokens, "create")
def create_token(
    invocation: Invocation,
    *,
    member: Annotated[str, typer.Option(metavar="M", help="The member's e-mail address or id.")],
    workspace: Workspace = "default",
    name: Annotated[str | None, typer.Option(help="To tell tokens apart.")] = None,
) -> None:
    """Make a token for a member; it is shown once."""
    from store import tokens as store

    async def create(conn: "AsyncConnection") -> tuple[UUID, str]:
        workspace_id = await _workspace_id(conn, workspace)
        member_id = await _member_id(conn, workspace_id, member)
        return await store.create_member_token(
            conn, workspace_id=workspace_id, member_id=member_id, name=name
        )

    token_id, token = _in_transaction(create)
    invocation.output.one({"id": str(token_id), "token": token})


@verb(group, "secret-key")
def secret_key(invocation: Invocation) -> None:
    """Print a new SEGUE_SECRET_KEY. Keep it: what it encrypted can't be read without it."""
    from store.secretbox import SecretBox

    invocation.output.one({"secret_key": SecretBox.new_key()})


def _in_transaction(work: "Callable[[AsyncConnection], Awaitable[Result]]") -> Result:
    from store.database import Database

    url = answering_database_url()

    async def run() -> Result:
        database = Database(url, pool_size=1)
        try:
            async with database.begin() as conn:
                return await work(conn)
        finally:
            await database.dispose()

    return asyncio.run(run())


async def _workspace_id(conn: "AsyncConnection", reference: str) -> UUID:
    from sqlalchemy import select

    from store.models import Workspace as Row

    found = await conn.scalar(select(Row.id).where((Row.slug == reference) | (Row.id == _uuid(reference))))
    if found is None:
        raise NotFound(f"There is no workspace {reference!r}: make one with `segue admin workspace create`.")
    return found


async def _member_id(conn: "AsyncConnection", workspace_id: UUID, reference: str) -> UUID:
    from sqlalchemy import select

    from store.models import Member as Row

    fits = (Row.email == reference.lower()) | (Row.id == _uuid(reference))
    found = await conn.scalar(select(Row.id).where(Row.workspace_id == workspace_id, fits))
    if found is None:
        raise NotFound(f"There is no member {reference!r}: add one with `segue admin member add`.")
    return found


def _uuid(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None
