"""A quota with a stated reset is a wait: the time is shown, and the same session goes on afterwards."""

from datetime import datetime

import pytest

from tests.scenarios.deployment import Deployment

pytestmark = pytest.mark.scenario


def test_a_quota_hit_waits_for_its_reset_through_a_restart_of_everything(segue: Deployment) -> None:
    """``waiting_quota`` with the time, then ``resumed``, then ``completed``; an attempt for each side."""
    agent, issue = segue.agent(), segue.issue()
    segue.run(agent, issue, "remember colour=teal")
    task = segue.ask(agent, issue, "quota 20\nrecall colour")
    waiting = segue.until(task, "waiting_quota")
    assert datetime.fromisoformat(waiting["retry_at"]) > datetime.fromisoformat(waiting["started_at"])
    for name in ("control", "r0", "api"):
        segue.parts[name].kill()
    for name in ("api", "control", "r0"):
        segue.restart(name)
    segue.wait_for_api()
    ended = segue.ended(task)
    assert (ended["status"], ended["result"].split("\n")[-1]) == ("completed", "teal")
    assert ended["continuity"]["state"] == "resumed"
    assert [attempt["reason"] for attempt in ended["attempts"]] == ["provider_quota_limit", "completed"]
    assert len({attempt["session_id"] for attempt in ended["attempts"]}) == 1


def test_a_quota_wait_can_be_cancelled_or_cut_short(segue: Deployment) -> None:
    """People don't have to wait with it; the agent's other tasks know and wait too."""
    agent = segue.agent()
    long, other = segue.issue(), segue.issue()
    limited = segue.ask(agent, long, "quota 3600\nsay through")
    segue.until(limited, "waiting_quota")
    held = segue.ask(agent, other, "say not held any more")
    assert segue.until(held, "waiting_quota", "completed")["status"] == "waiting_quota"
    segue.post(f"/tasks/{held}/retry-now")
    assert segue.ended(held)["result"] == "not held any more"
    segue.post(f"/tasks/{limited}/cancel")
    assert segue.ended(limited)["status"] == "cancelled"
    assert segue.lease_count() == 0
