"""Who gets in, what a stranger learns, and what never reaches a router."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from uuid import uuid4

import httpx
import pytest
from fastapi import FastAPI

from api.app import ApiDeps, create_app
from api.auth import FailureLimiter
from api.gates import BODY_LIMIT
from domain.errors import TooManyRequests
from domain.statuses import Role
from store.database import Database
from tests.api.office import API, Office, answered, made_by, refused


async def test_calls_without_a_good_token_are_refused(office: Office) -> None:
    """No token, another scheme, an unknown token: 401 with a challenge."""
    for headers in ({}, {"Authorization": "Basic eDp5"}, {"Authorization": "Bearer "}):
        response = await office.client(**headers).get(f"{API}/me")
        assert response.status_code == 401
        assert response.headers["www-authenticate"] == "Bearer"
    await refused(office.client("sgu_unknown").get(f"{API}/me"), 401, "unauthenticated")
    await refused(office.client("other_kind").get(f"{API}/issues"), 401, "unauthenticated")
    odd = {b"Authorization": "Bearer sgu_\u00fcber".encode()}
    await refused(office.client().get(f"{API}/issues", headers=odd), 401, "unauthenticated")


async def test_authentication_comes_before_validation(office: Office) -> None:
    """A stranger doesn't learn whether a body would have been accepted."""
    await refused(office.client().post(f"{API}/issues", json={}), 401, "unauthenticated")


async def test_revoked_and_expired_tokens_are_refused(office: Office) -> None:
    """A revoked token stops working at once; an expiry lies in the future."""
    path = f"{API}/members/{office.owner.id}/tokens"
    made = await made_by(office.owner.http.post(path, json={"name": "laptop"}))
    client = office.client(made["token"])
    assert (await answered(client.get(f"{API}/me")))["member"]["id"] == str(office.owner.id)
    names = [item["name"] for item in (await answered(office.owner.http.get(path)))["items"]]
    assert "laptop" in names
    await answered(office.owner.http.delete(f"{path}/{made['id']}"), 204)
    await refused(client.get(f"{API}/me"), 401, "unauthenticated")
    past = {"expires_at": "2020-01-01T00:00:00Z"}
    await refused(office.owner.http.post(path, json=past), 422, "unprocessable")


async def test_many_failures_are_slowed_down_but_good_tokens_pass(office: Office) -> None:
    """An address that keeps failing gets 429; a good token from it still works."""
    stranger = office.client("sgu_wrong")
    for _ in range(20):
        await refused(stranger.get(f"{API}/me"), 401, "unauthenticated")
    response = await stranger.get(f"{API}/me")
    assert response.status_code == 429
    assert response.headers["retry-after"] == "60"
    await answered(office.owner.http.get(f"{API}/me"))


def test_failures_are_forgotten_after_the_window() -> None:
    """The count begins again when the window is over, and addresses don't share it."""
    now = [0.0]
    limiter = FailureLimiter(limit=1, window=10.0, clock=lambda: now[0])
    limiter.note_failure("a")
    limiter.note_failure("b")
    with pytest.raises(TooManyRequests):
        limiter.note_failure("a")
    now[0] = 10.0
    limiter.note_failure("a")


async def test_members_do_not_manage_the_workspace(office: Office) -> None:
    """Members and runtimes of a workspace are the owner's and the admins' matter."""
    member = await office.person()
    machine = await office.machine()
    await refused(member.http.post(f"{API}/runtimes", json={"name": "x"}), 403, "not_allowed")
    await refused(member.http.patch(f"{API}/runtimes/{machine.id}", json={"slots": 9}), 403, "not_allowed")
    await refused(member.http.post(f"{API}/runtimes/{machine.id}/drain"), 403, "not_allowed")
    await refused(member.http.delete(f"{API}/runtimes/{machine.id}"), 403, "not_allowed")
    body = {"name": "n", "email": "n@example.org"}
    await refused(member.http.post(f"{API}/members", json=body), 403, "not_allowed")
    await refused(member.http.post(f"{API}/members/{office.owner.id}/tokens"), 403, "not_allowed")
    await made_by(member.http.post(f"{API}/members/{member.id}/tokens"))


async def test_admins_do_not_become_owners(office: Office) -> None:
    """An admin adds members, but neither makes nor impersonates an owner."""
    admin = await office.person(Role.ADMIN)
    body = {"name": "n", "email": "n@example.org", "role": "owner"}
    await refused(admin.http.post(f"{API}/members", json=body), 403, "not_allowed")
    await refused(admin.http.post(f"{API}/members/{office.owner.id}/tokens"), 403, "not_allowed")
    added = await made_by(admin.http.post(f"{API}/members", json=body | {"role": "member"}))
    await made_by(admin.http.post(f"{API}/members/{added['id']}/tokens"))
    await refused(admin.http.post(f"{API}/members", json=body | {"role": "member"}), 409, "conflict")


async def test_tokens_work_only_for_their_kind_of_call(office: Office) -> None:
    """A runtime's token opens the runtime plane and nothing of the people's; and the other way round."""
    machine = await office.machine()
    await refused(machine.http.get(f"{API}/issues"), 403, "not_allowed")
    await refused(machine.http.get(f"{API}/tasks/{uuid4()}/events/stream"), 403, "not_allowed")
    await refused(
        office.owner.http.post(f"{API}/runtime/heartbeat", json={"machine_id": "m", "boot_id": "b"}),
        403,
        "not_allowed",
    )
    me = await answered(machine.http.get(f"{API}/me"))
    assert (me["member"], me["runtime_id"]) == (None, machine.id)


async def test_task_token_has_its_humans_rights_until_the_attempt_ends(office: Office) -> None:
    """An agent at work acts for the person behind it, never as an admin, and not a moment longer."""
    machine = await office.machine()
    agent = await office.agent(machine.id)
    task_id = await office.task(agent)
    attempt_id, started = await office.started(machine, task_id)
    at_work = office.client(started["token"])
    me = await answered(at_work.get(f"{API}/me"))
    assert (me["member"]["id"], me["agent_id"], me["task_id"]) == (str(office.owner.id), agent["id"], task_id)
    await made_by(at_work.post(f"{API}/issues", json={"title": "found on the way"}))
    body = {"name": "x", "provider": "script"}
    await refused(at_work.post(f"{API}/agents", json=body), 403, "not_allowed")
    await refused(at_work.post(f"{API}/runtimes", json={"name": "x"}), 403, "not_allowed")
    await refused(at_work.post(f"{API}/members/{office.owner.id}/tokens"), 403, "not_allowed")
    await refused(at_work.patch(f"{API}/agents/{agent['id']}", json={"env": {"A": "b"}}), 403, "not_allowed")
    await office.ended(task_id, attempt_id)
    await refused(at_work.get(f"{API}/me"), 401, "unauthenticated")


async def test_other_workspaces_are_not_there(office: Office, other_office: Office) -> None:
    """Everything of another tenant answers 404, and lists don't show it."""
    machine = await office.machine()
    agent = await office.agent(machine.id)
    created = await office.issue(assignee={"type": "agent", "id": agent["id"]})
    issue, task_id = created["issue"], created["triggered"][0]["task_id"]
    resolution = await office.dispatched(task_id)
    project = await made_by(office.owner.http.post(f"{API}/projects", json={"name": "P"}))
    comments = f"{API}/issues/{issue['id']}/comments"
    comment = (await made_by(office.owner.http.post(comments, json={"body": "x"})))["comment"]
    stranger = other_office.owner.http
    reads = [
        f"/issues/{issue['id']}",
        f"/issues/{issue['key']}",
        f"/issues/{issue['id']}/comments",
        f"/issues/{issue['id']}/tasks",
        f"/issues/{issue['id']}/children",
        f"/agents/{agent['id']}",
        f"/agents/{agent['id']}/tasks",
        f"/runtimes/{machine.id}",
        f"/projects/{project['id']}",
        f"/tasks/{task_id}",
        f"/tasks/{task_id}/events",
        f"/tasks/{task_id}/events/stream",
        f"/members/{office.owner.id}/tokens",
    ]
    for path in reads:
        await refused(stranger.get(API + path), 404, "not_found")
    writes = [
        ("PATCH", f"/issues/{issue['id']}", {"title": "mine"}),
        ("DELETE", f"/issues/{issue['id']}", None),
        ("POST", f"/issues/{issue['id']}/comments", {"body": "x"}),
        ("POST", f"/issues/{issue['id']}/rerun", None),
        ("PATCH", f"/comments/{comment['id']}", {"body": "x"}),
        ("DELETE", f"/comments/{comment['id']}", None),
        ("PATCH", f"/agents/{agent['id']}", {"name": "mine"}),
        ("POST", f"/agents/{agent['id']}/archive", None),
        ("PATCH", f"/runtimes/{machine.id}", {"slots": 1}),
        ("DELETE", f"/runtimes/{machine.id}", None),
        ("PATCH", f"/projects/{project['id']}", {"name": "mine"}),
        ("POST", f"/tasks/{task_id}/cancel", None),
        ("POST", f"/tasks/{task_id}/retry", None),
        ("POST", f"/members/{office.owner.id}/tokens", None),
    ]
    for method, path, body in writes:
        await refused(stranger.request(method, API + path, json=body), 404, "not_found")
    for path in ("/issues", "/agents", "/runtimes", "/projects", "/tasks"):
        assert (await answered(stranger.get(API + path)))["items"] == []
    references = {"title": "x", "project_id": project["id"]}
    await refused(stranger.post(f"{API}/issues", json=references), 422, "unprocessable")
    assignee = {"title": "x", "assignee": {"type": "agent", "id": agent["id"]}}
    await refused(stranger.post(f"{API}/issues", json=assignee), 422, "unprocessable")
    foreign = {"name": "x", "provider": "script", "runtime_id": machine.id}
    await refused(stranger.post(f"{API}/agents", json=foreign), 422, "unprocessable")
    thief = (await other_office.machine()).http
    attempt = f"{API}/runtime/attempts/{resolution.attempt_id}"
    await refused(thief.get(attempt), 404, "not_found")
    await refused(thief.get(f"{attempt}/brief"), 404, "not_found")


async def test_foreign_hosts_are_refused(office: Office) -> None:
    """A Host that is not allowed is refused before anything else; health checks may use any."""
    for host in ("evil.example", "localhost.evil.example", ""):
        client = office.client(office.owner.token, Host=host)
        await refused(client.get(f"{API}/me"), 421, "host_not_allowed")
        await answered(client.get("/healthz"))
    await answered(office.client(office.owner.token, Host="LOCALHOST:8080").get(f"{API}/me"))
    await answered(office.client(office.owner.token, Host="127.0.0.1:8080").get(f"{API}/me"))


async def test_large_bodies_are_refused(office: Office) -> None:
    """Above the limit there is 413, whether the length was announced or not."""
    large = b"x" * (BODY_LIMIT + 1)
    await refused(office.owner.http.post(f"{API}/issues", content=large), 413, "too_large")

    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(large), 1 << 20):
            yield large[start : start + (1 << 20)]

    await refused(office.owner.http.post(f"{API}/issues", content=pieces()), 413, "too_large")


async def test_malformed_input_is_explained(office: Office) -> None:
    """Broken JSON is 400; bad fields are 422 with a pointer each; bad ids are 404; never 500."""
    http = office.owner.http
    json_type = {"content-type": "application/json"}
    await refused(http.post(f"{API}/issues", content=b"{", headers=json_type), 400, "invalid_input")
    bodies: list[tuple[str, bytes]] = [
        ("title", b'{"title": ""}'),
        ("title", b'{"title": "a\\u0000b"}'),
        ("title", b'{"title": "\\ud800"}'),
        ("status", b'{"title": "x", "status": "later"}'),
        ("stage", b'{"title": "x", "stage": 99999999999999999999}'),
        ("titel", b'{"titel": "x", "title": "x"}'),
    ]
    for field, body in bodies:
        problem = await refused(
            http.post(f"{API}/issues", content=body, headers=json_type), 422, "unprocessable"
        )
        assert f"#/body/{field}" in [error["pointer"] for error in problem["errors"]]
    await refused(http.patch(f"{API}/issues/SEG-1", json={"title": None}), 422, "unprocessable")
    await refused(http.get(f"{API}/tasks/not-an-id"), 404, "not_found")
    await refused(http.get(f"{API}/issues/SEG-1%00"), 404, "not_found")
    await refused(http.get(f"{API}/nothing-here"), 404, "not_found")
    await refused(http.put(f"{API}/issues"), 405, "method_not_allowed")
    await refused(http.get(f"{API}/tasks", params={"status": "odd"}), 422, "unprocessable")
    await refused(http.get(f"{API}/agents", params={"name": "a\0b"}), 422, "unprocessable")


async def test_repeated_call_with_a_key_gives_the_first_answer(office: Office) -> None:
    """The same Idempotency-Key does nothing twice; with another body it is refused."""
    http = office.owner.http
    key = {"Idempotency-Key": "one"}
    first = await http.post(f"{API}/issues", json={"title": "once"}, headers=key)
    second = await http.post(f"{API}/issues", json={"title": "once"}, headers=key)
    assert (first.status_code, second.status_code) == (201, 201)
    assert first.json() == second.json()
    assert second.headers["idempotency-replayed"] == "true"
    assert len((await answered(http.get(f"{API}/issues")))["items"]) == 1
    other = http.post(f"{API}/issues", json={"title": "twice"}, headers=key)
    await refused(other, 422, "unprocessable")
    long_key = {"Idempotency-Key": "k" * 256}
    await refused(http.post(f"{API}/issues", json={"title": "x"}, headers=long_key), 400, "invalid_input")
    colleague = await office.person(Role.ADMIN)
    await made_by(colleague.http.post(f"{API}/issues", json={"title": "mine"}, headers=key))


async def test_refused_call_leaves_its_key_free(office: Office) -> None:
    """An error is not an answer to keep: nothing happened, so the repetition runs."""
    http, key = office.owner.http, {"Idempotency-Key": "one"}
    body = {"name": "n", "email": "n@example.org"}
    await refused(http.post(f"{API}/issues", json={"title": ""}, headers=key), 422, "unprocessable")
    await made_by(http.post(f"{API}/members", json=body, headers=key))


async def test_same_key_at_once_runs_once(office: Office) -> None:
    """Of many calls at once one runs; the others are in flight or get its answer."""

    async def create() -> httpx.Response:
        headers = {"Idempotency-Key": "race"}
        return await office.owner.http.post(f"{API}/issues", json={"title": "once"}, headers=headers)

    answers = await asyncio.gather(*(create() for _ in range(8)))
    assert {answer.status_code for answer in answers} <= {201, 409}
    keys = {answer.json()["issue"]["key"] for answer in answers if answer.status_code == 201}
    assert keys == {"SEG-1"}
    codes = {answer.json()["code"] for answer in answers if answer.status_code == 409}
    assert codes <= {"idempotency_in_flight"}
    assert len((await answered(office.owner.http.get(f"{API}/issues")))["items"]) == 1


async def test_database_that_is_away_is_a_503(deps: ApiDeps, office: Office) -> None:
    """A fault of the server is never taken for "not found"."""
    gone = Database("postgresql://nobody@127.0.0.1:1/nothing?connect_timeout=1")
    app: FastAPI = create_app(replace(deps, database=gone))
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    headers = {"Authorization": f"Bearer {office.owner.token}"}
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost", headers=headers) as http:
        await refused(http.get(f"{API}/tasks/{uuid4()}"), 503, "unavailable")
        assert (await answered(http.get("/readyz"), 503))["checks"]["database"] != "ok"
        await answered(http.get("/healthz"))
    await gone.dispose()
