"""The ``segue`` command: its verbs, and how errors become messages and exit codes.

Exit codes: 0 ok, 1 failed, 2 usage, 3 cancelled, 4 not allowed, 130 interrupted.
"""

import os
import sys
from importlib.metadata import version as installed_version
from typing import Annotated

import typer

from cli import admin, agents, chats, demo, doctor, issues, processes, runtimes, tasks
from cli.invocation import ApiUrlOption, Globals, OutputOption, ProfileOption, TokenOption
from cli.output import notice
from domain.errors import InvalidInput, NotAllowed, SegueError, Unauthenticated

OK, FAILED, USAGE, NOT_ALLOWED, INTERRUPTED = 0, 1, 2, 4, 130

app = typer.Typer(
    name="segue",
    help="Durable, resumable runs of coding agents.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for _root in (processes.root, demo.root, doctor.root):
    app.add_typer(_root)
app.add_typer(issues.group, name="issue")
app.add_typer(tasks.group, name="task")
app.add_typer(chats.group, name="chat")
app.add_typer(agents.group, name="agent")
app.add_typer(runtimes.group, name="runtime")
app.add_typer(processes.worker, name="worker")
app.add_typer(processes.db, name="db")
app.add_typer(admin.group, name="admin")


def _version(wanted: bool) -> None:  # noqa: FBT001 - the signature of a Typer callback
    if wanted:
        print(f"segue {installed_version('segue')}")
        raise typer.Exit


@app.callback()
def _globals(
    context: typer.Context,
    *,
    output: OutputOption = None,
    profile: ProfileOption = None,
    api_url: ApiUrlOption = None,
    token: TokenOption = None,
    version: Annotated[  # noqa: ARG001 - the callback has answered it
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    context.obj = Globals(output, profile, api_url, token)


def main() -> None:
    """Run the command line of this process, and exit."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run one command line; returns the exit code."""
    try:
        _refuse_bytes(arguments)
        code = app(arguments, prog_name="segue", standalone_mode=False)
        sys.stdout.flush()
    except typer.TyperException as error:
        _show_usage(error)
        return error.exit_code
    except SegueError as error:
        notice(f"segue: {error}")
        return _exit_code(error)
    except (typer.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has seen enough; without this Python complains when it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    except OSError as error:
        # What our own code opens it reports itself; this is a full disk or a closed descriptor under stdout.
        notice(f"segue: {error}")
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return FAILED
    return code if isinstance(code, int) else OK


def _refuse_bytes(arguments: list[str]) -> None:
    """Python smuggles argument bytes that are no text in as lone surrogates, which nothing can send on."""
    for argument in arguments:
        if any("\ud800" <= character <= "\udfff" for character in argument):
            message = f"{argument!r} is not UTF-8 text."
            raise InvalidInput(message)


def _show_usage(error: typer.TyperException) -> None:
    context: typer.Context | None = getattr(error, "ctx", None)
    message = error.format_message()
    if context is not None and not message.startswith("Usage:"):
        notice(context.get_usage())
    notice(message if message.startswith("Usage:") else f"segue: {message}")


def _exit_code(error: SegueError) -> int:
    status = getattr(error, "status", None)
    if status in {401, 403} or isinstance(error, NotAllowed | Unauthenticated):
        return NOT_ALLOWED
    return USAGE if isinstance(error, InvalidInput) else FAILED
