"""Agents and their secrets, runtimes, projects: making, changing and putting away."""

import asyncio
from typing import Any

from sqlalchemy import select

from api.app import ApiDeps
from domain.statuses import Role
from store.models import Agent
from tests.api.office import API, REGISTRATION, Office, answered, made_by, refused


async def test_environment_is_write_only_and_merged(office: Office, deps: ApiDeps) -> None:
    """Values go in and never come out; a change merges, null removes, and the row is encrypted."""
    agent = await office.agent(None, env={"TOKEN": "hunter22", "REGION": "eu"})
    path = f"{API}/agents/{agent['id']}"
    assert agent["env_names"] == ["REGION", "TOKEN"]
    assert "hunter22" not in str(agent)
    changed = await answered(office.owner.http.patch(path, json={"env": {"REGION": None, "LEVEL": "1"}}))
    assert changed["env_names"] == ["LEVEL", "TOKEN"]
    async with deps.database.begin() as conn:
        sealed: Any = await conn.scalar(select(Agent.env_sealed))
    assert b"hunter22" not in sealed
    assert deps.secret_box.open(sealed) == {"TOKEN": "hunter22", "LEVEL": "1"}
    cleared = await answered(office.owner.http.patch(path, json={"env": None}))
    assert cleared["env_names"] == []


async def test_bad_agents_are_refused(office: Office) -> None:
    """Unknown providers, reserved variables, an ACP agent without a command, foreign members."""
    bad: list[dict[str, Any]] = [
        {"provider": "unheard-of"},
        {"provider": "acp"},
        {"env": {"SEGUE_TOKEN": "x"}},
        {"env": {"NOT A NAME": "x"}},
        {"max_concurrent_tasks": 0},
        {"runtime_id": "01900000-0000-7000-8000-000000000000"},
        {"allowed_member_ids": ["01900000-0000-7000-8000-000000000000"]},
    ]
    for fields in bad:
        body = {"name": "a", "provider": "script", **fields}
        await refused(office.owner.http.post(f"{API}/agents", json=body), 422, "unprocessable")


async def test_names_of_agents_are_taken_once(office: Office) -> None:
    """Two agents can't share a name, but an archived one frees it until it comes back."""
    first = await office.agent(None, name="Ada")
    body = {"name": "Ada", "provider": "script"}
    await refused(office.owner.http.post(f"{API}/agents", json=body), 409, "conflict")
    path = f"{API}/agents/{first['id']}"
    archived = await answered(office.owner.http.post(f"{path}/archive"))
    assert archived["archived_at"] is not None
    again = await answered(office.owner.http.post(f"{path}/archive"))
    assert again["archived_at"] == archived["archived_at"]
    await made_by(office.owner.http.post(f"{API}/agents", json=body))
    await refused(office.owner.http.post(f"{path}/restore"), 409, "conflict")
    await answered(office.owner.http.patch(path, json={"name": "Ada the first"}))
    assert (await answered(office.owner.http.post(f"{path}/restore")))["archived_at"] is None
    names = {item["name"] for item in (await answered(office.owner.http.get(f"{API}/agents")))["items"]}
    assert names == {"Ada", "Ada the first"}


async def test_archived_agent_loses_its_tasks_and_starts_nothing(office: Office) -> None:
    """Archiving cancels what has not ended; assigning and mentioning it is refused or blocked."""
    agent = await office.agent((await office.machine()).id)
    task_id = await office.task(agent)
    await answered(office.owner.http.post(f"{API}/agents/{agent['id']}/archive"))
    task = await answered(office.owner.http.get(f"{API}/tasks/{task_id}"))
    assert task["status"] == "cancelled"
    assignee = {"type": "agent", "id": agent["id"]}
    body = {"title": "x", "assignee": assignee}
    await refused(office.owner.http.post(f"{API}/issues", json=body), 422, "unprocessable")
    await refused(office.owner.http.post(f"{API}/tasks/{task_id}/retry"), 400, "invalid_input")
    comments = f"{API}/issues/{(await office.issue())['issue']['key']}/comments"
    text = f"[@x](mention://agent/{agent['id']})"
    written = await made_by(office.owner.http.post(comments, json={"body": text}))
    assert written["triggered"][0]["reason"] == "target_unavailable"


async def test_private_agents_are_seen_by_owner_and_admins_only(office: Office) -> None:
    """An admin sees and may manage a private agent, another member doesn't know it."""
    maker, member, admin = await office.person(), await office.person(), await office.person(Role.ADMIN)
    agent = await office.agent(None, by=maker, permission="private")
    path = f"{API}/agents/{agent['id']}"
    await refused(member.http.get(path), 404, "not_found")
    await refused(member.http.patch(path, json={"name": "x"}), 404, "not_found")
    assert (await answered(member.http.get(f"{API}/agents")))["items"] == []
    assert (await answered(maker.http.get(path)))["owner_id"] == str(maker.id)
    await answered(admin.http.patch(path, json={"permission": "workspace"}))
    await answered(member.http.get(path))
    await refused(member.http.patch(path, json={"name": "x"}), 403, "not_allowed")
    await refused(member.http.post(f"{path}/archive"), 403, "not_allowed")


async def test_runtime_is_offline_online_and_draining(office: Office) -> None:
    """Never seen is offline; registering brings it online; draining shows; PATCH takes it back."""
    machine = await office.machine(online=False)
    path = f"{API}/runtimes/{machine.id}"
    assert (await answered(office.owner.http.get(path)))["status"] == "offline"
    registered = await answered(machine.http.post(f"{API}/runtime/register", json=REGISTRATION))
    assert registered["runtime_id"] == machine.id
    assert registered["temporal_namespace"] == "segue"
    assert registered["ops_queue"] == f"segue-runtime-{machine.id}-ops"
    shown = await answered(office.owner.http.get(path))
    assert (shown["status"], shown["slots"]) == ("online", 4)
    assert shown["providers"] == [{"name": "script", "version": "1", "path": "/usr/bin/script-agent"}]
    assert (await answered(office.owner.http.post(f"{path}/drain")))["status"] == "draining"
    beat = {"machine_id": "machine-1", "boot_id": "boot-1", "free_bytes": 5_000_000_000}
    assert (await answered(machine.http.post(f"{API}/runtime/heartbeat", json=beat)))["draining"] is True
    changed = await answered(office.owner.http.patch(path, json={"draining": False, "slots": 7}))
    assert (changed["status"], changed["slots"], changed["free_bytes"]) == ("online", 7, 5_000_000_000)


async def test_heartbeats_and_changes_at_once_all_pass(office: Office) -> None:
    """Heartbeats, changes of slots and new tasks don't get in each other's way."""
    machine = await office.machine()
    agent = await office.agent(machine.id)
    beat = {"machine_id": "machine-1", "boot_id": "boot-1"}
    calls = [machine.http.post(f"{API}/runtime/heartbeat", json=beat) for _ in range(6)]
    calls += [
        office.owner.http.patch(f"{API}/runtimes/{machine.id}", json={"slots": 5 + n}) for n in range(6)
    ]
    assignee = {"type": "agent", "id": agent["id"]}
    body = {"title": "x", "assignee": assignee}
    calls += [office.owner.http.post(f"{API}/issues", json=body) for _ in range(6)]
    answers = await asyncio.gather(*calls)
    assert [answer.status_code for answer in answers] == [200] * 12 + [201] * 6


async def test_second_machine_with_the_same_token_is_noticed(office: Office) -> None:
    """The last one that registered is the runtime; the other one's heartbeat is refused."""
    machine = await office.machine()
    other = REGISTRATION | {"machine_id": "machine-2"}
    await answered(machine.http.post(f"{API}/runtime/register", json=other))
    beat = {"machine_id": "machine-1", "boot_id": "boot-1"}
    await refused(machine.http.post(f"{API}/runtime/heartbeat", json=beat), 409, "conflict")


async def test_runtime_in_use_is_deleted_by_force_only(office: Office) -> None:
    """Open tasks are named in the refusal; by force they end, agents are unbound, the token is dead."""
    machine = await office.machine()
    agent = await office.agent(machine.id)
    task_id = await office.task(agent)
    path = f"{API}/runtimes/{machine.id}"
    problem = await refused(office.owner.http.delete(path), 409, "conflict")
    assert task_id in problem["detail"]
    await answered(office.owner.http.delete(path, params={"force": True}), 204)
    await refused(office.owner.http.get(path), 404, "not_found")
    await refused(machine.http.get(f"{API}/me"), 401, "unauthenticated")
    assert (await answered(office.owner.http.get(f"{API}/agents/{agent['id']}")))["runtime_id"] is None
    assert (await answered(office.owner.http.get(f"{API}/tasks/{task_id}")))["status"] == "cancelled"


async def test_runtime_names_are_taken_once(office: Office) -> None:
    """A second runtime of the same name is refused."""
    await made_by(office.owner.http.post(f"{API}/runtimes", json={"name": "mill"}))
    await refused(office.owner.http.post(f"{API}/runtimes", json={"name": "mill"}), 409, "conflict")


async def test_project_holds_repositories_and_one_directory_a_runtime(office: Office) -> None:
    """Resources are added and removed; a second local directory on a runtime is refused."""
    machine = await office.machine()
    project = await made_by(office.owner.http.post(f"{API}/projects", json={"name": "P"}))
    path = f"{API}/projects/{project['id']}"
    repo = {"type": "git_repo", "url": "https://git.example/p.git", "ref": "main"}
    made = await made_by(office.owner.http.post(f"{path}/resources", json=repo))
    directory = {"type": "local_directory", "runtime_id": machine.id, "path": "/srv/p"}
    await made_by(office.owner.http.post(f"{path}/resources", json=directory))
    second = directory | {"path": "/srv/q"}
    await refused(office.owner.http.post(f"{path}/resources", json=second), 409, "conflict")
    for bad in ("relative", "/", "/srv/../etc"):
        wrong = office.owner.http.post(f"{path}/resources", json=directory | {"path": bad})
        await refused(wrong, 422, "unprocessable")
    await answered(office.owner.http.delete(f"{path}/resources/{made['id']}"), 204)
    await refused(office.owner.http.delete(f"{path}/resources/{made['id']}"), 404, "not_found")
    renamed = await answered(office.owner.http.patch(path, json={"name": "Q"}))
    assert [item["type"] for item in renamed["resources"]] == ["local_directory"]
    listed = await answered(office.owner.http.get(f"{API}/projects"))
    assert [item["name"] for item in listed["items"]] == ["Q"]
