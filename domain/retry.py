"""Whether, and when, a failed attempt is followed by another one. Pure: see `decide_retry`."""

from datetime import datetime, timedelta
from enum import StrEnum

from pydantic import BaseModel, ConfigDict

from domain.reasons import Reason, rule_for


class RetryAction(StrEnum):
    END = "end"
    NOW = "now"
    AT = "at"
    QUOTA = "quota"


class RetryDecision(BaseModel):
    """What to do after an attempt; ``at`` is set for AT and QUOTA (UTC)."""

    model_config = ConfigDict(frozen=True)

    action: RetryAction
    at: datetime | None = None

    @property
    def ends(self) -> bool:
        return self.action is RetryAction.END


class RetryPolicy(BaseModel):
    """The numbers behind the decision. ``max_attempts`` 1 switches automatic retries off."""

    model_config = ConfigDict(frozen=True)

    max_attempts: int = 2
    #: A cut connection deserves one more (upstream MUL-4910), the last one after a pause.
    max_network_attempts: int = 3
    network_pause: timedelta = timedelta(seconds=5)
    #: Longest wait for a stated reset; a later one ends the task with its reason.
    max_quota_wait: timedelta = timedelta(hours=24)
    max_quota_waits: int = 5
    #: Longest jitter after a reset; a short wait has a tenth of its length.
    quota_jitter: timedelta = timedelta(seconds=30)


END = RetryDecision(action=RetryAction.END)


def decide_retry(
    reason: str,
    attempt: int,
    policy: RetryPolicy,
    *,
    now: datetime,
    resets_at: datetime | None = None,
    quota_waits: int = 0,
    jitter: float = 0.0,
) -> RetryDecision:
    """Decide what follows attempt number ``attempt`` that failed for ``reason``.

    ``jitter`` is a fraction (0..1) of `RetryPolicy.quota_jitter`, drawn by the caller so that this
    stays pure. Waits for quota don't use up attempts (field notes Q1-Q3).
    """
    rule = rule_for(reason)
    if rule.quota and resets_at is not None:
        return _decide_quota(policy, now, resets_at, quota_waits, jitter)
    if not rule.retryable or policy.max_attempts <= 1:
        return END
    if rule.reason is Reason.PROVIDER_NETWORK:
        return _decide_network(attempt, policy, now)
    if attempt >= policy.max_attempts:
        return END
    return RetryDecision(action=RetryAction.NOW)


def _decide_quota(
    policy: RetryPolicy, now: datetime, resets_at: datetime, quota_waits: int, jitter: float
) -> RetryDecision:
    if resets_at - now > policy.max_quota_wait or quota_waits >= policy.max_quota_waits:
        return END
    reset = max(resets_at, now)
    spread = min(policy.quota_jitter, (reset - now) / 10)
    return RetryDecision(action=RetryAction.QUOTA, at=reset + spread * jitter)


def _decide_network(attempt: int, policy: RetryPolicy, now: datetime) -> RetryDecision:
    ceiling = max(policy.max_attempts, policy.max_network_attempts)
    if attempt >= ceiling:
        return END
    if attempt + 1 == ceiling:
        return RetryDecision(action=RetryAction.AT, at=now + policy.network_pause)
    return RetryDecision(action=RetryAction.NOW)
