"""The table of reasons."""

import pytest

from domain.reasons import RULES, Reason, advice_for, poisons, rule_for
from domain.statuses import ContinuityReason

#: The design's section 5, word for word.
POISON = {
    "iteration_limit",
    "agent_fallback_message",
    "api_invalid_request",
    "codex_semantic_inactivity",
    "context_overflow",
    "resume_oversized",
    "resume_rejected",
}
#: Upstream's retryable reasons (reference, 3.8), without the two of features that we don't have.
RETRYABLE = {
    "runtime_offline",
    "runtime_recovery",
    "timeout",
    "codex_semantic_inactivity",
    "provider_network",
}


@pytest.mark.parametrize("reason", list(Reason))
def test_every_reason_has_a_rule(reason: Reason) -> None:
    """Each has its row, with a meaning in a sentence."""
    assert RULES[reason].reason is reason
    assert RULES[reason].meaning.endswith(".")


@pytest.mark.parametrize("reason", [r for r in Reason if r is not Reason.COMPLETED])
def test_every_failure_has_advice(reason: Reason) -> None:
    """Whatever went wrong, people get a next step."""
    assert advice_for(reason)


def test_success_needs_no_advice() -> None:
    """Nor does a task that has not ended."""
    assert (advice_for(Reason.COMPLETED), advice_for(None)) == (None, None)


def test_the_poison_set_is_the_designs() -> None:
    """Exactly these retire a session in the recording transaction."""
    assert {str(reason) for reason in Reason if poisons(reason)} == POISON


def test_the_retryable_set_is_the_references() -> None:
    """Nothing else is retried without being asked."""
    assert {str(reason) for reason, rule in RULES.items() if rule.retryable} == RETRYABLE


def test_an_unknown_name_is_unknown() -> None:
    """A name this version doesn't know has the row of ``unknown``: no retry, no poison."""
    assert rule_for("from_the_future") is RULES[Reason.UNKNOWN]


def test_a_refused_resume_has_one_name() -> None:
    """The reason and the continuity word are the same, since a session is retired with it."""
    assert Reason.RESUME_REJECTED.value == ContinuityReason.RESUME_REJECTED.value
