"""All tables. Foreign keys stay inside a workspace; where the design says *soft*, there is none.

Time columns are ``timestamptz``; ids are UUIDv7 made by `store.ids.new_id`. Status and kind columns
are text with the values of `domain.statuses`.
"""

from datetime import datetime
from typing import Any, ClassVar
from uuid import UUID

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    DateTime,
    ForeignKey,
    Identity,
    Index,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    SmallInteger,
    UniqueConstraint,
    Uuid,
    func,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSONB
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from store.ids import new_id

_NAMING = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s",
    "pk": "pk_%(table_name)s",
}
_OPEN = "status not in ('completed', 'failed', 'cancelled')"


class Base(DeclarativeBase):
    metadata = MetaData(naming_convention=_NAMING)
    type_annotation_map: ClassVar = {
        UUID: Uuid(),
        datetime: DateTime(timezone=True),
        dict[str, Any]: JSONB,
        list[dict[str, Any]]: JSONB,
        list[str]: JSONB,
    }


class _Row:
    """Columns that nearly every table has."""

    id: Mapped[UUID] = mapped_column(primary_key=True, default=new_id)
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())


class _Owned(_Row):
    """A row of one workspace; every query on it names the workspace."""

    workspace_id: Mapped[UUID] = mapped_column(ForeignKey("workspaces.id", ondelete="CASCADE"))


# --- people ---------------------------------------------------------------------------------------


class Workspace(_Row, Base):
    __tablename__ = "workspaces"

    name: Mapped[str]
    slug: Mapped[str] = mapped_column(unique=True)
    issue_prefix: Mapped[str]
    issue_counter: Mapped[int] = mapped_column(default=0, server_default="0")


class Member(_Owned, Base):
    __tablename__ = "members"
    __table_args__ = (UniqueConstraint("workspace_id", "email"),)

    name: Mapped[str]
    email: Mapped[str]
    role: Mapped[str]


class Token(_Row, Base):
    """A bearer token, kept as a SHA-256 hash. Exactly one of member, runtime and attempt owns it."""

    __tablename__ = "tokens"
    __table_args__ = (
        CheckConstraint("num_nonnulls(member_id, runtime_id, attempt_id) = 1", name="one_owner"),
        Index(None, "attempt_id", unique=True, postgresql_where=text("attempt_id is not null")),
        Index(None, "runtime_id", postgresql_where=text("runtime_id is not null")),
        Index(None, "member_id", postgresql_where=text("member_id is not null")),
    )

    workspace_id: Mapped[UUID] = mapped_column(ForeignKey("workspaces.id", ondelete="CASCADE"))
    hash: Mapped[bytes] = mapped_column(LargeBinary, unique=True)
    name: Mapped[str | None]
    member_id: Mapped[UUID | None] = mapped_column(ForeignKey("members.id", ondelete="CASCADE"))
    runtime_id: Mapped[UUID | None] = mapped_column(ForeignKey("runtimes.id", ondelete="CASCADE"))
    attempt_id: Mapped[UUID | None] = mapped_column(ForeignKey("attempts.id", ondelete="CASCADE"))
    expires_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]


# --- machines and teammates -----------------------------------------------------------------------


class Runtime(_Owned, Base):
    """One agent machine. ``online`` is what the control worker last decided from ``last_seen_at``."""

    __tablename__ = "runtimes"
    __table_args__ = (
        Index(None, "workspace_id", "name", unique=True, postgresql_where=text("deleted_at is null")),
    )

    name: Mapped[str]
    machine_id: Mapped[str | None]
    boot_id: Mapped[str | None]
    version: Mapped[str | None]
    slots: Mapped[int] = mapped_column(default=20, server_default="20")
    providers: Mapped[list[dict[str, Any]]] = mapped_column(default=list, server_default="[]")
    online: Mapped[bool] = mapped_column(default=False, server_default="false")
    draining: Mapped[bool] = mapped_column(default=False, server_default="false")
    free_bytes: Mapped[int | None] = mapped_column(BigInteger)
    last_seen_at: Mapped[datetime | None]
    offline_since: Mapped[datetime | None]
    deleted_at: Mapped[datetime | None]


class Agent(_Owned, Base):
    __tablename__ = "agents"
    __table_args__ = (
        Index(None, "workspace_id", "name", unique=True, postgresql_where=text("archived_at is null")),
        Index(None, "runtime_id"),
    )

    name: Mapped[str]
    provider: Mapped[str]
    model: Mapped[str | None]
    instructions: Mapped[str] = mapped_column(default="", server_default="")
    runtime_id: Mapped[UUID | None] = mapped_column(ForeignKey("runtimes.id", ondelete="SET NULL"))
    #: The agent's environment as JSON, encrypted (`store.secretbox`); the names are public.
    env_sealed: Mapped[bytes | None] = mapped_column(LargeBinary)
    env_names: Mapped[list[str]] = mapped_column(default=list, server_default="[]")
    args: Mapped[list[str]] = mapped_column(default=list, server_default="[]")
    max_concurrent_tasks: Mapped[int] = mapped_column(default=6, server_default="6")
    permission: Mapped[str] = mapped_column(default="workspace", server_default="workspace")
    allowed_member_ids: Mapped[list[UUID]] = mapped_column(ARRAY(Uuid()), default=list, server_default="{}")
    owner_id: Mapped[UUID | None] = mapped_column(ForeignKey("members.id", ondelete="SET NULL"))
    archived_at: Mapped[datetime | None]


# --- the board ------------------------------------------------------------------------------------


class Project(_Owned, Base):
    __tablename__ = "projects"

    name: Mapped[str]
    description: Mapped[str] = mapped_column(default="", server_default="")


class ProjectResource(_Owned, Base):
    __tablename__ = "project_resources"
    __table_args__ = (
        Index(None, "project_id"),
        Index(
            "uq_project_resources_local",
            "project_id",
            "runtime_id",
            unique=True,
            postgresql_where=text("kind = 'local_directory'"),
        ),
        Index(
            "ix_project_resources_unchecked",
            "runtime_id",
            postgresql_where=text("kind = 'local_directory' and checked_at is null"),
        ),
    )

    project_id: Mapped[UUID] = mapped_column(ForeignKey("projects.id", ondelete="CASCADE"))
    kind: Mapped[str]
    url: Mapped[str | None]
    ref: Mapped[str | None]
    runtime_id: Mapped[UUID | None] = mapped_column(ForeignKey("runtimes.id", ondelete="CASCADE"))
    path: Mapped[str | None]
    #: What the runtime said about a local directory: the row of its real path, or why it is refused.
    checked_at: Mapped[datetime | None]
    directory_id: Mapped[UUID | None] = mapped_column(ForeignKey("directories.id", ondelete="SET NULL"))
    refusal: Mapped[str | None]


class Issue(_Owned, Base):
    __tablename__ = "issues"
    __table_args__ = (
        UniqueConstraint("workspace_id", "number"),
        Index(None, "workspace_id", text("created_at desc"), text("id desc")),
        Index(None, "parent_id", postgresql_where=text("parent_id is not null")),
    )

    number: Mapped[int]
    title: Mapped[str]
    body: Mapped[str] = mapped_column(default="", server_default="")
    status: Mapped[str] = mapped_column(default="todo", server_default="todo")
    priority: Mapped[str] = mapped_column(default="none", server_default="none")
    assignee_type: Mapped[str | None]
    assignee_id: Mapped[UUID | None]
    parent_id: Mapped[UUID | None] = mapped_column(ForeignKey("issues.id", ondelete="SET NULL"))
    project_id: Mapped[UUID | None] = mapped_column(ForeignKey("projects.id", ondelete="SET NULL"))
    stage: Mapped[int | None]
    creator_type: Mapped[str]
    creator_id: Mapped[UUID | None]
    updated_at: Mapped[datetime] = mapped_column(server_default=func.now())
    deleted_at: Mapped[datetime | None]


class Comment(_Owned, Base):
    __tablename__ = "comments"
    __table_args__ = (
        Index(None, "issue_id", "created_at", "id"),
        Index(None, "source_task_id", postgresql_where=text("source_task_id is not null")),
    )

    issue_id: Mapped[UUID] = mapped_column(ForeignKey("issues.id", ondelete="CASCADE"))
    author_type: Mapped[str]  # member, agent or system
    author_id: Mapped[UUID | None]
    body: Mapped[str]
    parent_id: Mapped[UUID | None] = mapped_column(ForeignKey("comments.id", ondelete="SET NULL"))
    #: The task that wrote it (soft).
    source_task_id: Mapped[UUID | None]
    edited_at: Mapped[datetime | None]
    deleted_at: Mapped[datetime | None]


# --- chats ----------------------------------------------------------------------------------------


class Chat(_Owned, Base):
    __tablename__ = "chats"
    __table_args__ = (
        Index(None, "creator_id", text("created_at desc"), text("id desc")),
        Index(
            "uq_chats_continuation",
            "continued_from_task_id",
            "creator_id",
            unique=True,
            postgresql_where=text("continued_from_task_id is not null and deleted_at is null"),
        ),
    )

    creator_id: Mapped[UUID] = mapped_column(ForeignKey("members.id", ondelete="CASCADE"))
    agent_id: Mapped[UUID] = mapped_column(ForeignKey("agents.id", ondelete="CASCADE"))
    title: Mapped[str]
    status: Mapped[str] = mapped_column(default="active", server_default="active")
    #: Where the chat's tasks run; null means the agent's current binding.
    runtime_id: Mapped[UUID | None] = mapped_column(ForeignKey("runtimes.id", ondelete="SET NULL"))
    #: The finished run this chat goes on from (soft).
    continued_from_task_id: Mapped[UUID | None]
    session_carried: Mapped[bool | None]
    session_reason: Mapped[str | None]
    fork: Mapped[bool] = mapped_column(default=False, server_default="false")
    #: The creator has seen every message up to this ``seq``.
    last_read_seq: Mapped[int] = mapped_column(BigInteger, default=0, server_default="0")
    deleted_at: Mapped[datetime | None]


class Message(_Owned, Base):
    """One message of a chat. People read them by (``turn``, ``part``, ``seq``).

    ``seq`` is taken under the lane row's lock and taken anew by every change, so that a reader who
    asks for what is above the last number it saw misses nothing.
    """

    __tablename__ = "messages"
    __table_args__ = (
        Index(None, "chat_id", "seq", unique=True),
        Index(None, "chat_id", "turn", "part", "seq"),
        Index(None, "task_id", postgresql_where=text("task_id is not null")),
    )

    chat_id: Mapped[UUID] = mapped_column(ForeignKey("chats.id", ondelete="CASCADE"))
    seq: Mapped[int] = mapped_column(BigInteger)
    #: The lane position of its task, and its place in that turn (`domain.chats.Part`).
    turn: Mapped[int] = mapped_column(BigInteger)
    part: Mapped[int] = mapped_column(SmallInteger)
    #: ``shown``, ``draft`` (given back to its author), or ``removed`` (`domain.chats.MessageState`).
    state: Mapped[str] = mapped_column(default="shown", server_default="shown")
    role: Mapped[str]
    content: Mapped[str]
    kind: Mapped[str] = mapped_column(default="message", server_default="message")
    reason: Mapped[str | None]
    #: The task that owns a user's message, or that produced a reply (soft).
    task_id: Mapped[UUID | None]


# --- tasks ----------------------------------------------------------------------------------------


class Lane(_Owned, Base):
    """The line along which context continues. Its row lock orders enqueueing."""

    __tablename__ = "lanes"
    __table_args__ = (
        Index(
            "uq_lanes_issue",
            "agent_id",
            "issue_id",
            unique=True,
            postgresql_where=text("kind = 'issue'"),
        ),
        Index("uq_lanes_chat", "chat_id", unique=True, postgresql_where=text("kind = 'chat'")),
    )

    kind: Mapped[str]
    agent_id: Mapped[UUID] = mapped_column(ForeignKey("agents.id", ondelete="CASCADE"))
    issue_id: Mapped[UUID | None] = mapped_column(ForeignKey("issues.id", ondelete="CASCADE"))
    chat_id: Mapped[UUID | None] = mapped_column(ForeignKey("chats.id", ondelete="CASCADE"))
    autopilot_run_id: Mapped[UUID | None]
    last_position: Mapped[int] = mapped_column(BigInteger, default=0, server_default="0")
    #: Raised by ``/new``: sessions and directories never cross it.
    context: Mapped[int] = mapped_column(default=0, server_default="0")
    #: The last ``seq`` of the chat's messages.
    message_seq: Mapped[int] = mapped_column(BigInteger, default=0, server_default="0")


class Task(_Owned, Base):
    """One turn of work. Order inside the lane is ``lane_position``; ``rank`` orders across lanes."""

    __tablename__ = "tasks"
    __table_args__ = (
        Index(None, "lane_id", "lane_position", unique=True),
        Index("ix_tasks_open_lane", "lane_id", "lane_position", postgresql_where=text(_OPEN)),
        Index("ix_tasks_open_checked", "workflow_checked_at", postgresql_where=text(_OPEN)),
        Index("ix_tasks_list", "workspace_id", text("id desc")),
        Index("ix_tasks_agent", "agent_id", text("id desc")),
        Index("ix_tasks_issue", "issue_id", text("id desc"), postgresql_where=text("issue_id is not null")),
        Index("ix_tasks_chat", "chat_id", text("id desc"), postgresql_where=text("chat_id is not null")),
        Index("ix_tasks_runtime", "runtime_id", text("id desc")),
        Index("ix_tasks_quota", "agent_id", "retry_at", postgresql_where=text("status = 'waiting_quota'")),
    )

    lane_id: Mapped[UUID] = mapped_column(ForeignKey("lanes.id", ondelete="CASCADE"))
    lane_position: Mapped[int] = mapped_column(BigInteger)
    #: The lane's ``context`` when it was queued.
    context: Mapped[int] = mapped_column(default=0, server_default="0")
    rank: Mapped[datetime]
    kind: Mapped[str]
    trigger_type: Mapped[str]
    trigger_comment_id: Mapped[UUID | None]
    trigger_message_id: Mapped[UUID | None]
    agent_id: Mapped[UUID] = mapped_column(ForeignKey("agents.id", ondelete="CASCADE"))
    #: Where it runs: a snapshot at enqueue that never moves.
    runtime_id: Mapped[UUID] = mapped_column(ForeignKey("runtimes.id"))
    issue_id: Mapped[UUID | None] = mapped_column(ForeignKey("issues.id", ondelete="CASCADE"))
    chat_id: Mapped[UUID | None] = mapped_column(ForeignKey("chats.id", ondelete="CASCADE"))
    autopilot_run_id: Mapped[UUID | None]
    #: The human behind it, whose rights the task's token has (null: nobody, an automation).
    originator_id: Mapped[UUID | None] = mapped_column(ForeignKey("members.id", ondelete="SET NULL"))
    pointer_mode: Mapped[str] = mapped_column(default="lane", server_default="lane")
    #: The task this one retries or reruns (soft).
    rerun_of_task_id: Mapped[UUID | None]
    handoff_note: Mapped[str | None]
    status: Mapped[str] = mapped_column(default="queued", server_default="queued")
    #: Number of the current attempt; 0 before the first one is granted.
    attempt: Mapped[int] = mapped_column(default=0, server_default="0")
    max_attempts: Mapped[int] = mapped_column(default=2, server_default="2")
    quota_waits: Mapped[int] = mapped_column(default=0, server_default="0")
    reason: Mapped[str | None]
    error: Mapped[str | None]
    evidence: Mapped[str | None]
    result: Mapped[str | None]
    usage: Mapped[dict[str, Any]] = mapped_column(default=dict, server_default="{}")
    last_seq: Mapped[int] = mapped_column(BigInteger, default=0, server_default="0")
    cancel_requested_at: Mapped[datetime | None]
    #: Why a cancel was requested, when it wasn't a person's wish (``queued_expired``).
    cancel_reason: Mapped[str | None]
    dispatched_at: Mapped[datetime | None]
    started_at: Mapped[datetime | None]
    ended_at: Mapped[datetime | None]
    retry_at: Mapped[datetime | None]
    workflow_checked_at: Mapped[datetime] = mapped_column(server_default=func.now())


class TaskComment(Base):
    """A comment's place in a task's input. A comment is delivered once per lane, with a receipt."""

    __tablename__ = "task_comments"
    __table_args__ = (
        PrimaryKeyConstraint("task_id", "comment_id"),
        UniqueConstraint("comment_id", "lane_id"),
    )

    task_id: Mapped[UUID] = mapped_column(ForeignKey("tasks.id", ondelete="CASCADE"))
    comment_id: Mapped[UUID] = mapped_column(ForeignKey("comments.id", ondelete="CASCADE"))
    lane_id: Mapped[UUID] = mapped_column(ForeignKey("lanes.id", ondelete="CASCADE"))
    delivered_at: Mapped[datetime | None]


class Attempt(_Owned, Base):
    """One execution of a task: made when its leases are granted, started by the machine's own call."""

    __tablename__ = "attempts"
    __table_args__ = (
        UniqueConstraint("task_id", "number"),
        Index("ix_attempts_standing", "runtime_id", postgresql_where=text("ended_at is null")),
        Index(None, "directory_id", "id"),
    )

    task_id: Mapped[UUID] = mapped_column(ForeignKey("tasks.id", ondelete="CASCADE"))
    number: Mapped[int]
    runtime_id: Mapped[UUID] = mapped_column(ForeignKey("runtimes.id"))
    #: The agent's when it was granted: what it runs stays that, whatever the agent is changed to.
    provider: Mapped[str]
    ops_queue: Mapped[str]
    runs_queue: Mapped[str]
    directory_id: Mapped[UUID] = mapped_column(ForeignKey("directories.id"))
    #: The session it was to resume, and the one it really used.
    requested_session_id: Mapped[UUID | None] = mapped_column(ForeignKey("sessions.id"))
    used_session_id: Mapped[UUID | None] = mapped_column(ForeignKey("sessions.id"))
    fork: Mapped[bool] = mapped_column(default=False, server_default="false")
    continuity: Mapped[str]
    continuity_reason: Mapped[str | None]
    #: The answer given to the workflow; an activity that runs again answers the same.
    dispatched_at: Mapped[datetime | None]
    #: Compare-and-set of `start`: who runs it.
    machine_id: Mapped[str | None]
    boot_id: Mapped[str | None]
    nonce: Mapped[str | None]
    first_seq: Mapped[int | None] = mapped_column(BigInteger)
    started_at: Mapped[datetime | None]
    set_aside_at: Mapped[datetime | None]
    ended_at: Mapped[datetime | None]
    reason: Mapped[str | None]
    outcome: Mapped[dict[str, Any] | None]
    #: What the recording transaction decided, stored so that it can be answered again.
    decision: Mapped[dict[str, Any] | None]
    #: Set aside: the input of the workflow that stops it, to be started again if it is lost.
    stop: Mapped[dict[str, Any] | None]


# --- pointers -------------------------------------------------------------------------------------


class Directory(_Owned, Base):
    """A working directory: a lease key. ``path`` is set when an attempt starts in it."""

    __tablename__ = "directories"
    __table_args__ = (
        Index(None, "lane_id", text("created_at desc")),
        Index(
            "uq_directories_path",
            "runtime_id",
            "path",
            unique=True,
            postgresql_where=text("path is not null and gone_at is null"),
        ),
    )

    runtime_id: Mapped[UUID] = mapped_column(ForeignKey("runtimes.id"))
    #: Null for a project's local directory, which belongs to no lane.
    lane_id: Mapped[UUID | None] = mapped_column(ForeignKey("lanes.id", ondelete="CASCADE"))
    kind: Mapped[str] = mapped_column(default="managed", server_default="managed")
    #: The ``context`` of the lane that it was made in.
    context: Mapped[int] = mapped_column(default=0, server_default="0")
    path: Mapped[str | None]
    device: Mapped[int | None] = mapped_column(BigInteger)
    inode: Mapped[int | None] = mapped_column(BigInteger)
    gone_at: Mapped[datetime | None]
    gone_reason: Mapped[str | None]


class Session(_Owned, Base):
    """A provider's own conversation, judged once and everywhere."""

    __tablename__ = "sessions"
    __table_args__ = (
        UniqueConstraint("runtime_id", "provider", "provider_session_id"),
        Index(None, "directory_id"),
    )

    provider: Mapped[str]
    provider_session_id: Mapped[str]
    runtime_id: Mapped[UUID] = mapped_column(ForeignKey("runtimes.id"))
    lane_id: Mapped[UUID] = mapped_column(ForeignKey("lanes.id", ondelete="CASCADE"))
    directory_id: Mapped[UUID] = mapped_column(ForeignKey("directories.id"))
    last_status: Mapped[str | None]
    last_reason: Mapped[str | None]
    last_ended_at: Mapped[datetime | None]
    consecutive_failures: Mapped[int] = mapped_column(default=0, server_default="0")
    retired_at: Mapped[datetime | None]
    retired_reason: Mapped[str | None]


class LaneSession(Base):
    """The sessions a lane knows: its own, and the one a continuation was seeded with.

    A seed whose session can't be carried has none, and still names the directory.
    """

    __tablename__ = "lane_sessions"
    __table_args__ = (
        UniqueConstraint("lane_id", "session_id"),
        Index(
            "uq_lane_sessions_seed",
            "lane_id",
            unique=True,
            postgresql_where=text("source_task_id is not null"),
        ),
        Index(None, "session_id"),
        Index(None, "directory_id", postgresql_where=text("directory_id is not null")),
    )

    id: Mapped[UUID] = mapped_column(primary_key=True, server_default=func.gen_random_uuid())
    lane_id: Mapped[UUID] = mapped_column(ForeignKey("lanes.id", ondelete="CASCADE"))
    session_id: Mapped[UUID | None] = mapped_column(ForeignKey("sessions.id", ondelete="CASCADE"))
    #: The lane's ``context`` that it belongs to.
    context: Mapped[int] = mapped_column(default=0, server_default="0")
    #: Set on a seed: the run it came from (soft) and the directory row it lives in.
    source_task_id: Mapped[UUID | None]
    directory_id: Mapped[UUID | None] = mapped_column(ForeignKey("directories.id", ondelete="CASCADE"))
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())


# --- order, capacity, waking ----------------------------------------------------------------------


class Lease(Base):
    """Exclusive use of a key, or one slot of a capacity; held by a task, or by an attempt set aside."""

    __tablename__ = "leases"
    __table_args__ = (
        PrimaryKeyConstraint("kind", "key", "slot"),
        CheckConstraint("num_nonnulls(task_id, attempt_id) = 1", name="one_holder"),
        Index(None, "task_id", postgresql_where=text("task_id is not null")),
        Index(None, "attempt_id", postgresql_where=text("attempt_id is not null")),
    )

    kind: Mapped[str]
    key: Mapped[UUID]
    slot: Mapped[int] = mapped_column(SmallInteger, default=0, server_default="0")
    workspace_id: Mapped[UUID] = mapped_column(ForeignKey("workspaces.id", ondelete="CASCADE"))
    task_id: Mapped[UUID | None] = mapped_column(ForeignKey("tasks.id", ondelete="CASCADE"))
    attempt_id: Mapped[UUID | None] = mapped_column(ForeignKey("attempts.id", ondelete="CASCADE"))
    granted_at: Mapped[datetime] = mapped_column(server_default=func.now())


class LeaseWait(Base):
    """What a task waits for right now. Kept beside the task so that a grant never locks its row."""

    __tablename__ = "lease_waits"
    __table_args__ = (
        Index("ix_lease_waits_key", "key", "kind", "rank"),
        Index(None, "workspace_id"),
    )

    task_id: Mapped[UUID] = mapped_column(ForeignKey("tasks.id", ondelete="CASCADE"), primary_key=True)
    workspace_id: Mapped[UUID] = mapped_column(ForeignKey("workspaces.id", ondelete="CASCADE"))
    kind: Mapped[str]
    key: Mapped[UUID]
    rank: Mapped[datetime]
    holder_task_id: Mapped[UUID | None]
    since: Mapped[datetime] = mapped_column(server_default=func.now())


class Outbox(Base):
    """What Temporal must be told: written in the transaction that causes it, deleted once accepted."""

    __tablename__ = "outbox"
    __table_args__ = (Index(None, "subject_id", "id"),)

    id: Mapped[int] = mapped_column(BigInteger, Identity(), primary_key=True)
    workspace_id: Mapped[UUID] = mapped_column(ForeignKey("workspaces.id", ondelete="CASCADE"))
    #: ``start``, ``turn``, ``wake``, ``cancel`` (subject: a task), ``stop`` (subject: an attempt), or
    #: ``chat`` and ``close`` (subject: a chat).
    kind: Mapped[str]
    subject_id: Mapped[UUID]
    payload: Mapped[dict[str, Any]] = mapped_column(default=dict, server_default="{}")
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    claimed_until: Mapped[datetime | None]
    tries: Mapped[int] = mapped_column(default=0, server_default="0")
    last_error: Mapped[str | None]


# --- transcripts and requests ---------------------------------------------------------------------


class EventRow(Base):
    """One normalised event of a run, numbered per task."""

    __tablename__ = "events"
    __table_args__ = (PrimaryKeyConstraint("task_id", "seq"),)

    task_id: Mapped[UUID] = mapped_column(ForeignKey("tasks.id", ondelete="CASCADE"))
    seq: Mapped[int] = mapped_column(BigInteger)
    attempt: Mapped[int]
    type: Mapped[str]
    at: Mapped[datetime]
    data: Mapped[dict[str, Any]]


class IdempotencyKey(Base):
    """A creating call's stored answer (draft-ietf-httpapi-idempotency-key-header)."""

    __tablename__ = "idempotency_keys"
    __table_args__ = (
        PrimaryKeyConstraint("token_id", "key"),
        Index(None, "created_at"),
    )

    token_id: Mapped[UUID] = mapped_column(ForeignKey("tokens.id", ondelete="CASCADE"))
    key: Mapped[str]
    fingerprint: Mapped[bytes] = mapped_column(LargeBinary)
    status: Mapped[int | None]
    body: Mapped[bytes | None] = mapped_column(LargeBinary)
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
