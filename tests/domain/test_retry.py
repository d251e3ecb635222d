"""Whether, and when, a failed attempt is followed by another one."""

from datetime import UTC, datetime, timedelta

import pytest

from domain.reasons import RULES, Reason
from domain.retry import RetryAction, RetryPolicy, decide_retry

NOW = datetime(2026, 1, 1, tzinfo=UTC)
POLICY = RetryPolicy()
QUOTA = [reason for reason, rule in RULES.items() if rule.quota]
PLAIN = [r for r, rule in RULES.items() if rule.retryable and r is not Reason.PROVIDER_NETWORK]


@pytest.mark.parametrize("reason", PLAIN)
def test_a_retryable_failure_is_retried_at_once_and_once(reason: Reason) -> None:
    """The second attempt follows immediately; its failure ends the task."""
    assert decide_retry(reason, 1, POLICY, now=NOW).action is RetryAction.NOW
    assert decide_retry(reason, 2, POLICY, now=NOW).ends


@pytest.mark.parametrize("reason", [r for r, rule in RULES.items() if not rule.retryable])
def test_everything_else_ends(reason: Reason) -> None:
    """Without a stated reset, a reason that is not retryable ends the task at its first attempt."""
    assert decide_retry(reason, 1, POLICY, now=NOW).ends


def test_a_network_cut_gets_one_more_after_a_pause() -> None:
    """Two immediate attempts, the third after five seconds, then the end."""
    decisions = [decide_retry(Reason.PROVIDER_NETWORK, n, POLICY, now=NOW) for n in (1, 2, 3)]
    assert [d.action for d in decisions] == [RetryAction.NOW, RetryAction.AT, RetryAction.END]
    assert decisions[1].at == NOW + timedelta(seconds=5)


def test_a_network_cut_follows_a_raised_limit() -> None:
    """A task with more attempts than the network's own limit keeps them."""
    policy = RetryPolicy(max_attempts=5)
    actions = [decide_retry(Reason.PROVIDER_NETWORK, n, policy, now=NOW).action for n in range(1, 6)]
    assert actions == [RetryAction.NOW] * 3 + [RetryAction.AT, RetryAction.END]


@pytest.mark.parametrize("reason", [*PLAIN, Reason.PROVIDER_NETWORK])
def test_one_attempt_means_no_retry(reason: Reason) -> None:
    """``max_attempts`` 1 switches automatic retries off, the network's too."""
    assert decide_retry(reason, 1, RetryPolicy(max_attempts=1), now=NOW).ends


@pytest.mark.parametrize("reason", QUOTA)
@pytest.mark.parametrize("attempt", [1, 2, 9])
def test_a_stated_reset_is_waited_for(reason: Reason, attempt: int) -> None:
    """Until the reset plus jitter, however many attempts there were, retries switched off or not."""
    resets_at = NOW + timedelta(hours=3)
    decision = decide_retry(
        reason, attempt, RetryPolicy(max_attempts=1), now=NOW, resets_at=resets_at, jitter=0.5
    )
    assert (decision.action, decision.at) == (RetryAction.QUOTA, resets_at + timedelta(seconds=15))


@pytest.mark.parametrize("reason", QUOTA)
def test_a_reset_that_has_passed_is_not_waited_for_backwards(reason: Reason) -> None:
    """The next attempt is never scheduled in the past."""
    decision = decide_retry(reason, 1, POLICY, now=NOW, resets_at=NOW - timedelta(minutes=1))
    assert (decision.action, decision.at) == (RetryAction.QUOTA, NOW)


@pytest.mark.parametrize("hours, waits, ends", [(24, 0, False), (25, 0, True), (1, 4, False), (1, 5, True)])
def test_waits_for_quota_are_bounded(hours: int, waits: int, *, ends: bool) -> None:
    """A reset beyond a day, or a sixth wait, ends the task with its reason."""
    decision = decide_retry(
        Reason.PROVIDER_QUOTA_LIMIT,
        1,
        POLICY,
        now=NOW,
        resets_at=NOW + timedelta(hours=hours),
        quota_waits=waits,
    )
    assert decision.ends is ends


def test_a_reset_beside_another_reason_is_no_wait() -> None:
    """Only quota reasons wait; a crash that came with a rate limit event is retried as a crash."""
    decision = decide_retry(Reason.RUNTIME_RECOVERY, 1, POLICY, now=NOW, resets_at=NOW + timedelta(hours=1))
    assert decision.action is RetryAction.NOW


def test_an_unknown_reason_ends() -> None:
    """A reason of a newer worker is treated as ``unknown``."""
    assert decide_retry("from_the_future", 1, POLICY, now=NOW).ends
