"""Sessions: a provider's conversations as rows, judged when a run of theirs is recorded.

Rules of the design's section 5: an id that a failed resume made up is never adopted (field notes R1,
R2); poison retires a session in the recording transaction; so do three failures in a row.
"""

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from sqlalchemy import func, text, update
from sqlalchemy.ext.asyncio import AsyncConnection

from domain.outcomes import Outcome, OutcomeStatus
from domain.reasons import RETIRED_REPEATED_FAILURE, STRIKES, poisons
from store.ids import new_id
from store.models import Session

#: A moment by the database's clock: one that it has written, or (None) its present one.
Moment = datetime | None


@dataclass(frozen=True)
class SessionPlace:
    """Where a session lives."""

    workspace_id: UUID
    provider: str
    runtime_id: UUID
    lane_id: UUID
    directory_id: UUID
    #: The lane's context that its run belongs to.
    context: int = 0


@dataclass(frozen=True)
class KnownSession:
    """A session that has a row."""

    id: UUID
    provider_session_id: str


# The conflict changes nothing, so that the row is returned; no key column, which would lock out the
# grants that refer to it.
_REMEMBER = text(
    """
    with known as (
        insert into sessions
            (id, workspace_id, provider, provider_session_id, runtime_id, lane_id, directory_id)
        values
            (:id, :workspace_id, :provider, :provider_session_id, :runtime_id, :lane_id, :directory_id)
        on conflict (runtime_id, provider, provider_session_id)
        do update set retired_at = sessions.retired_at
        returning id
    ), of_lane as (
        insert into lane_sessions (lane_id, session_id, context)
        select cast(:lane_id as uuid), id, cast(:context as integer) from known
        on conflict do nothing
    )
    select id from known
    """
)


async def remember(conn: AsyncConnection, place: SessionPlace, provider_session_id: str) -> UUID:
    """The row of a provider's session, made on its first sight, known to the lane from then on."""
    rows = await conn.execute(
        _REMEMBER,
        {
            "id": new_id(),
            "workspace_id": place.workspace_id,
            "provider": place.provider,
            "provider_session_id": provider_session_id,
            "runtime_id": place.runtime_id,
            "lane_id": place.lane_id,
            "directory_id": place.directory_id,
            "context": place.context,
        },
    )
    session_id: UUID = rows.scalar_one()
    return session_id


async def judge(
    conn: AsyncConnection,
    *,
    place: SessionPlace,
    requested: KnownSession | None,
    pinned: KnownSession | None,
    outcome: Outcome,
    at: Moment,
    forks: bool = False,
    waits_for_quota: bool,
) -> UUID | None:
    """Record what a run's end says about its session. Returns the session that the run used.

    Only a success proves another id than the requested one, and no id proves nothing; a run that
    ``forks`` always has its own. ``pinned`` is the one that `remember` was told of while it ran.
    """
    if outcome.refused_session_id is not None and requested is not None:
        await retire(conn, requested.id, "resume_rejected", at)
        requested = None
    emitted = outcome.session_id
    proven = emitted is not None and outcome.status is OutcomeStatus.COMPLETED
    if requested is not None and not forks and not proven:
        emitted = requested.provider_session_id
    if emitted is None:
        return None
    if pinned is not None and pinned.provider_session_id == emitted:
        session_id = pinned.id
    else:
        session_id = await remember(conn, place, emitted)
    await _score(conn, session_id, outcome, at, strikes=not waits_for_quota)
    return session_id


# A run that was judged late does not turn back the time.
_SCORE = text(
    """
    update sessions
    set last_status = :status, last_reason = :reason,
        last_ended_at = greatest(last_ended_at, coalesce(cast(:at as timestamptz), now())),
        consecutive_failures = case when cast(:failed as boolean) then consecutive_failures + 1
                                    when cast(:completed as boolean) then 0
                                    else consecutive_failures end
    where id = :session_id
    returning consecutive_failures
    """
)


async def _score(
    conn: AsyncConnection, session_id: UUID, outcome: Outcome, at: Moment, *, strikes: bool
) -> None:
    """Its last run has ended; without ``strikes`` the failure is waited out and held against nobody."""
    failed = strikes and outcome.status is OutcomeStatus.FAILED
    rows = await conn.execute(
        _SCORE,
        {
            "session_id": session_id,
            "status": outcome.status,
            "reason": outcome.reason,
            "at": at,
            "failed": failed,
            "completed": outcome.status is OutcomeStatus.COMPLETED,
        },
    )
    in_a_row = rows.scalar_one()
    if not failed:
        return
    if poisons(outcome.reason):
        await retire(conn, session_id, outcome.reason, at)
    elif in_a_row >= STRIKES:
        await retire(conn, session_id, RETIRED_REPEATED_FAILURE, at)


async def retire(conn: AsyncConnection, session_id: UUID, reason: str, at: Moment) -> None:
    """Never resume this session again, through any door."""
    await conn.execute(
        update(Session)
        .where(Session.id == session_id, Session.retired_at.is_(None))
        .values(retired_at=at or func.now(), retired_reason=reason)
    )
