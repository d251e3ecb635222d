"""What was answered 201 runs, once and in order, whatever dies between the commit and the start."""

import signal
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import pytest

from tests.scenarios.conftest import Deploy
from tests.scenarios.deployment import Deployment, eventually
from tests.scenarios.gateway import Gateway

pytestmark = pytest.mark.scenario


def test_a_comment_whose_api_died_right_after_the_commit_runs(segue: Deployment) -> None:
    """The api is killed while the waker is frozen: what is committed starts when the waker goes on."""
    agent, issue = segue.agent(), segue.issue()
    segue.parts["control"].signal(signal.SIGSTOP)
    task = segue.ask(agent, issue, "say survived")
    segue.parts["api"].kill()
    segue.parts["control"].signal(signal.SIGCONT)
    segue.restart("api")
    segue.wait_for_api()
    assert segue.ended(task)["result"] == "survived"


def test_a_comment_is_answered_and_runs_although_no_control_worker_lives(segue: Deployment) -> None:
    """201 with the control worker dead; everything runs in order when it is back."""
    agent, issue = segue.agent(), segue.issue()
    segue.parts["control"].kill()
    first = segue.ask(agent, issue, "say one")
    other = segue.ask(agent, segue.issue(), "say two")
    segue.restart("control")
    assert [segue.ended(task)["result"] for task in (first, other)] == ["one", "two"]


def test_comments_written_while_temporal_is_down_run_in_order(deploy: Deploy, gateway: Gateway) -> None:
    """No request needs Temporal: 201 at once, and the runs follow in order when it is back."""
    segue = deploy(temporal_address=gateway.address)
    agent, issues = segue.agent(), [segue.issue() for _ in range(3)]
    segue.run(agent, issues[0], "say warm")
    gateway.close()
    began = time.monotonic()
    queued = [segue.ask(agent, issue, "say one") for issue in issues]
    assert segue.ask(agent, issues[0], "say two") == queued[0], "a task that has not started takes it in"
    assert time.monotonic() - began < 30
    assert all(segue.task(task)["status"] == "queued" for task in queued)
    gateway.open()
    assert [segue.ended(task)["result"] for task in queued] == ["one\ntwo", "one", "one"]


def test_100_comments_on_20_lanes_keep_order_and_capacity(deploy: Deploy) -> None:
    """Order in each lane, capacities never exceeded, no task forgotten, no lease left."""
    segue = deploy(slots=6)
    agents = [segue.agent(name, max_concurrent_tasks=4) for name in ("Ada", "Bob")]
    issues = [segue.issue(f"Issue {number}") for number in range(10)]
    lanes = [(agent, issue) for agent in agents for issue in issues]
    with ThreadPoolExecutor(20) as pool:
        asked = list(pool.map(lambda lane: _five_comments(segue, *lane), lanes))
    for tasks in asked:
        for task in tasks:
            assert segue.ended(task, deadline=280)["status"] == "completed"
    _assert_each_comment_was_delivered_once(segue, 100)
    _assert_lane_order(segue)
    _assert_capacities(segue, of_agent=4, of_runtime=6)
    eventually("no lease is left", lambda: segue.lease_count() == 0)
    assert segue.rows("select count(*) from tasks where status <> 'completed'")[0][0] == 0


def _five_comments(segue: Deployment, agent: str, issue: str) -> list[str]:
    return list(dict.fromkeys(segue.ask(agent, issue, f"say comment {number}") for number in range(5)))


def _assert_each_comment_was_delivered_once(segue: Deployment, count: int) -> None:
    receipts = segue.rows(
        "select count(*), count(distinct comment_id), count(delivered_at) from task_comments"
    )
    assert receipts == [(count, count, count)]


def _assert_lane_order(segue: Deployment) -> None:
    rows = segue.rows(
        "select lane_id, lane_position, started_at, ended_at from tasks order by lane_id, lane_position"
    )
    for earlier, later in pairwise(rows):
        if earlier[0] == later[0]:
            assert earlier[3] <= later[2]


def _assert_capacities(segue: Deployment, *, of_agent: int, of_runtime: int) -> None:
    spans = segue.rows(
        "select t.agent_id, a.started_at, a.ended_at from attempts a join tasks t on t.id = a.task_id"
    )
    assert _most_at_once(spans) <= of_runtime
    for agent in {span[0] for span in spans}:
        assert _most_at_once([span for span in spans if span[0] == agent]) <= of_agent


def _most_at_once(spans: list[tuple[Any, ...]]) -> int:
    changes = sorted([(start, 1) for _, start, _ in spans] + [(end, -1) for _, _, end in spans])
    running = most = 0
    for _, change in changes:
        running += change
        most = max(most, running)
    return most
