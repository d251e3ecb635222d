"""``segue runtime``: the machines that agents run on."""

from typing import Annotated

import typer

from cli.invocation import Invocation, verb
from cli.output import Column, notice
from cli.references import runtime_id

group = typer.Typer(help="Runtimes: the machines that agents run on.", no_args_is_help=True)

Runtime = Annotated[
    str, typer.Argument(metavar="RUNTIME", help="A runtime's name, id, or the beginning of one.")
]

_COLUMNS = (
    Column("name", "name"),
    Column("status", "status"),
    Column("slots", "slots"),
    Column("providers", lambda runtime: [one["name"] for one in runtime.get("providers") or []]),
    Column("seen", "last_seen_at"),
    Column("id", "id"),
)


@verb(group, "list")
def list_runtimes(invocation: Invocation) -> None:
    """All runtimes."""
    with invocation.client() as client:
        invocation.output.rows(client.items("/runtimes"), _COLUMNS)


@verb(group, "show")
def show(invocation: Invocation, runtime: Runtime) -> None:
    """One runtime, with the agent CLIs found on it."""
    with invocation.client() as client:
        found = client.get(f"/runtimes/{runtime_id(client, runtime)}")
    providers = [f"{one['name']} {one.get('version') or '?'}" for one in found.get("providers") or []]
    invocation.output.one(found, found | {"providers": providers})


@verb(group, "create")
def create(
    invocation: Invocation,
    *,
    name: Annotated[str, typer.Argument(metavar="NAME")],
    slots: Annotated[int | None, typer.Option(min=1, help="Runs at once.")] = None,
) -> None:
    """Register a machine. Its token is shown once; start its worker with it (SEGUE_RUNTIME_TOKEN)."""
    body = {"name": name} | ({"slots": slots} if slots is not None else {})
    with invocation.client() as client:
        made = client.post("/runtimes", body)
    invocation.output.one(made, {"id": made["runtime"]["id"], "name": name, "token": made["token"]})
    environment = f"SEGUE_API_URL={client.api_url} SEGUE_RUNTIME_TOKEN=…"
    notice(f"on that machine: {environment} segue worker runtime --root DIR")


@verb(group, "drain")
def drain(
    invocation: Invocation,
    *,
    runtime: Runtime,
    undo: Annotated[bool, typer.Option("--undo", help="Let it take new tasks again.")] = False,
) -> None:
    """Let a machine finish what it runs, and give it nothing new."""
    with invocation.client() as client:
        path = f"/runtimes/{runtime_id(client, runtime)}"
        if undo:
            client.patch(path, {"draining": False})
        else:
            client.post(f"{path}/drain")
        found = client.get(path)
    invocation.output.one(found, {"id": found["id"], "name": found["name"], "status": found["status"]})
