"""What crosses the runtime plane: the brief of an attempt and the answers around it."""

from datetime import datetime
from uuid import UUID

from pydantic import BaseModel, Field, model_validator

from domain.statuses import Continuity, ContinuityReason


class DirectoryBrief(BaseModel):
    """The directory row an attempt runs in; ``path`` is null until the gate has made it."""

    id: UUID
    kind: str = "managed"  # or "local": a project's own directory, never collected
    path: str | None = None
    device: int | None = None
    inode: int | None = None
    #: Lanes whose marker the gate accepts beside the attempt's own (a continuation's source).
    accepted_lane_ids: list[UUID] = Field(default_factory=list)


class Prompt(BaseModel):
    """What the agent is told; `domain.prompts.compose` makes the text of it."""

    #: Standing facts and instructions, when the session knows nothing yet.
    full_context: str
    #: The same for a resumed session, which has read the full context before.
    short_context: str
    #: The person's own words, delivered to the agent exactly once.
    message: str


class Brief(BaseModel):
    """Everything a machine needs to run one attempt. Holds secrets: never logged, never in history."""

    attempt_id: UUID
    attempt: int
    task_id: UUID
    workspace_id: UUID
    agent_id: UUID
    agent_name: str
    lane_id: UUID
    provider: str
    model: str | None = None
    args: list[str] = Field(default_factory=list)
    env: dict[str, str] = Field(default_factory=dict)
    prompt: Prompt
    #: The provider session to resume; null means a new one.
    session_id: str | None = None
    fork: bool = False
    directory: DirectoryBrief
    continuity: Continuity
    continuity_reason: ContinuityReason | None = None
    issue_id: UUID | None = None
    issue_key: str | None = None
    chat_id: UUID | None = None
    autopilot_run_id: UUID | None = None


class StartRequest(BaseModel):
    """Body of ``POST /runtime/attempts/{id}/start``: compare-and-set on (machine, boot, nonce)."""

    machine_id: str
    boot_id: str
    #: Random name of the attempt's own directory: an unknown directory never starts a second copy.
    nonce: str
    work_dir: str
    device: int
    inode: int
    continuity: Continuity
    continuity_reason: ContinuityReason | None = None


class StartAnswer(BaseModel):
    """The task's token (the same on a second fetch) and where the numbering goes on."""

    token: str
    first_seq: int
    acked_seq: int
    #: True if this call started the attempt, false if it had been started before by the same caller.
    started: bool


class SessionPin(BaseModel):
    """Body of ``POST /runtime/attempts/{id}/session``."""

    session_id: str = Field(min_length=1, max_length=500)


class AttemptState(BaseModel):
    """Answer of ``GET /runtime/attempts/{id}``: does the attempt still stand?"""

    attempt_id: UUID
    standing: bool
    cancel_requested: bool = False
    first_seq: int = 1
    acked_seq: int = 0


class ProviderInfo(BaseModel):
    """One agent CLI found on a machine."""

    name: str
    version: str | None = None
    path: str | None = None


class RegisterRequest(BaseModel):
    """Body of ``POST /runtime/register``; sent at each start of the runtime worker."""

    machine_id: str
    boot_id: str
    slots: int = Field(ge=1, le=1000)
    providers: list[ProviderInfo] = Field(default_factory=list)
    version: str


class RegisterAnswer(BaseModel):
    """Who the runtime is, and the numbers it works by."""

    runtime_id: UUID
    workspace_id: UUID
    name: str
    temporal_namespace: str
    ops_queue: str
    runs_queue: str
    heartbeat_seconds: float


class HeartbeatRequest(BaseModel):
    """Body of ``POST /runtime/heartbeat``."""

    machine_id: str
    boot_id: str
    running: list[UUID] = Field(default_factory=list)
    free_bytes: int | None = None


class LocalDirectoryQuestion(BaseModel):
    """A project's own directory that its runtime has not looked at yet; ``path`` as a person wrote it."""

    id: UUID
    path: str


class HeartbeatAnswer(BaseModel):
    """``draining`` tells the worker to take no new work; ``slots`` may have been changed."""

    draining: bool
    slots: int
    server_time: datetime
    local_directories: list[LocalDirectoryQuestion] = Field(default_factory=list)


class LocalDirectoryCheck(BaseModel):
    """Body of ``POST /runtime/local-directories/{id}``: the real path with device and inode, or a refusal."""

    path: str | None = None
    device: int | None = None
    inode: int | None = None
    refusal: str | None = None

    @model_validator(mode="after")
    def _one_of_both(self) -> "LocalDirectoryCheck":
        found = None not in (self.path, self.device, self.inode)
        if found == (self.refusal is not None):
            raise ValueError("either path, device and inode, or a refusal")
        return self
