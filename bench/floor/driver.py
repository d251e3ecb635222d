"""T from outside: its control-like worker lives here, where its workflows are started.

Our waker is in the control worker's process as well, so both may have a first workflow task handed over with
the start (eager start). The runtime-like worker is a process of its own.
"""

import asyncio
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from uuid import uuid4

from temporalio.client import Client, WorkflowHandle
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.worker import Worker
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions

from bench.floor import activities
from bench.floor.workflow import CONTROL_QUEUE, FloorRemoteTask, FloorSignal, FloorTask, FloorTimes

_ROOT = Path(__file__).parents[2]
_CACHED_WORKFLOWS = 200

#: T, or the same steps with remote activities only.
Shape = type[FloorTask] | type[FloorRemoteTask]


@dataclass(frozen=True)
class FloorRun:
    """One T: asked for, seen to be over, and what happened in between."""

    workflow_id: str
    asked: float
    times: FloorTimes
    over: float


class Floor:
    """A context manager around T's workers."""

    def __init__(self, address: str, namespace: str, folder: Path) -> None:
        self._address = address
        self._namespace = namespace
        self._folder = folder
        self._runtime: subprocess.Popen[bytes] | None = None
        self._client: Client | None = None
        self._worker: Worker | None = None

    @property
    def pids(self) -> tuple[int, int]:
        """This process, where T's control-like worker lives, and the runtime-like one."""
        assert self._runtime is not None, "used inside its context"
        return os.getpid(), self._runtime.pid

    @property
    def client(self) -> Client:
        assert self._client is not None, "used inside its context"
        return self._client

    async def __aenter__(self) -> Self:
        self._client = await Client.connect(
            self._address, namespace=self._namespace, data_converter=pydantic_data_converter
        )
        self._worker = Worker(
            self._client,
            task_queue=CONTROL_QUEUE,
            workflows=[FloorTask, FloorRemoteTask, FloorSignal],
            activities=[activities.resolve, activities.record],
            workflow_runner=SandboxedWorkflowRunner(
                restrictions=SandboxRestrictions.default.with_passthrough_modules("bench", "pydantic")
            ),
            max_cached_workflows=_CACHED_WORKFLOWS,
        )
        await self._worker.__aenter__()
        with (self._folder / "floor.log").open("ab") as log:
            self._runtime = subprocess.Popen(  # noqa: ASYNC220 - nothing else happens meanwhile
                [sys.executable, "-m", "bench.floor", self._address, self._namespace],
                cwd=self._folder,
                env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(_ROOT)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        await self.task(spawns=True)  # the first one warms everything up
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._runtime is not None:
            self._runtime.terminate()
            self._runtime.wait()
        if self._worker is not None:
            await self._worker.__aexit__(kind, error, trace)

    async def task(self, *, spawns: bool = False, shape: Shape = FloorTask) -> FloorRun:
        """One T, to its end; with ``spawns`` its run starts the agent's process (T + S)."""
        asked = time.time()
        handle = await self._start(shape.run, spawns)
        times: FloorTimes = await handle.result()
        return FloorRun(handle.id, asked, times, time.time())

    async def tasks(
        self, lanes: int, tasks_a_lane: int, *, spawns: bool = False, shape: Shape = FloorTask
    ) -> list[FloorRun]:
        """So many T, those of a lane one after the other."""

        async def lane() -> list[FloorRun]:
            return [await self.task(spawns=spawns, shape=shape) for _ in range(tasks_a_lane)]

        return [run for runs in await asyncio.gather(*(lane() for _ in range(lanes))) for run in runs]

    async def signal(self) -> float:
        """Seconds from a signal to the end of the workflow that waited for it."""
        handle = await self._start(FloorSignal.run)
        await asyncio.sleep(0.2)
        began = time.time()
        await handle.signal(FloorSignal.go)
        await handle.result()
        return time.time() - began

    async def _start(self, run: Any, *args: Any) -> WorkflowHandle[Any, Any]:
        return await self.client.start_workflow(
            run, args=args, id=f"floor/{uuid4()}", task_queue=CONTROL_QUEUE, request_eager_start=True
        )
