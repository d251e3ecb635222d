"""Message answered 201, beside the bare transaction of the same statements, with Temporal up and away."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from uuid import UUID

from sqlalchemy import event

from bench import measure
from bench.lab import Lab
from bench.measure import Row
from bench.services import restarted
from store import comments, issues, tokens
from store.ids import new_id

Statement = tuple[str, Any]

#: Connections prepare a statement that they have seen a few times.
_WARM_UP = 6


async def measured(lab: Lab) -> list[Row]:
    """Two rows. The agent's machine never comes, so that nothing but the request is at work."""
    machine = lab.segue.post("/runtimes", {"name": "never comes"})["runtime"]["id"]
    agent = lab.segue.post("/agents", {"name": "Absent", "provider": "script", "runtime_id": machine})["id"]
    messages = _Messages(lab, agent)
    await messages.record()
    for _ in range(_WARM_UP):
        await messages.floor()
        await messages.ours()
    up = await messages.compare("message answered 201")
    lab.services.kill_temporal()
    try:
        down = await messages.compare("the same while Temporal is down", quiet=False)
    finally:
        await restarted(lab.services)
    await lab.quiet()
    messages.cancel_all()
    return [*up, *down]


class _Messages:
    """Makes the same message again and again: over HTTP, and as bare statements."""

    def __init__(self, lab: Lab, agent: str) -> None:
        self._lab = lab
        self._agent = agent
        self._statements: list[Statement] = []
        self._recorded: set[UUID] = set()
        self._issue = UUID(int=0)

    async def record(self) -> None:
        """Write one message through the store, and keep every statement of its transaction."""
        self._issue = UUID(self._lab.segue.issue("recorded"))
        with _statements_of(self._lab) as statements:
            comment_id, task_id = await self._write(self._issue)
        self._statements = statements
        lane_id = self._lab.rows("select lane_id from tasks where id = %s", task_id)[0][0]
        self._recorded = {self._issue, comment_id, task_id, lane_id}

    async def compare(self, what: str, *, quiet: bool = True) -> list[Row]:
        """Floor, ours, and what lies between: the store's call without HTTP, and an empty request."""
        floor: list[float] = []
        ours: list[float] = []
        stored: list[float] = []
        empty: list[float] = []
        turns = ((self.floor, floor), (self.ours, ours), (self.stored, stored), (self.empty, empty))
        for _ in range(self._lab.size.rounds * 2):
            for measured, series in turns:
                series.append(await measured())
                if quiet:  # each message wakes the waker, whose work must not fall into the next one's time
                    await self._lab.quiet()
        notes = [
            f"{len(self._statements)} statements",
            f"the store's own call, without HTTP, {measure.spread(stored)} ms",
            f"an empty request, GET /me with its one statement, {measure.spread(empty)} ms",
        ]
        return [measure.at_most(what, 1.3, floor=floor, ours=ours, notes=notes)]

    async def ours(self) -> float:
        """Seconds from the request to its 201, of a message on an issue of its own."""
        path = f"/issues/{self._lab.segue.issue('a message')}/comments"
        body = {"body": self._body()}
        began = time.time()
        self._lab.wire.post(path, body)
        return time.time() - began

    async def empty(self) -> float:
        """Seconds of a request that only authenticates."""
        began = time.time()
        self._lab.wire.get("/me")
        return time.time() - began

    async def stored(self) -> float:
        """Seconds that the api's transaction takes in this process, without HTTP."""
        issue_id = UUID(self._lab.segue.issue("a message"))
        began = time.time()
        await self._write(issue_id)
        return time.time() - began

    async def _write(self, issue_id: UUID) -> tuple[UUID, UUID]:
        """What the api does for a comment; the comment and its task."""
        async with self._lab.database.begin() as conn:
            actor = await tokens.authenticate(conn, self._lab.segue.token)
            issue = await issues.standing(conn, actor.workspace_id, str(issue_id))
            draft = comments.Draft(self._body(), "member", actor.member_id)
            comment, triggered = await comments.write(conn, actor, issue, draft)
        task_id = triggered[0].task_id
        assert task_id is not None, "the agent is ready for work"
        return comment.id, task_id

    async def floor(self) -> float:
        """Seconds that the same statements take in one transaction of the same pool."""
        renamed = {known: new_id() for known in self._recorded}
        renamed[self._issue] = UUID(self._lab.segue.issue("a message"))
        statements = [(text, _renamed(values, renamed)) for text, values in self._statements]
        began = time.time()
        async with self._lab.database.begin() as conn:
            for text, values in statements:
                await conn.exec_driver_sql(text, values)
        return time.time() - began

    def cancel_all(self) -> None:
        """Leave no open task behind."""
        for (task_id,) in self._lab.rows("select id from tasks where ended_at is null"):
            self._lab.segue.post(f"/tasks/{task_id}/cancel")

    def _body(self) -> str:
        return f"[@Absent](mention://agent/{self._agent})\nPlease look at this."


@contextmanager
def _statements_of(lab: Lab) -> Iterator[list[Statement]]:
    """Every statement that the engine sends meanwhile, with its parameters."""
    sent: list[Statement] = []

    def note(_conn: Any, _cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        sent.append((statement, parameters))

    engine = lab.database.engine.sync_engine
    event.listen(engine, "before_cursor_execute", note)
    try:
        yield sent
    finally:
        event.remove(engine, "before_cursor_execute", note)


def _renamed(values: Any, names: Mapping[UUID, UUID]) -> Any:
    """The parameters with other ids in the place of those that were recorded."""
    texts = {str(old): str(new) for old, new in names.items()}

    def other(value: Any) -> Any:
        if isinstance(value, UUID):
            return names.get(value, value)
        return texts.get(value, value) if isinstance(value, str) else value

    if isinstance(values, Mapping):
        return {name: other(value) for name, value in values.items()}
    return tuple(other(value) for value in values)
