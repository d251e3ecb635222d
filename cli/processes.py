"""``segue up``, ``api``, ``worker …`` and ``db …``: starting the processes.

Everything heavy is imported late, so that the client verbs start fast.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.invocation import Invocation, verb
from cli.output import Column, notice
from domain.errors import InvalidInput

if TYPE_CHECKING:
    from workers.settings import Settings
    from workers.stack import Ready

root = typer.Typer()
worker = typer.Typer(help="One worker process, for real deployments.", no_args_is_help=True)
db = typer.Typer(help="The database's schema.", no_args_is_help=True)


@verb(root, "up")
def up(
    invocation: Invocation,
    *,
    data: Annotated[Path | None, typer.Option(metavar="DIR", help="Where everything is kept.")] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="The API's; chosen if not given.")] = 0,
    ui_port: Annotated[int, typer.Option(min=0, max=65535, help="Temporal's Web UI's.")] = 0,
    temporal_port: Annotated[int, typer.Option(min=0, max=65535, help="The Temporal server's.")] = 0,
) -> None:
    """Run everything on this machine: PostgreSQL, Temporal, api, control and runtime worker.

    The first Ctrl-C drains (running agents go on, the next start finds them), the second stops at once.
    Example: segue up --data ~/segue --port 8080
    """
    from workers import lifeline, logs, stack
    from workers.folder import Ports, StackFolder, default_folder

    folder = StackFolder((data or default_folder()).expanduser().resolve())
    folder.make()
    lifeline.follow_stack()
    with folder.log_file("stack").open("a", encoding="utf-8") as log:
        logs.configure("stack", log)
        asked = Ports(api=port, ui=ui_port, temporal=temporal_port)
        notice(f"starting in {folder.path}; logs are in {folder.log_file('stack').parent}")
        announce = _announcer(invocation)
        came_up = asyncio.run(stack.run(folder.path, asked, announce=announce, notify=notice))
    raise typer.Exit(0 if came_up else 1)


@verb(root, "api")
def api(
    invocation: Invocation,
    *,
    host: Annotated[str | None, typer.Option(help="Address to listen on (SEGUE_API_HOST).")] = None,
    port: Annotated[int | None, typer.Option(min=0, max=65535, help="Port (SEGUE_API_PORT).")] = None,
) -> None:
    """Serve the HTTP API."""
    _enter("api", invocation)
    from workers import web
    from workers.settings import Settings

    asyncio.run(web.run(Settings.load(api_host=host, api_port=port)))


@verb(worker, "control")
def control(invocation: Invocation) -> None:
    """Run workflows and database activities; one or more of these."""
    _enter("control", invocation)
    from workers import control as process
    from workers.settings import Settings

    asyncio.run(process.run(Settings.load()))


@verb(worker, "runtime")
def runtime(
    invocation: Invocation,
    *,
    root_folder: Annotated[
        Path | None, typer.Option("--root", metavar="DIR", help="The folder it owns (SEGUE_ROOT).")
    ] = None,
    slots: Annotated[int | None, typer.Option(min=1, max=1000, help="Runs at once (SEGUE_SLOTS).")] = None,
) -> None:
    """Run agents on this machine. Needs SEGUE_API_URL and SEGUE_RUNTIME_TOKEN, and no database."""
    _enter("runtime", invocation)
    from workers import runtime as process
    from workers.settings import Settings

    given = invocation.given
    settings = Settings.load(root=root_folder, slots=slots, api_url=given.api_url, runtime_token=given.token)
    asyncio.run(process.run(settings))


@verb(worker, "gc")
def gc(
    invocation: Invocation,
    *,
    root_folder: Annotated[
        Path | None, typer.Option("--root", metavar="DIR", help="The runtime's folder (SEGUE_ROOT).")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be deleted.")] = False,
) -> None:
    """Delete what nobody needs any more on this machine, and say how big everything is.

    The worker does the same every hour, and may run meanwhile. Needs SEGUE_API_URL and
    SEGUE_RUNTIME_TOKEN; without a folder it is the local stack's.
    Example: segue worker gc --root ~/segue-runtime --dry-run
    """
    from workers import collector

    settings = _runtime_settings(invocation, root_folder)
    rows = asyncio.run(collector.collect_once(settings, dry_run=dry_run))
    invocation.output.rows(rows, _COLLECTED)
    freed = sum(row["bytes"] or 0 for row in rows if row["decision"].startswith("collect"))
    notice(f"{_size(freed)} {'could be freed' if dry_run else 'freed'}")
    if any(row["decision"] == "failed" for row in rows):
        raise typer.Exit(1)


@verb(db, "upgrade")
def upgrade(
    invocation: Invocation,
    *,
    revision: Annotated[str, typer.Argument(help="Up to this one.")] = "head",
) -> None:
    """Bring the database's schema up to this version of Segue."""
    from store import schema

    url = answering_database_url()
    schema.upgrade(url, revision)
    invocation.output.one({"revision": schema.current(url)})


@verb(db, "current")
def current(invocation: Invocation) -> None:
    """The database's revision, and the one that this version of Segue wants."""
    from store import schema

    url = answering_database_url()
    invocation.output.one({"revision": schema.current(url), "wanted": schema.head()})


def _runtime_settings(invocation: Invocation, root_folder: Path | None) -> "Settings":
    """The configuration; where it names no root, the local stack's runtime (`segue up`)."""
    from workers.folder import StackFolder, default_folder
    from workers.settings import Settings

    given = invocation.given
    settings = Settings.load(root=root_folder, api_url=given.api_url, runtime_token=given.token)
    if settings.root is not None:
        return settings
    folder = StackFolder(default_folder())
    record = folder.read()
    if record is None or not record.runtime_token:
        return settings
    return Settings.load(root=folder.runtime_root, api_url=record.api_url, runtime_token=record.runtime_token)


def _size(count: int | None) -> str:
    """Bytes for people."""
    if count is None:
        return ""
    size = float(count)
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"


_COLLECTED = (
    Column("decision", "decision"),
    Column("reason", "reason"),
    Column("size", lambda row: _size(row["bytes"])),
    Column("what", "what"),
    Column("error", "error"),
    Column("path", "path"),
)


def answering_database_url() -> str:
    """The address of the configured database. Raises `Unavailable` if it doesn't answer."""
    from store.database import Database

    url = local_settings().required_database_url()

    async def check() -> None:
        database = Database(url, pool_size=1)
        try:
            await database.check()
        finally:
            await database.dispose()

    asyncio.run(check())
    return url


def local_settings() -> "Settings":
    """The configuration; where it names no database, the local stack's (`segue up`)."""
    from workers.folder import StackFolder, default_folder
    from workers.settings import Settings

    settings = Settings.load()
    if settings.database_url is not None:
        return settings
    record = StackFolder(default_folder()).read()
    if record is None or not record.database_url:
        return settings
    return Settings.load(
        database_url=record.database_url,
        secret_key=record.secret_key,
        temporal_address=record.temporal_address,
        temporal_namespace=record.temporal_namespace,
        temporal_ui_url=record.ui_url,
        api_url=record.api_url,
    )


def _announcer(invocation: Invocation) -> Callable[["Ready"], None]:
    def announce(ready: "Ready") -> None:
        if invocation.output.text:
            print(ready, flush=True)
        else:
            invocation.output.line({"api": ready.api, "ui": ready.ui, "temporal": ready.temporal})

    return announce


def _enter(name: str, invocation: Invocation) -> None:
    """What every process does first."""
    from workers import lifeline, logs

    if not invocation.output.text:
        raise InvalidInput("A process has no output to format: it logs JSON when it has no terminal.")
    lifeline.follow_stack()
    logs.configure(name)
