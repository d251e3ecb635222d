"""`ChatWorkflow`: one task for every turn, in order, whatever ends or restarts it."""

from collections.abc import AsyncIterator
from functools import partial
from typing import Any
from uuid import UUID, uuid4

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowHandle

from domain import names
from domain.steps import ChatInput, Resolution, Resolved
from tests.workflows.stage import Stage, done, ended, until, until_cancelled
from workflows.chat import TURNS_A_RUN

_STARTED = EventType.EVENT_TYPE_START_CHILD_WORKFLOW_EXECUTION_INITIATED


@pytest.fixture
async def stage(temporal_client: Client) -> AsyncIterator[Stage]:
    """Its tasks end at once unless a test says otherwise."""
    stage = Stage(temporal_client)
    async with stage.open():
        yield stage


def chat_input(**more: Any) -> ChatInput:
    return ChatInput(chat_id=uuid4(), **more)


def ends_at_once(stage: Stage) -> None:
    stage.script(names.RESOLVE_RESUME, Resolution(kind=Resolved.END))


def asked(stage: Stage) -> list[UUID]:
    """The tasks that have begun, in the order in which they did."""
    return [step.task_id for step in stage.inputs(names.RESOLVE_RESUME)]


async def send(stage: Stage, chat: ChatInput, *task_ids: UUID) -> WorkflowHandle[Any, Any]:
    """Send the turns one after the other; the handle is that of the run that the first one was sent to."""
    handle = await stage.turn(chat, task_ids[0])
    for task_id in task_ids[1:]:
        await stage.turn(chat, task_id)
    return handle


async def all_asked(stage: Stage, task_ids: list[UUID]) -> None:
    await until(lambda: set(task_ids) <= set(asked(stage)))


async def events(handle: WorkflowHandle[Any, Any]) -> list[int]:
    return [event.event_type async for event in handle.fetch_history_events()]


async def test_every_turn_has_a_task_of_its_own(stage: Stage) -> None:
    """Each turn starts one child with the task's own workflow id; a turn told twice is one turn."""
    ends_at_once(stage)
    chat, task_ids = chat_input(), [uuid4() for _ in range(3)]
    handle = await send(stage, chat, *task_ids, task_ids[1])
    await all_asked(stage, task_ids)
    await handle.signal(names.CLOSE_SIGNAL)
    await handle.result()
    assert sorted(asked(stage)) == sorted(task_ids)
    kinds = await events(handle)
    assert kinds.count(_STARTED) == 3


async def test_a_task_that_exists_is_not_run_twice(stage: Stage) -> None:
    """A turn that comes again in a later run of the chat finds its task's workflow, and goes on."""
    ends_at_once(stage)
    chat, first, second = chat_input(idle_seconds=1.0), uuid4(), uuid4()
    await (await stage.turn(chat, first)).result()
    await stage.turn(chat, first)
    await (await stage.turn(chat, second)).result()
    await all_asked(stage, [first, second])
    assert asked(stage).count(first) == 1


async def test_silence_ends_it_and_the_next_turn_starts_it_again(stage: Stage) -> None:
    """An idle chat costs nothing; signal-with-start makes a new run of the same workflow id."""
    ends_at_once(stage)
    chat, first, second = chat_input(idle_seconds=1.0), uuid4(), uuid4()
    before = await stage.turn(chat, first)
    await before.result()
    after = await stage.turn(chat, second)
    await after.result()
    await all_asked(stage, [first, second])
    assert before.id == after.id
    assert before.first_execution_run_id != after.first_execution_run_id


async def test_a_closed_chat_hands_on_what_was_sent_before(stage: Stage) -> None:
    """Archiving drops nothing: the turns before it run, then the workflow ends."""
    ends_at_once(stage)
    chat, task_ids = chat_input(), [uuid4() for _ in range(5)]
    handle = await send(stage, chat, *task_ids)
    await handle.signal(names.CLOSE_SIGNAL)
    await handle.result()
    await all_asked(stage, task_ids)


async def test_a_turn_after_the_close_is_not_lost(stage: Stage) -> None:
    """A chat that is unarchived goes on, in this run or a new one."""
    ends_at_once(stage)
    chat, task_id = chat_input(idle_seconds=2.0), uuid4()
    handle = await stage.turn(chat, uuid4())
    await handle.signal(names.CLOSE_SIGNAL)
    await (await stage.turn(chat, task_id)).result()
    await all_asked(stage, [task_id])


async def test_a_task_outlives_its_chats_workflow(stage: Stage) -> None:
    """The chat's workflow may be terminated: the run that it started goes on to its end."""
    stage.script(names.RESOLVE_RESUME, stage.run())
    stage.script(names.GATE_WORKDIR, stage.gate())
    stage.script(names.RUN_AGENT, until_cancelled)
    stage.script(names.RECORD_TERMINAL, ended("cancelled"))
    handle = await stage.turn(chat_input(), stage.task_id)
    await stage.called[names.RUN_AGENT].wait()
    await handle.terminate("a test")
    task = stage.client.get_workflow_handle(names.task_workflow_id(stage.task_id))
    assert (await task.describe()).status is WorkflowExecutionStatus.RUNNING
    await task.cancel()
    await task.result()


async def test_many_turns_are_spread_over_several_histories(stage: Stage) -> None:
    """After so many turns it continues as new; turns that come in that moment are in the next run."""
    ends_at_once(stage)
    chat, task_ids = chat_input(idle_seconds=2.0), [uuid4() for _ in range(2 * TURNS_A_RUN + 10)]
    handle = await send(stage, chat, *task_ids)
    await all_asked(stage, task_ids)
    first = stage.client.get_workflow_handle(handle.id, run_id=handle.first_execution_run_id)
    kinds = await events(first)
    assert kinds[-1] == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CONTINUED_AS_NEW
    assert kinds.count(_STARTED) == TURNS_A_RUN
    assert len(asked(stage)) == len(task_ids)


async def test_a_follow_up_costs_at_most_36_history_events(stage: Stage) -> None:
    """The task's and its share of the chat's workflow, counted exactly: a number of the design."""
    stage.script(names.RESOLVE_RESUME, stage.run())
    stage.script(names.GATE_WORKDIR, stage.gate())
    stage.script(names.RUN_AGENT, done())
    stage.script(names.RECORD_TERMINAL, ended())
    chat, shares, of_tasks, before = chat_input(), [], [], 0
    for _ in range(4):
        task_id = uuid4()
        handle = await stage.turn(chat, task_id)
        await all_asked(stage, [task_id])
        task = stage.client.get_workflow_handle(names.task_workflow_id(task_id))
        await task.result()
        await until(partial(_has_heard, handle))
        size = len(await events(handle))
        shares.append(size - before)
        of_tasks.append(len(await events(task)))
        before = size
    assert max(shares[1:]) + max(of_tasks) <= 36


async def _has_heard(chat: WorkflowHandle[Any, Any]) -> bool:
    """The chat's workflow has dealt with its last task's end."""
    kinds = await events(chat)
    heard = EventType.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_COMPLETED
    dealt_with = EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED
    return kinds.count(heard) == kinds.count(_STARTED) and kinds[-1] == dealt_with
