"""Every verb against a whole stack: what scripts rely on is exit codes, stdout and JSON."""

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command import SEGUE, Segue
from tests.cli.up import PATIENCE

pytestmark = [pytest.mark.scenario, pytest.mark.timeout(1200)]


@pytest.fixture
def key(segue: Segue) -> str:
    """The key of a new issue that is nobody's, so that only mentions and assignments start somebody."""
    issue_key: str = segue.json("issue", "create", "Colours")["issue"]["key"]
    return issue_key


@pytest.fixture
def mention(segue: Segue) -> str:
    """What starts Ada when it stands in a comment."""
    return f"[@Ada](mention://agent/{segue.json('agent', 'show', 'Ada')['id']})\n"


def _started(answer: Any) -> str:
    """The one task that a write has started."""
    (one,) = answer["triggered"]
    assert one["outcome"] == "queued", one
    task_id: str = one["task_id"]
    return task_id


def test_a_day_on_the_board(segue: Segue, key: str, mention: str) -> None:
    """Assign, comment and wait for the reply, look at runs, start afresh."""
    task = _started(segue.json("issue", "assign", key, "Ada", "--handoff", "Mind the colours."))
    assert segue.run("task", "watch", task).stdout.splitlines()[-1] == "completed"
    first = segue.run("issue", "comment", key, f"{mention}remember colour=teal", "--wait")
    assert first.stdout == "remembered colour\n"
    assert segue.run("issue", "comment", key, f"{mention}recall colour", "--wait").stdout == "teal\n"
    runs = segue.json("issue", "runs", key)
    assert [run["continuity"]["state"] for run in runs] == ["resumed", "resumed", "first"]
    again = segue.json("issue", "rerun", key)["task_id"]
    segue.run("task", "watch", again)
    shown = segue.json("task", "show", again)
    assert (shown["continuity"]["state"], shown["status"]) == ("fresh", "completed")
    assert shown["work_dir"] != runs[0]["work_dir"]
    assert "teal" in segue.run("issue", "comments", key).stdout
    retried = segue.json("task", "retry", runs[0]["id"])["task_id"]
    segue.run("task", "watch", retried)
    assert segue.json("task", "show", retried)["work_dir"] == runs[0]["work_dir"]


def test_issues_have_children_and_states(segue: Segue, key: str, tmp_path: Path) -> None:
    """A child is opened below its parent with a text from a file; states are set and listed."""
    text = tmp_path / "text.md"
    text.write_text("Über colours.\n")
    child = segue.json("issue", "create", "Teal", "--parent", key, "--body", str(text))["issue"]
    assert (child["body"], child["status"]) == ("Über colours.\n", "todo")
    assert [one["key"] for one in segue.json("issue", "children", key)] == [child["key"]]
    segue.run("issue", "status", child["key"], "done")
    assert segue.json("issue", "show", child["key"])["status"] == "done"
    listed = segue.run("issue", "list", "--status", "done").stdout.split("\t")
    assert listed[:2] == [child["key"], "done"]
    assert "in_review" in segue.run("issue", "status", child["key"], "nonsense", code=1).stderr


def test_outcome_is_the_exit_code(segue: Segue, key: str, mention: str) -> None:
    """1 for a failed run, with its reason and advice; 3 for a cancelled one."""
    failed = segue.run("issue", "comment", key, f"{mention}fail iteration_limit", "--wait", code=1)
    assert "iteration_limit" in failed.stderr
    task = _started(segue.json("issue", "comment", key, f"{mention}sleep 600"))
    watch = segue.begin("task", "watch", task)
    assert segue.json("task", "list", "--issue", key)[0]["id"] == task
    segue.run("task", "cancel", task)
    said, _ = watch.communicate(timeout=PATIENCE)
    assert watch.returncode == 3
    assert said.splitlines()[-1].startswith("cancelled")


def test_logs_follow_until_the_end(segue: Segue, key: str, mention: str) -> None:
    """-f ends by itself with the run, and shows what the whole log shows afterwards."""
    task = _started(segue.json("issue", "comment", key, f"{mention}say one\ntool echo hi\nsay two"))
    followed = segue.run("task", "logs", task, "-f", "-o", "jsonl").stdout
    events = segue.json("task", "logs", task)
    assert [json.loads(line) for line in followed.splitlines()] == events
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    text = segue.run("task", "logs", task).stdout
    assert "one" in text
    assert "← hi" in text


def test_interrupt_detaches_and_says_so(segue: Segue, key: str, mention: str) -> None:
    """Ctrl-C while following never cancels the run."""
    task = _started(segue.json("issue", "comment", key, f"{mention}say begun\nsleep 600"))
    follower = segue.begin("task", "logs", "-f", task)
    assert follower.stdout is not None
    while "begun" not in (line := follower.stdout.readline()):
        assert line, "the log has ended"
    follower.send_signal(signal.SIGINT)
    _, said = follower.communicate(timeout=PATIENCE)
    assert follower.returncode == 130
    assert "the task goes on" in said
    assert segue.json("task", "show", task)["status"] == "running"
    segue.run("task", "cancel", task)
    segue.run("task", "watch", task, code=3)


def test_beginning_of_an_id_is_enough(segue: Segue, key: str, mention: str) -> None:
    """When it fits one task only; otherwise it is usage."""
    task = _started(segue.json("issue", "comment", key, f"{mention}say hi"))
    segue.run("task", "watch", task[:-1])
    assert "write more of the id" in segue.run("task", "show", task[:4], code=2).stderr
    assert "There is no task" in segue.run("task", "show", "ffff-ffff", code=1).stderr


def test_refusals(segue: Segue, key: str) -> None:
    """4 for a token that is wrong, 1 for what is not there."""
    assert "Check the token" in segue.run("issue", "list", "--token", "sgu_wrong", code=4).stderr
    segue.run("issue", "show", "SEG-99999", code=1)
    segue.run("agent", "show", "Nobody", code=1)
    segue.run("issue", "comment", key, " ", code=1)
    assert "started nobody" in segue.run("issue", "comment", key, "just a note", "--wait").stderr


def test_agents_and_runtimes(segue: Segue) -> None:
    """Secrets go in and don't come out; a second machine gets a token; draining can be undone."""
    made = segue.json(
        "agent", "create", "Cleo", "--provider", "script", "--runtime", "local",
        "--env", "API_KEY=a=b", "--arg=--fast", "--max-concurrent", "2",
    )  # fmt: skip
    assert (made["env_names"], made["args"], made["max_concurrent_tasks"]) == (["API_KEY"], ["--fast"], 2)
    assert "a=b" not in json.dumps(segue.json("agent", "show", "cleo"))
    segue.run("agent", "archive", "Cleo")
    assert "Cleo" not in segue.run("agent", "list").stdout
    segue.run("agent", "archive", made["id"], "--undo")
    assert "Cleo" in segue.run("agent", "list").stdout
    assert "NAME=VALUE" in segue.run(
        "agent", "create", "X", "--provider", "script", "--runtime", "local", "--env", "oops", code=2
    ).stderr  # fmt: skip

    machine = segue.json("runtime", "create", "second", "--slots", "3")
    assert machine["token"].startswith("sgr_")
    assert segue.json("runtime", "show", "second")["slots"] == 3
    segue.run("runtime", "drain", "local")
    assert segue.json("runtime", "show", "local")["status"] == "draining"
    segue.run("runtime", "drain", "local", "--undo")
    assert segue.run("runtime", "list").stdout.count("online") == 1


def test_admin_verbs_lead_to_a_token_that_works(segue: Segue) -> None:
    """A workspace, a person in it and their token, straight to the database."""
    segue.run("admin", "workspace", "create", "Second Team", "--prefix", "SEC")
    who = ["--workspace", "second-team"]
    segue.run("admin", "member", "add", "Grace", "--email", "grace@example.org", "--role", "owner", *who)
    token = segue.json("admin", "token", "create", "--member", "grace@example.org", *who)["token"]
    made = json.loads(segue.run("issue", "create", "Ours", "-o", "json", SEGUE_TOKEN=token).stdout)
    assert made["issue"]["key"] == "SEC-1"
    assert "no workspace" in segue.run(
        "admin", "token", "create", "--member", "x", "--workspace", "nowhere", code=1
    ).stderr  # fmt: skip
    assert segue.json("db", "current")["revision"] == segue.json("db", "upgrade")["revision"]


def test_doctor_finds_nothing_wrong(segue: Segue) -> None:
    """Each check has a line; on a stack of ours none fails."""
    lines = segue.run("doctor").stdout.splitlines()
    states = {line[5:23].strip(): line.split()[0] for line in lines}
    assert "fail" not in states.values()
    assert {"database", "schema", "temporal", "search attributes", "api", "clock", "disk"} <= set(states)
    assert states["agent script"] == "ok"


def test_doctor_names_the_next_step(segue: Segue, free_port: int) -> None:
    """A failing check exits 1 and says what to do."""
    wrong = {"SEGUE_DATABASE_URL": f"postgresql://nobody@127.0.0.1:{free_port}/x"}
    findings = json.loads(segue.run("doctor", "-o", "json", code=1, **wrong).stdout)
    failed = {one["name"]: one["detail"] for one in findings if one["state"] == "fail"}
    assert "SEGUE_DATABASE_URL" in failed["database"]


def test_demo_shows_the_product_and_cleans_up(tmp_path: Path) -> None:
    """It exits 0, shows a resumed run, and leaves neither folder nor process."""
    temporary = tmp_path / "t"
    temporary.mkdir()
    environment = os.environ | {"TMPDIR": str(temporary)}
    done = subprocess.run(
        [*SEGUE, "demo"], env=environment, capture_output=True, text=True, check=False, timeout=2 * PATIENCE
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "continuity  resumed" in done.stdout
    assert "✓ it remembers" in done.stdout
    for shown in (
        "a chat remembers what the issue's run was told",
        "in the run's directory",
        "on a branch, so the issue knows nothing of the chat",
    ):
        assert f"✓ {shown}" in done.stdout, done.stdout
    assert "segue chat send" in done.stdout
    assert list(temporary.glob("segue-demo-*")) == []
