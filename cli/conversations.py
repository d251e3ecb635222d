"""A chat as text: its messages, the reply that somebody waits for, and what happens in it live."""

from typing import Any

from cli import runs, streams
from cli.client import ApiClient
from cli.output import Json, Output, notice
from cli.references import agent_names

_HEAD = (
    "id", "title", "status", "agent_id", "runtime_id", "continued_from_task_id", "session_carried",
    "session_reason", "fork", "unread", "created_at",
)  # fmt: skip
_INTERRUPTED = 130
_LARGEST_PAGE = 200


def show(client: ApiClient, output: Output, chat: str, last: int | None) -> None:
    """The chat's head and its messages: all of them, or the last ones."""
    head = client.get(f"/chats/{chat}")
    path = f"/chats/{chat}/messages"
    messages = list(client.items(path)) if last is None else client.get(path, last=last)["items"]
    if not output.text:
        output.one(head | {"messages": messages})
        return
    output.one(head, {name: head[name] for name in _HEAD})
    names = agent_names(client)
    for message in messages:
        print()
        _say_message(output, message, names.get(head["agent_id"], "agent"))


def reply(client: ApiClient, output: Output, chat: str, task: str) -> int:
    """Wait for the turn's end, print what was answered; returns the turn's exit code."""
    try:
        ended = runs.until_ended(client, task, lambda now: notice(f"task {runs.status_line(now)}"))
    except KeyboardInterrupt:
        notice(
            f"\nNo longer waiting; the turn goes on (`segue chat watch {chat}` looks at it, "
            f"`segue task cancel {task}` stops it)."
        )
        return _INTERRUPTED
    answer = _reply_to(client, chat, task)
    if not output.text:
        output.one({"chat_id": chat, "task": ended, "reply": answer})
    elif answer is None:
        notice(f"no reply; if its words came back, `segue chat drafts {chat}` has them")
    elif answer["kind"] == "message":
        output.say(answer["content"])
    else:
        notice(answer["content"])
    return runs.exit_code(ended)


def watch(client: ApiClient, output: Output, chat: str, *, everything: bool) -> int:
    """Print what happens until the chat has ended or the person has seen enough; the exit code."""
    head = client.get(f"/chats/{chat}")
    after = 0 if everything else _newest(client, chat)
    viewer = Viewer(output, agent_names(client).get(head["agent_id"], "agent"))
    try:
        for event in streams.follow(client, f"/chats/{chat}/events/stream", after):
            viewer.see(event)
    except KeyboardInterrupt:
        notice(f"\nNo longer looking; the chat goes on (`segue chat show {chat}`).")
        return _INTERRUPTED
    return runs.OK


class Viewer:
    """Prints a chat's events. A stream that was opened again says live text twice: it is shown once."""

    def __init__(self, output: Output, agent: str) -> None:
        self._output = output
        self._agent = agent
        self._heard: dict[str, int] = {}

    def see(self, event: Json) -> None:
        kind, data = event["type"], event["data"]
        if kind == "text" and not self._is_new(data):
            return
        if not self._output.text:
            self._output.line(event)
            return
        say = {
            "message": lambda: _say_message(self._output, data, self._agent),
            "removed": lambda: self._aside(f"taken back: {data['content']}"),
            "task": lambda: self._aside(_turn_line(data)),
            "text": lambda: self._aside(data["text"], "…"),
            "end": lambda: self._aside(f"the chat is {data['status']}"),
        }.get(kind)
        if say is not None:
            say()

    def _is_new(self, text: Json) -> bool:
        task, seq = text["task_id"], text["seq"]
        if seq <= self._heard.get(task, 0):
            return False
        self._heard[task] = seq
        return True

    def _aside(self, text: str, mark: str = "—") -> None:
        self._output.say(f"{mark} {text}")


def _say_message(output: Output, message: Json, agent: str) -> None:
    head = f"{_author(message, agent)}, {output.cell(message['created_at'])}"
    print(output.bold(head + _remark(message)), flush=True)
    output.say(message["content"])


def _author(message: Json, agent: str) -> str:
    return {"user": "you", "assistant": agent}.get(message["role"], "segue")


def _remark(message: Json) -> str:
    if message["queued"]:
        return f" (waits; task {message['task_id']})"
    return f" ({message['reason']})" if message["reason"] else ""


def _turn_line(turn: Json) -> str:
    return f"task {turn['task_id']} {runs.status_line(turn)}"


def _reply_to(client: ApiClient, chat: str, task: str) -> Json | None:
    """Later turns may have been answered meanwhile, but not so many."""
    last = client.get(f"/chats/{chat}/messages", last=_LARGEST_PAGE)["items"]
    fits: list[Any] = [one for one in last if one["task_id"] == task and one["role"] == "assistant"]
    return fits[-1] if fits else None


def _newest(client: ApiClient, chat: str) -> int:
    """The number of the newest change so far: `seq` grows with every message."""
    last = client.get(f"/chats/{chat}/messages", last=_LARGEST_PAGE)["items"]
    return max((int(message["seq"]) for message in last), default=0)
