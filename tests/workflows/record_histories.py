"""Record one history of every path through the workflows.

``python -m tests.workflows.record_histories ADDRESS [NAMESPACE]``: run it against a Temporal server
when a path is added; existing files stay as they are.
"""

import asyncio
import json
import re
import sys
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

from temporalio.client import Client, WorkflowHandle
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.exceptions import ApplicationError

from domain import names
from domain.reasons import Reason
from domain.retry import RetryAction
from domain.statuses import ContinuityReason
from domain.steps import (
    ChatInput,
    ChatSeed,
    GateResult,
    Resolution,
    Resolved,
    StopInput,
    StopResult,
    Turn,
)
from tests.workflows.stage import Stage, again, done, ended, until_cancelled
from workflows.chat import TURNS_A_RUN

#: A worker's identity and the name of its sticky queue begin so.
_PROCESS_AND_HOST = re.compile(r"^\d+@[^-@]+")
FOLDER = Path(__file__).parent / "histories"

Handle = WorkflowHandle[object, object]


def _usual(stage: Stage) -> None:
    stage.script(names.RESOLVE_RESUME, stage.run())
    stage.script(names.GATE_WORKDIR, stage.gate())
    stage.script(names.RUN_AGENT, done())
    stage.script(names.RECORD_TERMINAL, ended())


async def completed(stage: Stage) -> Handle:
    _usual(stage)
    return await stage.start()


async def waited(stage: Stage) -> Handle:
    stage.script(names.RESOLVE_RESUME, stage.wait())
    _usual(stage)
    handle = await stage.start()
    await stage.called[names.RESOLVE_RESUME].wait()
    await handle.signal(names.WAKE_SIGNAL)
    return handle


async def retried(stage: Stage) -> Handle:
    soon = datetime.now(UTC) + timedelta(seconds=1)
    stage.script(names.RESOLVE_RESUME, stage.run(), stage.run(2))
    stage.script(names.GATE_WORKDIR, stage.gate())
    stage.script(names.RUN_AGENT, done(Reason.PROVIDER_NETWORK), done())
    stage.script(names.RECORD_TERMINAL, again(RetryAction.AT, at=soon), ended())
    return await stage.start()


async def regated(stage: Stage) -> Handle:
    stage.script(names.GATE_WORKDIR, GateResult(ok=False, reason=ContinuityReason.WORKDIR_GONE))
    _usual(stage)
    return await stage.start()


async def cancelled(stage: Stage) -> Handle:
    stage.script(names.RESOLVE_RESUME, stage.run())
    stage.script(names.GATE_WORKDIR, stage.gate())
    stage.script(names.RUN_AGENT, until_cancelled)
    stage.script(names.RECORD_TERMINAL, ended("cancelled"))
    handle = await stage.start()
    await stage.called[names.RUN_AGENT].wait()
    await handle.cancel()
    return handle


async def cancelled_waiting(stage: Stage) -> Handle:
    stage.script(names.RESOLVE_RESUME, stage.wait())
    stage.script(names.RECORD_TERMINAL, ended("cancelled"))
    handle = await stage.start()
    await stage.called[names.RESOLVE_RESUME].wait()
    await handle.cancel()
    return handle


async def set_aside(stage: Stage) -> Handle:
    stage.script(names.RESOLVE_RESUME, stage.run())
    stage.script(names.GATE_WORKDIR, stage.gate())
    stage.script(names.RUN_AGENT, ApplicationError("elsewhere", non_retryable=True))
    stage.script(names.SET_ASIDE, ended("failed", "outcome_unknown"))
    return await stage.start()


async def found_terminal(stage: Stage) -> Handle:
    stage.script(names.RESOLVE_RESUME, Resolution(kind=Resolved.END))
    return await stage.start()


async def stopped(stage: Stage) -> Handle:
    stage.script(names.STOP_ATTEMPT, StopResult(stopped=True, outcome=done(Reason.CANCELLED)))
    stage.script(names.SETTLE_ATTEMPT, None)
    return await stage.client.start_workflow(
        names.STOP_WORKFLOW,
        StopInput(
            attempt_id=stage.attempt_id,
            task_id=stage.task_id,
            runtime_id=stage.attempt_id,
            ops_queue=f"{stage.queue}-ops",
        ),
        id=names.stop_workflow_id(stage.attempt_id),
        task_queue=stage.queue,
    )


async def chatted(stage: Stage) -> Handle:
    """Three turns, one of them told twice, then silence."""
    stage.script(names.RESOLVE_RESUME, Resolution(kind=Resolved.END))
    chat = ChatInput(chat_id=stage.task_id, idle_seconds=2.0)
    first = uuid4()
    handle = await stage.turn(chat, first)
    for task_id in (uuid4(), first, uuid4()):
        await stage.turn(chat, task_id)
    return handle


async def chat_closed(stage: Stage) -> Handle:
    stage.script(names.RESOLVE_RESUME, Resolution(kind=Resolved.END))
    seed = ChatSeed(source_task_id=uuid4(), runtime_id=uuid4(), session_carried=True, fork=True)
    handle = await stage.turn(ChatInput(chat_id=stage.task_id, seed=seed), uuid4())
    await handle.signal(names.CLOSE_SIGNAL)
    return handle


async def chat_continued(stage: Stage) -> Handle:
    """More turns than one run takes, sent as fast as they can be: the first run's history."""
    stage.script(names.RESOLVE_RESUME, Resolution(kind=Resolved.END))
    chat = ChatInput(chat_id=stage.task_id, idle_seconds=2.0)
    handle = await stage.turn(chat, uuid4())
    for _ in range(TURNS_A_RUN + 5):
        await stage.turn(chat, uuid4())
    return stage.client.get_workflow_handle(handle.id, run_id=handle.first_execution_run_id)


async def chat_going_on(stage: Stage) -> Handle:
    """The run after another one, with a turn that came while that one ended."""
    stage.script(names.RESOLVE_RESUME, Resolution(kind=Resolved.END))
    chat = ChatInput(
        chat_id=stage.task_id, idle_seconds=2.0, dispatched=TURNS_A_RUN, pending=[Turn(task_id=uuid4())]
    )
    return await stage.turn(chat, uuid4())


PATHS: list[Callable[[Stage], Awaitable[Handle]]] = [
    completed,
    waited,
    retried,
    regated,
    cancelled,
    cancelled_waiting,
    set_aside,
    found_terminal,
    stopped,
    chatted,
    chat_closed,
    chat_continued,
    chat_going_on,
]


async def record(address: str, namespace: str = "default") -> None:
    FOLDER.mkdir(exist_ok=True)
    client = await Client.connect(address, namespace=namespace, data_converter=pydantic_data_converter)
    for path in PATHS:
        file = FOLDER / f"{path.__name__}-0.1.json"
        if not file.exists():
            file.write_text(await _record(client, path))


async def _record(client: Client, path: Callable[[Stage], Awaitable[Handle]]) -> str:
    stage = Stage(client)
    async with stage.open():
        handle = await path(stage)
        await handle.result()
        history = json.loads((await handle.fetch_history()).to_json())
        return json.dumps(_anonymous(history), indent=1)


def _anonymous(value: Any) -> Any:
    """Without what names the machine it was recorded on; replaying needs none of it."""
    if isinstance(value, str):
        return _PROCESS_AND_HOST.sub("worker", value)
    if isinstance(value, dict):
        return {key: _anonymous(one) for key, one in value.items() if key != "stackTrace"}
    if isinstance(value, list):
        return [_anonymous(one) for one in value]
    return value


if __name__ == "__main__":
    asyncio.run(record(*sys.argv[1:]))
