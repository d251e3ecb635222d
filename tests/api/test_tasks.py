"""Tasks as people see them, and what stops and repeats them."""

import asyncio
import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import insert, update

from api.app import ApiDeps, create_app
from store.ids import new_id
from store.models import Chat, LeaseWait, Task
from tests.api.office import API, Office, Person, answered, opened, refused


async def test_running_task_tells_where_it_stands(office: Office) -> None:
    """Status, trigger, attempts and links are there from the start, the rest is null."""
    machine = await office.machine()
    agent = await office.agent(machine.id)
    task_id = await office.task(agent)
    queued = await answered(office.owner.http.get(f"{API}/tasks/{task_id}"))
    assert (queued["status"], queued["attempt"], queued["attempts"]) == ("queued", 0, [])
    assert queued["trigger"] == {"type": "assignment", "comment_id": None, "message_id": None}
    assert queued["continuity"] == {"state": None, "reason": None}
    assert queued["workflow_id"] == f"task/{task_id}"
    address = f"http://temporal.example/namespaces/segue/workflows/task%2F{task_id}"
    assert queued["temporal_url"] == address
    attempt_id, _ = await office.started(machine, task_id)
    running = await answered(office.owner.http.get(f"{API}/tasks/{task_id}"))
    assert (running["status"], running["work_dir"]) == ("running", f"/w/{attempt_id}")
    assert running["continuity"] == {"state": "first", "reason": None}
    assert [attempt["number"] for attempt in running["attempts"]] == [1]


async def test_failed_task_has_reason_and_advice(office: Office) -> None:
    """A terminal task says why it ended and what to do next."""
    machine = await office.machine()
    task_id = await office.task(await office.agent(machine.id))
    attempt_id, _ = await office.started(machine, task_id)
    await office.ended(task_id, attempt_id, "refusal")
    ended = await answered(office.owner.http.get(f"{API}/tasks/{task_id}"))
    assert (ended["status"], ended["reason"]) == ("failed", "refusal")
    assert ended["advice"]
    assert ended["session_id"] == "session-1"
    assert ended["ended_at"] is not None


async def test_waiting_task_names_its_holder(office: Office) -> None:
    """The second task of a lane waits for the first one, and says so."""
    machine = await office.machine()
    agent = await office.agent(machine.id)
    created = await office.issue(assignee={"type": "agent", "id": agent["id"]})
    first = created["triggered"][0]["task_id"]
    await office.started(machine, first)
    comments = f"{API}/issues/{created['issue']['key']}/comments"
    written = await answered(office.owner.http.post(comments, json={"body": "and then"}), 201)
    second = written["triggered"][0]["task_id"]
    await office.asked(second)
    waiting = await answered(office.owner.http.get(f"{API}/tasks/{second}"))
    assert waiting["status"] == "waiting"
    reason = waiting["wait_reason"]
    assert (reason["kind"], reason["holder_task_id"], reason["private"]) == ("lane", first, False)


async def test_private_holder_is_not_named(office: Office) -> None:
    """A holder that the viewer may not see is shown as private."""
    machine = await office.machine()
    member = await office.person()
    hidden = await office.task(await office.agent(machine.id, permission="private"))
    shown = await office.task(await office.agent(machine.id))
    async with office.database.begin() as conn:
        await conn.execute(update(Task).where(Task.id == UUID(shown)).values(status="waiting"))
        await conn.execute(
            insert(LeaseWait).values(
                task_id=UUID(shown),
                workspace_id=office.workspace_id,
                kind="directory",
                key=new_id(),
                rank=datetime.now(UTC),
                holder_task_id=UUID(hidden),
            )
        )
    seen = await answered(member.http.get(f"{API}/tasks/{shown}"))
    assert seen["wait_reason"]["holder_task_id"] is None
    assert seen["wait_reason"]["private"] is True
    known = await answered(office.owner.http.get(f"{API}/tasks/{shown}"))
    assert known["wait_reason"]["holder_task_id"] == hidden
    assert known["wait_reason"]["private"] is False


async def test_tasks_of_private_agents_and_foreign_chats_are_hidden(office: Office) -> None:
    """A private agent's tasks are for its owner and admins; a chat's for its creator alone."""
    machine = await office.machine()
    member = await office.person()
    agent = await office.agent(machine.id, permission="private")
    private = await office.task(agent)
    chatted = await office.task(await office.agent(machine.id))
    await _make_chat_task(office, chatted, member)
    for path in (f"/tasks/{private}", f"/tasks/{private}/events", f"/tasks/{private}/events/stream"):
        await refused(member.http.get(API + path), 404, "not_found")
    await refused(member.http.post(f"{API}/tasks/{private}/cancel"), 404, "not_found")
    await refused(member.http.post(f"{API}/tasks/{private}/retry"), 404, "not_found")
    for path in (f"/tasks/{chatted}", f"/tasks/{chatted}/events", f"/tasks/{chatted}/events/stream"):
        await refused(office.owner.http.get(API + path), 404, "not_found")
    await refused(office.owner.http.post(f"{API}/tasks/{chatted}/cancel"), 404, "not_found")
    assert await _listed(member) == [chatted]
    assert await _listed(office.owner) == [private]


async def test_tasks_are_listed_by_filter_and_page(office: Office) -> None:
    """Filters narrow, pages go on, newest first."""
    machine = await office.machine()
    one, two = await office.agent(machine.id), await office.agent(machine.id)
    of_one = [await office.task(one) for _ in range(3)]
    of_two = await office.task(two)
    assert await _listed(office.owner, agent_id=one["id"]) == of_one[::-1]
    assert await _listed(office.owner, status=["queued", "running"], agent_id=two["id"]) == [of_two]
    assert await _listed(office.owner, status="running") == []
    assert await _listed(office.owner, runtime_id=machine.id, limit=2) == [of_two, of_one[2]]
    page = await answered(office.owner.http.get(f"{API}/tasks", params={"limit": 2}))
    assert await _listed(office.owner, cursor=page["next"]) == [of_one[1], of_one[0]]
    listed = await answered(office.owner.http.get(f"{API}/agents/{one['id']}/tasks"))
    assert [item["id"] for item in listed["items"]] == of_one[::-1]
    issue_id = listed["items"][0]["issue_id"]
    of_issue = await answered(office.owner.http.get(f"{API}/issues/{issue_id}/tasks"))
    key = (await answered(office.owner.http.get(f"{API}/issues/{issue_id}")))["key"]
    by_key = await answered(office.owner.http.get(f"{API}/tasks?issue_id={key}"))
    assert by_key["items"] == of_issue["items"]
    assert [item["id"] for item in of_issue["items"]] == [of_one[2]]


async def test_list_takes_the_same_statements_however_long(office: Office) -> None:
    """A page of tasks costs the caller's authentication and two statements."""
    machine = await office.machine()
    agent = await office.agent(machine.id)
    for _ in range(3):
        await office.started(machine, await office.task(agent))
    with office.counted() as statements:
        assert len(await _listed(office.owner)) == 3
    assert len(statements) == 3


async def test_cancel_is_repeatable_until_the_task_ended_otherwise(office: Office) -> None:
    """Cancelling twice gives the same answer; a completed task can't be cancelled."""
    machine = await office.machine()
    agent = await office.agent(machine.id)
    queued = await office.task(agent)
    answers = [await answered(office.owner.http.post(f"{API}/tasks/{queued}/cancel"), 202) for _ in range(2)]
    assert answers == [{"task_id": queued}] * 2
    done = await office.task(agent)
    attempt_id, _ = await office.started(machine, done)
    await office.ended(done, attempt_id)
    await refused(office.owner.http.post(f"{API}/tasks/{done}/cancel"), 409, "task_terminal")
    await refused(office.owner.http.post(f"{API}/tasks/{new_id()}/cancel"), 404, "not_found")


async def test_retry_is_for_ended_tasks_and_those_who_may_invoke(office: Office) -> None:
    """Retry answers the new task; a running one is refused, and so is who may only view."""
    machine = await office.machine()
    maker = await office.person()
    agent = await office.agent(machine.id, by=maker, permission="private")
    task_id = await _private_task(office, maker, agent)
    await refused(maker.http.post(f"{API}/tasks/{task_id}/retry"), 409, "task_not_terminal")
    attempt_id, _ = await office.started(machine, task_id)
    await office.ended(task_id, attempt_id)
    await refused(office.owner.http.post(f"{API}/tasks/{task_id}/retry"), 403, "invocation_not_allowed")
    response = await maker.http.post(f"{API}/tasks/{task_id}/retry")
    assert response.status_code == 202
    assert response.headers["location"] == f"{API}/tasks/{response.json()['task_id']}"


async def test_transcript_is_read_in_pages(office: Office) -> None:
    """Events come oldest first; ``next`` is where to go on, null at the end so far."""
    task_id = await office.task(await office.agent((await office.machine()).id))
    await office.said(task_id, 1, 5)
    path = f"{API}/tasks/{task_id}/events"
    page = await answered(office.owner.http.get(path, params={"limit": 3}))
    assert [item["seq"] for item in page["items"]] == [1, 2, 3]
    assert page["next"] == 3
    rest = await answered(office.owner.http.get(path, params={"after": page["next"]}))
    assert [item["data"]["text"] for item in rest["items"]] == ["line 4", "line 5"]
    assert rest["next"] is None


async def test_numbers_about_the_workspace(office: Office, other_office: Office) -> None:
    """Statistics count this workspace's tasks, the operator's metrics all of them."""
    machine = await office.machine()
    agent = await office.agent(machine.id)
    done = await office.task(agent)
    attempt_id, _ = await office.started(machine, done)
    await office.ended(done, attempt_id)
    await office.task(agent)
    stats = await answered(office.owner.http.get(f"{API}/stats"))
    assert stats["tasks"] == {"queued": 1, "completed": 1}
    assert stats["reasons"] == {"completed": 1}
    assert stats["continuity"] == {"first": 1}
    assert stats["queue_wait"]["count"] == 1
    assert stats["queue_wait"]["median_seconds"] > 0
    assert (await answered(other_office.owner.http.get(f"{API}/stats")))["tasks"] == {}
    text = (await office.client().get("/metrics")).text
    samples = {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert samples["segue_tasks", "queued"] == 1
    assert samples["segue_tasks_ended", "completed"] == 1
    assert samples["segue_outbox_unsent",] >= 1
    assert samples["segue_http_requests_total", "POST", f"{API}/issues", "201"] == 2


async def test_readiness_names_what_is_missing(office: Office, deps: ApiDeps) -> None:
    """Ready means database, schema and Temporal; a Temporal that is away or silent is named."""
    assert (await answered(office.client().get("/readyz")))["status"] == "ready"

    async def away() -> None:
        raise ConnectionError("connection refused")

    async def silent() -> None:
        await asyncio.Event().wait()

    for check, words in ((away, "connection refused"), (silent, "no answer within 2 s")):
        app = create_app(replace(deps, temporal_check=check))
        async with opened(app, deps.database) as other:
            answer = await answered(other.client().get("/readyz"), 503)
            assert answer["checks"] == {"database": "ok", "temporal": words}
            assert (await other.owner.http.get(f"{API}/me")).status_code == 200


async def test_openapi_documents_problems_and_tokens(office: Office) -> None:
    """Every call under the prefix names the bearer scheme and its problems; all references resolve."""
    document = await answered(office.client().get("/openapi.json"))
    assert document["openapi"].startswith("3.1")
    for path, operations in document["paths"].items():
        for operation in operations.values():
            if path.startswith(API):
                assert operation["security"] == [{"bearer": []}]
                problem = operation["responses"]["401"]["content"]["application/problem+json"]
                assert problem["schema"] == {"$ref": "#/components/schemas/Problem"}
    assert "HTTPValidationError" not in json.dumps(document)
    schemas = document["components"]["schemas"]
    for reference in _references(document):
        assert reference.removeprefix("#/components/schemas/") in schemas


def _references(value: Any) -> list[str]:
    if isinstance(value, dict):
        own = [value["$ref"]] if isinstance(value.get("$ref"), str) else []
        return own + [found for item in value.values() for found in _references(item)]
    if isinstance(value, list):
        return [found for item in value for found in _references(item)]
    return []


async def _listed(person: Person, **params: Any) -> list[str]:
    answer = await answered(person.http.get(f"{API}/tasks", params=params))
    return [item["id"] for item in answer["items"]]


async def _make_chat_task(office: Office, task_id: str, creator: Person) -> None:
    """Turn a task into one of a chat, as the chats will make them."""
    chat_id = new_id()
    async with office.database.begin() as conn:
        task = (await conn.execute(Task.__table__.select().where(Task.id == UUID(task_id)))).one()
        await conn.execute(
            insert(Chat).values(
                id=chat_id,
                workspace_id=office.workspace_id,
                creator_id=creator.id,
                agent_id=task.agent_id,
                title="Private",
            )
        )
        await conn.execute(
            update(Task).where(Task.id == task.id).values(kind="chat", chat_id=chat_id, issue_id=None)
        )


async def _private_task(office: Office, maker: Person, agent: dict[str, Any]) -> str:
    body = {"title": "x", "assignee": {"type": "agent", "id": agent["id"]}}
    created = await answered(maker.http.post(f"{API}/issues", json=body), 201)
    task_id: str = created["triggered"][0]["task_id"]
    return task_id
