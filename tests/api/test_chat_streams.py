"""A chat's stream over a real connection: messages, where turns stand, live text, and for whom."""

import asyncio
import json
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import update

from api import chatstreams, streams
from domain.chats import MessageRole, Part
from domain.statuses import Role
from store import messages
from store.models import Agent
from tests.api.office import API, Machine, Office, Person, answered, made_by, refused
from tests.api.wire import PATIENCE, Reader, Server, streaming


class Talk:
    """A chat of the owner's with an agent on a machine of its own."""

    def __init__(self, office: Office, machine: Machine, chat: dict[str, Any]) -> None:
        self.office = office
        self.machine = machine
        self.id: str = chat["id"]
        self.agent_id: str = chat["agent_id"]

    async def say(self, content: str) -> str:
        path = f"{API}/chats/{self.id}/messages"
        sent = await made_by(self.office.owner.http.post(path, json={"content": content}))
        return str(sent["task_id"])

    def stream(self, server: Server, by: Person | None = None, **request: Any) -> Any:
        path = f"/chats/{self.id}/events/stream"
        return streaming(server.url, by or self.office.owner, path, **request)

    async def post(self, what: str) -> None:
        await answered(self.office.owner.http.post(f"{API}/chats/{self.id}/{what}"))


@pytest.fixture
async def talk(office: Office) -> Talk:
    machine = await office.machine()
    agent = await office.agent(machine.id)
    chat = await made_by(office.owner.http.post(f"{API}/chats", json={"agent_id": agent["id"]}))
    return Talk(office, machine, chat)


def _of(seen: list[tuple[str, dict[str, Any]]], event: str) -> list[dict[str, Any]]:
    return [data for name, data in seen if name == event]


async def _statuses(reader: Reader, last: str) -> list[tuple[str, dict[str, Any]]]:
    """The events up to the one that says that a turn has this status."""
    seen: list[tuple[str, dict[str, Any]]] = []
    while not seen or (seen[-1][0], seen[-1][1].get("status")) != ("task", last):
        seen += await reader.until("task")
    return seen


async def test_a_turn_is_followed_from_the_question_to_the_reply(talk: Talk, server: Server) -> None:
    """The chat first, then the question, live text while it runs, the reply after all of it, the end last."""
    async with talk.stream(server) as reader:
        (first,) = await reader.until("chat")
        assert first[1]["id"] == talk.id
        task_id = await talk.say("hello")
        (question,) = _of(await reader.until("message"), "message")
        assert (question["role"], question["content"], question["task_id"]) == ("user", "hello", task_id)
        attempt_id, _ = await talk.office.started(talk.machine, task_id)
        await talk.office.said(task_id, 1, 2)
        await talk.office.said(task_id, 3, 1)
        texts: list[dict[str, Any]] = []
        while len(texts) < 3:
            texts += _of(await reader.until("text"), "text")
        assert [text["text"] for text in texts] == ["line 1", "line 2", "line 3"]
        assert {text["task_id"] for text in texts} == {task_id}
        await talk.office.said(task_id, 4, 1)
        await talk.office.ended(task_id, attempt_id)
        rest = await _statuses(reader, "completed")
        names = [name for name, _ in rest]
        assert names.index("text") < names.index("message") < len(names) - 1
        (reply,) = _of(rest, "message")
        assert (reply["role"], reply["task_id"]) == ("assistant", task_id)


async def test_a_reader_comes_back_with_the_last_number(talk: Talk, server: Server) -> None:
    """Only messages have numbers: those above come again, and what a turn at work has said so far."""
    task_id = await talk.say("one")
    await talk.say("two")
    await talk.office.started(talk.machine, task_id)
    await talk.office.said(task_id, 1, 2)
    async with talk.stream(server) as reader:
        seen = await reader.until("message") + await reader.until("message")
    numbers = [message["seq"] for message in _of(seen, "message")]
    assert len(_of(seen, "text")) == 2
    async with talk.stream(server, headers={"Last-Event-ID": str(numbers[0])}) as reader:
        again = await reader.until("message")
    assert [message["seq"] for message in _of(again, "message")] == numbers[1:]
    assert [text["text"] for text in _of(again, "text")] == ["line 1", "line 2"]
    async with talk.stream(server, params={"after": numbers[1]}) as reader:
        await talk.say("three")
        (third,) = _of(await reader.until("message"), "message")
    assert third["content"] == "three"


async def test_changes_of_a_message_come_as_messages(talk: Talk, server: Server) -> None:
    """An edited question comes again with its new words; a removed and a cancelled one say so."""
    edited, removed, cancelled = [await talk.say(text) for text in ("one", "two", "three")]
    queue = f"{API}/chats/{talk.id}/queue"
    owner = talk.office.owner.http
    async with talk.stream(server) as reader:
        for _ in range(3):
            await reader.until("message")
        await answered(owner.patch(f"{queue}/{edited}", json={"content": "ONE"}))
        assert _of(await reader.until("message"), "message")[0]["content"] == "ONE"
        await answered(owner.delete(f"{queue}/{removed}"))
        (gone,) = _of(await reader.until("removed"), "removed")
        assert (gone["state"], gone["content"]) == ("removed", "two")
        await answered(owner.post(f"{API}/tasks/{cancelled}/cancel"), 202)
        (draft,) = _of(await reader.until("removed"), "removed")
        assert (draft["state"], draft["content"]) == ("draft", "three")


async def test_a_waiting_turn_shows_for_whom(talk: Talk, server: Server) -> None:
    """The task event has the wait's kind and its holder."""
    first, second = await talk.say("one"), await talk.say("two")
    await talk.office.started(talk.machine, first)
    await talk.office.asked(second)
    async with talk.stream(server) as reader:
        (waiting,) = [one for one in _of(await _statuses(reader, "waiting"), "task") if one["wait_reason"]]
    assert waiting["task_id"] == second
    assert (waiting["wait_reason"]["kind"], waiting["wait_reason"]["holder_task_id"]) == ("lane", first)


async def test_an_archived_chat_ends_its_stream_once_it_is_at_rest(talk: Talk, server: Server) -> None:
    """What was sent before goes on to its end, and is seen; then the stream ends, and ends again."""
    task_id = await talk.say("one")
    async with talk.stream(server) as reader:
        await reader.until("message")
        await talk.post("archive")
        while (await reader.until("chat"))[-1][1]["status"] != "archived":
            pass
        attempt_id, _ = await talk.office.started(talk.machine, task_id)
        await talk.office.ended(task_id, attempt_id)
        seen = await reader.until("end")
        assert [message["role"] for message in _of(seen, "message")] == ["assistant"]
        assert seen[-1][1] == {"status": "archived"}
        assert await reader.next() == {}
    async with talk.stream(server) as reader:
        assert len(_of(await reader.until("end"), "message")) == 2


async def test_a_deleted_chat_ends_its_stream(talk: Talk, server: Server) -> None:
    """With a word why; after that there is no such chat."""
    async with talk.stream(server) as reader:
        await reader.until("chat")
        assert (await talk.office.owner.http.delete(f"{API}/chats/{talk.id}")).status_code == 204
        assert (await reader.until("end"))[-1][1] == {"status": "deleted"}
        assert await reader.next() == {}
    stream = f"{API}/chats/{talk.id}/events/stream"
    await refused(talk.office.owner.http.get(stream), 404, "not_found")


async def test_a_long_history_comes_whole(talk: Talk, server: Server) -> None:
    """More messages and more text than one look takes: all of it, in order, each once."""
    count = 2 * chatstreams.MESSAGES_A_LOOK + 1
    async with talk.office.database.begin() as conn:
        for number in range(count):
            draft = messages.Draft(MessageRole.ASSISTANT, f"m{number}", 1, Part.REPLY)
            await messages.write(conn, UUID(talk.id), draft)
    task_id = await talk.say("last")
    await talk.office.started(talk.machine, task_id)
    long = streams.CHAPTER_EVENTS + 1
    await talk.office.said(task_id, 1, long)
    seen: list[tuple[str, dict[str, Any]]] = []
    async with talk.stream(server) as reader:
        while len(_of(seen, "message")) <= count:
            seen += await reader.until("message")
    assert [one["content"] for one in _of(seen, "message")] == [*(f"m{n}" for n in range(count)), "last"]
    assert [one["seq"] for one in _of(seen, "text")] == list(range(1, long + 1))


async def test_news_come_by_notification(talk: Talk, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages, a new turn's words and a new title need no look-around."""
    monkeypatch.setattr(streams, "LOOK_AROUND_SECONDS", 2 * PATIENCE)
    async with talk.stream(server) as reader:
        await reader.until("chat")
        for number in range(1, 4):
            task_id = await talk.say(f"m{number}")
            await reader.until("message")
            attempt_id, _ = await talk.office.started(talk.machine, task_id)
            await talk.office.said(task_id, 1, 1)
            await reader.until("text")
            await talk.office.ended(task_id, attempt_id)
            await _statuses(reader, "completed")
        renamed = talk.office.owner.http.patch(f"{API}/chats/{talk.id}", json={"title": "Renamed"})
        await answered(renamed)
        while (await reader.until("chat"))[-1][1]["title"] != "Renamed":
            pass


async def test_nobody_elses_stream_has_a_word_of_it(talk: Talk, server: Server) -> None:
    """Members, admins, tasks and machines are refused; a second member's own streams stay empty of it."""
    office = talk.office
    second, admin = await office.person(), await office.person(Role.ADMIN)
    task_id = await talk.say("a secret question")
    attempt_id, started = await office.started(talk.machine, task_id)
    chat_stream = f"{API}/chats/{talk.id}/events/stream"
    task_stream = f"{API}/tasks/{task_id}/events/stream"
    for person in (second, admin):
        await refused(person.http.get(chat_stream), 404, "not_found")
        await refused(person.http.get(task_stream), 404, "not_found")
    await refused(office.client().get(chat_stream), 401, "unauthenticated")
    await refused(office.client(started["token"]).get(chat_stream), 403, "not_allowed")
    await refused(talk.machine.http.get(chat_stream), 403, "not_allowed")

    theirs = await made_by(second.http.post(f"{API}/chats", json={"agent_id": talk.agent_id}))
    own = Talk(office, talk.machine, theirs)
    async with own.stream(server, second) as reader:
        await reader.until("chat")
        await office.said(task_id, 1, 3)
        await office.ended(task_id, attempt_id)
        path = f"{API}/chats/{own.id}/messages"
        await made_by(second.http.post(path, json={"content": "mine"}))
        seen = await reader.until("message")
    told = json.dumps(seen)
    assert "mine" in told
    for foreign in ("secret", "line 1", task_id, talk.id):
        assert foreign not in told


async def test_a_stream_ends_when_the_agent_becomes_private(talk: Talk, server: Server) -> None:
    """The right is looked at in every read: nothing that comes after its loss is shown."""
    second = await talk.office.person()
    theirs = await made_by(second.http.post(f"{API}/chats", json={"agent_id": talk.agent_id}))
    own = Talk(talk.office, talk.machine, theirs)
    async with own.stream(server, second) as reader:
        await reader.until("chat")
        async with talk.office.database.begin() as conn:
            await conn.execute(
                update(Agent).where(Agent.id == UUID(talk.agent_id)).values(permission="private")
            )
            draft = messages.Draft(MessageRole.ASSISTANT, "too late", 1, Part.REPLY)
            await messages.write(conn, UUID(own.id), draft)
        assert await reader.next() == {}


async def test_many_readers_of_a_chat_get_the_same(talk: Talk, server: Server) -> None:
    """Each from its own place, none misses a message that another one got."""
    async with talk.stream(server) as one, talk.stream(server) as two:
        for number in range(5):
            await talk.say(f"m{number}")
        both = await asyncio.gather(*(_contents(reader, 5) for reader in (one, two)))
    assert both[0] == both[1] == [f"m{number}" for number in range(5)]


async def _contents(reader: Reader, count: int) -> list[str]:
    seen: list[str] = []
    while len(seen) < count:
        seen += [one["content"] for one in _of(await reader.until("message"), "message")]
    return seen
