"""A small workspace to test queries on: rows made directly, steps taken through `store`."""

import asyncio
from collections.abc import Coroutine
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import func, insert, select, text, update
from sqlalchemy.ext.asyncio import AsyncConnection

from domain.brief import StartAnswer, StartRequest
from domain.events import EventType, NumberedEvent
from domain.outcomes import Outcome, OutcomeStatus
from domain.permissions import Actor
from domain.retry import RetryPolicy
from domain.statuses import Continuity, Role, WaitKind
from domain.steps import (
    AsideInput,
    Recorded,
    RecordInput,
    Resolution,
    ResolveInput,
    SettleInput,
    StopResult,
)
from store import attempts, dispatch, enqueue, recording, tasks, transcripts
from store.database import Database
from store.ids import new_id
from store.models import (
    Agent,
    Attempt,
    Comment,
    Issue,
    Lane,
    Lease,
    LeaseWait,
    Member,
    Outbox,
    Runtime,
    Session,
    Task,
    Workspace,
)


class Board:
    """One workspace with a member; agents, issues and comments on demand."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.workspace_id = new_id()
        self.member_id = new_id()
        self.number = 0
        self.rules = dispatch.DispatchRules()

    @property
    def actor(self) -> Actor:
        return Actor(self.workspace_id, member_id=self.member_id, role=Role.OWNER)

    async def open(self) -> "Board":
        async with self.database.begin() as conn:
            await _insert(
                conn,
                Workspace,
                id=self.workspace_id,
                name="W",
                slug=str(self.workspace_id),
                issue_prefix="SEG",
            )
            await _insert(
                conn,
                Member,
                id=self.member_id,
                workspace_id=self.workspace_id,
                name="Ada",
                email="ada@example.org",
                role="owner",
            )
        return self

    async def runtime(self, *, slots: int = 20, online: bool = True) -> UUID:
        runtime_id = new_id()
        async with self.database.begin() as conn:
            await _insert(
                conn,
                Runtime,
                id=runtime_id,
                workspace_id=self.workspace_id,
                name=f"r-{runtime_id}",
                slots=slots,
                online=online,
                last_seen_at=datetime.now(UTC) if online else None,
            )
        return runtime_id

    async def agent(
        self, runtime_id: UUID, *, at_once: int = 6, provider: str = "script", **more: Any
    ) -> UUID:
        agent_id = new_id()
        async with self.database.begin() as conn:
            await _insert(
                conn,
                Agent,
                id=agent_id,
                workspace_id=self.workspace_id,
                name=f"a-{agent_id}",
                provider=provider,
                runtime_id=runtime_id,
                max_concurrent_tasks=at_once,
                **{"owner_id": self.member_id, **more},
            )
        return agent_id

    async def issue(self) -> UUID:
        issue_id = new_id()
        self.number += 1
        async with self.database.begin() as conn:
            await _insert(
                conn,
                Issue,
                id=issue_id,
                workspace_id=self.workspace_id,
                number=self.number,
                title="An issue",
                creator_type="member",
                creator_id=self.member_id,
            )
        return issue_id

    async def comment(self, issue_id: UUID, body: str = "say hi") -> UUID:
        comment_id = new_id()
        async with self.database.begin() as conn:
            await _insert(
                conn,
                Comment,
                id=comment_id,
                workspace_id=self.workspace_id,
                issue_id=issue_id,
                author_type="member",
                author_id=self.member_id,
                body=body,
            )
        return comment_id

    async def trigger(
        self, agent_id: UUID, issue_id: UUID, body: str = "say hi", *, comment_id: UUID | None = None
    ) -> enqueue.Triggered:
        """A comment that starts the agent."""
        comment_id = comment_id or await self.comment(issue_id, body)
        async with self.database.begin() as conn:
            return await enqueue.issue_task(
                conn,
                actor=self.actor,
                target=(await enqueue.targets(conn, self.workspace_id, issue_id, [agent_id]))[0],
                trigger_type="comment",
                comment_id=comment_id,
            )

    async def task(self, agent_id: UUID, issue_id: UUID, body: str = "say hi") -> UUID:
        triggered = await self.trigger(agent_id, issue_id, body)
        assert triggered.task_id is not None
        return triggered.task_id

    async def resolve(
        self, task_id: UUID, attempt: int = 1, *, early: bool = False, **rejected: Any
    ) -> Resolution:
        """What the workflow asks; a further attempt's moment has come, unless it is ``early``."""
        if attempt > 1 and not early:
            await self.change(Task, task_id, retry_at=await self.ago(1))
        async with self.database.begin() as conn:
            return await dispatch.resolve(
                conn, ResolveInput(task_id=task_id, attempt=attempt, **rejected), self.rules
            )

    async def start(self, resolution: Resolution, **changed: Any) -> StartAnswer:
        """What the machine does once its gate has passed; ``changed`` are fields of its request."""
        async with self.database.begin() as conn:
            return await self.start_in(conn, resolution, **changed)

    async def start_in(self, conn: AsyncConnection, resolution: Resolution, **changed: Any) -> StartAnswer:
        assert resolution.attempt_id
        assert resolution.runtime_id
        return await attempts.start(
            conn,
            runtime_id=resolution.runtime_id,
            attempt_id=resolution.attempt_id,
            request=start_request(resolution, **changed),
            token=f"sgt_{resolution.attempt_id}",
        )

    async def pin(self, resolution: Resolution, session: str) -> None:
        assert resolution.attempt_id
        assert resolution.runtime_id
        async with self.database.begin() as conn:
            await attempts.pin_session(
                conn,
                runtime_id=resolution.runtime_id,
                attempt_id=resolution.attempt_id,
                provider_session_id=session,
            )

    async def say(self, task_id: UUID, type_: EventType, **data: Any) -> int:
        """Append one event to the task's transcript; its number."""
        async with self.database.begin() as conn:
            seq = await transcripts.last_seq(conn, task_id) + 1
            event = NumberedEvent(type=type_, data=data, seq=seq, at=datetime.now(UTC))
            return await transcripts.append(conn, task_id=task_id, attempt=1, events=[event])

    async def rerun(self, agent_id: UUID, issue_id: UUID) -> UUID:
        """A rerun of the issue by its assignee: fresh session and directory."""
        await self.change(Issue, issue_id, assignee_type="agent", assignee_id=agent_id)
        async with self.database.begin() as conn:
            return await enqueue.rerun(conn, actor=self.actor, issue_id=issue_id, task_id=None)

    async def retry(self, task_id: UUID) -> UUID:
        async with self.database.begin() as conn:
            return await enqueue.retry(conn, actor=self.actor, task_id=task_id)

    async def cancel(self, task_id: UUID) -> None:
        async with self.database.begin() as conn:
            await tasks.request_cancel(conn, actor=self.actor, task_id=task_id)

    async def set_aside(self, task_id: UUID, resolution: Resolution | None, **more: Any) -> Recorded:
        async with self.database.begin() as conn:
            step = AsideInput(
                task_id=task_id,
                attempt_id=resolution.attempt_id if resolution else None,
                cause="terminated",
                **more,
            )
            return await recording.set_aside(conn, step)

    async def settle(self, resolution: Resolution, found: Outcome | None = None, **more: Any) -> None:
        assert resolution.attempt_id
        async with self.database.begin() as conn:
            step = SettleInput(
                attempt_id=resolution.attempt_id, result=StopResult(stopped=True, outcome=found), **more
            )
            await recording.settle(conn, step)

    async def record(self, task_id: UUID, resolution: Resolution | None, outcome: Outcome) -> Recorded:
        async with self.database.begin() as conn:
            return await recording.record(
                conn,
                RecordInput(
                    task_id=task_id,
                    attempt_id=resolution.attempt_id if resolution else None,
                    outcome=outcome,
                ),
                RetryPolicy(),
            )

    async def run(
        self, task_id: UUID, *, session: str | None = "s-1", reason: str = "completed", **more: Any
    ) -> Resolution:
        """One whole attempt: granted, started, ended with this reason."""
        resolution = await self.running(task_id)
        await self.record(task_id, resolution, outcome(reason, session, **more))
        return resolution

    async def running(self, task_id: UUID) -> Resolution:
        """An attempt that is granted and started."""
        resolution = await self.resolve(task_id)
        await self.start(resolution)
        return resolution

    async def row(self, task_id: UUID) -> Any:
        return (await self.rows(select(Task.__table__).where(Task.id == task_id)))[0]

    async def attempt(self, resolution: Resolution) -> Any:
        query = select(Attempt.__table__).where(Attempt.id == resolution.attempt_id)
        return (await self.rows(query))[0]

    async def attempts(self, task_id: UUID) -> list[Any]:
        query = select(Attempt.__table__).where(Attempt.task_id == task_id)
        return await self.rows(query.order_by(Attempt.number))

    async def until_blocked(self, waiting: "asyncio.Task[Any]") -> None:
        """Return once a statement of another transaction waits for a lock, or ``waiting`` is done."""
        blocked = text(
            "select 1 from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
        )
        async with asyncio.timeout(60):
            while not waiting.done() and not await self.rows(blocked):
                await asyncio.sleep(0.005)

    async def leases(self) -> list[tuple[str, UUID | None]]:
        rows = await self.rows(select(Lease.kind, Lease.task_id).order_by(Lease.kind))
        return [(row.kind, row.task_id) for row in rows]

    async def waits(self) -> dict[UUID, Any]:
        return {row.task_id: row for row in await self.rows(select(LeaseWait.__table__))}

    async def session(self, provider_session_id: str) -> Any:
        query = select(Session.__table__).where(Session.provider_session_id == provider_session_id)
        return (await self.rows(query))[0]

    async def comments(self, issue_id: UUID) -> list[Any]:
        """The issue's comments, oldest first."""
        query = select(Comment.__table__).where(Comment.issue_id == issue_id)
        return await self.rows(query.order_by(Comment.created_at, Comment.id))

    async def outbox(self, kind: str) -> list[UUID]:
        rows = await self.rows(select(Outbox.subject_id).where(Outbox.kind == kind).order_by(Outbox.id))
        return [row.subject_id for row in rows]

    async def rows(self, query: Any) -> list[Any]:
        async with self.database.begin() as conn:
            return list((await conn.execute(query)).all())

    async def change(self, model: Any, row_id: UUID, **values: Any) -> None:
        async with self.database.begin() as conn:
            await conn.execute(update(model).where(model.id == row_id).values(**values))

    async def insert(self, model: Any, /, **values: Any) -> None:
        async with self.database.begin() as conn:
            await _insert(conn, model, **values)

    async def crowd(self, template: Any, count: int, *, rank: datetime) -> None:
        """Many tasks like this one, each in a lane of its own, all waiting for its agent's capacity."""
        for _ in range(count):
            task_id, lane_id = new_id(), new_id()
            await self.insert(
                Lane, id=lane_id, workspace_id=self.workspace_id, kind="autopilot", agent_id=template.agent_id
            )
            own = {"id": task_id, "lane_id": lane_id, "lane_position": 1, "status": "waiting"}
            await self.insert(Task, **(template._asdict() | own))
            await self.insert(
                LeaseWait,
                task_id=task_id,
                workspace_id=self.workspace_id,
                kind=WaitKind.AGENT_CAPACITY,
                key=template.agent_id,
                rank=rank,
            )

    async def change_attempt(self, resolution: Resolution, **values: Any) -> None:
        assert resolution.attempt_id
        await self.change(Attempt, resolution.attempt_id, **values)

    async def at_once(self, *calls: Coroutine[Any, Any, Any]) -> None:
        await asyncio.gather(*calls)

    async def now(self) -> datetime:
        moment: datetime = (await self.rows(select(func.now().label("moment"))))[0].moment
        return moment

    async def ago(self, seconds: float) -> datetime:
        return await self.now() - timedelta(seconds=seconds)


def start_request(resolution: Resolution, **changed: Any) -> StartRequest:
    values: dict[str, Any] = {
        "machine_id": "m",
        "boot_id": "b",
        "nonce": str(resolution.attempt_id),
        "work_dir": resolution.work_dir or f"/w/{resolution.attempt_id}",
        "device": 1,
        "inode": 1,
        "continuity": resolution.continuity or Continuity.FIRST,
        "continuity_reason": resolution.continuity_reason,
    }
    return StartRequest(**(values | changed))


def outcome(reason: str = "completed", session: str | None = "s-1", **more: Any) -> Outcome:
    statuses = {"completed": OutcomeStatus.COMPLETED, "cancelled": OutcomeStatus.CANCELLED}
    return Outcome(
        status=statuses.get(reason, OutcomeStatus.FAILED), reason=reason, session_id=session, **more
    )


async def _insert(conn: AsyncConnection, model: Any, /, **values: Any) -> None:
    await conn.execute(insert(model).values(**values))
