"""A workspace with people, machines and agents, spoken to over HTTP as each of them."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import httpx
from fastapi import FastAPI
from sqlalchemy import event

from domain.events import EventType, NumberedEvent
from domain.outcomes import Outcome, OutcomeStatus
from domain.retry import RetryPolicy
from domain.statuses import Role
from domain.steps import RecordInput, Resolution, ResolveInput
from store import dispatch, members, recording, tokens, transcripts
from store.database import Database


@dataclass(frozen=True)
class Person:
    """A member and a client with their token."""

    id: UUID
    token: str
    http: httpx.AsyncClient


@dataclass(frozen=True)
class Machine:
    """A runtime and a client with its worker's token."""

    id: str
    token: str
    http: httpx.AsyncClient


class Office:
    """One workspace; its owner is there from the start."""

    def __init__(self, app: FastAPI, database: Database) -> None:
        self.app = app
        self.database = database
        self.workspace_id = UUID(int=0)
        self.clients: list[httpx.AsyncClient] = []
        self.made = 0

    async def open(self) -> "Office":
        async with self.database.begin() as conn:
            self.workspace_id = await members.create_workspace(
                conn, name="Office", slug=f"office-{id(self)}", issue_prefix="SEG"
            )
        self.owner = await self.person(Role.OWNER)
        return self

    async def close(self) -> None:
        for client in self.clients:
            await client.aclose()

    def client(self, token: str | None = None, **headers: str) -> httpx.AsyncClient:
        """A client of the API itself, with this token."""
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        client = httpx.AsyncClient(
            transport=httpx.ASGITransport(self.app, raise_app_exceptions=False),
            base_url="http://localhost",
            headers=headers,
        )
        self.clients.append(client)
        return client

    def name(self, kind: str) -> str:
        self.made += 1
        return f"{kind}-{self.made}"

    async def person(self, role: Role = Role.MEMBER) -> Person:
        name = self.name("person")
        async with self.database.begin() as conn:
            member_id = await members.add_member(
                conn, workspace_id=self.workspace_id, name=name, email=f"{name}@example.org", role=role
            )
            _, token = await tokens.create_member_token(
                conn, workspace_id=self.workspace_id, member_id=member_id
            )
        return Person(member_id, token, self.client(token))

    async def machine(self, *, online: bool = True) -> Machine:
        made = await made_by(self.owner.http.post(API + "/runtimes", json={"name": self.name("machine")}))
        machine = Machine(made["runtime"]["id"], made["token"], self.client(made["token"]))
        if online:
            await answered(machine.http.post(API + "/runtime/register", json=REGISTRATION))
        return machine

    async def agent(self, runtime_id: str | None, by: Person | None = None, **fields: Any) -> dict[str, Any]:
        body = {"name": self.name("agent"), "provider": "script", "runtime_id": runtime_id, **fields}
        made: dict[str, Any] = await made_by((by or self.owner).http.post(API + "/agents", json=body))
        return made

    async def issue(self, **fields: Any) -> dict[str, Any]:
        """The answer of creating an issue: the issue and what it triggered."""
        body = {"title": "An issue", **fields}
        made: dict[str, Any] = await made_by(self.owner.http.post(API + "/issues", json=body))
        return made

    async def task(self, agent: dict[str, Any]) -> str:
        """A queued task of the agent, on an issue of its own."""
        created = await self.issue(assignee={"type": "agent", "id": agent["id"]})
        task_id: str = created["triggered"][0]["task_id"]
        return task_id

    async def asked(self, task_id: str, attempt: int = 1) -> Resolution:
        """What the control worker does when the task's workflow asks for its turn: yes, or a wait."""
        async with self.database.begin() as conn:
            return await dispatch.resolve(
                conn, ResolveInput(task_id=UUID(task_id), attempt=attempt), dispatch.DispatchRules()
            )

    async def dispatched(self, task_id: str, attempt: int = 1) -> Resolution:
        """What the control worker does before the machine is asked to run the task."""
        resolution = await self.asked(task_id, attempt)
        assert resolution.attempt_id is not None, resolution
        return resolution

    async def started(self, machine: Machine, task_id: str) -> tuple[str, dict[str, Any]]:
        """A running task: its attempt's id and the answer to the machine's start."""
        resolution = await self.dispatched(task_id)
        attempt_id = str(resolution.attempt_id)
        path = f"{API}/runtime/attempts/{attempt_id}/start"
        return attempt_id, await answered(machine.http.post(path, json=start_request(attempt_id)))

    async def ended(self, task_id: str, attempt_id: str, reason: str = "completed") -> None:
        """What the control worker records at the end of an attempt."""
        statuses = {"completed": OutcomeStatus.COMPLETED, "cancelled": OutcomeStatus.CANCELLED}
        outcome = Outcome(
            status=statuses.get(reason, OutcomeStatus.FAILED), reason=reason, session_id="session-1"
        )
        async with self.database.begin() as conn:
            await recording.record(
                conn,
                RecordInput(task_id=UUID(task_id), attempt_id=UUID(attempt_id), outcome=outcome),
                RetryPolicy(),
            )

    async def said(self, task_id: str, first: int, count: int) -> None:
        """Text events of the task, stored as the runtime plane stores them."""
        async with self.database.begin() as conn:
            await transcripts.append(conn, task_id=UUID(task_id), attempt=1, events=list(texts(first, count)))

    @contextmanager
    def counted(self) -> Iterator[list[str]]:
        """The SQL statements that are executed inside."""
        statements: list[str] = []

        def note(_conn: Any, _cursor: Any, statement: str, *_rest: Any) -> None:
            statements.append(statement)

        event.listen(self.database.engine.sync_engine, "before_cursor_execute", note)
        try:
            yield statements
        finally:
            event.remove(self.database.engine.sync_engine, "before_cursor_execute", note)


API = "/api/v1"
REGISTRATION = {
    "machine_id": "machine-1",
    "boot_id": "boot-1",
    "slots": 4,
    "providers": [{"name": "script", "version": "1", "path": "/usr/bin/script-agent"}],
    "version": "0.1.0",
}


def start_request(attempt_id: str, **fields: Any) -> dict[str, Any]:
    return {
        "machine_id": "machine-1",
        "boot_id": "boot-1",
        "nonce": "nonce-1",
        "work_dir": f"/w/{attempt_id}",
        "device": 1,
        "inode": 2,
        "continuity": "first",
        **fields,
    }


def texts(first: int, count: int) -> Iterator[NumberedEvent]:
    for seq in range(first, first + count):
        yield NumberedEvent.model_validate(
            {
                "seq": seq,
                "type": EventType.TEXT,
                "at": "2026-01-01T00:00:00Z",
                "data": {"text": f"line {seq}"},
            }
        )


async def answered(call: Any, status: int = 200) -> Any:
    """The JSON of an answer that has this status."""
    response = await call
    assert response.status_code == status, f"{response.status_code}: {response.text}"
    return response.json() if response.content else None


async def made_by(call: Any) -> Any:
    return await answered(call, 201)


async def refused(call: Any, status: int, code: str) -> dict[str, Any]:
    """The problem of an answer that refuses with this status and code."""
    response = await call
    assert response.status_code == status, f"{response.status_code}: {response.text}"
    assert response.headers["content-type"] == "application/problem+json"
    problem: dict[str, Any] = response.json()
    assert problem["code"] == code
    assert problem["status"] == status
    return problem


@asynccontextmanager
async def opened(app: FastAPI, database: Database) -> AsyncIterator[Office]:
    office = await Office(app, database).open()
    yield office
    await office.close()
