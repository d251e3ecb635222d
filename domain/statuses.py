"""Statuses of a task, and the words for what became of its context."""

from enum import StrEnum


class TaskStatus(StrEnum):
    """Where a task stands; the last three are final and never change again."""

    DEFERRED = "deferred"
    QUEUED = "queued"
    WAITING = "waiting"
    DISPATCHED = "dispatched"
    RUNNING = "running"
    RETRY_WAIT = "retry_wait"
    WAITING_QUOTA = "waiting_quota"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def terminal(self) -> bool:
        return self in TERMINAL


TERMINAL = frozenset({TaskStatus.COMPLETED, TaskStatus.FAILED, TaskStatus.CANCELLED})
#: Asleep between attempts; keeps lane, directory and session, not the capacity slots.
SLEEPING = frozenset({TaskStatus.RETRY_WAIT, TaskStatus.WAITING_QUOTA})


class TaskKind(StrEnum):
    ISSUE = "issue"
    CHAT = "chat"
    AUTOPILOT = "autopilot"


class Continuity(StrEnum):
    """What became of the pointer in an attempt."""

    FIRST = "first"
    RESUMED = "resumed"
    FRESH = "fresh"
    LOST = "lost"


class ContinuityReason(StrEnum):
    """Why an attempt did not go on with the session that its lane had.

    ``fresh`` reasons were asked for; ``lost`` reasons are disclosed to the agent and to people.
    """

    ASKED_FOR = "asked_for"
    POISONED = "session_poisoned"
    RETIRED = "session_retired"
    RUNTIME_CHANGED = "runtime_changed"
    PROVIDER_CHANGED = "provider_changed"
    WORKDIR_GONE = "workdir_gone"
    DIRECTORY_CHANGED = "directory_changed"
    SESSION_MISSING = "session_missing"
    SESSION_NEVER_RECORDED = "session_never_recorded"
    ROLLOUT_MISSING = "session_rollout_missing"
    RESUME_REJECTED = "resume_rejected"
    SESSION_CHANGED = "session_changed"


class WaitKind(StrEnum):
    """What a waiting task waits for."""

    LANE = "lane"
    DIRECTORY = "directory"
    SESSION = "session"
    AGENT_CAPACITY = "agent_capacity"
    RUNTIME_CAPACITY = "runtime_capacity"
    RUNTIME_OFFLINE = "runtime_offline"


class LeaseKind(StrEnum):
    """Exclusive keys first, capacities after."""

    LANE = "lane"
    DIRECTORY = "directory"
    SESSION = "session"
    AGENT = "agent"
    RUNTIME = "runtime"


EXCLUSIVE_LEASES = frozenset({LeaseKind.LANE, LeaseKind.DIRECTORY, LeaseKind.SESSION})
CAPACITY_LEASES = frozenset({LeaseKind.AGENT, LeaseKind.RUNTIME})


class Permission(StrEnum):
    """Who may start an agent's runs."""

    PRIVATE = "private"
    WORKSPACE = "workspace"
    MEMBERS = "members"


class Role(StrEnum):
    OWNER = "owner"
    ADMIN = "admin"
    MEMBER = "member"
