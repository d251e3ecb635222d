"""``segue issue``: the board. People and agents use the same verbs."""

import sys
from typing import Annotated, Any
from uuid import uuid4

import typer

from cli import runs
from cli.client import ApiClient
from cli.invocation import Invocation, verb
from cli.output import Column, Json, Output, notice
from cli.references import agent_id, agent_names, project_id, task_id
from cli.tasks import COLUMNS as TASK_COLUMNS
from cli.texts import text_of

group = typer.Typer(help="Issues, their comments, and the runs that they start.", no_args_is_help=True)

Key = Annotated[str, typer.Argument(metavar="KEY", help="An issue's key (SEG-12) or id.")]
_NOT_ALLOWED = 4


@verb(group, "create")
def create(
    invocation: Invocation,
    *,
    title: Annotated[str, typer.Argument(metavar="TITLE")],
    body: Annotated[
        str | None, typer.Option(metavar="F", help="The text, or a file that holds it; - is stdin.")
    ] = None,
    parent: Annotated[
        str | None, typer.Option(metavar="KEY", help="The issue that this one is part of.")
    ] = None,
    assign: Annotated[str | None, typer.Option(metavar="AGENT", help="The agent that starts on it.")] = None,
    project: Annotated[str | None, typer.Option(metavar="P", help="The project it belongs to.")] = None,
    handoff: Annotated[str | None, typer.Option(metavar="TEXT", help="A word for the assignee.")] = None,
    status: Annotated[str | None, typer.Option(help="For example backlog: nobody starts.")] = None,
    priority: Annotated[str | None, typer.Option(help="urgent, high, medium, low or none.")] = None,
) -> None:
    """Open an issue. Example: segue issue create "Login fails on Safari" --assign Ada"""
    text = text_of(body)
    with invocation.client() as client:
        content = {
            "title": title,
            "body": text,
            "parent_id": _id_of(client, parent) if parent else None,
            "assignee": _assignee(client, assign) if assign else None,
            "project_id": project_id(client, project) if project else None,
            "handoff_note": handoff,
            "status": status,
            "priority": priority,
        }
        given = {name: value for name, value in content.items() if value is not None}
        made = client.post("/issues", given, key=str(uuid4()))
    _show_change(invocation.output, made)


@verb(group, "list")
def list_issues(
    invocation: Invocation,
    *,
    status: Annotated[str | None, typer.Option(help="Only issues with this status.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="At most so many.")] = 50,
) -> None:
    """The newest issues."""
    with invocation.client() as client:
        found = client.items("/issues", most=limit, status=status)
        invocation.output.rows(found, _columns(client, invocation.output))


@verb(group, "show")
def show(invocation: Invocation, key: Key) -> None:
    """One issue."""
    with invocation.client() as client:
        issue = client.get(f"/issues/{key}")
        shown = issue | {"assignee": _assignee_name(issue, agent_names(client))}
    invocation.output.one(issue, shown)


@verb(group, "comment")
def comment(
    invocation: Invocation,
    *,
    key: Key,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="The comment; - reads it from stdin.")],
    reply_to: Annotated[
        str | None, typer.Option(metavar="COMMENT", help="Id of the comment it answers.")
    ] = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait for the runs it starts; exit with their outcome.")
    ] = False,
) -> None:
    """Comment on an issue, which starts whom it concerns. Prints the tasks it started."""
    content: Json = {"body": sys.stdin.read() if text == "-" else text}
    if reply_to:
        content["parent_id"] = reply_to
    with invocation.client() as client:
        made = client.post(f"/issues/{key}/comments", content, key=str(uuid4()))
        if not wait:
            _show_change(invocation.output, made)
            return
        code = _wait(client, invocation.output, made)
    raise typer.Exit(code)


@verb(group, "comments")
def comments(invocation: Invocation, key: Key) -> None:
    """An issue's comments, oldest first."""
    with invocation.client() as client:
        found = sorted(client.items(f"/issues/{key}/comments"), key=lambda one: str(one["created_at"]))
        names = agent_names(client) if invocation.output.text else {}
    if not invocation.output.text or not invocation.output.terminal:
        invocation.output.rows(found, _comment_columns(names))
        return
    for one in found:
        head = f"{_author(one, names)}, {invocation.output.cell(one['created_at'])}"
        print(f"{invocation.output.bold(head)}")
        invocation.output.say(f"{one['body']}\n")


@verb(group, "status")
def status(invocation: Invocation, key: Key, to: Annotated[str, typer.Argument(metavar="STATUS")]) -> None:
    """Set an issue's status: backlog, todo, in_progress, in_review, done, blocked or cancelled."""
    with invocation.client() as client:
        _show_change(invocation.output, client.patch(f"/issues/{key}", {"status": to}))


@verb(group, "assign")
def assign(
    invocation: Invocation,
    *,
    key: Key,
    agent: Annotated[str, typer.Argument(metavar="AGENT", help="Its name or id; none unassigns.")],
    handoff: Annotated[str | None, typer.Option(metavar="TEXT", help="A word for the assignee.")] = None,
) -> None:
    """Give an issue to an agent, which starts on it."""
    with invocation.client() as client:
        content: Json = {"assignee": None if agent == "none" else _assignee(client, agent)}
        if handoff is not None:
            content["handoff_note"] = handoff
        _show_change(invocation.output, client.patch(f"/issues/{key}", content))


@verb(group, "rerun")
def rerun(
    invocation: Invocation,
    *,
    key: Key,
    task: Annotated[
        str | None, typer.Option(help="Again from this task's own directory and session.")
    ] = None,
) -> None:
    """Start afresh: a new session in a new directory."""
    with invocation.client() as client:
        content = {"task_id": task_id(client, task)} if task else {}
        invocation.output.one(client.post(f"/issues/{key}/rerun", content))


@verb(group, "children")
def children(invocation: Invocation, key: Key) -> None:
    """The issues that are part of this one."""
    with invocation.client() as client:
        found = client.items(f"/issues/{key}/children")
        invocation.output.rows(found, _columns(client, invocation.output))


@verb(group, "runs")
def issue_runs(invocation: Invocation, key: Key) -> None:
    """The runs on an issue, newest first."""
    with invocation.client() as client:
        invocation.output.rows(client.items(f"/issues/{key}/tasks"), TASK_COLUMNS)


def _wait(client: ApiClient, output: Output, made: Json) -> int:
    """Wait for everything that the comment started, print the replies, return the exit code."""
    codes = [_blocked_code(one) for one in made["triggered"] if one["outcome"] == "blocked"]
    for one in made["triggered"]:
        if one["task_id"] is None:
            notice(f"not started: {one['reason']}")
            continue
        try:
            ended = runs.until_ended(client, one["task_id"], lambda task: notice(f"task {task['status']}"))
        except KeyboardInterrupt:
            notice(f"\nNo longer waiting; the task goes on (`segue task cancel {one['task_id']}` stops it).")
            return 130
        codes.append(runs.exit_code(ended))
        _print_reply(output, ended)
    if not made["triggered"]:
        notice("the comment started nobody: mention an agent, or assign the issue to one")
    return next((code for code in (1, 4, 3) if code in codes), 0)


def _print_reply(output: Output, task: Json) -> None:
    if not output.text:
        output.one(task)
        return
    output.say(reply(task))
    if runs.exit_code(task) == runs.FAILED:
        notice(f"{task['reason']}: {task.get('error') or ''} {task.get('advice') or ''}".strip())


def reply(task: Json) -> str:
    """What the agent answered, as text."""
    result: Any = task.get("result")
    if isinstance(result, dict):
        result = result.get("text")
    return str(result or "")


def _blocked_code(triggered: Json) -> int:
    return _NOT_ALLOWED if triggered["reason"] == "invocation_not_allowed" else runs.FAILED


def _show_change(output: Output, made: Json) -> None:
    """The issue or comment that a call made or changed, and whom that started."""
    thing = made.get("issue") or made.get("comment") or made
    started = made.get("triggered") or []
    shown: Json = {"key": thing.get("key"), "id": thing["id"], "status": thing.get("status")}
    shown = {name: value for name, value in shown.items() if value is not None}
    if started:
        shown["triggered"] = [f"{one['outcome']} {one['task_id'] or one['reason']}" for one in started]
    output.one(made, shown)


def _columns(client: ApiClient, output: Output) -> tuple[Column, ...]:
    names = agent_names(client) if output.text else {}
    return (
        Column("key", "key"),
        Column("status", "status"),
        Column("assignee", lambda issue: _assignee_name(issue, names)),
        Column("created", "created_at"),
        Column("title", "title"),
    )


def _comment_columns(names: dict[str, str]) -> tuple[Column, ...]:
    return (
        Column("id", "id"),
        Column("author", lambda one: _author(one, names)),
        Column("created", "created_at"),
        Column("body", "body"),
    )


def _author(one: Json, names: dict[str, str]) -> str:
    author = one.get("author") or {"type": one.get("author_type"), "id": one.get("author_id")}
    return names.get(str(author.get("id")), str(author.get("type") or "somebody"))


def _assignee_name(issue: Json, names: dict[str, str]) -> str | None:
    assignee = issue.get("assignee")
    return names.get(assignee["id"], assignee["id"]) if assignee else None


def _assignee(client: ApiClient, agent: str) -> Json:
    return {"type": "agent", "id": agent_id(client, agent)}


def _id_of(client: ApiClient, key: str) -> str:
    return str(client.get(f"/issues/{key}")["id"])
