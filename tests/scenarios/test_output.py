"""Hostile output: the right outcome each, nothing lost, no task stuck in `running`."""

import pytest

from tests.scenarios.deployment import Deployment, eventually

pytestmark = pytest.mark.scenario

MIB = 1024 * 1024


def test_a_64_mib_line_is_read_whole(segue: Deployment) -> None:
    """One line of 64 MiB arrives in parts, and the run completes."""
    agent, issue = segue.agent(), segue.issue()
    task = segue.run(agent, issue, f"line {64 * MIB}\nsay after")
    assert task["status"] == "completed"
    rows = segue.rows(
        "select sum(length(data->>'text')), count(*) from events where task_id = %s and type = 'text'",
        task["id"],
    )
    assert rows[0][0] >= 64 * MIB


def test_garbage_is_survived_and_kept(segue: Deployment) -> None:
    """Invalid UTF-8, NUL, U+2028, lone surrogates, two objects on a line and a torn last line."""
    agent, issue = segue.agent(), segue.issue()
    task = segue.run(agent, issue, "say before\ngarbage\nsay after")
    assert task["status"] == "completed"
    events = segue.events(task["id"])
    texts = [event["data"].get("text", "") for event in events]
    assert any("\u2028" in text for text in texts)
    assert {"before", "after"} <= set(texts)
    assert any(event["type"] == "raw" for event in events)


def test_5000_events_arrive_once_and_in_order(segue: Deployment) -> None:
    """A flooding agent loses nothing."""
    agent, issue = segue.agent(), segue.issue()
    task = segue.run(agent, issue, "flood 5000")
    assert task["status"] == "completed"
    floods = [text for text in segue.texts(task["id"]) if text.startswith("flood ")]
    assert len(floods) == 5000
    assert floods == sorted(floods, key=lambda text: int(text.split()[1]))


def test_exit_0_without_a_result_is_a_failure(segue: Deployment) -> None:
    """A silent success is none."""
    agent, issue = segue.agent(), segue.issue()
    task = segue.run(agent, issue, "silent")
    assert (task["status"], task["reason"]) == ("failed", "empty_or_unparseable_output")
    assert task["advice"]


def test_a_result_then_lingering_is_completed_and_ended(segue: Deployment) -> None:
    """After the grace period the process is terminated; the run stays completed."""
    agent, issue = segue.agent(), segue.issue()
    task = segue.run(agent, issue, "say done\nlinger 300")
    assert task["status"] == "completed"
    eventually("the process is gone", lambda: segue.agent_processes(task["id"]) == [])


def test_a_grandchild_that_holds_the_output_does_not_hold_the_task(segue: Deployment) -> None:
    """The tree is reaped on a normal exit too."""
    agent, issue = segue.agent(), segue.issue()
    task = segue.run(agent, issue, "spawn 300\nsay done")
    assert task["status"] == "completed"
    assert segue.agent_processes(task["id"]) == []


@pytest.mark.parametrize(
    "words, reason",
    [
        ("crash", "process_failure"),
        ("exit 3", "process_failure"),
        ("fail context_overflow", "context_overflow"),
    ],
)
def test_every_failure_has_reason_evidence_and_advice(segue: Deployment, words: str, reason: str) -> None:
    """What a person needs: why, the proof, the next step; and a comment on the issue says so."""
    agent, issue = segue.agent(), segue.issue()
    task = segue.run(agent, issue, words)
    assert (task["status"], task["reason"]) == ("failed", reason)
    assert task["error"]
    assert task["advice"]
    bodies = [comment["body"] for comment in segue.get(f"/issues/{issue}/comments")["items"]]
    assert any(reason in body for body in bodies)
