"""Chats over HTTP: private to their creator, one turn a message, a queue that people can change."""

import asyncio
from typing import Any
from uuid import UUID

import httpx
from sqlalchemy import select, update

from domain.chats import MessageRole, Part
from domain.statuses import Role
from store import messages
from store.models import Lane, Message, Outbox, Task
from tests.api.office import API, Office, answered, made_by, refused


async def _chat(office: Office, **fields: Any) -> dict[str, Any]:
    agent = await office.agent((await office.machine()).id)
    chat: dict[str, Any] = await made_by(
        office.owner.http.post(f"{API}/chats", json={"agent_id": agent["id"], **fields})
    )
    return chat


async def _send(office: Office, chat: dict[str, Any], content: str) -> dict[str, Any]:
    path = f"{API}/chats/{chat['id']}/messages"
    sent: dict[str, Any] = await made_by(office.owner.http.post(path, json={"content": content}))
    return sent


async def _get(office: Office, chat: dict[str, Any], part: str) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = (await answered(office.owner.http.get(f"{API}/chats/{chat['id']}/{part}")))[
        "items"
    ]
    return items


async def test_a_message_owns_its_task(office: Office) -> None:
    """Each message queues a task of its own in the chat's lane, and Temporal is to be told of the turn."""
    chat = await _chat(office)
    first = await _send(office, chat, "hello\nworld")
    second = await _send(office, chat, "again")
    assert (first["queued"], second["queued"]) == (False, True)
    async with office.database.begin() as conn:
        tasks = (await conn.execute(select(Task.__table__).order_by(Task.lane_position))).all()
        outbox = (await conn.execute(select(Outbox.kind, Outbox.subject_id).order_by(Outbox.id))).all()
    assert [str(task.id) for task in tasks] == [first["task_id"], second["task_id"]]
    assert {(task.kind, str(task.chat_id), task.issue_id) for task in tasks} == {("chat", chat["id"], None)}
    assert [(row.kind, str(row.subject_id)) for row in outbox] == [
        ("turn", first["task_id"]),
        ("turn", second["task_id"]),
    ]
    shown = await _get(office, chat, "messages")
    assert [(one["role"], one["content"], one["queued"]) for one in shown] == [
        ("user", "hello\nworld", True),
        ("user", "again", True),
    ]
    assert (await answered(office.owner.http.get(f"{API}/chats/{chat['id']}")))["title"] == "hello"


async def test_twenty_sends_at_once_keep_one_order(office: Office) -> None:
    """Concurrent messages get distinct, gapless places."""
    chat = await _chat(office)
    await asyncio.gather(*(_send(office, chat, f"number {n}") for n in range(20)))
    async with office.database.begin() as conn:
        places = (await conn.scalars(select(Task.lane_position).order_by(Task.lane_position))).all()
        seqs = (await conn.scalars(select(Message.seq).order_by(Message.seq))).all()
    assert list(places) == list(range(1, 21))
    assert list(seqs) == list(range(1, 21))


async def test_a_chat_is_its_creators_alone(office: Office) -> None:
    """Another member, an administrator and another workspace's owner all find nothing."""
    chat = await _chat(office)
    sent = await _send(office, chat, "a secret")
    other = await office.person()
    admin = await office.person(Role.ADMIN)
    base = f"{API}/chats/{chat['id']}"
    for person in (other, admin):
        for path in (base, f"{base}/messages", f"{base}/queue", f"{base}/drafts"):
            await refused(person.http.get(path), 404, "not_found")
        await refused(person.http.post(f"{base}/messages", json={"content": "x"}), 404, "not_found")
        await refused(person.http.delete(f"{base}/queue/{sent['task_id']}"), 404, "not_found")
        await refused(person.http.post(f"{base}/archive"), 404, "not_found")
        await refused(person.http.delete(base), 404, "not_found")
        assert (await answered(person.http.get(f"{API}/chats")))["items"] == []
    assert len(await _get(office, chat, "messages")) == 1


async def test_a_new_context_runs_nothing(office: Office) -> None:
    """`/new` alone answers without a task, and the turns after it belong to another context."""
    chat = await _chat(office)
    before = await _send(office, chat, "one")
    command = await _send(office, chat, " /new \n")
    after = await _send(office, chat, "two")
    assert command["task_id"] is None
    async with office.database.begin() as conn:
        rows = (await conn.execute(select(Task.id, Task.context))).all()
    assert {row.id: row.context for row in rows} == {UUID(before["task_id"]): 0, UUID(after["task_id"]): 1}
    shown = await _get(office, chat, "messages")
    assert [(one["role"], one["kind"]) for one in shown] == [
        ("user", "message"),
        ("system", "notice"),
        ("user", "message"),
    ]


async def test_the_queue_can_be_changed(office: Office) -> None:
    """A waiting turn is edited, put first, and removed with its words given back."""
    chat = await _chat(office)
    first, second, third = [await _send(office, chat, text) for text in ("one", "two", "three")]
    base = f"{API}/chats/{chat['id']}/queue"
    edited = await answered(office.owner.http.patch(f"{base}/{second['task_id']}", json={"content": "TWO"}))
    assert edited["content"] == "TWO"
    await answered(office.owner.http.post(f"{base}/{third['task_id']}/send-now"))
    assert [one["content"] for one in await _get(office, chat, "queue")] == ["three", "one", "TWO"]
    assert [one["content"] for one in await _get(office, chat, "messages")] == ["three", "one", "TWO"]
    removed = await answered(office.owner.http.delete(f"{base}/{first['task_id']}"))
    assert removed == {"content": "one"}
    assert [one["content"] for one in await _get(office, chat, "queue")] == ["three", "TWO"]
    assert await _get(office, chat, "drafts") == []
    await refused(office.owner.http.delete(f"{base}/{first['task_id']}"), 409, "already_started")


async def test_a_dispatched_turn_can_no_longer_be_changed(office: Office) -> None:
    """From the moment that an attempt was dispatched, the words are the agent's."""
    chat = await _chat(office)
    sent = await _send(office, chat, "one")
    async with office.database.begin() as conn:
        await conn.execute(
            update(Task).where(Task.id == UUID(sent["task_id"])).values(attempt=1, status="dispatched")
        )
    path = f"{API}/chats/{chat['id']}/queue/{sent['task_id']}"
    await refused(office.owner.http.patch(path, json={"content": "x"}), 409, "already_started")
    await refused(office.owner.http.delete(path), 409, "already_started")
    await refused(office.owner.http.post(f"{path}/send-now"), 409, "already_started")


async def test_a_cancelled_waiting_turn_gives_its_words_back(office: Office) -> None:
    """Cancelling the task before it started makes a draft of its message; it can be discarded."""
    chat = await _chat(office)
    sent = await _send(office, chat, "one")
    await answered(office.owner.http.post(f"{API}/tasks/{sent['task_id']}/cancel"), 202)
    assert await _get(office, chat, "messages") == []
    (draft,) = await _get(office, chat, "drafts")
    assert draft["content"] == "one"
    path = f"{API}/chats/{chat['id']}/drafts/{draft['id']}"
    assert (await office.owner.http.delete(path)).status_code == 204
    assert await _get(office, chat, "drafts") == []
    await refused(office.owner.http.delete(path), 404, "not_found")


async def test_an_archived_chat_can_only_be_read(office: Office) -> None:
    """Sending, editing and removing answer 409; unarchiving lets it go on."""
    chat = await _chat(office)
    sent = await _send(office, chat, "one")
    base = f"{API}/chats/{chat['id']}"
    assert (await answered(office.owner.http.post(f"{base}/archive")))["status"] == "archived"
    for call in (
        office.owner.http.post(f"{base}/messages", json={"content": "x"}),
        office.owner.http.post(f"{base}/messages", json={"content": "/new"}),
        office.owner.http.patch(f"{base}/queue/{sent['task_id']}", json={"content": "x"}),
        office.owner.http.delete(f"{base}/queue/{sent['task_id']}"),
        office.owner.http.post(f"{base}/queue/{sent['task_id']}/send-now"),
    ):
        await refused(call, 409, "chat_archived")
    assert len(await _get(office, chat, "messages")) == 1
    assert (await answered(office.owner.http.post(f"{base}/unarchive")))["status"] == "active"
    await _send(office, chat, "two")


async def test_a_deleted_chat_is_gone_and_its_tasks_are_cancelled(office: Office) -> None:
    """Nothing of it can be read any more, and what waited has ended."""
    chat = await _chat(office)
    sent = await _send(office, chat, "one")
    base = f"{API}/chats/{chat['id']}"
    assert (await office.owner.http.delete(base)).status_code == 204
    await refused(office.owner.http.get(base), 404, "not_found")
    await refused(office.owner.http.get(f"{base}/messages"), 404, "not_found")
    await refused(office.owner.http.post(f"{base}/messages", json={"content": "x"}), 404, "not_found")
    async with office.database.begin() as conn:
        status = await conn.scalar(select(Task.status).where(Task.id == UUID(sent["task_id"])))
    assert status == "cancelled"


async def test_what_cannot_run_is_refused_and_nothing_is_kept(office: Office) -> None:
    """No right, an archived agent, an agent without a machine, an empty message: no message, no task."""
    other = await office.person()
    agent = await office.agent((await office.machine()).id)
    chat = await made_by(other.http.post(f"{API}/chats", json={"agent_id": agent["id"]}))
    path = f"{API}/chats/{chat['id']}/messages"

    async def send(content: str = "x") -> httpx.Response:
        return await other.http.post(path, json={"content": content})

    await refused(send("  \n"), 422, "unprocessable")
    await answered(office.owner.http.patch(f"{API}/agents/{agent['id']}", json={"runtime_id": None}))
    await refused(send(), 400, "invalid_input")
    await answered(office.owner.http.post(f"{API}/agents/{agent['id']}/archive"))
    await refused(send(), 400, "invalid_input")
    await answered(office.owner.http.patch(f"{API}/agents/{agent['id']}", json={"permission": "private"}))
    await refused(send(), 404, "not_found")
    async with office.database.begin() as conn:
        assert (await conn.scalars(select(Message.id))).all() == []
        assert (await conn.scalars(select(Lane.message_seq))).all() == [0]


async def test_a_private_agent_is_no_agent_to_others(office: Office) -> None:
    """A chat with an agent that one may not see can't be made; nor with one that is seen and not allowed."""
    agent = await office.agent((await office.machine()).id, permission="private")
    other = await office.person()
    admin = await office.person(Role.ADMIN)
    body = {"agent_id": agent["id"]}
    await refused(other.http.post(f"{API}/chats", json=body), 404, "not_found")
    await refused(admin.http.post(f"{API}/chats", json=body), 403, "invocation_not_allowed")


async def test_messages_come_in_pages(office: Office) -> None:
    """Oldest first, continued by the cursor; the last ones can be asked for directly."""
    chat = await _chat(office, title="Pages")
    for number in range(5):
        await _send(office, chat, f"m{number}")
    path = f"{API}/chats/{chat['id']}/messages"
    seen: list[str] = []
    cursor: str | None = None
    while True:
        query: dict[str, str] = {"limit": "2"} | ({"cursor": cursor} if cursor else {})
        page = await answered(office.owner.http.get(path, params=query))
        seen += [one["content"] for one in page["items"]]
        cursor = page["next"]
        if cursor is None:
            break
    assert seen == [f"m{number}" for number in range(5)]
    last = await answered(office.owner.http.get(path, params={"last": "2"}))
    assert [one["content"] for one in last["items"]] == ["m3", "m4"]
    await refused(office.owner.http.get(path, params={"cursor": "nonsense"}), 400, "invalid_input")
    assert (await answered(office.owner.http.get(f"{API}/chats/{chat['id']}")))["title"] == "Pages"


async def test_unread_counts_what_the_agent_said(office: Office) -> None:
    """Replies above the mark count; the mark never goes back; an archived chat has none."""
    chat = await _chat(office)
    await _send(office, chat, "one")
    async with office.database.begin() as conn:
        for number in range(2):
            await messages.write(
                conn, UUID(chat["id"]), messages.Draft(MessageRole.ASSISTANT, f"r{number}", 1, Part.REPLY)
            )
    base = f"{API}/chats/{chat['id']}"
    assert (await answered(office.owner.http.get(base)))["unread"] == 2
    assert (await answered(office.owner.http.post(f"{base}/read", json={"up_to_seq": 2})))["unread"] == 1
    assert (await answered(office.owner.http.post(f"{base}/read")))["unread"] == 0
    assert (await answered(office.owner.http.post(f"{base}/read", json={"up_to_seq": 1})))["unread"] == 0
