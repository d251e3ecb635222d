"""What may be deleted on an agent machine: `judge_directory` and `judge_attempt` are pure and complete.

The machine says what lies in its root and deletes; whether it may is decided here, from the rows. What
somebody could still go on from is kept; what is collected loses its pointer in the same step, so that
the next run starts fresh and says so (field notes W11).
"""

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field

#: Directories, and attempts, that one call asks about.
COLLECTION_BATCH = 500


class CollectionReason(StrEnum):
    """Why something is collected (the first group) or kept."""

    GONE = "gone"  # nothing goes on from it any more
    DELETED = "deleted"  # its issue or chat was deleted
    SETTLED = "settled"  # its issue or chat is over, and has been left alone since
    UNUSED = "unused"
    NEVER_USED = "never_used"  # made for a run that never started
    ORPHAN = "orphan"  # there is no row of it
    ENDED = "ended"  # the attempt

    LOCAL_DIRECTORY = "local_directory"  # a project's own: never collected
    OTHER_RUNTIME = "other_runtime"
    LEASED = "leased"
    OPEN_TASK = "open_task"  # a task of a lane that can go on from it has not ended
    RECENT = "recent"
    UNKNOWN = "unknown"  # no row of it, but too young to be sure
    STANDING = "standing"  # the attempt


class CollectionRules(BaseModel):
    """Configured times: how long things are kept."""

    model_config = ConfigDict(frozen=True)

    #: After an issue or chat is over and nobody has touched it.
    settled: timedelta = timedelta(hours=24)
    #: After the last use, whatever the issue says.
    unused: timedelta = timedelta(days=30)
    #: Of a directory that no row knows: a database that was restored knows less than the machine.
    orphan: timedelta = timedelta(hours=72)


class CollectionDecision(BaseModel):
    """One answer: may the machine delete it?"""

    model_config = ConfigDict(frozen=True)

    id: UUID
    collect: bool
    reason: CollectionReason


class DirectoryCandidate(BaseModel):
    """A managed directory on the machine, by its marker."""

    id: UUID
    #: Since the marker was written, by the machine's own clock; unknown directories are judged by it.
    age_seconds: float = 0.0


class CollectionRequest(BaseModel):
    """Body of ``POST /runtime/gc/check``. With ``dry_run`` the answer is the same and nothing changes."""

    directories: list[DirectoryCandidate] = Field(default_factory=list, max_length=COLLECTION_BATCH)
    attempts: list[UUID] = Field(default_factory=list, max_length=COLLECTION_BATCH)
    dry_run: bool = False


class CollectionAnswer(BaseModel):
    """One decision for each id; ``workspace_id`` is the caller's, for the machine's own check."""

    workspace_id: UUID
    directories: list[CollectionDecision]
    attempts: list[CollectionDecision]


@dataclass(frozen=True)
class DirectoryUse:
    """What the rows say about a directory."""

    runtime_id: UUID
    kind: str
    #: Something has run in it.
    placed: bool
    gone: bool
    #: Somebody holds its lease, or waits for it.
    leased: bool
    #: In its own lane, or in one that was seeded with it.
    open_task: bool
    #: A living chat goes on from it beside its own lane.
    shared: bool
    #: Its own lane's issue or chat.
    subject_deleted: bool
    subject_over: bool
    #: Since a person or a run last touched the subject, and since a run last used the directory.
    untouched: timedelta
    unused: timedelta


def judge_directory(
    use: DirectoryUse | None, *, runtime_id: UUID, age: timedelta, rules: CollectionRules
) -> tuple[bool, CollectionReason]:
    """(collect, why) for a directory of this runtime; ``use`` is None when no row knows it."""
    if use is None:
        orphan = age > rules.orphan
        return orphan, CollectionReason.ORPHAN if orphan else CollectionReason.UNKNOWN
    kept = _why_kept(use, runtime_id)
    if kept is not None:
        return False, kept
    collected = _why_collected(use, rules)
    return collected is not None, collected or CollectionReason.RECENT


def _why_kept(use: DirectoryUse, runtime_id: UUID) -> CollectionReason | None:
    """What no age outweighs."""
    if use.runtime_id != runtime_id:
        return CollectionReason.OTHER_RUNTIME
    if use.kind != "managed":
        return CollectionReason.LOCAL_DIRECTORY
    if use.leased:
        return CollectionReason.LEASED
    # A task that has not ended goes on elsewhere when the directory is gone already.
    return CollectionReason.OPEN_TASK if use.open_task and not use.gone else None


def _why_collected(use: DirectoryUse, rules: CollectionRules) -> CollectionReason | None:
    if use.gone:
        return CollectionReason.GONE
    if use.subject_deleted and not use.shared:
        return CollectionReason.DELETED
    if use.subject_over and not use.shared and use.untouched > rules.settled:
        return CollectionReason.SETTLED
    if not use.placed and use.unused > rules.settled:
        return CollectionReason.NEVER_USED
    return CollectionReason.UNUSED if use.unused > rules.unused else None


@dataclass(frozen=True)
class AttemptUse:
    """What the rows say about an attempt."""

    runtime_id: UUID
    ended: bool


def judge_attempt(use: AttemptUse | None, *, runtime_id: UUID) -> tuple[bool, CollectionReason]:
    """(collect, why) for the files of an attempt that are old enough for the machine's own rule."""
    if use is None:
        return True, CollectionReason.ORPHAN
    if use.runtime_id != runtime_id:
        return False, CollectionReason.OTHER_RUNTIME
    return use.ended, CollectionReason.ENDED if use.ended else CollectionReason.STANDING
