"""``segue agent``: the named teammates."""

from typing import Annotated

import typer

from cli.invocation import Invocation, verb
from cli.output import Column
from cli.references import agent_id, runtime_id
from cli.texts import text_of
from domain.errors import InvalidInput

group = typer.Typer(
    help="Agents: provider, model, instructions and environment, bound to a runtime.", no_args_is_help=True
)

Agent = Annotated[str, typer.Argument(metavar="AGENT", help="An agent's name, id, or the beginning of one.")]

_COLUMNS = (
    Column("name", "name"),
    Column("provider", "provider"),
    Column("model", "model"),
    Column("permission", "permission"),
    Column("id", "id"),
    Column("archived", "archived_at"),
)


@verb(group, "create")
def create(
    invocation: Invocation,
    *,
    name: Annotated[str, typer.Argument(metavar="NAME")],
    provider: Annotated[str, typer.Option(help="claude, codex, opencode, gemini, acp or script.")],
    runtime: Annotated[str, typer.Option(help="Name or id of the machine it runs on.")],
    model: Annotated[str | None, typer.Option(help="The provider's name of a model.")] = None,
    instructions: Annotated[
        str | None, typer.Option(metavar="F", help="The text, or a file that holds it; - is stdin.")
    ] = None,
    env: Annotated[
        list[str] | None, typer.Option(metavar="K=V", help="For its process; kept encrypted. Repeatable.")
    ] = None,
    arg: Annotated[list[str] | None, typer.Option(help="For its command line. Repeatable.")] = None,
    permission: Annotated[
        str | None, typer.Option(help="Who may start it: workspace, private or members.")
    ] = None,
    max_concurrent: Annotated[int | None, typer.Option(min=1, help="Tasks that it runs at once.")] = None,
) -> None:
    """Make an agent. Example: segue agent create Ada --provider claude --runtime local --env KEY=VALUE"""
    body = {
        "name": name,
        "provider": provider,
        "model": model,
        "instructions": text_of(instructions),
        "env": _pairs(env),
        "args": arg,
        "permission": permission,
        "max_concurrent_tasks": max_concurrent,
    }
    with invocation.client() as client:
        given = {key: value for key, value in body.items() if value is not None}
        made = client.post("/agents", given | {"runtime_id": runtime_id(client, runtime)})
    invocation.output.one(made)


@verb(group, "list")
def list_agents(
    invocation: Invocation,
    *,
    archived: Annotated[bool, typer.Option("--archived", help="The archived ones as well.")] = False,
) -> None:
    """All agents."""
    with invocation.client() as client:
        invocation.output.rows(client.items("/agents", archived=str(archived).lower()), _COLUMNS)


@verb(group, "show")
def show(invocation: Invocation, agent: Agent) -> None:
    """One agent; of its environment only the names."""
    with invocation.client() as client:
        invocation.output.one(client.get(f"/agents/{agent_id(client, agent)}"))


@verb(group, "archive")
def archive(
    invocation: Invocation,
    *,
    agent: Agent,
    undo: Annotated[bool, typer.Option("--undo", help="Bring it back.")] = False,
) -> None:
    """Retire an agent: nothing starts it any more."""
    with invocation.client() as client:
        action = "restore" if undo else "archive"
        invocation.output.one(client.post(f"/agents/{agent_id(client, agent)}/{action}"))


def _pairs(given: list[str] | None) -> dict[str, str] | None:
    if not given:
        return None
    for one in given:
        if "=" not in one or one.startswith("="):
            raise InvalidInput(f"--env wants NAME=VALUE, not {one.partition('=')[0]!r}.")
    return {name: value for name, _, value in (one.partition("=") for one in given)}
