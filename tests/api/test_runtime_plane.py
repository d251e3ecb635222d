"""The runtime plane: a worker's own attempts, from brief to the last event."""

import asyncio
from typing import Any

from tests.api.office import API, Office, answered, refused, start_request


def events(first: int, count: int, **data: Any) -> dict[str, Any]:
    at = "2026-01-01T00:00:00Z"
    return {
        "events": [
            {"seq": seq, "type": "text", "at": at, "data": {"text": f"line {seq}", **data}}
            for seq in range(first, first + count)
        ]
    }


async def test_brief_start_events_session(office: Office) -> None:
    """One attempt's way through the plane, and every step may be repeated."""
    machine = await office.machine()
    agent = await office.agent(machine.id, env={"KEY": "value"})
    task_id = await office.task(agent)
    path = f"{API}/runtime/attempts/{(await office.dispatched(task_id)).attempt_id}"
    brief = await answered(machine.http.get(f"{path}/brief"))
    assert (brief["task_id"], brief["env"]) == (task_id, {"KEY": "value"})
    request = start_request("1")
    first = await answered(machine.http.post(f"{path}/start", json=request))
    again = await answered(machine.http.post(f"{path}/start", json=request))
    assert (first["started"], again["started"]) == (True, False)
    assert first["token"] == again["token"]
    other = request | {"nonce": "another"}
    await refused(machine.http.post(f"{path}/start", json=other), 409, "attempt_elsewhere")
    posted = await answered(machine.http.post(f"{path}/events", json=events(1, 3)))
    assert posted == {"acked_seq": 3}
    await answered(machine.http.post(f"{path}/session", json={"session_id": "s-1"}), 204)
    await answered(machine.http.post(f"{path}/session", json={"session_id": "s-1"}), 204)
    state = await answered(machine.http.get(path))
    assert (state["standing"], state["first_seq"], state["acked_seq"]) == (True, 1, 3)
    shown = await answered(office.owner.http.get(f"{API}/tasks/{task_id}"))
    assert (shown["session_id"], shown["status"]) == ("s-1", "running")


async def test_events_are_stored_once_and_without_a_gap(office: Office) -> None:
    """Repeated and overlapping batches change nothing; a gap is refused and stores nothing."""
    machine = await office.machine()
    task_id = await office.task(await office.agent(machine.id))
    attempt_id, _ = await office.started(machine, task_id)
    path = f"{API}/runtime/attempts/{attempt_id}/events"
    assert await answered(machine.http.post(path, json=events(1, 4))) == {"acked_seq": 4}
    assert await answered(machine.http.post(path, json=events(2, 2, text="other"))) == {"acked_seq": 4}
    assert await answered(machine.http.post(path, json=events(3, 4))) == {"acked_seq": 6}
    assert await answered(machine.http.post(path, json={"events": []})) == {"acked_seq": 6}
    problem = await refused(machine.http.post(path, json=events(8, 1)), 409, "conflict")
    assert "6" in problem["detail"]
    torn = {"events": [*events(7, 1)["events"], *events(9, 1)["events"]]}
    await refused(machine.http.post(path, json=torn), 422, "unprocessable")
    stored = await answered(office.owner.http.get(f"{API}/tasks/{task_id}/events"))
    assert [item["data"]["text"] for item in stored["items"]] == [f"line {n}" for n in range(1, 7)]


async def test_same_batch_at_once_is_stored_once(office: Office) -> None:
    """Two senders of the same batch both get its acknowledgement."""
    machine = await office.machine()
    task_id = await office.task(await office.agent(machine.id))
    attempt_id, _ = await office.started(machine, task_id)
    path = f"{API}/runtime/attempts/{attempt_id}/events"
    answers = await asyncio.gather(*(answered(machine.http.post(path, json=events(1, 20))) for _ in range(4)))
    assert answers == [{"acked_seq": 20}] * 4


async def test_what_the_database_cannot_hold_is_replaced(office: Office) -> None:
    """NUL and lone surrogates in an event don't stop a run; real emoji are kept."""
    machine = await office.machine()
    task_id = await office.task(await office.agent(machine.id))
    attempt_id, _ = await office.started(machine, task_id)
    body = (
        '{"events": [{"seq": 1, "type": "text", "at": "2026-01-01T00:00:00Z",'
        ' "data": {"text": "a\\u0000b\\ud800c\\ud83d\\ude00", "more": ["\\u0000", {"x": "\\\\u0000"}]}}]}'
    )
    path = f"{API}/runtime/attempts/{attempt_id}/events"
    headers = {"content-type": "application/json"}
    await answered(machine.http.post(path, content=body, headers=headers))
    stored = await answered(office.owner.http.get(f"{API}/tasks/{task_id}/events"))
    assert stored["items"][0]["data"] == {
        "text": "a\ufffdb\ufffdc\U0001f600",
        "more": ["\ufffd", {"x": "\\u0000"}],
    }


async def test_batch_costs_three_statements(office: Office) -> None:
    """Authentication, the attempt's standing, and one statement for all events."""
    machine = await office.machine()
    attempt_id, _ = await office.started(machine, await office.task(await office.agent(machine.id)))
    with office.counted() as statements:
        path = f"{API}/runtime/attempts/{attempt_id}/events"
        await answered(machine.http.post(path, json=events(1, 100)))
    assert len(statements) == 3


async def test_ended_and_foreign_attempts_are_not_there(office: Office) -> None:
    """404 means not yours or gone, on every call of an attempt."""
    machine, other = await office.machine(), await office.machine()
    task_id = await office.task(await office.agent(machine.id))
    attempt_id, _ = await office.started(machine, task_id)
    path = f"{API}/runtime/attempts/{attempt_id}"

    async def gone_for(http: Any) -> None:
        await refused(http.get(f"{path}/brief"), 404, "not_found")
        await refused(http.post(f"{path}/start", json=start_request("1")), 404, "not_found")
        await refused(http.post(f"{path}/events", json=events(1, 1)), 404, "not_found")
        await refused(http.post(f"{path}/session", json={"session_id": "s"}), 404, "not_found")

    await gone_for(other.http)
    await refused(other.http.get(path), 404, "not_found")
    await office.ended(task_id, attempt_id)
    await gone_for(machine.http)
    await refused(machine.http.get(f"{API}/runtime/attempts/nonsense"), 404, "not_found")
