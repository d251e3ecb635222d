"""What a run goes on from: every row of the design's table, seen from outside.

A loss is looked for in the three places where it must be told: the API, the command line, and the prompt
that the agent read.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from domain.prompts import CONTEXT_CLOSE, continuity_notice
from domain.statuses import Continuity, ContinuityReason
from tests.scenarios.conftest import Deploy
from tests.scenarios.deployment import Deployment, eventually

#: Many runs in one deployment: cheaper than many deployments, but long where the machine is slow.
pytestmark = [pytest.mark.scenario, pytest.mark.timeout(900)]

RESUMED = {"state": "resumed", "reason": None}
NOTICES = {
    reason: notice
    for reason in ContinuityReason
    if (notice := continuity_notice(Continuity.LOST, reason)) is not None
}


def lost(reason: ContinuityReason) -> dict[str, str]:
    return {"state": "lost", "reason": reason.value}


def pair(task: Any) -> tuple[str, str]:
    """Session and directory: they are kept as one."""
    return task["session_id"], task["work_dir"]


def attempt_folder(segue: Deployment, task: Any) -> Path:
    """Where the machine keeps the task's last attempt."""
    query = "select id from attempts where task_id = %s order by number desc limit 1"
    ((attempt,),) = segue.rows(query, task["id"])
    return segue.folder / f"r{segue.runtime_ids.index(task['runtime_id'])}" / "attempts" / str(attempt)


def prompt_of(segue: Deployment, task: Any) -> str:
    """What the agent read on stdin; of a second process, if the first one's resume was refused."""
    folder = attempt_folder(segue, task)
    return (folder / ("2" if (folder / "2").exists() else "1") / "prompt").read_text()


def shown(segue: Deployment, task: Any) -> str:
    """What `segue task show` prints."""
    env = {**segue.env, "SEGUE_TOKEN": segue.token}
    argv = [sys.executable, "-m", "cli", "task", "show", task["id"]]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def assert_disclosed(segue: Deployment, task: Any, reason: ContinuityReason) -> None:
    """People are told in the API and on the command line, the agent in its prompt, once."""
    assert task["continuity"] == lost(reason)
    assert task["attempts"][-1]["continuity"] == lost(reason)
    assert re.search(rf"^continuity\s+lost: {reason}$", shown(segue, task), re.MULTILINE)
    context, _, message = prompt_of(segue, task).partition(CONTEXT_CLOSE)
    assert context.count(NOTICES[reason]) == 1
    assert NOTICES[reason] not in message


def assert_silent(segue: Deployment, task: Any) -> None:
    """Nothing was lost, so the agent is told of no loss."""
    prompt = prompt_of(segue, task)
    assert [reason for reason, notice in NOTICES.items() if notice in prompt] == []


def assert_goes_on(segue: Deployment, agent: str, issue: str, before: Any) -> Any:
    """The next comment is resumed where ``before`` ended, and no loss is told again."""
    after = segue.run(agent, issue, "turns")
    assert (after["continuity"], pair(after)) == (RESUMED, pair(before))
    assert_silent(segue, after)
    return after


def retried(segue: Deployment, task: Any) -> Any:
    return segue.ended(segue.post(f"/tasks/{task['id']}/retry")["task_id"])


def rerun(segue: Deployment, issue: str, task: Any = None) -> Any:
    body = {"task_id": task["id"]} if task else {}
    return segue.ended(segue.post(f"/issues/{issue}/rerun", body)["task_id"])


def bind(segue: Deployment, agent: str, runtime: int) -> None:
    response = segue.http.patch(f"/agents/{agent}", json={"runtime_id": segue.runtime_ids[runtime]})
    assert response.is_success, response.text


# --- lanes ----------------------------------------------------------------------------------------


def test_context_goes_on_along_the_lane_alone(segue: Deployment) -> None:
    """Resumed for the same agent and issue; another agent, a child and its parent have their own."""
    ada, bob = segue.agent("Ada"), segue.agent("Bob")
    parent = segue.issue("Parent")
    child = segue.issue("Child", parent_id=parent)
    first = segue.run(ada, child, "remember colour=teal\nwrite notes.txt hello")
    second = segue.run(ada, child, "recall colour\nturns\nread notes.txt")
    assert first["continuity"] == {"state": "first", "reason": None}
    assert (second["continuity"], pair(second)) == (RESUMED, pair(first))
    assert second["result"].split("\n") == ["teal", "2", "hello"]
    other, above = (
        segue.run(*lane, "recall colour\nread notes.txt") for lane in ((bob, child), (ada, parent))
    )
    for task in (other, above):
        assert task["continuity"] == {"state": "first", "reason": None}
        assert task["result"].startswith("unknown\ncannot read")
    assert len({one for task in (second, other, above) for one in pair(task)}) == 6
    for task in (first, second, other, above):
        assert_silent(segue, task)


def test_a_rerun_begins_anew_and_a_retry_goes_back(segue: Deployment) -> None:
    """A rerun has a fresh session and directory; a retry has its own task's pointer, not the latest."""
    agent = segue.agent()
    issue = segue.issue(
        body="remember colour=red\nturns", assignee={"type": "agent", "id": agent}, status="backlog"
    )
    older = segue.run(agent, issue, "remember colour=teal\nturns")
    fresh = rerun(segue, issue)
    assert fresh["continuity"] == {"state": "fresh", "reason": "asked_for"}
    assert not set(pair(fresh)) & set(pair(older))
    assert fresh["result"].endswith("\n1")
    assert_silent(segue, fresh)  # what was asked for is no loss
    assert segue.run(agent, issue, "recall colour")["result"] == "red"
    for again, turns in ((retried(segue, older), "2"), (rerun(segue, issue, older), "3")):
        assert (again["continuity"], pair(again)) == (RESUMED, pair(older))
        assert (again["result"].split("\n")[-1], again["rerun_of_task_id"]) == (turns, older["id"])
    assert segue.run(agent, issue, "recall colour")["result"] == "teal"


# --- another machine ------------------------------------------------------------------------------


def test_another_machine_begins_anew_and_says_so(deploy: Deploy) -> None:
    """Bound to another runtime: fresh in a new directory there, told once, through every door."""
    segue = deploy(runtimes=2)
    agent, issue = segue.agent(), segue.issue()
    before = segue.run(agent, issue, "remember colour=teal")
    bind(segue, agent, 1)
    moved = segue.run(agent, issue, "recall colour\nremember colour=red\ncwd")
    assert moved["result"].split("\n")[::2] == ["unknown", moved["work_dir"]]
    assert moved["work_dir"].startswith(str(segue.folder / "r1"))
    assert_disclosed(segue, moved, ContinuityReason.RUNTIME_CHANGED)
    assert Path(before["work_dir"]).is_dir()
    assert_goes_on(segue, agent, issue, moved)
    again = retried(segue, before)
    assert again["work_dir"] not in {before["work_dir"], moved["work_dir"]}
    assert_disclosed(segue, again, ContinuityReason.RUNTIME_CHANGED)
    bind(segue, agent, 0)
    back = segue.run(agent, issue, "recall colour")
    assert (back["work_dir"], back["result"]) == (before["work_dir"], "unknown")
    assert_disclosed(segue, back, ContinuityReason.RUNTIME_CHANGED)


# --- sessions that went bad -----------------------------------------------------------------------


def test_a_poisoned_session_is_resumed_through_no_door(segue: Deployment) -> None:
    """The next comment, a retry and a rerun of the task are fresh in the same directory, and say so."""
    agent = segue.agent()
    for reason in ("api_invalid_request", "iteration_limit"):
        issue = segue.issue(reason)
        good = segue.run(agent, issue, "remember colour=teal\nwrite notes.txt hello")
        bad = segue.run(agent, issue, f"fail {reason}")
        assert (bad["status"], bad["reason"], pair(bad)) == ("failed", reason, pair(good))
        after = segue.run(agent, issue, "recall colour\nread notes.txt")
        assert after["result"] == "unknown\nhello"
        assert_goes_on(segue, agent, issue, after)
        again = [retried(segue, bad), rerun(segue, issue, bad), retried(segue, good)]
        for task in (after, *again):
            assert (task["attempt"], task["work_dir"]) == (1, good["work_dir"])
            assert_disclosed(segue, task, ContinuityReason.POISONED)
        assert len({task["session_id"] for task in (bad, after, *again)}) == 5


def test_a_stalled_codex_is_retried_on_a_fresh_session(segue: Deployment) -> None:
    """Within the task already; neither attempt's session is resumed by the next comment."""
    agent, issue = segue.agent(), segue.issue()
    good = segue.run(agent, issue, "remember colour=teal")
    stalled = segue.run(agent, issue, "fail codex_semantic_inactivity\nsay never")
    poisoned = lost(ContinuityReason.POISONED)
    assert [attempt["continuity"] for attempt in stalled["attempts"]] == [RESUMED, poisoned]
    assert stalled["reason"] == "codex_semantic_inactivity"
    assert_disclosed(segue, stalled, ContinuityReason.POISONED)
    after = segue.run(agent, issue, "recall colour")
    assert after["result"] == "unknown"
    assert_disclosed(segue, after, ContinuityReason.POISONED)
    sessions = [*(attempt["session_id"] for attempt in stalled["attempts"]), after["session_id"]]
    assert (sessions[0], len(set(sessions))) == (good["session_id"], 3)
    assert {task["work_dir"] for task in (good, stalled, after)} == {good["work_dir"]}


def test_three_failures_in_a_row_retire_a_session(segue: Deployment) -> None:
    """Whatever the text; a success in between begins the count again."""
    agent, issue = segue.agent(), segue.issue()
    first = segue.run(agent, issue, "remember colour=teal")
    for words in ("fail unknown", "fail agent_blocked", "recall colour", *["fail provider_server_error"] * 3):
        task = segue.run(agent, issue, words)
        assert (task["continuity"], pair(task)) == (RESUMED, pair(first))
    after = segue.run(agent, issue, "recall colour")
    assert (after["result"], after["work_dir"]) == ("unknown", first["work_dir"])
    assert_disclosed(segue, after, ContinuityReason.RETIRED)
    query = "select retired_reason from sessions where provider_session_id = %s"
    assert segue.rows(query, first["session_id"]) == [("repeated_failure",)]
    assert_goes_on(segue, agent, issue, after)


# --- runs that were cut off -----------------------------------------------------------------------


def kill_machine(segue: Deployment, task: Any) -> None:
    """Worker, shim and agent at once: nobody is left to write how the run ended."""
    segue.parts["r0"].kill()
    process = attempt_folder(segue, task) / "1"
    os.kill(json.loads((process / "shim.json").read_text())["pid"], signal.SIGKILL)
    agents = segue.agent_processes(task["id"])
    assert agents
    for agent in agents:
        agent.kill()
    assert not (process / "exit.json").exists()


def test_a_run_that_died_with_its_machine_is_retried_with_its_session(segue: Deployment) -> None:
    """``runtime_recovery``, then the pinned session goes on; a cancelled one's is kept as well.

    A worker that dies alone is `test_worker_death.py`'s: the run is adopted.
    """
    agent, issue = segue.agent(), segue.issue()
    once = "test -e ran || { touch ran; sleep 600; }"
    task = segue.ask(agent, issue, f"remember colour=teal\nturns\ntool {once}")
    running = segue.until(task, "running")
    eventually("the tool runs", Path(running["work_dir"], "ran").exists)
    kill_machine(segue, running)
    segue.restart("r0")
    died = segue.ended(task)
    assert (died["status"], died["continuity"]) == ("completed", RESUMED)
    assert [attempt["reason"] for attempt in died["attempts"]] == ["runtime_recovery", "completed"]
    assert {pair(attempt) for attempt in died["attempts"]} == {pair(died)}
    assert died["result"].split("\n")[1] == "2"
    assert_silent(segue, died)
    task = segue.ask(agent, issue, "remember shape=round\nsay stop me\nsleep 600")
    segue.event_with(task, "stop me")
    segue.post(f"/tasks/{task}/cancel")
    cancelled = segue.ended(task)
    assert (cancelled["status"], pair(cancelled)) == ("cancelled", pair(died))
    after = segue.run(agent, issue, "recall colour\nrecall shape\nturns")
    assert (after["continuity"], after["result"]) == (RESUMED, "teal\nround\n4")
    assert pair(after) == pair(cancelled)
    assert_silent(segue, after)


# --- what is gone ---------------------------------------------------------------------------------


def test_what_was_removed_behind_our_back_is_noticed(segue: Deployment) -> None:
    """No directory: a new one. No session: the same directory. Told once, and it goes on from there."""
    agent, issue = segue.agent(), segue.issue()
    first = segue.run(agent, issue, "remember colour=teal")
    shutil.rmtree(first["work_dir"])
    second = segue.run(agent, issue, "recall colour\nwrite notes.txt hello")
    assert second["result"].startswith("unknown")
    assert not set(pair(second)) & set(pair(first))
    assert_disclosed(segue, second, ContinuityReason.WORKDIR_GONE)
    assert_goes_on(segue, agent, issue, second)
    shutil.rmtree(segue.folder / ".segue-script")
    third = segue.run(agent, issue, "recall colour\nread notes.txt")
    assert (third["result"], third["work_dir"]) == ("unknown\nhello", second["work_dir"])
    assert third["session_id"] != second["session_id"]
    assert_disclosed(segue, third, ContinuityReason.SESSION_MISSING)
    assert_goes_on(segue, agent, issue, third)
    again = retried(segue, second)
    assert again["work_dir"] == second["work_dir"]
    assert_disclosed(segue, again, ContinuityReason.SESSION_MISSING)


def test_what_the_agent_does_to_its_session_is_noticed(segue: Deployment) -> None:
    """Refused by the agent: fresh within the attempt. Swapped for another: never called a resume."""
    agent, issue = segue.agent(), segue.issue()
    first = segue.run(agent, issue, "remember colour=teal\nwrite notes.txt hello")
    (stored,) = (segue.folder / ".segue-script").rglob(f"{first['session_id']}.json")
    stored.write_text("torn")
    refused = segue.run(agent, issue, "recall colour\nread notes.txt")
    assert (refused["status"], refused["attempt"], refused["result"]) == ("completed", 1, "unknown\nhello")
    assert refused["work_dir"] == first["work_dir"]
    assert_disclosed(segue, refused, ContinuityReason.RESUME_REJECTED)
    assert_goes_on(segue, agent, issue, refused)
    swapped = segue.run(agent, issue, "new-session\nremember colour=red")
    assert swapped["continuity"] == lost(ContinuityReason.SESSION_CHANGED)
    assert swapped["work_dir"] == first["work_dir"]
    assert swapped["session_id"] not in {first["session_id"], refused["session_id"]}
    assert_goes_on(segue, agent, issue, swapped)


def test_a_run_that_named_no_session_is_not_forgotten(segue: Deployment) -> None:
    """It has left its files, so the next run is no first one."""
    agent, issue = segue.agent(), segue.issue()
    silent = segue.run(agent, issue, "write notes.txt hello\nsilent")
    assert (silent["status"], silent["session_id"]) == ("failed", None)
    after = segue.run(agent, issue, "read notes.txt")
    assert (after["result"], after["work_dir"]) == ("hello", silent["work_dir"])
    assert_disclosed(segue, after, ContinuityReason.SESSION_NEVER_RECORDED)
    assert_goes_on(segue, agent, issue, after)
