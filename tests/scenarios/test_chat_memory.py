"""What a chat remembers after a turn that failed: all of it, or nothing, and then it says so."""

from typing import Any

import pytest

from domain.reasons import Reason, poisons
from tests.scenarios.deployment import Deployment

#: Many turns in one deployment: cheaper than many deployments, but long where the machine is slow.
pytestmark = [pytest.mark.scenario, pytest.mark.timeout(900)]

RESUMED = {"state": "resumed", "reason": None}
POISONED = {"state": "lost", "reason": "session_poisoned"}

#: Ends that an agent can bring about by itself; those that are retried within the task would go on in it.
KEEPING = (
    Reason.PROVIDER_AUTH_OR_ACCESS,
    Reason.PROVIDER_QUOTA_LIMIT,
    Reason.PROVIDER_RATE_LIMIT,
    Reason.PROVIDER_SERVER_ERROR,
    Reason.MODEL_UNAVAILABLE,
    Reason.MISSING_CONFIG,
    Reason.REFUSAL,
    Reason.NEEDS_INPUT,
    Reason.AGENT_TIMEOUT,
    Reason.AGENT_BLOCKED,
    Reason.UNKNOWN,
)
POISONING = (
    Reason.ITERATION_LIMIT,
    Reason.AGENT_FALLBACK_MESSAGE,
    Reason.API_INVALID_REQUEST,
    Reason.CODEX_SEMANTIC_INACTIVITY,
    Reason.CONTEXT_OVERFLOW,
    Reason.RESUME_OVERSIZED,
)


def test_the_reasons_are_all_there_are() -> None:
    """A reason that is added must be tried here, too; a refused resume is tried by itself below."""
    assert {one for one in Reason if poisons(one)} == {*POISONING, Reason.RESUME_REJECTED}


def notices(segue: Deployment, chat: str) -> list[str]:
    """The reasons that people were given for a loss, oldest first."""
    return [message["reason"] for message in segue.messages(chat) if message["role"] == "system"]


def last_reply(segue: Deployment, chat: str) -> Any:
    return [message for message in segue.messages(chat) if message["role"] == "assistant"][-1]


def test_a_failure_that_spares_the_session_keeps_the_memory(segue: Deployment) -> None:
    """The next message is resumed, whatever the failure was called, and no loss is told."""
    agent = segue.agent()
    for reason in KEEPING:
        chat = segue.chat(agent)
        first = segue.talk(chat, "remember colour=teal")
        failed = segue.talk(chat, f"fail {reason}")
        assert (failed["status"], failed["reason"]) == ("failed", reason)
        assert last_reply(segue, chat)["reason"] == reason
        after = segue.talk(chat, "recall colour")
        assert (reason, after["continuity"], after["result"]) == (reason, RESUMED, "teal")
        assert after["session_id"] == first["session_id"]
        assert notices(segue, chat) == []


def test_a_failure_that_spoils_the_session_costs_the_memory_and_says_so(segue: Deployment) -> None:
    """The next message begins anew in the same directory; the chat has one notice; then it goes on."""
    agent = segue.agent()
    for reason in POISONING:
        chat = segue.chat(agent)
        first = segue.talk(chat, "remember colour=teal\nwrite notes.txt hello")
        failed = segue.talk(chat, f"fail {reason}")
        assert (failed["status"], failed["reason"]) == ("failed", reason)
        # One that is tried again at once has lost its memory for the second attempt already.
        told = ["session_poisoned"] * (failed["attempt"] - 1)
        assert notices(segue, chat) == told
        after = segue.talk(chat, "recall colour\nread notes.txt\nremember colour=red")
        assert (reason, after["continuity"]) == (reason, POISONED)
        assert after["result"].startswith("unknown\nhello")
        assert after["work_dir"] == first["work_dir"]
        assert notices(segue, chat) == [*told, "session_poisoned"]
        again = segue.talk(chat, "recall colour")
        assert (again["continuity"], again["result"]) == (RESUMED, "red")
        assert notices(segue, chat) == [*told, "session_poisoned"]


def test_a_refused_resume_is_told(segue: Deployment) -> None:
    """The agent's program no longer reads its session: the same turn begins anew, and the chat says so."""
    chat = segue.chat(segue.agent())
    first = segue.talk(chat, "remember colour=teal\nwrite notes.txt hello")
    (stored,) = (segue.folder / ".segue-script").rglob(f"{first['session_id']}.json")
    stored.write_text("torn")
    after = segue.talk(chat, "recall colour\nread notes.txt")
    assert (after["status"], after["result"]) == ("completed", "unknown\nhello")
    assert notices(segue, chat) == ["resume_rejected"]


def test_ends_without_a_result_keep_what_was_said(segue: Deployment) -> None:
    """A crash, a bad exit and silence of an agent whose session is known lose no memory."""
    chat = segue.chat(segue.agent())
    segue.talk(chat, "remember colour=teal")
    for way in ("crash", "exit 3"):
        assert segue.talk(chat, way)["status"] == "failed"
        after = segue.talk(chat, "recall colour")
        assert (way, after["continuity"], after["result"]) == (way, RESUMED, "teal")
    assert notices(segue, chat) == []


def test_a_new_context_knows_nothing_and_loses_nothing(segue: Deployment) -> None:
    """`/new` was asked for: the agent begins anew elsewhere, and nobody is told of a loss."""
    chat = segue.chat(segue.agent())
    before = segue.talk(chat, "remember colour=teal")
    assert segue.say(chat, "/new") is None
    after = segue.talk(chat, "recall colour\nremember colour=red")
    assert after["result"].startswith("unknown")
    assert after["session_id"] != before["session_id"]
    assert after["continuity"]["state"] != "lost"
    assert segue.talk(chat, "recall colour")["result"] == "red"
    assert [one["kind"] for one in segue.messages(chat) if one["role"] == "system"] == ["notice"]
