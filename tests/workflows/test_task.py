"""`TaskWorkflow`: what it asks, in which order, and what it does with each answer."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from uuid import UUID

import pytest
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowHandle
from temporalio.exceptions import ApplicationError

from domain import names
from domain.reasons import Reason
from domain.retry import RetryAction
from domain.statuses import ContinuityReason
from domain.steps import GateResult, Resolution, Resolved, ResolveInput
from tests.workflows.stage import Stage, again, done, ended, until_cancelled

WHOLE = [names.RESOLVE_RESUME, names.GATE_WORKDIR, names.RUN_AGENT, names.RECORD_TERMINAL]


@pytest.fixture
def stage(temporal_client: Client) -> Stage:
    return Stage(temporal_client)


@pytest.fixture
async def opened(stage: Stage) -> AsyncIterator[Stage]:
    async with stage.open():
        yield stage


async def test_a_task_runs_from_pointer_to_record(opened: Stage) -> None:
    """One attempt is four steps, and the workflow ends with the task."""
    opened.script(names.RESOLVE_RESUME, opened.run())
    opened.script(names.GATE_WORKDIR, opened.gate())
    opened.script(names.RUN_AGENT, done())
    opened.script(names.RECORD_TERMINAL, ended())
    handle = await opened.start()
    await handle.result()
    assert opened.called_names() == WHOLE
    assert opened.inputs(names.RUN_AGENT)[0].gate.work_dir == "/w/one"


async def test_a_follow_up_task_costs_at_most_26_history_events(opened: Stage) -> None:
    """The exact count is part of the design's numbers, so a change must be seen."""
    opened.script(names.RESOLVE_RESUME, opened.run())
    opened.script(names.GATE_WORKDIR, opened.gate())
    opened.script(names.RUN_AGENT, done())
    opened.script(names.RECORD_TERMINAL, ended())
    handle = await opened.start()
    await handle.result()
    events = [event async for event in handle.fetch_history_events()]
    assert len(events) <= 26


async def test_a_terminal_task_ends_its_workflow_at_once(opened: Stage) -> None:
    """A workflow that finds its task terminal does nothing."""
    opened.script(names.RESOLVE_RESUME, Resolution(kind=Resolved.END))
    await (await opened.start()).result()
    assert opened.called_names() == [names.RESOLVE_RESUME]


async def test_a_waiting_task_asks_again_when_woken(opened: Stage) -> None:
    """Waiting polls nothing; a wake makes it ask again."""
    opened.script(names.RESOLVE_RESUME, opened.wait(), opened.run())
    opened.script(names.GATE_WORKDIR, opened.gate())
    opened.script(names.RUN_AGENT, done())
    opened.script(names.RECORD_TERMINAL, ended())
    handle = await opened.start()
    await opened.called[names.RESOLVE_RESUME].wait()
    await handle.signal(names.WAKE_SIGNAL)
    await handle.result()
    assert opened.called_names() == [names.RESOLVE_RESUME, *WHOLE]


async def test_a_wake_before_the_answer_is_not_lost(opened: Stage) -> None:
    """A wake that arrives while the question is asked leads to another question."""
    handles: list[WorkflowHandle[None, None]] = []

    async def woken_meanwhile(_: ResolveInput) -> Resolution:
        await handles[0].signal(names.WAKE_SIGNAL)
        return opened.wait()

    opened.script(names.RESOLVE_RESUME, woken_meanwhile, Resolution(kind=Resolved.END))
    handles.append(opened.client.get_workflow_handle(names.task_workflow_id(opened.task_id)))
    await (await opened.start()).result()


async def test_an_offline_machines_limit_is_looked_at_by_a_timer(opened: Stage) -> None:
    """``look_again_at`` wakes the workflow although nobody does."""

    async def soon(_: ResolveInput) -> Resolution:
        from datetime import UTC, datetime

        return opened.wait(look_again_at=datetime.now(UTC) + timedelta(seconds=0.5))

    opened.script(names.RESOLVE_RESUME, soon, Resolution(kind=Resolved.END))
    await (await opened.start()).result()


async def test_a_refused_directory_is_replaced_and_gated_again(opened: Stage) -> None:
    """The gate's objection goes back to the pointer, which answers with another directory."""
    refused = GateResult(ok=False, reason=ContinuityReason.WORKDIR_GONE)
    opened.script(names.RESOLVE_RESUME, opened.run(), opened.run())
    opened.script(names.GATE_WORKDIR, refused, opened.gate())
    opened.script(names.RUN_AGENT, done())
    opened.script(names.RECORD_TERMINAL, ended())
    await (await opened.start()).result()
    rejected = [step.rejected for step in opened.inputs(names.RESOLVE_RESUME)]
    assert rejected == [None, ContinuityReason.WORKDIR_GONE]


async def test_a_machine_that_cannot_run_it_is_a_recorded_failure(opened: Stage) -> None:
    """A full disk is recorded with what the gate said, and no process is asked for."""
    full = GateResult(ok=False, failure=Reason.DISK_FULL, failure_detail="3 MiB free")
    opened.script(names.RESOLVE_RESUME, opened.run())
    opened.script(names.GATE_WORKDIR, full)
    opened.script(names.RECORD_TERMINAL, ended("failed", "disk_full"))
    await (await opened.start()).result()
    record = opened.inputs(names.RECORD_TERMINAL)[0]
    assert (record.outcome.reason, record.detail) == ("disk_full", "3 MiB free")


async def test_a_retry_is_another_attempt_of_the_same_task(opened: Stage) -> None:
    """``retry now`` asks for the next attempt's pointer."""
    opened.script(names.RESOLVE_RESUME, opened.run(), opened.run(2))
    opened.script(names.GATE_WORKDIR, opened.gate(), opened.gate())
    opened.script(names.RUN_AGENT, done(Reason.RUNTIME_RECOVERY), done())
    opened.script(names.RECORD_TERMINAL, again(), ended())
    await (await opened.start()).result()
    assert opened.called_names() == WHOLE + WHOLE
    assert [step.attempt for step in opened.inputs(names.RESOLVE_RESUME)] == [1, 2]


async def test_a_wake_cuts_a_quota_wait_short(opened: Stage) -> None:
    """Retry-now works while a task sleeps until its quota resets."""
    from datetime import UTC, datetime

    far = datetime.now(UTC) + timedelta(hours=5)
    opened.script(names.RESOLVE_RESUME, opened.run(), Resolution(kind=Resolved.END))
    opened.script(names.GATE_WORKDIR, opened.gate())
    opened.script(names.RUN_AGENT, done(Reason.PROVIDER_QUOTA_LIMIT))
    opened.script(names.RECORD_TERMINAL, again(RetryAction.QUOTA, at=far))
    handle = await opened.start()
    await opened.called[names.RECORD_TERMINAL].wait()
    await handle.signal(names.WAKE_SIGNAL)
    await handle.result()


async def test_a_cancel_stops_the_run_and_records_what_it_says(opened: Stage) -> None:
    """The activity's own word is recorded, after the process is gone."""
    opened.script(names.RESOLVE_RESUME, opened.run())
    opened.script(names.GATE_WORKDIR, opened.gate())
    opened.script(names.RUN_AGENT, until_cancelled)
    opened.script(names.RECORD_TERMINAL, ended("cancelled"))
    handle = await opened.start()
    await opened.called[names.RUN_AGENT].wait()
    await handle.cancel()
    await handle.result()
    assert opened.inputs(names.RECORD_TERMINAL)[0].outcome.reason == Reason.CANCELLED


async def test_a_cancel_while_waiting_is_recorded(opened: Stage) -> None:
    """A task that waits for leases ends without touching a machine."""
    opened.script(names.RESOLVE_RESUME, opened.wait())
    opened.script(names.RECORD_TERMINAL, ended("cancelled"))
    handle = await opened.start()
    await opened.called[names.RESOLVE_RESUME].wait()
    await handle.cancel()
    await handle.result()
    assert set(opened.called_names()) == {names.RESOLVE_RESUME, names.RECORD_TERMINAL}


@pytest.mark.parametrize("step", [names.RESOLVE_RESUME, names.GATE_WORKDIR, names.RECORD_TERMINAL])
async def test_a_cancel_during_any_step_still_records_once(opened: Stage, step: str) -> None:
    """Control steps are shielded: whatever is under way, one record follows, repeated at most."""
    answers = {
        names.RESOLVE_RESUME: opened.run(),
        names.GATE_WORKDIR: opened.gate(),
        names.RUN_AGENT: done(),
        names.RECORD_TERMINAL: ended(),
    }

    async def cancelled_meanwhile(_: object) -> object:
        handle = opened.client.get_workflow_handle(names.task_workflow_id(opened.task_id))
        await handle.cancel()
        return answers[step]

    for name, answer in answers.items():
        opened.script(name, cancelled_meanwhile if name == step else answer)
    await (await opened.start()).result()
    records = opened.inputs(names.RECORD_TERMINAL)
    assert records
    assert all(record == records[0] for record in records)


async def test_no_outcome_sets_the_attempt_aside(opened: Stage) -> None:
    """An activity that can't speak for the run leads to set_aside, never to a retry elsewhere."""
    opened.script(names.RESOLVE_RESUME, opened.run())
    opened.script(names.GATE_WORKDIR, opened.gate())
    opened.script(names.RUN_AGENT, ApplicationError("elsewhere", non_retryable=True))
    opened.script(names.SET_ASIDE, ended("failed", "outcome_unknown"))
    await (await opened.start()).result()
    aside = opened.inputs(names.SET_ASIDE)[0]
    assert (aside.attempt_id, "elsewhere" in aside.cause) == (opened.attempt_id, True)


async def test_a_cancel_while_the_machine_is_dead_sets_aside(stage: Stage) -> None:
    """The heartbeat timeout after a cancel ends the activity; nobody claims that the process is gone."""
    async with stage.open(machine=False):
        stage.script(names.RESOLVE_RESUME, stage.run())
        stage.script(names.GATE_WORKDIR, stage.gate())
        stage.script(names.RUN_AGENT, _silent)
        stage.script(names.SET_ASIDE, ended("cancelled", "outcome_unknown"))
        async with stage.machine():
            handle = await stage.start()
            await stage.called[names.RUN_AGENT].wait()
            await handle.cancel()
            await handle.result()
    assert names.RECORD_TERMINAL not in stage.called_names()


async def _silent(_: object) -> object:
    """A worker that died in mid-run: no heartbeat, no answer."""
    try:
        await asyncio.sleep(3600)
    except asyncio.CancelledError:
        await asyncio.sleep(20)  # longer than the heartbeat timeout of the stage
    raise ApplicationError("nobody waits for this", non_retryable=True)


async def test_a_control_step_that_fails_is_tried_until_it_works(opened: Stage) -> None:
    """A database that is away costs tries, never the record."""
    opened.script(names.RESOLVE_RESUME, RuntimeError("away"), Resolution(kind=Resolved.END))
    await (await opened.start()).result()
    assert opened.called_names() == [names.RESOLVE_RESUME, names.RESOLVE_RESUME]


async def test_the_web_ui_shows_summary_details_and_reason(opened: Stage) -> None:
    """Static summary at the start, the reason as a search attribute at the end."""
    opened.script(names.RESOLVE_RESUME, opened.run())
    opened.script(names.GATE_WORKDIR, opened.gate())
    opened.script(names.RUN_AGENT, done())
    opened.script(names.RECORD_TERMINAL, ended())
    handle = await opened.start()
    await handle.result()
    found = await handle.describe()
    assert found.status is WorkflowExecutionStatus.COMPLETED
    assert await found.static_summary() == "a test"
    assert found.search_attributes["SegueReason"] == ["completed"]


async def test_no_prompt_or_text_is_in_the_history(opened: Stage) -> None:
    """Ids, names and decisions only: the inputs' fields are a closed list."""
    from domain import steps
    from domain.outcomes import Outcome

    fields = {field for model in (steps.RunInput, steps.RecordInput, Outcome) for field in model.model_fields}
    assert fields.isdisjoint({"prompt", "text", "env", "token", "message", "evidence", "result"})
    assert isinstance(opened.task_id, UUID)
