"""Stopping: the whole tree is gone, the context is kept, and nothing else enters too early."""

import asyncio
from itertools import pairwise

import pytest

from tests.scenarios.deployment import Deployment, eventually

pytestmark = pytest.mark.scenario


def test_cancel_kills_the_whole_tree_and_the_next_comment_resumes(segue: Deployment) -> None:
    """Also a setsid grandchild; the session is kept."""
    agent, issue = segue.agent(), segue.issue()
    task = segue.ask(agent, issue, "remember colour=teal\nspawn 300\nsay spawned\nsleep 300")
    segue.event_with(task, "spawned")
    assert len(segue.agent_processes(task)) >= 2
    segue.post(f"/tasks/{task}/cancel")
    ended = segue.ended(task)
    assert (ended["status"], ended["reason"]) == ("cancelled", "cancelled")
    assert segue.agent_processes(task) == []
    after = segue.run(agent, issue, "recall colour")
    assert (after["continuity"]["state"], after["result"]) == ("resumed", "teal")


def test_an_agent_that_ignores_sigterm_is_killed(segue: Deployment) -> None:
    """SIGTERM, grace, SIGKILL."""
    agent, issue = segue.agent(), segue.issue()
    task = segue.ask(agent, issue, "ignore-term\nsay deaf\nsleep 300")
    segue.event_with(task, "deaf")
    segue.post(f"/tasks/{task}/cancel")
    assert segue.ended(task)["status"] == "cancelled"
    assert segue.agent_processes(task) == []


def test_repeating_a_cancel_gives_the_same_answer(segue: Deployment) -> None:
    """202 again and again; a completed task answers 409 task_terminal."""
    agent, issue = segue.agent(), segue.issue()
    task = segue.ask(agent, issue, "say up\nsleep 300")
    segue.event_with(task, "up")
    answers = [segue.http.post(f"/tasks/{task}/cancel") for _ in range(2)]
    segue.ended(task)
    answers.append(segue.http.post(f"/tasks/{task}/cancel"))
    assert [answer.status_code for answer in answers] == [202, 202, 202]
    done = segue.run(agent, issue, "say done")
    refused = segue.http.post(f"/tasks/{done['id']}/cancel")
    assert (refused.status_code, refused.json()["code"]) == (409, "task_terminal")


def test_a_cancel_while_the_worker_is_dead_keeps_the_directory_closed(segue: Deployment) -> None:
    """Nothing enters until the restarted worker has stopped the old process."""
    agent, issue = segue.agent(), segue.issue()
    task = segue.ask(agent, issue, "remember colour=teal\nsay alive\nsleep 300")
    segue.event_with(task, "alive")
    segue.parts["r0"].kill()
    segue.post(f"/tasks/{task}/cancel")
    unknown = segue.ended(task)
    assert (unknown["status"], unknown["reason"]) == ("cancelled", "outcome_unknown")
    assert segue.agent_processes(task)
    following = segue.ask(agent, issue, "recall colour")
    waiting = segue.until(following, "waiting")
    assert waiting["wait_reason"]["kind"] in ("directory", "runtime_offline")
    segue.restart("r0")
    after = segue.ended(following)
    settled = segue.task(task)
    assert (after["status"], after["result"]) == ("completed", "teal")
    assert (settled["status"], settled["reason"]) == ("cancelled", "cancelled")
    assert segue.agent_processes() == []
    _assert_no_overlap(segue)
    assert segue.lease_count() == 0


def _assert_no_overlap(segue: Deployment) -> None:
    """By the attempts' own times: the next one started after the old one had ended."""
    spans = segue.rows("select started_at, ended_at from attempts order by started_at")
    assert all(earlier[1] <= later[0] for earlier, later in pairwise(spans))


def test_a_terminated_workflow_is_recorded_and_its_process_stopped(segue: Deployment) -> None:
    """An operator's terminate in Temporal: reason recorded, process stopped, leases free."""
    agent, issue = segue.agent(), segue.issue()
    task = segue.ask(agent, issue, "say alive\nspawn 300\nsleep 300")
    segue.event_with(task, "alive")
    asyncio.run(_terminate(segue, task))
    ended = segue.ended(task)
    assert ended["status"] == "failed"
    eventually("the reason settles", lambda: segue.task(task)["reason"] == "workflow_terminated")
    eventually("the process is stopped", lambda: segue.agent_processes(task) == [])
    eventually("no lease is left", lambda: segue.lease_count() == 0)
    assert segue.run(agent, issue, "say next")["status"] == "completed"


async def _terminate(segue: Deployment, task_id: str) -> None:
    from temporalio.client import Client

    client = await Client.connect(segue.temporal_address, namespace=segue.namespace)
    await client.get_workflow_handle(f"task/{task_id}").terminate("an operator's wish")


def test_cancelling_a_waiting_task_needs_no_machine(segue: Deployment) -> None:
    """A task behind another one ends at once, and the one behind it moves up."""
    agent, issue = segue.agent(), segue.issue()
    running = segue.ask(agent, issue, "say busy\nsleep 3")
    segue.event_with(running, "busy")
    behind = segue.ask(agent, issue, "say never")
    segue.until(behind, "waiting")
    segue.post(f"/tasks/{behind}/cancel")
    assert segue.task(behind)["status"] == "cancelled"
    assert segue.run(agent, issue, "say moved up")["result"] == "moved up"
