"""How an agent process ended, as the runtime reports it."""

from datetime import datetime
from enum import StrEnum

from pydantic import BaseModel, ConfigDict


class OutcomeStatus(StrEnum):
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


class Usage(BaseModel):
    """Tokens and money of one attempt (never cumulative over a resumed session)."""

    model_config = ConfigDict(frozen=True)

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    cost_usd: float | None = None

    def __add__(self, other: "Usage") -> "Usage":
        costs = [c for c in (self.cost_usd, other.cost_usd) if c is not None]
        return Usage(
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            cache_read_tokens=self.cache_read_tokens + other.cache_read_tokens,
            cache_write_tokens=self.cache_write_tokens + other.cache_write_tokens,
            cost_usd=sum(costs) if costs else None,
        )


class Outcome(BaseModel):
    """The result of ``run_agent``: small, and free of what the agent wrote.

    Texts stay in the event table: ``result_seq`` names the ``result`` event with the reply,
    ``error_seq`` the ``error`` event with message and evidence.
    """

    model_config = ConfigDict(frozen=True)

    status: OutcomeStatus
    #: ``completed``, ``cancelled`` or a failure reason of `domain.reasons`.
    reason: str
    #: The provider's session that the run really used (null: none was revealed or accepted).
    session_id: str | None = None
    #: The session that was asked for and refused by the provider, or was found missing.
    refused_session_id: str | None = None
    #: The provider named a session, worked in it and left nothing of it in its store: ``session_id``
    #: must be retired, even if it was pinned during the run.
    session_rollout_missing: bool = False
    result_seq: int | None = None
    error_seq: int | None = None
    last_seq: int = 0
    tools_used: int = 0
    exit_code: int | None = None
    signal: int | None = None
    usage: Usage = Usage()
    #: When a stated quota or rate limit resets (UTC).
    resets_at: datetime | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
