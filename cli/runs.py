"""Following a task: until it ends, with its status changes, or event by event."""

import json
import math
import time
from collections.abc import Callable, Iterator
from typing import Any

from cli import streams
from cli.client import ApiClient
from cli.output import Json, Output, harmless, notice
from domain.errors import Unavailable
from domain.statuses import TaskStatus

OK, FAILED, CANCELLED = 0, 1, 3
_EXIT_CODES = {TaskStatus.COMPLETED: OK, TaskStatus.CANCELLED: CANCELLED}

_FIRST_POLL, _LONGEST_POLL = 0.3, 2.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 5.0
#: How much of a tool's input and output is shown as text.
_SHOWN = 500


def exit_code(task: Json) -> int:
    """What a command that waited for ``task`` exits with."""
    return _EXIT_CODES.get(TaskStatus(task["status"]), FAILED)


def until_ended(
    client: ApiClient,
    task_id: str,
    on_change: Callable[[Json], None] = lambda _task: None,
    *,
    seconds: float = math.inf,
) -> Json:
    """Wait for a task's end; ``on_change`` sees each status that was observed.

    An API that is away for a while is waited for. Raises `TimeoutError` after ``seconds``.
    """
    deadline = time.monotonic() + seconds
    seen: tuple[Any, ...] = ()
    pause = _FIRST_POLL
    while True:
        task = _patiently(lambda: client.get(f"/tasks/{task_id}"))
        now = (task["status"], task["attempt"], (task.get("wait_reason") or {}).get("kind"))
        if now != seen:
            seen, pause = now, _FIRST_POLL
            on_change(task)
        if TaskStatus(task["status"]).terminal:
            return task
        if time.monotonic() > deadline:
            raise TimeoutError(f"Task {task_id} is still {task['status']} after {seconds:.0f} s.")
        time.sleep(pause)
        pause = min(pause * 1.3, _LONGEST_POLL)


def past_events(client: ApiClient, task_id: str) -> Iterator[Json]:
    """All events that a task has by now."""
    after = 0
    while True:
        page = client.get(f"/tasks/{task_id}/events", after=after, limit=500)
        yield from page["items"]
        if not page["items"] or page.get("next") is None:
            return
        after = page["items"][-1]["seq"]


def live_events(client: ApiClient, task_id: str) -> Iterator[Json]:
    """A task's events from the first to the last, as they happen."""
    for event in streams.follow(client, f"/tasks/{task_id}/events/stream"):
        if event["type"] != "end":
            yield event


def as_text(event: Json) -> str | None:
    """One event for a person; None when there is nothing to show."""
    data = event["data"]
    shown: dict[str, Callable[[], str]] = {
        "session": lambda: f"— session {data.get('session_id')}",
        "text": lambda: str(data.get("text", "")),
        "tool_use": lambda: f"→ {data.get('name')} {_short(data.get('input'))}",
        "tool_result": lambda: f"{'✗' if data.get('is_error') else '←'} {_short(data.get('output'))}",
        "rate_limit": lambda: f"! rate limit: {data.get('message') or data.get('status')}",
        "error": lambda: f"! {data.get('message')}",
        "raw": lambda: f"? {_short(data.get('line'))}",
    }
    make = shown.get(event["type"])
    return make() if make else None


def show_change(output: Output, task: Json) -> None:
    """One line for a status that a task has reached."""
    if output.text:
        output.say(status_line(task))
    else:
        output.line(task)


def status_line(task: Json) -> str:
    """A task's status with what it waits for, which attempt it is, and why it ended."""
    parts = [task["status"]]
    waiting = task.get("wait_reason")
    if waiting:
        holder = "a private task" if waiting.get("private") else waiting.get("holder_task_id")
        parts.append(f"for {waiting['kind']}" + (f" held by {holder}" if holder else ""))
    if task.get("attempt", 1) > 1:
        parts.append(f"(attempt {task['attempt']} of {task['max_attempts']})")
    if task.get("reason") and task["reason"] != task["status"]:
        parts.append(f"— {task['reason']}")
    if task.get("advice"):
        parts.append(f"({task['advice']})")
    return " ".join(parts)


def _patiently(call: Callable[[], Json]) -> Json:
    pause, told = _FIRST_PAUSE, False
    while True:
        try:
            return call()
        except Unavailable as error:
            if not told:
                notice(f"{error} Waiting for it.")
            told = True
        time.sleep(pause)
        pause = min(pause * 2, _LONGEST_PAUSE)


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    text = " ".join(harmless(text).split())
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}… ({len(text)} characters)"
