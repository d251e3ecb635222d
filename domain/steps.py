"""Inputs and results of the workflows and their activities.

They live in Temporal's history: small, no prompt, no transcript, no secret. A released field is
never removed or renamed; new ones have defaults, so that stored histories still decode.
"""

from datetime import datetime
from enum import StrEnum
from uuid import UUID

from pydantic import BaseModel, ConfigDict

from domain.outcomes import Outcome
from domain.reasons import Reason
from domain.retry import RetryDecision
from domain.statuses import Continuity, ContinuityReason, WaitKind


class Step(BaseModel):
    model_config = ConfigDict(frozen=True)


class TaskInput(Step):
    task_id: UUID


class Timeouts(Step):
    """Configured numbers that a workflow needs, in seconds."""

    heartbeat: float = 30.0
    gate: float = 120.0


class ResolveInput(Step):
    task_id: UUID
    attempt: int
    #: The gate's objection to the previous answer for this attempt.
    rejected: ContinuityReason | None = None


class Resolved(StrEnum):
    RUN = "run"
    WAIT = "wait"
    END = "end"


class Resolution(Step):
    """What an attempt may do now: run with this pointer, wait for that, or nothing: it has ended."""

    kind: Resolved
    attempt_id: UUID | None = None
    attempt: int = 1
    runtime_id: UUID | None = None
    ops_queue: str = ""
    runs_queue: str = ""
    continuity: Continuity | None = None
    continuity_reason: ContinuityReason | None = None
    session_id: str | None = None
    work_dir: str | None = None
    wait_kind: WaitKind | None = None
    #: When waiting must be looked at again although nobody woke it (an offline runtime's limit).
    look_again_at: datetime | None = None
    timeouts: Timeouts = Timeouts()


class GateInput(Step):
    attempt_id: UUID


class GateResult(Step):
    """Where the attempt runs, and whether the session it asked for can work there."""

    ok: bool
    work_dir: str | None = None
    device: int | None = None
    inode: int | None = None
    #: With ``ok`` false: why the directory row can't be used. With ``ok`` true: why the session was dropped.
    reason: ContinuityReason | None = None
    #: A failure reason of the machine that makes the run impossible (for example ``disk_full``).
    failure: str | None = None
    failure_detail: str | None = None


class RunInput(Step):
    attempt_id: UUID
    gate: GateResult


class RecordInput(Step):
    task_id: UUID
    attempt_id: UUID | None
    outcome: Outcome
    #: What the machine's gate said, for a run that never got a process.
    detail: str | None = None


class AsideInput(Step):
    """No outcome came back for this attempt; ``cause`` is a short text for the evidence.

    ``reason`` is what the task's reason becomes when the machine has confirmed that nothing runs.
    """

    task_id: UUID
    attempt_id: UUID | None
    cause: str
    reason: str = Reason.WORKFLOW_TERMINATED


class Recorded(Step):
    """What the transaction decided; ``status`` and ``reason`` are the task's after it."""

    decision: RetryDecision
    status: str
    reason: str | None = None


class StopInput(Step):
    attempt_id: UUID
    task_id: UUID
    runtime_id: UUID
    ops_queue: str
    settled_reason: str = Reason.WORKFLOW_TERMINATED


class StopResult(Step):
    """The machine's word that no process of the attempt lives any more."""

    stopped: bool
    #: What the files say about the run, when they say anything.
    outcome: Outcome | None = None


class SettleInput(Step):
    attempt_id: UUID
    result: StopResult
    settled_reason: str = Reason.WORKFLOW_TERMINATED


class Turn(Step):
    """One message's task, as its chat's workflow is told of it: names only, no words of the person."""

    task_id: UUID
    summary: str | None = None
    search_attributes: dict[str, str] = {}


class ChatSeed(Step):
    """What a continuation was seeded with, to be shown; order and pointer come from the tables."""

    source_task_id: UUID
    runtime_id: UUID | None = None
    session_carried: bool = False
    session_reason: str | None = None
    fork: bool = False


class ChatInput(Step):
    chat_id: UUID
    seed: ChatSeed | None = None
    search_attributes: dict[str, str] = {}
    #: Without a turn for this long (seconds) the workflow ends; the next turn starts it again.
    idle_seconds: float = 600.0
    #: Turns that came while the run before this one was continuing as new.
    pending: list[Turn] = []
    #: Dispatched by the runs before this one.
    dispatched: int = 0


class TurnMessage(Step):
    """An outbox row's payload: the turn, and the chat to start if its workflow does not run."""

    chat: ChatInput
    turn: Turn
