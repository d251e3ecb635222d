"""What machines and people say about directories: local ones of projects, and what may be deleted."""

from typing import Any
from uuid import uuid4

import pytest

from tests.api.office import API, Machine, Office, answered, made_by, refused

FOUND = {"path": "/srv/real", "device": 1, "inode": 2}
BEAT = {"machine_id": "machine-1", "boot_id": "boot-1"}


async def project_with_directory(office: Office, machine: Machine) -> tuple[str, dict[str, Any]]:
    """The project's path in the API, and its resource."""
    project = await made_by(office.owner.http.post(f"{API}/projects", json={"name": office.name("project")}))
    path = f"{API}/projects/{project['id']}"
    body = {"type": "local_directory", "runtime_id": machine.id, "path": "/srv/link"}
    return path, await made_by(office.owner.http.post(f"{path}/resources", json=body))


async def shown(office: Office, path: str) -> dict[str, Any]:
    project = await answered(office.owner.http.get(path))
    (resource,) = project["resources"]
    return {key: resource[key] for key in ("path", "status", "reason", "real_path")}


async def questions(machine: Machine) -> list[dict[str, Any]]:
    answer = await answered(machine.http.post(f"{API}/runtime/heartbeat", json=BEAT))
    asked: list[dict[str, Any]] = answer["local_directories"]
    return asked


async def test_a_local_directory_is_pending_until_its_runtime_has_looked(office: Office) -> None:
    """Stored as a person wrote it; the heartbeat asks, the answer is shown, and nobody asks again."""
    machine, other = await office.machine(), await office.machine()
    path, resource = await project_with_directory(office, machine)
    pending = {"path": "/srv/link", "status": "pending", "reason": None, "real_path": None}
    assert {key: resource[key] for key in pending} == pending
    assert await questions(other) == []
    assert await questions(machine) == [{"id": resource["id"], "path": "/srv/link"}]
    answer = f"{API}/runtime/local-directories/{resource['id']}"
    await answered(machine.http.post(answer, json=FOUND), 204)
    assert await shown(office, path) == pending | {"status": "ok", "real_path": "/srv/real"}
    assert await questions(machine) == []


async def test_a_refused_directory_says_why_and_can_be_looked_at_again(office: Office) -> None:
    """After it was mended, a person asks once more."""
    machine = await office.machine()
    path, resource = await project_with_directory(office, machine)
    answer = f"{API}/runtime/local-directories/{resource['id']}"
    await answered(machine.http.post(answer, json={"refusal": "/srv/link: No such file"}), 204)
    assert (await shown(office, path))["reason"] == "/srv/link: No such file"
    again = f"{path}/resources/{resource['id']}/check"
    assert (await answered(office.owner.http.post(again)))["status"] == "pending"
    assert [one["id"] for one in await questions(machine)] == [resource["id"]]
    repo = {"type": "git_repo", "url": "https://example.org/r.git"}
    other = await made_by(office.owner.http.post(f"{path}/resources", json=repo))
    assert (other["status"], other["real_path"]) == (None, None)
    await refused(office.owner.http.post(f"{path}/resources/{other['id']}/check"), 409, "conflict")
    await refused(office.owner.http.post(f"{path}/resources/{uuid4()}/check"), 404, "not_found")


async def test_only_its_runtime_answers(office: Office, other_office: Office) -> None:
    """Other machines, other workspaces and people find nothing there."""
    machine, other, foreign = await office.machine(), await office.machine(), await other_office.machine()
    path, resource = await project_with_directory(office, machine)
    answer = f"{API}/runtime/local-directories/{resource['id']}"
    for http in (other.http, foreign.http):
        await refused(http.post(answer, json=FOUND), 404, "not_found")
    await refused(office.owner.http.post(answer, json=FOUND), 403, "not_allowed")
    check = f"{path}/resources/{resource['id']}/check"
    await refused(other_office.owner.http.post(check), 404, "not_found")
    assert (await shown(office, path))["status"] == "pending"


@pytest.mark.parametrize("body", [{}, {"path": "/x"}, {**FOUND, "refusal": "no"}, {"path": "/x", "inode": 1}])
async def test_an_answer_is_a_directory_or_a_refusal(office: Office, body: dict[str, Any]) -> None:
    """Nothing in between."""
    machine = await office.machine()
    _, resource = await project_with_directory(office, machine)
    answer = f"{API}/runtime/local-directories/{resource['id']}"
    await refused(machine.http.post(answer, json=body), 422, "unprocessable")


async def test_what_may_be_deleted(office: Office) -> None:
    """A deleted issue's directory and its ended attempt; asked by the machine that has them."""
    machine, other = await office.machine(), await office.machine()
    created = await office.issue(assignee={"type": "agent", "id": (await office.agent(machine.id))["id"]})
    task_id = created["triggered"][0]["task_id"]
    attempt_id, _ = await office.started(machine, task_id)
    brief = await answered(machine.http.get(f"{API}/runtime/attempts/{attempt_id}/brief"))
    directory_id = brief["directory"]["id"]

    async def asked(of: Machine, **more: Any) -> list[tuple[bool, str]]:
        body = {"directories": [{"id": directory_id}], "attempts": [attempt_id], **more}
        answer = await answered(of.http.post(f"{API}/runtime/gc/check", json=body))
        assert answer["workspace_id"] == str(office.workspace_id)
        return [(one["collect"], one["reason"]) for one in (*answer["directories"], *answer["attempts"])]

    assert await asked(machine) == [(False, "leased"), (False, "standing")]
    await office.ended(task_id, attempt_id)
    await answered(office.owner.http.delete(f"{API}/issues/{created['issue']['id']}"), 204)
    assert await asked(other) == [(False, "other_runtime"), (False, "other_runtime")]
    assert await asked(machine, dry_run=True) == [(True, "deleted"), (True, "ended")]
    assert await asked(machine) == [(True, "deleted"), (True, "ended")]
    assert await asked(machine) == [(True, "gone"), (True, "ended")]


async def test_what_may_be_deleted_is_asked_by_machines_in_bounded_questions(office: Office) -> None:
    """People have no such call, and 500 ids are one question's most."""
    machine = await office.machine()
    path = f"{API}/runtime/gc/check"
    await refused(office.owner.http.post(path, json={}), 403, "not_allowed")
    empty = await answered(machine.http.post(path, json={}))
    assert (empty["directories"], empty["attempts"]) == ([], [])
    many = {"attempts": [str(uuid4()) for _ in range(501)]}
    await refused(machine.http.post(path, json=many), 422, "unprocessable")
    full = {
        "attempts": many["attempts"][:500],
        "directories": [{"id": one} for one in many["attempts"][:500]],
    }
    answer = await answered(machine.http.post(path, json=full))
    assert len(answer["attempts"]) == len(answer["directories"]) == 500
