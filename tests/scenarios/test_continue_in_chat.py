"""A finished run goes on in a chat: its memory, its files, its machine, and what the issue gets to know."""

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.scenarios.conftest import Deploy
from tests.scenarios.deployment import Deployment, eventually

#: Many runs in one deployment: cheaper than many deployments, but long where the machine is slow.
pytestmark = [pytest.mark.scenario, pytest.mark.timeout(900)]

RESUMED = {"state": "resumed", "reason": None}
UNTIL_TOLD = "tool until test -e go; do sleep 0.1; done"


def preview(segue: Deployment, task: Any) -> Any:
    return segue.get(f"/tasks/{task['id']}/continuation")


def assert_apart(segue: Deployment, *tasks: str) -> None:
    """No process of these tasks lived at the same time as another's."""
    spans = segue.process_spans(*tasks)
    assert len(spans) == len(tasks)
    for (_, end), (start, _) in pairwise(spans):
        assert end <= start, spans


def waits_for(segue: Deployment, task: str) -> Any:
    """What a task waits for, once it does."""
    return eventually(f"task {task} waits", lambda: segue.task(task)["wait_reason"])


def test_a_branch_remembers_and_the_issue_knows_nothing_of_it(segue: Deployment) -> None:
    """By default: the run's memory, in the run's directory; what the chat is told stays in the chat."""
    agent, issue = segue.agent(), segue.issue()
    run = segue.run(agent, issue, "remember colour=teal\nwrite notes.txt hello")
    before = preview(segue, run)
    assert (before["session_carried"], before["fork"], before["shared_with_issue"]) == (True, True, False)
    chat = segue.continued(run["id"])["id"]
    turn = segue.talk(chat, "recall colour\nread notes.txt\nremember shape=round")
    assert (turn["continuity"], turn["work_dir"]) == (RESUMED, run["work_dir"])
    assert turn["result"].startswith("teal\nhello")
    assert turn["session_id"] != run["session_id"]
    after = segue.run(agent, issue, "recall shape\nrecall colour\nremember size=big")
    assert after["result"].startswith("unknown\nteal")
    assert (after["session_id"], after["work_dir"]) == (run["session_id"], run["work_dir"])
    again = segue.talk(chat, "recall shape\nrecall size")
    assert (again["session_id"], again["result"]) == (turn["session_id"], "round\nunknown")


def test_without_a_branch_chat_and_issue_share_one_conversation(segue: Deployment) -> None:
    """The chat says so, and it is so."""
    agent, issue = segue.agent(), segue.issue()
    run = segue.run(agent, issue, "remember colour=teal")
    made = segue.post(f"/tasks/{run['id']}/continue-in-chat", {"fork": False})
    assert made["chat"]["fork"] is False
    assert preview(segue, run)["existing_chat_id"] == made["chat"]["id"]
    turn = segue.talk(made["chat"]["id"], "recall colour\nremember shape=round")
    assert turn["result"].startswith("teal")
    assert (turn["session_id"], turn["work_dir"]) == (run["session_id"], run["work_dir"])
    after = segue.run(agent, issue, "recall shape")
    assert (after["session_id"], after["result"]) == (run["session_id"], "round")


def test_the_chat_stays_on_the_machine_of_its_run(deploy: Deploy) -> None:
    """Whatever the agent is bound to now. Its machine away: said before, waited for, and then it runs."""
    segue = deploy(runtimes=2, offline_after=4)
    source, other = segue.runtime_ids
    agent, issue = segue.agent(), segue.issue()
    run = segue.run(agent, issue, "remember colour=teal\nwrite notes.txt hello")
    assert segue.http.patch(f"/agents/{agent}", json={"runtime_id": other}).is_success
    chat = segue.continued(run["id"])["id"]
    turn = segue.talk(chat, "recall colour\nread notes.txt")
    assert (turn["runtime_id"], turn["continuity"], turn["result"]) == (source, RESUMED, "teal\nhello")
    assert segue.run(agent, issue, "cwd")["runtime_id"] == other
    segue.parts["r0"].stop()
    query = "select 1 from runtimes where id = %s and not online"
    eventually("the machine is away", lambda: segue.rows(query, source))
    assert preview(segue, run)["runtime_online"] is False
    assert preview(segue, run)["possible"]
    waiting = segue.say(chat, "recall colour")
    eventually(
        "it waits for the machine",
        lambda: (segue.task(waiting)["wait_reason"] or {}).get("kind") == "runtime_offline",
    )
    segue.restart("r0")
    returned = segue.ended(waiting)
    assert (returned["runtime_id"], returned["continuity"], returned["result"]) == (source, RESUMED, "teal")


@pytest.mark.parametrize("fork", [False, True])
def test_issue_and_chat_never_run_in_one_directory_at_once(segue: Deployment, *, fork: bool) -> None:
    """Sent at the same moment, on one session or a branch of it: one after the other, both answered."""
    agent, issue = segue.agent(), segue.issue()
    run = segue.run(agent, issue, "remember colour=teal")
    chat = segue.continued(run["id"], fork=fork)["id"]
    segue.talk(chat, "say warm")
    for _ in range(4):
        with ThreadPoolExecutor(2) as pool:
            doors = (pool.submit(segue.ask, agent, issue, "recall colour\nsleep 0.5"),
                     pool.submit(segue.say, chat, "recall colour\nsleep 0.5"))  # fmt: skip
            tasks = [door.result() for door in doors]
        more = [segue.ask(agent, issue, "say later"), segue.say(chat, "say later")]
        ended = [segue.ended(task) for task in (*tasks, *dict.fromkeys(more))]
        assert {task["work_dir"] for task in ended} == {run["work_dir"]}
        assert {task["status"] for task in ended} == {"completed"}
        assert all("teal" in task["result"] for task in ended[:2])
        assert_apart(segue, *dict.fromkeys(task["id"] for task in ended))
    eventually("no lease is left", lambda: segue.lease_count() == 0)


@pytest.mark.parametrize("fork", [False, True])
@pytest.mark.parametrize("door", ["issue", "chat"])
def test_who_waits_says_for_whom(segue: Deployment, *, fork: bool, door: str) -> None:
    """Whichever door came first: the other one names the task that holds its session or directory."""
    agent, issue = segue.agent(), segue.issue()
    run = segue.run(agent, issue, "remember colour=teal")
    chat = segue.continued(run["id"], fork=fork)["id"]
    segue.talk(chat, "say warm")
    ways = {
        "issue": lambda text: segue.ask(agent, issue, text),
        "chat": lambda text: segue.say(chat, text),
    }
    first = ways[door](UNTIL_TOLD)
    segue.until(first, "running")
    other = "chat" if door == "issue" else "issue"
    second = ways[other]("recall colour")
    reason = waits_for(segue, second)
    assert reason["kind"] in ({"directory"} if fork else {"session", "directory"})
    assert (reason["holder_task_id"], reason["private"]) == (first, False)
    Path(run["work_dir"], "go").touch()
    assert segue.ended(first)["status"] == "completed"
    assert segue.ended(second)["result"] == "teal"
    assert_apart(segue, first, second)
