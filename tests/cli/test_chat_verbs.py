"""The chat verbs against a whole stack, and continuing a finished run from the command line."""

import json
import signal
from typing import Any

import pytest

from tests.cli.command import Segue
from tests.cli.up import PATIENCE

pytestmark = [pytest.mark.scenario, pytest.mark.timeout(1200)]


@pytest.fixture
def chat(segue: Segue) -> str:
    """A new chat with Ada."""
    chat_id: str = segue.json("chat", "start", "Ada")["id"]
    return chat_id


def _sent(segue: Segue, chat: str, text: str) -> str:
    task_id: str = segue.json("chat", "send", chat, text)["task_id"]
    return task_id


def _cancelled(segue: Segue, task: str) -> None:
    segue.run("task", "cancel", task)
    segue.run("task", "watch", task, code=3)


def test_a_conversation(segue: Segue) -> None:
    """Started with a first message, gone on with, read, listed with what is unread, and shown."""
    first = segue.run("chat", "start", "Ada", "remember colour=teal", "--wait")
    assert first.stdout == "remembered colour\n"
    chat = next(line.split()[1] for line in first.stderr.splitlines() if line.startswith("chat "))
    assert segue.run("chat", "send", chat, "recall colour", "--wait").stdout == "teal\n"
    (listed,) = [one for one in segue.json("chat", "list", "--agent", "Ada") if one["id"] == chat]
    assert (listed["unread"], listed["title"]) == (2, "remember colour=teal")
    assert segue.json("chat", "read", chat[:-1])["unread"] == 0
    shown = segue.json("chat", "show", chat)
    assert [(one["role"], one["content"]) for one in shown["messages"]] == [
        ("user", "remember colour=teal"),
        ("assistant", "remembered colour"),
        ("user", "recall colour"),
        ("assistant", "teal"),
    ]
    text = segue.run("chat", "show", chat, "--last", "1").stdout
    assert "Ada, " in text
    assert text.rstrip().endswith("teal")
    assert segue.json("chat", "rename", chat, "Colours")["title"] == "Colours"
    assert "knows nothing" in segue.run("chat", "send", chat, "/new", "--wait").stderr
    assert segue.run("chat", "send", chat, "recall colour", "--wait").stdout == "unknown\n"


def test_the_outcome_of_a_turn_is_the_exit_code(segue: Segue, chat: str) -> None:
    """1 for a failure with its reason; a turn without words says so; text comes from stdin too."""
    failed = segue.run("chat", "send", chat, "fail refusal", "--wait", code=1)
    assert failed.stdout == ""
    assert "Reason: refusal." in failed.stderr
    waited = json.loads(segue.run("chat", "send", chat, "say hi", "--wait", "-o", "json").stdout)
    assert (waited["reply"]["content"], waited["task"]["status"]) == ("hi", "completed")
    segue.run("chat", "send", chat, " ", code=1)


def test_interrupting_a_wait_never_stops_the_turn(segue: Segue, chat: str) -> None:
    """It says how to look again and how to stop it."""
    waiting = segue.begin("chat", "send", chat, "sleep 600", "--wait")
    assert waiting.stderr is not None
    while "running" not in (line := waiting.stderr.readline()):
        assert line, "the wait has ended"
    waiting.send_signal(signal.SIGINT)
    _, said = waiting.communicate(timeout=PATIENCE)
    assert waiting.returncode == 130
    assert "the turn goes on" in said
    (task,) = [one for one in segue.json("task", "list") if one["chat_id"] == chat]
    assert task["status"] == "running"
    _cancelled(segue, task["id"])


def test_the_queue_is_seen_and_changed(segue: Segue, chat: str) -> None:
    """What waits is listed, edited, put first and taken back; what was cancelled is a draft."""
    running = _sent(segue, chat, "sleep 600")
    first, second, third = [_sent(segue, chat, f"say {word}") for word in ("one", "two", "three")]
    assert [one["task_id"] for one in segue.json("chat", "queue", chat)] == [first, second, third]
    assert segue.json("chat", "edit", chat, second, "say TWO")["content"] == "say TWO"
    moved = segue.json("chat", "now", chat, third)
    assert [one["content"] for one in moved] == ["say three", "say one", "say TWO"]
    assert segue.run("chat", "remove", chat, first).stdout == "say one\n"
    segue.run("task", "cancel", third)
    (draft,) = segue.json("chat", "drafts", chat)
    assert draft["content"] == "say three"
    segue.run("chat", "drafts", chat, "--discard", draft["id"])
    assert segue.json("chat", "drafts", chat) == []
    _cancelled(segue, running)
    assert segue.run("task", "watch", second).stdout.splitlines()[-1] == "completed"
    assert "has started" in segue.run("chat", "edit", chat, second, "x", code=1).stderr


def test_a_chat_is_watched(segue: Segue, chat: str) -> None:
    """Questions, live text and replies as they come; an archived chat at rest ends it."""
    watcher = segue.begin("chat", "watch", chat, "--all", "-o", "jsonl")
    task = _sent(segue, chat, "say one\nsay two")
    segue.run("task", "watch", task)
    segue.run("chat", "archive", chat)
    said, _ = watcher.communicate(timeout=PATIENCE)
    assert watcher.returncode == 0
    events: list[dict[str, Any]] = [json.loads(line) for line in said.splitlines()]
    assert [one["data"]["text"] for one in events if one["type"] == "text"] == ["one", "two"]
    assert [one["data"]["role"] for one in events if one["type"] == "message"][-1] == "assistant"
    assert (events[-1]["type"], events[-1]["data"]) == ("end", {"status": "archived"})
    text = segue.run("chat", "watch", chat, "--all").stdout
    assert text.splitlines()[-1] == "— the chat is archived"
    assert "archived" in segue.run("chat", "send", chat, "x", code=1).stderr
    assert segue.json("chat", "archive", chat, "--undo")["status"] == "active"


def test_a_deleted_chat_is_gone(segue: Segue, chat: str) -> None:
    """Only after a yes."""
    assert segue.run("chat", "delete", chat, code=130).stdout.strip() == ""
    assert segue.json("chat", "show", chat)["id"] == chat
    segue.run("chat", "delete", chat, "--yes")
    assert "no such chat" in segue.run("chat", "show", chat, code=1).stderr


def test_a_finished_run_is_continued(segue: Segue) -> None:
    """The preview says what comes along; the chat remembers; asked again it is the same chat."""
    made = segue.json("issue", "create", "Colours", "--assign", "Ada", "--body", "remember colour=teal")
    task = made["triggered"][0]["task_id"]
    segue.run("task", "watch", task)
    preview = segue.run("task", "continue", task, "--preview").stdout
    assert "sees nothing of it" in preview
    shared = segue.run("task", "continue", task, "--preview", "--no-fork").stdout
    assert "sees what is said in the chat" in shared
    before = segue.json("task", "continue", task, "--preview")
    assert (before["possible"], before["existing_chat_id"]) == (True, None)
    chat = segue.json("task", "continue", task)["chat"]
    assert segue.run("chat", "send", chat["id"], "recall colour", "--wait").stdout == "teal\n"
    again = segue.json("task", "continue", task[:-1])
    assert (again["chat"]["id"], again["reopened"]) == (chat["id"], True)
    turn = next(one for one in segue.json("task", "list") if one["chat_id"] == chat["id"])
    assert "It is a turn of a chat" in segue.run("task", "continue", turn["id"], "--preview", code=1).stdout
    assert "go on in that chat" in segue.run("task", "continue", turn["id"], code=1).stderr


def test_a_continued_run_is_shown_and_watched(segue: Segue) -> None:
    """`--open` shows the chat, then goes on with what happens in it; `--no-fork` shares it with the issue."""
    made = segue.json("issue", "create", "Colours", "--assign", "Ada", "--body", "say hi")
    task = made["triggered"][0]["task_id"]
    segue.run("task", "watch", task)
    opened = segue.begin("task", "continue", task, "--no-fork", "--open")
    assert opened.stdout is not None
    while "continued_from_task_id" not in (line := opened.stdout.readline()):
        assert line, "nothing was shown"
    (chat,) = [one for one in segue.json("chat", "list") if one["continued_from_task_id"] == task]
    assert chat["fork"] is False
    segue.run("chat", "send", chat["id"], "say from the chat", "--wait")
    while (line := opened.stdout.readline()).removeprefix("… ").strip() != "from the chat":
        assert line, "the watch has ended"
    opened.send_signal(signal.SIGINT)
    _, said = opened.communicate(timeout=PATIENCE)
    assert opened.returncode == 130
    assert "the chat goes on" in said
