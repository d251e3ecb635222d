"""``segue chat``: private conversations with agents, and the queue of turns in each."""

import sys
from typing import Annotated
from uuid import uuid4

import typer

from cli import conversations, runs
from cli.client import ApiClient
from cli.invocation import Invocation, verb
from cli.output import Column, Json, Output, notice
from cli.references import agent_id, agent_names, chat_id, task_id

group = typer.Typer(help="Private conversations with agents.", no_args_is_help=True)

Chat = Annotated[str, typer.Argument(metavar="CHAT", help="A chat's id, or the beginning of one.")]
Turn = Annotated[str, typer.Argument(metavar="TASK", help="The task of a turn that waits in the queue.")]
Text = Annotated[str, typer.Argument(metavar="TEXT", help="The message; - reads it from stdin.")]
Wait = Annotated[bool, typer.Option("--wait", help="Print the reply, and exit with the turn's outcome.")]

_QUEUE = (
    Column("task", "task_id"),
    Column("status", "status"),
    Column("waits for", lambda turn: (turn.get("wait_reason") or {}).get("kind")),
    Column("sent", "created_at"),
    Column("content", "content"),
)
_DRAFTS = (Column("id", "id"), Column("written", "created_at"), Column("content", "content"))


@verb(group, "start")
def start(
    invocation: Invocation,
    *,
    agent: Annotated[str, typer.Argument(metavar="AGENT", help="An agent's name or id.")],
    text: Annotated[
        str | None, typer.Argument(metavar="[TEXT]", help="The first message; - reads it from stdin.")
    ] = None,
    title: Annotated[str | None, typer.Option(help="Otherwise the first message's first line.")] = None,
    wait: Wait = False,
) -> None:
    """Begin a chat. Example: segue chat start Ada "Where is the login handled?" --wait"""
    content = _content(text) if text is not None else None
    with invocation.client() as client:
        body = {"agent_id": agent_id(client, agent)} | ({"title": title} if title is not None else {})
        chat = client.post("/chats", body, key=str(uuid4()))
        if content is None:
            invocation.output.one(chat, {"chat": chat["id"], "title": chat["title"]})
            return
        if wait:
            notice(f"chat {chat['id']}")
        code = _send(client, invocation.output, chat["id"], content, wait=wait)
    raise typer.Exit(code)


@verb(group, "send")
def send(invocation: Invocation, *, chat: Chat, text: Text, wait: Wait = False) -> None:
    """Send a message, which gets a turn of its own; `/new` alone begins a new conversation."""
    content = _content(text)
    with invocation.client() as client:
        code = _send(client, invocation.output, chat_id(client, chat), content, wait=wait)
    raise typer.Exit(code)


@verb(group, "list")
def list_chats(
    invocation: Invocation,
    *,
    agent: Annotated[str | None, typer.Option(help="Only chats with this agent.")] = None,
    status: Annotated[str | None, typer.Option(help="active or archived; otherwise both.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="At most so many.")] = 50,
) -> None:
    """Your newest chats, with the number of replies that you have not seen."""
    with invocation.client() as client:
        filters = {"agent_id": agent_id(client, agent) if agent else None, "status": status}
        found = client.items("/chats", most=limit, **filters)
        names = agent_names(client) if invocation.output.text else {}
        invocation.output.rows(found, _columns(names))


@verb(group, "show")
def show(
    invocation: Invocation,
    *,
    chat: Chat,
    last: Annotated[int, typer.Option(min=1, max=200, help="So many of the last messages.")] = 50,
    everything: Annotated[bool, typer.Option("--all", help="All messages.")] = False,
) -> None:
    """A chat and its messages, oldest first."""
    with invocation.client() as client:
        conversations.show(client, invocation.output, chat_id(client, chat), None if everything else last)


@verb(group, "watch")
def watch(
    invocation: Invocation,
    *,
    chat: Chat,
    everything: Annotated[bool, typer.Option("--all", help="Begin with the first message.")] = False,
) -> None:
    """What happens in a chat, as it happens; Ctrl-C only stops looking."""
    with invocation.client() as client:
        code = conversations.watch(client, invocation.output, chat_id(client, chat), everything=everything)
    raise typer.Exit(code)


@verb(group, "read")
def read(invocation: Invocation, chat: Chat) -> None:
    """Mark a chat's replies as seen."""
    with invocation.client() as client:
        _show(invocation.output, client.post(f"/chats/{chat_id(client, chat)}/read"))


@verb(group, "rename")
def rename(
    invocation: Invocation, chat: Chat, title: Annotated[str, typer.Argument(metavar="TITLE")]
) -> None:
    """Give a chat another title."""
    with invocation.client() as client:
        _show(invocation.output, client.patch(f"/chats/{chat_id(client, chat)}", {"title": title}))


@verb(group, "archive")
def archive(
    invocation: Invocation,
    *,
    chat: Chat,
    undo: Annotated[bool, typer.Option("--undo", help="Let it go on.")] = False,
) -> None:
    """Make a chat read-only; what was sent before goes on to its end."""
    with invocation.client() as client:
        action = "unarchive" if undo else "archive"
        _show(invocation.output, client.post(f"/chats/{chat_id(client, chat)}/{action}"))


@verb(group, "delete")
def delete(
    invocation: Invocation,
    *,
    chat: Chat,
    yes: Annotated[bool, typer.Option("--yes", help="Don't ask.")] = False,
) -> None:
    """Take a chat away for good; what is queued or at work in it is cancelled."""
    with invocation.client() as client:
        found = client.get(f"/chats/{chat_id(client, chat)}")
        if not yes:
            typer.confirm(f"Delete the chat {found['title']!r} for good?", abort=True, err=True)
        client.delete(f"/chats/{found['id']}")
    notice(f"deleted {found['id']}")


# --- the queue ------------------------------------------------------------------------------------


@verb(group, "queue")
def queue(invocation: Invocation, chat: Chat) -> None:
    """The turns that wait, the next one first."""
    with invocation.client() as client:
        found = client.get(f"/chats/{chat_id(client, chat)}/queue")
    invocation.output.rows(found["items"], _QUEUE)


@verb(group, "edit")
def edit(invocation: Invocation, *, chat: Chat, turn: Turn, text: Text) -> None:
    """Change the words of a turn that waits."""
    content = _content(text)
    with invocation.client() as client:
        invocation.output.one(client.patch(_turn(client, chat, turn), {"content": content}))


@verb(group, "remove")
def remove(invocation: Invocation, *, chat: Chat, turn: Turn) -> None:
    """Take a turn that waits out of the queue; prints its words."""
    with invocation.client() as client:
        answer = client.delete(_turn(client, chat, turn))
    if invocation.output.text:
        invocation.output.say(answer["content"])
    else:
        invocation.output.one(answer)


@verb(group, "now")
def now(invocation: Invocation, *, chat: Chat, turn: Turn) -> None:
    """Put a turn that waits before all others that wait; what is at work is not stopped."""
    with invocation.client() as client:
        found = client.post(f"{_turn(client, chat, turn)}/send-now")
    invocation.output.rows(found["items"], _QUEUE)


@verb(group, "drafts")
def drafts(
    invocation: Invocation,
    *,
    chat: Chat,
    discard: Annotated[str | None, typer.Option(metavar="ID", help="Forget this one.")] = None,
) -> None:
    """The words of turns that were cancelled before they started."""
    with invocation.client() as client:
        path = f"/chats/{chat_id(client, chat)}/drafts"
        if discard is not None:
            client.delete(f"{path}/{discard}")
            notice(f"forgot {discard}")
            return
        invocation.output.rows(client.get(path)["items"], _DRAFTS)


# --- what verbs share -----------------------------------------------------------------------------


def _content(text: str) -> str:
    """Never a file's: what begins with a slash (`/new`) is a message here."""
    return sys.stdin.read() if text == "-" else text


def _send(client: ApiClient, output: Output, chat: str, content: str, *, wait: bool) -> int:
    """Send, say what became of it, and wait if that is wanted; returns the exit code."""
    sent = client.post(f"/chats/{chat}/messages", {"content": content}, key=str(uuid4()))
    task = sent["task_id"]
    if task is None:
        notice("a new conversation begins: the agent knows nothing of what was said before")
    elif sent["queued"]:
        notice(f"queued behind an earlier turn; `segue chat queue {chat}` shows the queue")
    if task is None or not wait:
        output.one({"chat_id": chat, **sent}, {"chat": chat, "message": sent["message_id"], "task": task})
        return runs.OK
    return conversations.reply(client, output, chat, task)


def _turn(client: ApiClient, chat: str, turn: str) -> str:
    return f"/chats/{chat_id(client, chat)}/queue/{task_id(client, turn)}"


def _show(output: Output, chat: Json) -> None:
    output.one(chat, {name: chat[name] for name in ("id", "title", "status", "unread")})


def _columns(names: dict[str, str]) -> tuple[Column, ...]:
    return (
        Column("id", "id"),
        Column("agent", lambda chat: names.get(chat["agent_id"], chat["agent_id"])),
        Column("status", "status"),
        Column("unread", "unread"),
        Column("last message", "last_message_at"),
        Column("title", "title"),
    )
