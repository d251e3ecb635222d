"""Directories over their life: collected when an issue is over, or a project's own and shared in turns."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.scenarios.conftest import Deploy
from tests.scenarios.deployment import Deployment, eventually

pytestmark = pytest.mark.scenario


def finish(segue: Deployment, issue: str) -> None:
    response = segue.http.patch(f"/issues/{issue}", json={"status": "done"})
    assert response.is_success, response.text


def prompt_of(segue: Deployment, task: str) -> str:
    """What the agent of the task's last attempt was given on stdin."""
    query = "select id from attempts where task_id = %s order by number desc limit 1"
    ((attempt,),) = segue.rows(query, task)
    return (segue.folder / "r0" / "attempts" / str(attempt) / "1" / "prompt").read_text()


def with_directory(segue: Deployment, path: Path | str) -> tuple[str, str]:
    """A project with this directory on the first runtime: the ids of project and resource."""
    project: str = segue.post("/projects", {"name": "Shop"})["id"]
    body = {"type": "local_directory", "runtime_id": segue.runtime_ids[0], "path": str(path)}
    return project, segue.post(f"/projects/{project}/resources", body)["id"]


def collection(segue: Deployment, *arguments: str) -> list[Any]:
    """What `segue worker gc` prints, by hand beside the running worker."""
    argv = [sys.executable, "-m", "cli", "-o", "json", "worker", "gc", *arguments]
    done = subprocess.run(argv, env=segue.parts["r0"].env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows: list[Any] = json.loads(done.stdout)
    return rows


def test_the_directory_of_an_issue_that_is_over_is_collected(deploy: Deploy) -> None:
    """By the worker itself; another comment starts fresh in a new directory, and says so to everybody."""
    segue = deploy(collect_seconds=1, keep_settled_seconds=0)
    agent, issue, other = segue.agent(), segue.issue(), segue.issue("Goes on")
    before = segue.run(agent, issue, "remember colour=teal\nwrite notes.txt hello")
    kept = segue.run(agent, other, "write notes.txt hello")
    finish(segue, issue)
    eventually("the directory is collected", lambda: not Path(before["work_dir"]).exists())
    after = segue.run(agent, issue, "recall colour\nread notes.txt")
    assert after["continuity"] == {"state": "lost", "reason": "workdir_gone"}
    assert after["work_dir"] != before["work_dir"]
    assert after["result"].startswith("unknown")
    assert "Your earlier working directory is gone" in prompt_of(segue, after["id"])
    assert (Path(kept["work_dir"]) / "notes.txt").exists()
    assert segue.run(agent, other, "turns")["continuity"]["state"] == "resumed"


def test_collection_by_hand_beside_the_worker(deploy: Deploy) -> None:
    """A dry run tells what would go and how big it is; the real one deletes just that."""
    segue = deploy(keep_settled_seconds=0, collect_seconds=0)
    agent, issue = segue.agent(), segue.issue()
    task = segue.run(agent, issue, "write notes.txt hello")
    path = Path(task["work_dir"])
    finish(segue, issue)
    told = {row["path"]: row for row in collection(segue, "--dry-run")}
    assert (told[str(path)]["decision"], told[str(path)]["reason"]) == ("collect", "settled")
    assert told[str(path)]["bytes"] > 0
    assert {row["what"]: row["decision"] for row in told.values()}["attempt"] == "keep"
    assert (path / "notes.txt").exists()
    done = {row["path"]: row["decision"] for row in collection(segue)}
    assert done[str(path)] == "collected"
    assert not path.exists()
    assert list((segue.folder / "r0" / "trash").iterdir()) == []


def test_two_agents_never_overlap_in_one_local_directory(segue: Deployment) -> None:
    """The second one, on another issue, waits and shows who holds the directory; both work in it."""
    directory = segue.folder / "project"
    directory.mkdir()
    (segue.folder / "link").symlink_to(directory)
    project, _ = with_directory(segue, segue.folder / "link")
    alone = "tool test ! -e busy && touch busy && sleep 1 && rm busy && echo alone"
    first = segue.ask(
        segue.agent("Ada"), segue.issue(project_id=project), f"say started\nsleep 2\n{alone}\ncwd"
    )
    segue.event_with(first, "started")
    second = segue.ask(segue.agent("Bob"), segue.issue(project_id=project), f"{alone}\ncwd")
    waiting = segue.until(second, "waiting")["wait_reason"]
    assert (waiting["kind"], waiting["holder_task_id"]) == ("directory", first)
    for task in (segue.ended(first), segue.ended(second)):
        assert task["status"] == "completed", task
        assert task["work_dir"] == str(directory)
        assert "alone" in task["result"]
        assert task["result"].endswith(str(directory))
    assert not (directory / ".segue").exists()
    assert segue.lease_count() == 0


def test_the_session_goes_on_in_the_local_directory(segue: Deployment) -> None:
    """The next comment is resumed there; a rerun starts fresh there; nothing of it is ever collected."""
    directory = segue.folder / "project"
    directory.mkdir()
    (directory / "README").write_text("mine")
    project, _ = with_directory(segue, directory)
    agent = segue.agent()
    issue = segue.issue(project_id=project, assignee={"type": "agent", "id": agent}, status="backlog")
    first = segue.run(agent, issue, "remember colour=teal")
    second = segue.run(agent, issue, "recall colour\nread README")
    assert (second["continuity"]["state"], second["result"]) == ("resumed", "teal\nmine")
    fresh = segue.ended(segue.post(f"/issues/{issue}/rerun")["task_id"])
    assert fresh["continuity"] == {"state": "fresh", "reason": "asked_for"}
    assert fresh["work_dir"] == first["work_dir"] == str(directory)
    assert fresh["session_id"] != first["session_id"]
    finish(segue, issue)
    assert {row["what"] for row in collection(segue)} == {"attempt"}
    assert (directory / "README").read_text() == "mine"


def test_a_refused_path_fails_the_task_without_a_process(segue: Deployment) -> None:
    """The task says what the machine said; so does the project."""
    project, _ = with_directory(segue, "/etc")
    task = segue.run(segue.agent(), segue.issue(project_id=project), "say never")
    assert (task["status"], task["reason"]) == ("failed", "local_directory_error")
    assert "/etc belongs to the system" in task["evidence"]
    assert (task["attempt"], task["attempts"], segue.events(task["id"])) == (0, [], [])
    (resource,) = segue.get(f"/projects/{project}")["resources"]
    assert resource["status"] == "refused"
    assert resource["reason"] == task["evidence"]


def test_a_replaced_directory_is_not_entered_until_it_is_looked_at_again(segue: Deployment) -> None:
    """Another directory under the same name may be anybody's; a person says that it is right."""
    directory = segue.folder / "project"
    directory.mkdir()
    project, resource = with_directory(segue, directory)
    agent, issue = segue.agent(), segue.issue(project_id=project)
    segue.run(agent, issue, "write a.txt hello")
    directory.rename(segue.folder / "moved")
    directory.symlink_to(segue.folder / "moved")
    swapped = segue.run(agent, issue, "write b.txt hello")
    assert (swapped["status"], swapped["reason"]) == ("failed", "local_directory_error")
    assert "not a directory" in swapped["evidence"]
    assert not (segue.folder / "moved" / "b.txt").exists()
    segue.post(f"/projects/{project}/resources/{resource}/check")
    after = segue.run(agent, issue, "write b.txt hello")
    assert (after["status"], after["work_dir"]) == ("completed", str(segue.folder / "moved"))
    assert after["continuity"] == {"state": "lost", "reason": "directory_changed"}
