"""Sessions: a provider's conversations as rows, judged when a run of theirs is recorded.

Rules of the design's section 5: an id that a failed resume made up is never adopted (field notes R1,
R2); poison retires a session in the recording transaction; so do three failures in a row.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import select, update
from sqlalchemy.dialects.postgresql import insert as pg_insert
from sqlalchemy.ext.asyncio import AsyncConnection

from domain.outcomes import Outcome, OutcomeStatus
from domain.reasons import RETIRED_REPEATED_FAILURE, STRIKES, poisons
from store.ids import new_id
from store.models import LaneSession, Session
from store.rows import AnyRow


@dataclass(frozen=True)
class SessionPlace:
    """Where a session lives."""

    workspace_id: UUID
    provider: str
    runtime_id: UUID
    lane_id: UUID
    directory_id: UUID


async def remember(conn: AsyncConnection, place: SessionPlace, provider_session_id: str) -> UUID:
    """The row of a provider's session, made on its first sight, known to the lane from then on."""
    new = pg_insert(Session).values(
        id=new_id(),
        workspace_id=place.workspace_id,
        provider=place.provider,
        provider_session_id=provider_session_id,
        runtime_id=place.runtime_id,
        lane_id=place.lane_id,
        directory_id=place.directory_id,
    )
    rows = await conn.execute(
        new.on_conflict_do_update(
            index_elements=[Session.runtime_id, Session.provider, Session.provider_session_id],
            # Changes nothing, so that the row is returned; no key column, which would lock out
            # the grants that refer to it.
            set_={"retired_at": Session.retired_at},
        ).returning(Session.id)
    )
    session_id: UUID = rows.scalar_one()
    await conn.execute(
        pg_insert(LaneSession).values(lane_id=place.lane_id, session_id=session_id).on_conflict_do_nothing()
    )
    return session_id


async def judge(
    conn: AsyncConnection,
    *,
    place: SessionPlace,
    requested: AnyRow | None,
    outcome: Outcome,
    at: datetime,
    forks: bool = False,
    waits_for_quota: bool,
) -> UUID | None:
    """Record what a run's end says about its session. Returns the session that the run used.

    Only a success proves another id than the requested one; a run that ``forks`` always has one.
    """
    if outcome.refused_session_id is not None and requested is not None:
        await retire(conn, requested.id, "resume_rejected", at)
        requested = None
    emitted = outcome.session_id
    if requested is not None and not forks and outcome.status is not OutcomeStatus.COMPLETED:
        emitted = requested.provider_session_id
    if emitted is None:
        return None
    session_id = await remember(conn, place, emitted)
    if not waits_for_quota:
        await _score(conn, session_id, outcome, at)
    return session_id


async def _score(conn: AsyncConnection, session_id: UUID, outcome: Outcome, at: datetime) -> None:
    failures: Any = Session.consecutive_failures
    if outcome.status is OutcomeStatus.FAILED:
        failures = Session.consecutive_failures + 1
    elif outcome.status is OutcomeStatus.COMPLETED:
        failures = 0
    rows = await conn.execute(
        update(Session)
        .where(Session.id == session_id)
        .values(
            last_status=outcome.status,
            last_reason=outcome.reason,
            last_ended_at=at,
            consecutive_failures=failures,
        )
        .returning(Session.consecutive_failures)
    )
    strikes = rows.scalar_one()
    if outcome.status is not OutcomeStatus.FAILED:
        return
    if poisons(outcome.reason):
        await retire(conn, session_id, outcome.reason, at)
    elif strikes >= STRIKES:
        await retire(conn, session_id, RETIRED_REPEATED_FAILURE, at)


async def retire(conn: AsyncConnection, session_id: UUID, reason: str, at: datetime) -> None:
    """Never resume this session again, through any door."""
    await conn.execute(
        update(Session)
        .where(Session.id == session_id, Session.retired_at.is_(None))
        .values(retired_at=at, retired_reason=reason)
    )


async def load(conn: AsyncConnection, session_id: UUID | None) -> AnyRow | None:
    if session_id is None:
        return None
    rows = await conn.execute(
        select(Session.id, Session.provider_session_id, Session.directory_id).where(Session.id == session_id)
    )
    return rows.one_or_none()
