"""Server-sent events over a real connection: history, live, resumed, ended, authorised."""

import asyncio
import signal
import subprocess
import sys
from contextlib import suppress
from typing import Any

import httpx
import pytest
from sqlalchemy import text

from api import streams
from store import tokens
from tests.api.office import API, Office, answered, refused
from tests.api.wire import PATIENCE, Server, reading
from tests.services import ports


async def test_stream_goes_from_history_to_live_to_end(office: Office, server: Server) -> None:
    """What is stored comes first, then what happens, each once; the end has the final status."""
    machine = await office.machine()
    task_id = await office.task(await office.agent(machine.id))
    attempt_id, _ = await office.started(machine, task_id)
    await office.said(task_id, 1, 2)
    async with reading(server.url, office.owner, task_id) as reader:
        headers = reader.response.headers
        assert headers["content-type"].startswith("text/event-stream")
        assert headers["cache-control"] == "no-store"
        assert headers["x-accel-buffering"] == "no"
        first = await reader.next()
        assert (first["id"], first["event"]) == ("1", "text")
        assert '"text":"line 1"' in first["data"]
        assert await reader.texts(1) == ["2"]
        await office.said(task_id, 3, 2)
        assert await reader.texts(2) == ["3", "4"]
        await office.said(task_id, 4, 2)
        assert await reader.texts(1) == ["5"]
        await office.ended(task_id, attempt_id)
        end = await reader.next()
        assert end["event"] == "end"
        assert '"status": "completed"' in end["data"]
        assert "id" not in end
        assert await reader.next() == {}


async def test_stream_is_resumed_after_the_last_event(office: Office, server: Server) -> None:
    """Last-Event-ID goes before ?after=; an ended task's stream can be read again."""
    machine = await office.machine()
    task_id = await office.task(await office.agent(machine.id))
    attempt_id, _ = await office.started(machine, task_id)
    await office.said(task_id, 1, 5)
    await office.ended(task_id, attempt_id)
    async with reading(server.url, office.owner, task_id, params={"after": 3}) as reader:
        assert await reader.texts(2) == ["4", "5"]
        assert (await reader.next())["event"] == "end"
    again: dict[str, Any] = {"params": {"after": 1}, "headers": {"Last-Event-ID": "4"}}
    async with reading(server.url, office.owner, task_id, **again) as reader:
        assert await reader.texts(1) == ["5"]
    async with reading(server.url, office.owner, task_id, headers={"Last-Event-ID": "5"}) as reader:
        assert (await reader.next())["event"] == "end"
    async with reading(server.url, office.owner, task_id, headers={"Last-Event-ID": "x"}) as reader:
        assert await reader.texts(1) == ["1"]


async def test_long_history_comes_whole(office: Office, server: Server) -> None:
    """More events than are fetched at once come in order and without a hole."""
    machine = await office.machine()
    task_id = await office.task(await office.agent(machine.id))
    count = streams.CHAPTER_EVENTS * 2
    await office.said(task_id, 1, count)
    async with reading(server.url, office.owner, task_id) as reader:
        assert await reader.texts(count) == [str(n) for n in range(1, count + 1)]


async def test_many_readers_share_one_listening_connection(office: Office, server: Server) -> None:
    """Every reader of a task gets every event; they share one LISTEN connection."""
    machine = await office.machine()
    task_id = await office.task(await office.agent(machine.id))
    async with (
        reading(server.url, office.owner, task_id) as one,
        reading(server.url, office.owner, task_id) as two,
        reading(server.url, office.owner, task_id) as three,
    ):
        await office.said(task_id, 1, 1)
        assert [await reader.texts(1) for reader in (one, two, three)] == [["1"]] * 3
        assert await _listening(office) == 1


async def _listening(office: Office) -> int:
    """The LISTEN connections of this database, once there is one."""
    query = text(
        "select count(*) from pg_stat_activity "
        "where starts_with(query, 'LISTEN') and datname = current_database()"
    )
    async with asyncio.timeout(PATIENCE):
        while True:
            async with office.database.begin() as conn:
                count = await conn.scalar(query)
            if count:
                return int(count)
            await asyncio.sleep(0.05)


async def test_live_events_come_by_notification(
    office: Office, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader needs no look-around of its own to hear of new events."""
    monkeypatch.setattr(streams, "LOOK_AROUND_SECONDS", 2 * PATIENCE)
    machine = await office.machine()
    task_id = await office.task(await office.agent(machine.id))
    async with reading(server.url, office.owner, task_id) as reader:
        for seq in range(1, 6):
            await office.said(task_id, seq, 1)
            assert await reader.texts(1) == [str(seq)]


async def test_stream_ends_when_the_reader_loses_the_right(
    office: Office, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A revoked token ends a stream that is open, without the end event."""
    monkeypatch.setattr(streams, "RECHECK_SECONDS", 0.0)
    member = await office.person()
    machine = await office.machine()
    task_id = await office.task(await office.agent(machine.id))
    await office.said(task_id, 1, 1)
    async with reading(server.url, member, task_id) as reader:
        assert await reader.texts(1) == ["1"]
        me = await answered(member.http.get(f"{API}/members/{member.id}/tokens"))
        async with office.database.begin() as conn:
            await tokens.revoke_member_token(
                conn,
                workspace_id=office.workspace_id,
                member_id=member.id,
                token_id=me["items"][0]["id"],
            )
        await office.said(task_id, 2, 1)
        assert await reader.next() == {}


SERVE = """
import sys
import uvicorn
from api.app import ApiDeps, create_app
from store.database import Database
from store.secretbox import SecretBox

url, port = sys.argv[1:]
box = SecretBox(SecretBox.new_key())
deps = ApiDeps(database=Database(url), secret_box=box, version="test", allowed_hosts=["127.0.0.1"])
uvicorn.run(create_app(deps), port=int(port), log_level="warning")
"""


async def test_open_streams_do_not_keep_the_server_from_ending(
    office: Office, database_url: str, free_port: int
) -> None:
    """A process that is told to end lets its readers go; they come back with Last-Event-ID."""
    task_id = await office.task(await office.agent((await office.machine()).id))
    await office.said(task_id, 1, 1)
    process = subprocess.Popen([sys.executable, "-c", SERVE, database_url, str(free_port)])
    try:
        async with asyncio.timeout(PATIENCE):
            while not ports.is_listening(free_port):
                assert process.poll() is None
                await asyncio.sleep(0.05)
        async with reading(f"http://127.0.0.1:{free_port}", office.owner, task_id) as reader:
            assert await reader.texts(1) == ["1"]
            process.send_signal(signal.SIGTERM)
            with suppress(httpx.RemoteProtocolError):
                assert await reader.next() == {}
        await asyncio.to_thread(process.wait, PATIENCE)
    finally:
        process.kill()
        process.wait()


async def test_stream_is_refused_like_the_read(office: Office) -> None:
    """No token, and a task that is not there: the same problems as for the task itself."""
    machine = await office.machine()
    task_id = await office.task(await office.agent(machine.id, permission="private"))
    path = f"{API}/tasks/{task_id}/events/stream"
    await refused(office.client().get(path), 401, "unauthenticated")
    await refused((await office.person()).http.get(path), 404, "not_found")
    await refused(office.owner.http.get(path, params={"after": -1}), 422, "unprocessable")
