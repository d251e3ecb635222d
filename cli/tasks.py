"""``segue task``: look at runs, follow them, stop them, try them again."""

from collections.abc import Iterator
from typing import Annotated

import typer

from cli import continuations, runs
from cli.invocation import Invocation, verb
from cli.output import Column, Json, notice
from cli.references import agent_id, task_id

group = typer.Typer(help="Runs of agents.", no_args_is_help=True)

Task = Annotated[str, typer.Argument(metavar="TASK", help="A task's id, or the beginning of one.")]

COLUMNS = (
    Column("id", "id"),
    Column("status", "status"),
    Column("reason", "reason"),
    Column("continuity", lambda task: (task.get("continuity") or {}).get("state")),
    Column("attempt", "attempt"),
    Column("created", "created_at"),
    Column("ended", "ended_at"),
)
_SUMMARY = (
    "id", "kind", "status", "reason", "error", "evidence", "advice", "wait_reason", "agent_id", "runtime_id",
    "issue_id", "chat_id", "attempt", "max_attempts", "session_id", "work_dir", "created_at", "dispatched_at",
    "started_at", "ended_at", "retry_at", "rerun_of_task_id", "temporal_url", "result",
)  # fmt: skip


@verb(group, "list")
def list_tasks(
    invocation: Invocation,
    *,
    status: Annotated[str | None, typer.Option(help="Only tasks with this status.")] = None,
    reason: Annotated[str | None, typer.Option(help="Only tasks that ended for this reason.")] = None,
    agent: Annotated[str | None, typer.Option(help="Only tasks of this agent.")] = None,
    issue: Annotated[str | None, typer.Option(metavar="KEY", help="Only tasks of this issue.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="At most so many.")] = 50,
) -> None:
    """The newest tasks. Example: segue task list --status running -o json"""
    with invocation.client() as client:
        filters = {
            "status": status,
            "reason": reason,
            "agent_id": agent_id(client, agent) if agent else None,
            "issue_id": client.get(f"/issues/{issue}")["id"] if issue else None,
        }
        invocation.output.rows(client.items("/tasks", most=limit, **filters), COLUMNS)


@verb(group, "show")
def show(invocation: Invocation, task: Task) -> None:
    """One task: its status, continuity, directory, result and attempts."""
    with invocation.client() as client:
        found = client.get(f"/tasks/{task_id(client, task)}")
    invocation.output.one(found, summary(found))


@verb(group, "logs")
def logs(
    invocation: Invocation,
    *,
    task: Task,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on until the task ends.")] = False,
) -> None:
    """What the agent did. With -f it goes on live; Ctrl-C only stops looking, the task goes on."""
    with invocation.client() as client:
        found = task_id(client, task)
        events = runs.live_events(client, found) if follow else runs.past_events(client, found)
        try:
            _print_events(invocation, events, follow=follow)
        except KeyboardInterrupt:
            raise _detached(found) from None


@verb(group, "watch")
def watch(invocation: Invocation, task: Task) -> None:
    """Status changes until the end; exits 0 completed, 1 failed, 3 cancelled. Ctrl-C only stops looking."""
    with invocation.client() as client:
        found = task_id(client, task)
        try:
            ended = runs.until_ended(client, found, lambda now: runs.show_change(invocation.output, now))
        except KeyboardInterrupt:
            raise _detached(found) from None
    raise typer.Exit(runs.exit_code(ended))


@verb(group, "cancel")
def cancel(invocation: Invocation, task: Task) -> None:
    """Stop a task; its conversation and files are kept."""
    with invocation.client() as client:
        found = task_id(client, task)
        client.post(f"/tasks/{found}/cancel")
        asked = client.get(f"/tasks/{found}")
    invocation.output.one(asked, {"id": found, "status": asked["status"]})
    notice(f"cancel requested; `segue task watch {found}` waits for its end")


@verb(group, "retry")
def retry(invocation: Invocation, task: Task) -> None:
    """Run an ended task again, from its own directory and session."""
    with invocation.client() as client:
        answer = client.post(f"/tasks/{task_id(client, task)}/retry")
    invocation.output.one(answer)


@verb(group, "retry-now")
def retry_now(invocation: Invocation, task: Task) -> None:
    """Don't wait any longer for a quota's reset or for the pause before a retry."""
    with invocation.client() as client:
        answer = client.post(f"/tasks/{task_id(client, task)}/retry-now")
    invocation.output.one(answer)


@verb(group, "continue")
def continue_in_chat(
    invocation: Invocation,
    *,
    task: Task,
    no_fork: Annotated[
        bool, typer.Option("--no-fork", help="Go on in the run's own conversation; the issue sees it.")
    ] = False,
    preview: Annotated[bool, typer.Option("--preview", help="Only say what it would do.")] = False,
    follow: Annotated[bool, typer.Option("--open", help="Show the chat and go on watching it.")] = False,
) -> None:
    """Go on from a finished run in a chat of your own: its conversation, its files, its machine."""
    with invocation.client() as client:
        code = continuations.go_on(
            client,
            invocation.output,
            task_id(client, task),
            fork=False if no_fork else None,
            steps=continuations.Steps(preview=preview, follow=follow),
        )
    raise typer.Exit(code)


def summary(task: Json) -> Json:
    """What `show` says of a task as text."""
    shown = {name: task.get(name) for name in _SUMMARY}
    continuity = task.get("continuity") or {}
    shown["continuity"] = ": ".join(str(one) for one in continuity.values() if one)
    usage = task.get("usage") or {}
    shown["usage"] = ", ".join(f"{name} {value}" for name, value in usage.items() if value)
    shown["wait_reason"] = (task.get("wait_reason") or {}).get("kind")
    return shown


def _print_events(invocation: Invocation, events: Iterator[Json], *, follow: bool) -> None:
    output = invocation.output
    if not output.text and not follow:
        output.rows(events, ())
        return
    for event in events:
        text = runs.as_text(event) if output.text else None
        if not output.text:
            output.line(event)
        elif text:
            output.say(text)


def _detached(task: str) -> typer.Exit:
    notice(f"\nNo longer looking; the task goes on (`segue task cancel {task}` stops it).")
    return typer.Exit(130)
