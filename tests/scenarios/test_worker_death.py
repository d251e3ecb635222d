"""The runtime worker dies, is stopped, or is cut off: the run goes on, and is told exactly once."""

import signal
import time

import pytest

from tests.scenarios.deployment import Deployment, eventually

pytestmark = pytest.mark.scenario

LONG_RUN = "\n".join(
    ["remember colour=teal", *(f"say line {n}\nsleep 0.5" for n in range(12)), "say last line"]
)


def _assert_every_line_once(segue: Deployment, task_id: str) -> None:
    lines = [text for text in segue.texts(task_id) if text.startswith("line ") or text == "last line"]
    assert lines == [*(f"line {n}" for n in range(12)), "last line"]
    seqs = [event["seq"] for event in segue.events(task_id)]
    assert seqs == list(range(1, len(seqs) + 1))


def _agent_pids(segue: Deployment, task_id: str) -> set[int]:
    return {process.pid for process in segue.agent_processes(task_id)}


def test_a_killed_worker_is_replaced_by_one_that_adopts_the_run(segue: Deployment) -> None:
    """kill -9 in mid-run: the process goes on, the restarted worker adopts it, every event is there once."""
    agent, issue = segue.agent(), segue.issue()
    task = segue.ask(agent, issue, LONG_RUN)
    segue.event_with(task, "line 1")
    segue.parts["r0"].kill()
    pids = _agent_pids(segue, task)
    assert pids
    segue.restart("r0")
    ended = segue.ended(task)
    assert (ended["status"], ended["attempt"], len(ended["attempts"])) == ("completed", 1, 1)
    _assert_every_line_once(segue, task)
    assert _agent_pids(segue, task) == set()
    started = segue.rows("select count(*) from attempts where started_at is not null")[0][0]
    assert started == 1


def test_a_run_that_ended_while_no_worker_lived_is_harvested(segue: Deployment) -> None:
    """The exit record and the output file are enough: nothing is run again."""
    agent, issue = segue.agent(), segue.issue()
    task = segue.ask(agent, issue, LONG_RUN)
    segue.event_with(task, "line 0")
    segue.parts["r0"].kill()
    eventually("the agent ends by itself", lambda: not _agent_pids(segue, task))
    segue.restart("r0")
    ended = segue.ended(task)
    assert (ended["status"], len(ended["attempts"])) == ("completed", 1)
    _assert_every_line_once(segue, task)


def test_a_graceful_stop_lets_the_run_go_on(segue: Deployment) -> None:
    """SIGTERM of the worker never costs a run."""
    agent, issue = segue.agent(), segue.issue()
    task = segue.ask(agent, issue, LONG_RUN)
    segue.event_with(task, "line 1")
    segue.parts["r0"].stop()
    assert _agent_pids(segue, task)
    segue.restart("r0")
    assert segue.ended(task)["status"] == "completed"
    _assert_every_line_once(segue, task)


def test_a_worker_that_was_cut_off_goes_on_with_its_run(segue: Deployment) -> None:
    """Frozen until its activity has timed out, then back: one tailer, no kill, no second process."""
    agent, issue = segue.agent(), segue.issue()
    task = segue.ask(agent, issue, "say begun\nsleep 25\nsay finished")
    segue.event_with(task, "begun")
    pids = _agent_pids(segue, task)
    segue.parts["r0"].signal(signal.SIGSTOP)
    eventually("the server has scheduled the activity again", lambda: _redelivered(segue, task))
    segue.parts["r0"].signal(signal.SIGCONT)
    ended = segue.ended(task)
    assert (ended["status"], len(ended["attempts"])) == ("completed", 1)
    assert [text for text in segue.texts(task) if text in ("begun", "finished")] == ["begun", "finished"]
    assert _agent_pids(segue, task) == set()
    assert pids


def _redelivered(segue: Deployment, task_id: str) -> bool:
    """The server shows a pending activity in a further try: the heartbeat timed out."""
    import asyncio

    return asyncio.run(_pending_attempt(segue, task_id)) > 1


async def _pending_attempt(segue: Deployment, task_id: str) -> int:
    from temporalio.client import Client

    client = await Client.connect(segue.temporal_address, namespace=segue.namespace)
    found = await client.get_workflow_handle(f"task/{task_id}").describe()
    return max((pending.attempt for pending in found.raw_description.pending_activities), default=0)


def test_two_workers_never_share_a_root(segue: Deployment) -> None:
    """A second worker on the same root refuses to start and says who holds it."""
    first = segue.parts["r0"]
    second = segue.parts["again"] = type(first)("again", first.argv, first.env, segue.folder / "again.log")
    second.start()
    assert second.process is not None
    assert second.process.wait(60) != 0
    assert str(first.pid) in second.log.read_text()


def test_a_slow_agent_is_not_taken_for_a_dead_one(segue: Deployment) -> None:
    """Heartbeats don't depend on output: an agent silent beyond the heartbeat timeout completes."""
    agent, issue = segue.agent(), segue.issue()
    began = time.monotonic()
    ended = segue.run(agent, issue, "sleep 9\nsay done")
    assert (ended["status"], ended["result"]) == ("completed", "done")
    assert time.monotonic() - began > 9


def test_a_replaced_machine_lets_go(segue: Deployment) -> None:
    """Another root with the same token registers: the first worker ends by itself, runs are not doubled."""
    first = segue.parts["r0"]
    env = {**first.env, "SEGUE_ROOT": str(segue.folder / "elsewhere")}
    segue.parts["r1"] = type(first)("r1", first.argv, env, segue.folder / "r1.log").start()
    assert first.process is not None
    assert first.process.wait(60) == 0
    assert "runtime_replaced" in first.log.read_text()
    assert segue.run(segue.agent(), segue.issue(), "say from the new one")["status"] == "completed"
