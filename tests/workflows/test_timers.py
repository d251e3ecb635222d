"""Long waits, with time skipping: hours pass in a moment, and the workflow does what it should then."""

import sysconfig
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.testing import WorkflowEnvironment

from domain import names
from domain.reasons import Reason
from domain.retry import RetryAction
from domain.statuses import WaitKind
from domain.steps import ChatInput, Resolution, Resolved, ResolveInput
from tests.workflows.stage import Stage, again, done

pytestmark = pytest.mark.slow


@pytest.fixture
async def skipping() -> AsyncIterator[WorkflowEnvironment]:
    """Temporal's test server, whose clock jumps over waits."""
    binary = Path(sysconfig.get_path("scripts")) / "temporal-test-server"
    env = await WorkflowEnvironment.start_time_skipping(
        data_converter=pydantic_data_converter, test_server_existing_path=str(binary)
    )
    async with env:
        yield env


@pytest.fixture
def stage(skipping: WorkflowEnvironment) -> Stage:
    # The test server knows no search attributes of ours.
    return Stage(skipping.client)


async def test_a_quota_wait_sleeps_until_the_reset_and_goes_on(
    skipping: WorkflowEnvironment, stage: Stage
) -> None:
    """Five hours later the next attempt is asked for, by the timer alone."""
    reset = await skipping.get_current_time() + timedelta(hours=5)
    stage.script(names.RESOLVE_RESUME, stage.run(), Resolution(kind=Resolved.END))
    stage.script(names.GATE_WORKDIR, stage.gate())
    stage.script(names.RUN_AGENT, done(Reason.PROVIDER_QUOTA_LIMIT))
    stage.script(names.RECORD_TERMINAL, again(RetryAction.QUOTA, at=reset))
    async with stage.open():
        await (await stage.start()).result()
    assert await skipping.get_current_time() >= reset
    assert len(stage.inputs(names.RESOLVE_RESUME)) == 2


async def test_an_offline_machine_is_waited_for_until_its_limit(
    skipping: WorkflowEnvironment, stage: Stage
) -> None:
    """After two hours the question is asked again; its answer ends the task."""
    limit = await skipping.get_current_time() + timedelta(hours=2)

    async def offline(_: ResolveInput) -> Resolution:
        return Resolution(kind=Resolved.WAIT, wait_kind=WaitKind.RUNTIME_OFFLINE, look_again_at=limit)

    stage.script(names.RESOLVE_RESUME, offline, Resolution(kind=Resolved.END))
    async with stage.open():
        await (await stage.start()).result()
    assert await skipping.get_current_time() >= limit
    assert stage.called_names() == [names.RESOLVE_RESUME, names.RESOLVE_RESUME]


async def test_a_network_retry_pauses_before_the_last_attempt(
    skipping: WorkflowEnvironment, stage: Stage
) -> None:
    """``retry at`` sleeps for that long between two attempts of one task."""
    at = await skipping.get_current_time() + timedelta(minutes=30)
    stage.script(names.RESOLVE_RESUME, stage.run(2), Resolution(kind=Resolved.END))
    stage.script(names.GATE_WORKDIR, stage.gate())
    stage.script(names.RUN_AGENT, done(Reason.PROVIDER_NETWORK))
    stage.script(names.RECORD_TERMINAL, again(RetryAction.AT, at=at))
    async with stage.open():
        await (await stage.start()).result()
    assert [step.attempt for step in stage.inputs(names.RESOLVE_RESUME)] == [1, 3]


async def test_an_idle_chat_ends_after_ten_minutes(skipping: WorkflowEnvironment, stage: Stage) -> None:
    """Nothing runs for a chat in which nobody speaks."""
    stage.script(names.RESOLVE_RESUME, Resolution(kind=Resolved.END))
    before = await skipping.get_current_time()
    async with stage.open():
        await (await stage.turn(ChatInput(chat_id=stage.task_id), stage.attempt_id)).result()
    assert await skipping.get_current_time() >= before + timedelta(minutes=10)
