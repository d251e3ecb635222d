"""What is said in a chat is answered, once and in order, whatever happens between the turns."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.scenarios.deployment import Deployment, eventually

#: Many turns in one deployment: cheaper than many deployments, but long where the machine is slow.
pytestmark = [pytest.mark.scenario, pytest.mark.timeout(900)]

FIRST = {"state": "first", "reason": None}
RESUMED = {"state": "resumed", "reason": None}


def replies(segue: Deployment, chat: str, task: str) -> list[tuple[str, str | None]]:
    """Kind and reason of what was answered in a turn."""
    return [
        (message["kind"], message["reason"])
        for message in segue.messages(chat)
        if message["task_id"] == task and message["role"] == "assistant"
    ]


def test_messages_become_turns_one_after_the_other(segue: Deployment) -> None:
    """Sent at once, answered in order, each beneath its question; who waits says for whom."""
    chat = segue.chat(segue.agent())
    first = segue.say(chat, "say begun\ntool until test -e go; do sleep 0.1; done")
    rest = [segue.say(chat, f"say answer {number}\nturns") for number in range(2, 7)]
    running = segue.until(first, "running")
    waiting = eventually("the second turn waits", lambda: segue.task(rest[0])["wait_reason"])
    assert (waiting["kind"], waiting["holder_task_id"]) == ("lane", first)
    Path(running["work_dir"], "go").touch()
    ended = [segue.ended(task) for task in (first, *rest)]
    assert [task["continuity"] for task in ended] == [FIRST, *[RESUMED] * 5]
    assert len({(task["session_id"], task["work_dir"]) for task in ended}) == 1
    for (_, end), (start, _) in pairwise(segue.process_spans(first, *rest)):
        assert end <= start
    said = [(message["role"], message["content"]) for message in segue.messages(chat)]
    assert [role for role, _ in said] == ["user", "assistant"] * 6
    assert [content for _, content in said[3::2]] == [f"answer {n}\n{n}" for n in range(2, 7)]
    eventually("no lease is left", lambda: segue.lease_count() == 0)


def test_every_turn_has_exactly_one_reply(segue: Deployment) -> None:
    """An answer, a failure, a cancel: one line each, and its reason."""
    chat = segue.chat(segue.agent())
    good = segue.talk(chat, "remember colour=teal\nsay yes")
    failed = segue.talk(chat, "fail agent_blocked")
    stopped = segue.say(chat, "say at work\nsleep 600")
    segue.event_with(stopped, "at work")
    segue.post(f"/tasks/{stopped}/cancel")
    segue.ended(stopped)
    assert replies(segue, chat, good["id"]) == [("message", None)]
    assert replies(segue, chat, failed["id"]) == [("failure", "agent_blocked")]
    assert replies(segue, chat, stopped) == [("no_response", "cancelled")]
    after = segue.talk(chat, "recall colour")
    assert (after["continuity"], after["result"]) == (RESUMED, "teal")


def test_words_that_were_not_read_come_back(segue: Deployment) -> None:
    """A turn that is cancelled while it waits becomes a draft, and the agent never hears of it."""
    chat = segue.chat(segue.agent())
    first = segue.say(chat, "say at work\nsleep 600")
    segue.event_with(first, "at work")
    second = segue.say(chat, "remember colour=red")
    third = segue.say(chat, "recall colour")
    segue.post(f"/tasks/{second}/cancel")
    assert segue.ended(second)["status"] == "cancelled"
    (draft,) = segue.get(f"/chats/{chat}/drafts")["items"]
    assert draft["content"] == "remember colour=red"
    segue.post(f"/tasks/{first}/cancel")
    assert segue.ended(third)["result"] == "unknown"
    assert [message["content"] for message in segue.messages(chat) if message["task_id"] == second] == []


def test_the_queue_is_what_runs(segue: Deployment) -> None:
    """Words are changed, turns are put first and taken out before they run."""
    chat = segue.chat(segue.agent())
    first = segue.say(chat, "say at work\nsleep 600")
    segue.event_with(first, "at work")
    second, third, fourth = (segue.say(chat, f"say {word}") for word in ("two", "three", "four"))
    queue = f"/chats/{chat}/queue"
    assert segue.http.patch(f"{queue}/{second}", json={"content": "say changed"}).is_success
    segue.post(f"{queue}/{fourth}/send-now")
    assert segue.http.delete(f"{queue}/{third}").json()["content"] == "say three"
    refused = segue.http.delete(f"{queue}/{first}")
    assert (refused.status_code, refused.json()["code"]) == (409, "already_started")
    segue.post(f"/tasks/{first}/cancel")
    assert [segue.ended(task)["result"] for task in (fourth, second)] == ["four", "changed"]
    assert segue.process_spans(fourth)[0][1] <= segue.process_spans(second)[0][0]
    assert segue.process_spans(third) == []


def test_archive_lets_turns_end_and_delete_ends_them(segue: Deployment) -> None:
    """Archived: what was sent runs to its end. Deleted: its turns are stopped, and it is gone."""
    agent = segue.agent()
    kept, gone = segue.chat(agent), segue.chat(agent)
    tasks = [segue.say(kept, "say one\nsleep 1"), segue.say(kept, "say two")]
    segue.post(f"/chats/{kept}/archive")
    refused = segue.http.post(f"/chats/{kept}/messages", json={"content": "say three"})
    assert (refused.status_code, refused.json()["code"]) == (409, "chat_archived")
    assert [segue.ended(task)["result"] for task in tasks] == ["one", "two"]
    at_work, waiting = segue.say(gone, "say at work\nsleep 600"), segue.say(gone, "say never")
    segue.event_with(at_work, "at work")
    assert segue.http.delete(f"/chats/{gone}").status_code == 204
    assert segue.http.get(f"/chats/{gone}").status_code == 404
    eventually("its process is gone", lambda: not segue.agent_processes(at_work))
    query = "select status from tasks where id = any(%s)"
    eventually(
        "both turns are cancelled",
        lambda: segue.rows(query, [at_work, waiting]) == [("cancelled",)] * 2,
    )
    assert segue.process_spans(waiting) == []
    eventually("no lease is left", lambda: segue.lease_count() == 0)


def test_a_chat_goes_on_after_the_death_of_every_worker(segue: Deployment) -> None:
    """The control worker dies in a turn, api and runtime worker in the next: all is answered, in order."""
    chat = segue.chat(segue.agent())
    first = segue.say(chat, "remember colour=teal\nsay one\nsleep 2")
    segue.event_with(first, "one")
    segue.parts["control"].kill()
    second = segue.say(chat, "recall colour\nsay two\nsleep 2")
    segue.restart("control")
    segue.event_with(second, "two")
    for part in ("api", "r0"):
        segue.parts[part].kill()
        segue.restart(part)
    segue.wait_for_api()
    third = segue.say(chat, "recall colour\nturns")
    ended: list[Any] = [segue.ended(task) for task in (first, second, third)]
    assert [task["status"] for task in ended] == ["completed"] * 3
    assert ended[2]["result"] == "teal\n3"
    assert [replies(segue, chat, task) for task in (first, second, third)] == [[("message", None)]] * 3
