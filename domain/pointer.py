"""The resume pointer: what an attempt goes on from. `resolve` is pure and complete.

Rules of the design's section 5. The session and the directory are decided separately: a refused
session leaves the directory, and a lost directory takes the session with it on the machine (the
gate's work, not this module's).

A chat that continues a run knows one session more than its own: its seed (section 6). What the chat
has of its own goes before it.
"""

from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum
from uuid import UUID

from pydantic import BaseModel, ConfigDict

from domain.reasons import poisons
from domain.statuses import Continuity, ContinuityReason


class PointerMode(StrEnum):
    """Where a task looks for its pointer."""

    LANE = "lane"  # the lane's latest session (the normal case)
    FRESH = "fresh"  # asked for (a rerun, the first turn after ``/new``): no session, new directory
    TASK = "task"  # retry of one task: that task's own session and directory


class SessionFacts(BaseModel):
    """A session that the lane knows, with the state of its last run."""

    model_config = ConfigDict(frozen=True)

    id: UUID
    provider: str
    provider_session_id: str
    runtime_id: UUID
    directory_id: UUID | None
    last_status: str | None = None
    last_reason: str | None = None
    last_ended_at: datetime | None = None
    retired_at: datetime | None = None
    retired_reason: str | None = None
    #: Another lane's, which this one was seeded with.
    foreign: bool = False


class DirectoryFacts(BaseModel):
    """A directory that the lane knows."""

    model_config = ConfigDict(frozen=True)

    id: UUID
    runtime_id: UUID
    created_at: datetime
    gone: bool = False
    gone_reason: str | None = None
    #: A project's own directory: used only as long as it is the one that the task has to use.
    local: bool = False


class PointerFacts(BaseModel):
    """Everything `resolve` decides from."""

    model_config = ConfigDict(frozen=True)

    mode: PointerMode
    provider: str
    runtime_id: UUID
    #: Newest first by the end of their last run.
    sessions: Sequence[SessionFacts] = ()
    #: Last used first. In mode TASK: the source task's own directory alone.
    directories: Sequence[DirectoryFacts] = ()
    #: Has any attempt of this lane (or of the source task, or of the seed's) started before?
    ran_before: bool = False
    #: The directory that the task's project, or its chat's seed, prescribes on this runtime; it is always
    #: the one decided.
    local_directory_id: UUID | None = None
    #: The first turn of a continuation that could not carry its session: why.
    withheld: ContinuityReason | None = None
    #: A foreign session is branched off instead of being gone on with.
    fork: bool = False


class ResumeDecision(BaseModel):
    """The pointer of an attempt. No directory means: a new one."""

    model_config = ConfigDict(frozen=True)

    session_id: UUID | None
    directory_id: UUID | None
    continuity: Continuity
    reason: ContinuityReason | None = None
    #: Go on in a branch of the session, which itself stays as it is.
    fork: bool = False


def resolve(facts: PointerFacts) -> ResumeDecision:
    """Decide session, directory and continuity."""
    if facts.mode is PointerMode.FRESH:
        return ResumeDecision(
            session_id=None,
            directory_id=facts.local_directory_id,
            continuity=Continuity.FRESH,
            reason=ContinuityReason.ASKED_FOR,
        )
    directory_id, lost_directory = _directory(facts)
    session, refusal = _session(facts)
    if session is not None and _session_lives_elsewhere(session, directory_id):
        refusal = lost_directory or _why_elsewhere(facts, session)
        session = None
    if session is not None:
        return ResumeDecision(
            session_id=session.id,
            directory_id=directory_id,
            continuity=Continuity.RESUMED,
            fork=facts.fork and session.foreign,
        )
    # A lost directory says more than a refused session: people must not look for files that are gone.
    reason = lost_directory or refusal
    return ResumeDecision(
        session_id=None,
        directory_id=directory_id,
        continuity=Continuity.FIRST if reason is None else Continuity.LOST,
        reason=reason,
    )


def _directory(facts: PointerFacts) -> tuple[UUID | None, ContinuityReason | None]:
    """The project's own directory, else the newest usable one on this runtime, and what was lost by it."""
    if facts.local_directory_id is not None:
        return facts.local_directory_id, _moved(facts, facts.local_directory_id)
    own = [directory for directory in facts.directories if not directory.local]
    for directory in own:
        if directory.runtime_id == facts.runtime_id and not directory.gone:
            return directory.id, None
    if not own or not facts.ran_before:
        return None, None
    if own[0].runtime_id == facts.runtime_id:
        return None, ContinuityReason.WORKDIR_GONE
    return None, ContinuityReason.RUNTIME_CHANGED


def _moved(facts: PointerFacts, directory_id: UUID) -> ContinuityReason | None:
    """The lane has worked in another directory so far, and what it left is there."""
    latest = facts.sessions[0] if facts.sessions else None
    before = {directory.id for directory in facts.directories}
    if latest is not None and latest.runtime_id == facts.runtime_id and latest.directory_id is not None:
        before = {latest.directory_id}
    return ContinuityReason.DIRECTORY_CHANGED if before and directory_id not in before else None


def _session(facts: PointerFacts) -> tuple[SessionFacts | None, ContinuityReason | None]:
    """The session to resume, or why the latest one is refused (None, None: there never was one)."""
    latest = facts.sessions[0] if facts.sessions else None
    if latest is None and facts.withheld is not None:
        return None, facts.withheld
    if latest is None:
        return None, ContinuityReason.SESSION_NEVER_RECORDED if facts.ran_before else None
    refusal = session_refusal(latest, provider=facts.provider, runtime_id=facts.runtime_id)
    return (None, refusal) if refusal else (latest, None)


def session_refusal(session: SessionFacts, *, provider: str, runtime_id: UUID) -> ContinuityReason | None:
    """Why ``session`` can't be resumed here, or None. Judged by the session's own latest state."""
    if session.runtime_id != runtime_id:
        return ContinuityReason.RUNTIME_CHANGED
    if session.provider != provider:
        return ContinuityReason.PROVIDER_CHANGED
    if session.retired_at is not None:
        return retirement_reason(session.retired_reason)
    if session.last_reason and session.last_status == "failed" and poisons(session.last_reason):
        return ContinuityReason.POISONED
    return None


def retirement_reason(retired_reason: str | None) -> ContinuityReason:
    """The word for people: what a session was retired for."""
    if retired_reason in {reason.value for reason in ContinuityReason}:
        return ContinuityReason(retired_reason)
    if retired_reason and poisons(retired_reason):
        return ContinuityReason.POISONED
    return ContinuityReason.RETIRED


def _session_lives_elsewhere(session: SessionFacts, directory_id: UUID | None) -> bool:
    """CLIs find sessions by their start directory, so a session without its directory is lost."""
    return directory_id is None or (session.directory_id is not None and session.directory_id != directory_id)


def _why_elsewhere(facts: PointerFacts, session: SessionFacts) -> ContinuityReason:
    """The lane no longer works in a project's own directory, or its newest run recorded no session."""
    own = {directory.id: directory for directory in facts.directories if not directory.local}
    home = own.get(session.directory_id) if session.directory_id else None
    if home is None:
        return ContinuityReason.DIRECTORY_CHANGED
    return ContinuityReason.WORKDIR_GONE if home.gone else ContinuityReason.SESSION_NEVER_RECORDED
