"""The embedded stack from outside: what `segue up` promises, whatever is killed."""

import contextlib
import json
import os
import signal
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

import httpx
import psutil
import pytest

from cli import runs
from cli.client import ApiClient, ApiProblem
from domain.errors import Unavailable
from tests.cli.up import PATIENCE, Up
from workers.stack import NAMES

pytestmark = [pytest.mark.scenario, pytest.mark.timeout(1200)]

Result = TypeVar("Result")


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Up]]:
    """Start stacks on one folder; what is left of them ends with the test."""
    started: list[Up] = []

    def up(*options: str) -> Up:
        started.append(Up(tmp_path / "data", *options))
        return started[-1]

    yield up
    for one in started:
        parts = [one.folder.part_file(name) for name in NAMES]
        left = [json.loads(file.read_text())["pid"] for file in parts if file.exists()]
        if one.process.poll() is None:
            one.process.kill()
        one.process.communicate()
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def test_restart_finds_everything_and_a_stop_leaves_nothing(start: Callable[..., Up]) -> None:
    """One ready line; a private record; after a restart the same addresses, tokens and tasks."""
    first = start()
    addresses = first.ready()
    assert httpx.get(f"{addresses['api']}/readyz").status_code == 200
    assert stat.S_IMODE(first.folder.record_file.stat().st_mode) == 0o600
    with first.client() as client:
        assert client.get("/me")["member"]["role"] == "owner"
        issue = _issue(client)
        before = _ended(client, _comment(client, issue, "remember colour=teal"))
    processes = first.everything()
    assert first.end() == (0, "")
    assert _living(processes) == []

    second = start()
    assert second.ready() == addresses
    with second.client() as client:
        assert client.get(f"/tasks/{before['id']}")["status"] == "completed"
        after = _ended(client, _comment(client, issue, "recall colour"))
    assert (after["continuity"]["state"], after["result"]) == ("resumed", "teal")
    assert second.end(signal.SIGINT) == (0, "")


def test_every_part_comes_back_after_a_kill(start: Callable[..., Up]) -> None:
    """SIGKILL of any part: it is started again, and the next run completes with its memory."""
    up = start()
    up.ready()
    with up.client() as client:
        issue = _issue(client)
        _ended(client, _comment(client, issue, "remember colour=teal"))
        for name in NAMES:
            _kill(up, name)
            task = _ended(client, _comment(client, issue, "recall colour"))
            assert (name, task["status"], task["result"]) == (name, "completed", "teal")
    assert up.end()[0] == 0


def test_killed_stack_blocks_nothing_and_its_runs_go_on(start: Callable[..., Up], tmp_path: Path) -> None:
    """After SIGKILL of the stack itself the next start works, and the run under way is adopted."""
    first = start()
    first.ready()
    gate = tmp_path / "gate"
    with first.client() as client:
        issue = _issue(client)
        wait = f"while ! [ -e {gate} ]; do sleep 0.1; done"
        task_id = _comment(client, issue, f"tool {wait}\nsay went on")
        _until(lambda: client.get(f"/tasks/{task_id}")["status"] == "running", "the run has started")
    first.end(signal.SIGKILL)

    second = start()
    second.ready()
    gate.touch()
    with second.client() as client:
        task = _ended(client, task_id)
    assert (task["status"], task["attempt"]) == ("completed", 1)
    assert task["result"].endswith("went on")
    processes = second.everything()
    assert second.end()[0] == 0
    assert _living(processes) == []


def test_second_stack_on_one_folder_is_refused(start: Callable[..., Up]) -> None:
    """It says why and what to do, exits 1, and leaves the first one alone."""
    first = start()
    addresses = first.ready()
    second = start()
    assert second.process.wait(PATIENCE) == 1
    assert "Another `segue up` is using" in second.errors.read_text()
    assert httpx.get(f"{addresses['api']}/readyz").status_code == 200
    taken = addresses["api"].rpartition(":")[2]
    third = Up(first.folder.path.with_name("other"), "--port", taken)
    assert third.process.wait(PATIENCE) == 1
    third.process.communicate()
    assert f"Port {taken} (api) is in use" in third.errors.read_text()
    assert first.end()[0] == 0


def test_stop_before_ready_and_second_signal(start: Callable[..., Up]) -> None:
    """A start can be called off, and a second signal does not wait for anything."""
    first = start()
    _until(lambda: first.folder.part_file("postgres").exists(), "the first part has started")
    processes = first.everything()
    first.process.send_signal(signal.SIGTERM)
    first.process.send_signal(signal.SIGTERM)
    said, _ = first.process.communicate(timeout=PATIENCE)
    assert (said, _living(processes)) == ("", [])

    second = start()
    second.ready()
    processes = second.everything()
    second.process.send_signal(signal.SIGINT)
    _until(lambda: "stopping" in second.errors.read_text(), "the drain has begun")
    assert second.end(signal.SIGINT)[0] == 0
    assert _living(processes) == []


# --- what the tests do with a stack ---


def _kill(up: Up, name: str) -> None:
    """Kill a part, and wait until another process has taken its place."""
    killed = up.part(name)
    killed.kill()
    _until(lambda: up.part(name) != killed, f"{name} is started again")


def _issue(client: ApiClient) -> dict[str, Any]:
    """An issue whose assignee is a script agent that has finished its first run."""
    runtime = next(client.items("/runtimes"))
    agent = client.post("/agents", {"name": "Ada", "provider": "script", "runtime_id": runtime["id"]})
    assignee = {"type": "agent", "id": agent["id"]}
    made = client.post("/issues", {"title": "Colours", "assignee": assignee})
    _ended(client, made["triggered"][0]["task_id"])
    issue: dict[str, Any] = made["issue"]
    return issue


def _comment(client: ApiClient, issue: dict[str, Any], text: str) -> str:
    """Comment, as often as it takes to get through; the id of the task that it started."""
    key = str(uuid4())
    made = _eventually(lambda: client.post(f"/issues/{issue['id']}/comments", {"body": text}, key=key))
    assert made["triggered"][0]["outcome"] == "queued", made
    task_id: str = made["triggered"][0]["task_id"]
    return task_id


def _ended(client: ApiClient, task_id: str) -> dict[str, Any]:
    return _eventually(lambda: runs.until_ended(client, task_id, seconds=PATIENCE))


def _eventually(call: Callable[[], Result]) -> Result:
    """The call's result once the server is well again."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return call()
        except Unavailable:
            if time.monotonic() > deadline:
                raise
        except ApiProblem as problem:
            if (problem.status < 500 and problem.status != 409) or time.monotonic() > deadline:
                raise
        time.sleep(0.2)


def _until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        with contextlib.suppress(psutil.Error, OSError, ValueError):
            if condition():
                return
        time.sleep(0.1)
    pytest.fail(f"never: {what}")


def _living(processes: list[psutil.Process]) -> list[psutil.Process]:
    """Those that do not end within a grace period (the system needs a moment to reap)."""
    _, alive = psutil.wait_procs(processes, timeout=30)
    return alive
