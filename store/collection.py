"""Which directories and attempt files a machine may delete: the rows that `domain.collection` judges.

A directory that is collected is marked gone in the transaction that answers, under the lease lock, so
that no task is granted it meanwhile; its pointer ends here, whether or not the machine gets to delete it.
"""

from collections.abc import Sequence
from dataclasses import fields
from datetime import timedelta
from uuid import UUID

from sqlalchemy import func, select, text, update
from sqlalchemy.ext.asyncio import AsyncConnection

from domain.collection import (
    AttemptUse,
    CollectionAnswer,
    CollectionDecision,
    CollectionReason,
    CollectionRequest,
    CollectionRules,
    DirectoryCandidate,
    DirectoryUse,
    judge_attempt,
    judge_directory,
)
from store import leases
from store.models import Attempt, Directory
from store.rows import AnyRow

#: ``directories.gone_reason`` of what was collected.
COLLECTED = "collected"


async def check(
    conn: AsyncConnection,
    *,
    workspace_id: UUID,
    runtime_id: UUID,
    request: CollectionRequest,
    rules: CollectionRules,
) -> CollectionAnswer:
    """Decide on everything that is asked about, and give up what may be collected."""
    judge = _Judge(conn, workspace_id, runtime_id, rules)
    directories = await judge.directories(request.directories)
    if not request.dry_run:
        directories = await _give_up(judge, request.directories, directories)
    attempts = await judge.attempts(request.attempts)
    return CollectionAnswer(
        workspace_id=workspace_id, directories=list(directories.values()), attempts=attempts
    )


async def _give_up(
    judge: "_Judge",
    candidates: Sequence[DirectoryCandidate],
    decisions: dict[UUID, CollectionDecision],
) -> dict[UUID, CollectionDecision]:
    """Decide again under the lock on what is about to lose its pointer, and take it away."""
    chosen = [one for one in candidates if _has_pointer(decisions[one.id])]
    if not chosen:
        return decisions
    await leases.lock(judge.conn, judge.workspace_id)
    again = await judge.directories(chosen)
    gone = [one.id for one in again.values() if _has_pointer(one)]
    await judge.conn.execute(
        update(Directory)
        .where(Directory.id.in_(gone), Directory.gone_at.is_(None))
        .values(gone_at=func.now(), gone_reason=COLLECTED)
    )
    return decisions | again


def _has_pointer(decision: CollectionDecision) -> bool:
    return decision.collect and decision.reason not in (CollectionReason.GONE, CollectionReason.ORPHAN)


class _Judge:
    """One runtime's questions in one transaction."""

    def __init__(
        self, conn: AsyncConnection, workspace_id: UUID, runtime_id: UUID, rules: CollectionRules
    ) -> None:
        self.conn = conn
        self.workspace_id = workspace_id
        self._runtime_id = runtime_id
        self._rules = rules

    async def directories(self, candidates: Sequence[DirectoryCandidate]) -> dict[UUID, CollectionDecision]:
        ids = [one.id for one in candidates]
        # Rows of other workspaces are not there, as everywhere.
        rows = await self.conn.execute(_USES, {"workspace_id": self.workspace_id, "ids": ids})
        uses = {row.id: row for row in rows}
        return {one.id: self._directory(one, uses.get(one.id)) for one in candidates}

    def _directory(self, one: DirectoryCandidate, row: AnyRow | None) -> CollectionDecision:
        collect, reason = judge_directory(
            _use(row) if row is not None else None,
            runtime_id=self._runtime_id,
            age=timedelta(seconds=one.age_seconds),
            rules=self._rules,
        )
        return CollectionDecision(id=one.id, collect=collect, reason=reason)

    async def attempts(self, ids: Sequence[UUID]) -> list[CollectionDecision]:
        rows = await self.conn.execute(
            select(Attempt.id, Attempt.runtime_id, Attempt.ended_at).where(
                Attempt.id.in_(ids), Attempt.workspace_id == self.workspace_id
            )
        )
        uses = {row.id: AttemptUse(row.runtime_id, row.ended_at is not None) for row in rows}
        judged = [(one, judge_attempt(uses.get(one), runtime_id=self._runtime_id)) for one in ids]
        return [CollectionDecision(id=one, collect=found[0], reason=found[1]) for one, found in judged]


def _use(row: AnyRow) -> DirectoryUse:
    return DirectoryUse(**{one.name: getattr(row, one.name) for one in fields(DirectoryUse)})


# --- the facts ------------------------------------------------------------------------------------

#: ``guests``: lanes beside its own that know a session in the directory, or were seeded with it.
_USES = text(
    """
    select d.id, d.runtime_id, d.kind,
        d.path is not null as placed,
        d.gone_at is not null as gone,
        exists (select 1 from leases where kind = 'directory' and key = d.id)
            or exists (select 1 from lease_waits where kind = 'directory' and key = d.id) as leased,
        exists (
            select 1 from tasks t where t.lane_id = any(array_append(guests.lanes, d.lane_id))
                and t.status not in ('completed', 'failed', 'cancelled')
        ) as open_task,
        exists (
            select 1 from lanes g join chats c on c.id = g.chat_id
            where g.id = any(guests.lanes) and c.status = 'active' and c.deleted_at is null
        ) as shared,
        issue.deleted_at is not null or chat.deleted_at is not null as subject_deleted,
        -- An autopilot's lane has one run: without an open task it is over.
        coalesce(issue.status in ('done', 'cancelled'), chat.status = 'archived', true) as subject_over,
        now() - greatest(d.created_at, used.at, issue.updated_at, commented.at) as untouched,
        now() - greatest(d.created_at, used.at) as unused
    from directories d
    left join lanes on lanes.id = d.lane_id
    left join issues issue on issue.id = lanes.issue_id
    left join chats chat on chat.id = lanes.chat_id
    left join lateral (
        select max(c.created_at) as at from comments c where c.issue_id = lanes.issue_id
    ) commented on true
    left join lateral (
        select max(coalesce(a.ended_at, a.started_at, a.created_at)) as at
        from attempts a where a.directory_id = d.id
    ) used on true
    left join lateral (
        select array_agg(known.lane_id) as lanes
        from (
            select ls.lane_id from sessions s join lane_sessions ls on ls.session_id = s.id
            where s.directory_id = d.id
            union
            select seed.lane_id from lane_sessions seed where seed.directory_id = d.id
        ) known
        where known.lane_id is distinct from d.lane_id
    ) guests on true
    where d.workspace_id = :workspace_id and d.id = any(:ids)
    """
)
