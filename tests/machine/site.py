"""One machine for a test: a root, a runtime plane, a supervisor, and what may be asked of them."""

import asyncio
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

from domain.brief import Brief, DirectoryBrief, Prompt
from domain.outcomes import Outcome
from domain.statuses import Continuity
from machine.attempt import AgentProcess, AttemptDirectory
from machine.config import MachineConfig
from machine.plane import Plane
from machine.processes import ProcessTree, marked, stop_tree
from machine.root import RootDirectory
from machine.run import Run
from machine.supervisor import Supervisor
from tests.machine.plane_server import PlaneServer
from tests.machine.toy_provider import provider

DEADLINE_SECONDS = 120.0


class Site:
    """Leaves no process behind: `close` ends what a test left running."""

    def __init__(self, folder: Path, server: PlaneServer) -> None:
        self.server = server
        self.root = RootDirectory(folder / "root")
        self.plane = Plane(server.url, "sgr_test")
        self.config = MachineConfig(api_url=server.url, disk_floor=0, retry_cap=0.2)
        self.supervisor = self.new_supervisor()

    def new_supervisor(self, **changes: Any) -> Supervisor:
        self.config = replace(self.config, **changes)
        self.supervisor = Supervisor(self.root, self.plane, provider, self.config)
        return self.supervisor

    def brief(self, message: str = "say hello", **fields: Any) -> Brief:
        """A brief that the plane knows; ``fields`` replace its own."""
        directory = DirectoryBrief(id=uuid4())
        brief = Brief(
            attempt_id=uuid4(),
            attempt=1,
            task_id=uuid4(),
            workspace_id=uuid4(),
            agent_id=uuid4(),
            agent_name="Builder",
            lane_id=uuid4(),
            provider="script",
            prompt=Prompt(full_context="Facts.", short_context="", message=message),
            directory=directory,
            continuity=Continuity.FIRST,
        ).model_copy(update=fields)
        self.server.briefs[brief.attempt_id] = brief
        return brief

    def toy(self, *argv: str, **fields: Any) -> Brief:
        return self.brief(provider="toy", args=list(argv), **fields)

    def python(self, program: str, **fields: Any) -> Brief:
        """A toy agent in Python; ``say`` prints a text line."""
        prologue = (
            "import json, os, signal, subprocess, sys, time\n"
            "def put(**m): sys.stdout.buffer.write(json.dumps(m).encode() + b'\\n'); sys.stdout.flush()\n"
            "def say(text): put(type='text', text=text)\n"
            "def done(): put(type='result', success=True, text='done')\n"
        )
        return self.toy(sys.executable, "-I", "-S", "-c", prologue + program, **fields)

    async def start(self, brief: Brief) -> Run:
        gate = await self.supervisor.gate(brief)
        assert gate.ok, gate
        return await self.supervisor.attach(brief.attempt_id, brief=brief, gate=gate)

    async def run(self, brief: Brief) -> Outcome:
        return await (await self.start(brief)).wait()

    async def next_brief(self, brief: Brief, message: str, **fields: Any) -> Brief:
        """The next task of the same lane: the same directory, resuming ``session_id``."""
        gate = await self.supervisor.gate(brief)
        directory = DirectoryBrief(
            id=brief.directory.id, path=gate.work_dir, device=gate.device, inode=gate.inode
        )
        same = {
            name: getattr(brief, name) for name in ("workspace_id", "agent_id", "lane_id", "provider", "env")
        }
        return self.brief(message, directory=directory, **{**same, **fields})

    def directory(self, attempt_id: UUID) -> AttemptDirectory:
        found = AttemptDirectory.find(self.root.attempts, attempt_id)
        assert found is not None
        return found

    def process(self, attempt_id: UUID, number: int = 1) -> AgentProcess:
        return self.directory(attempt_id).process(number)

    def events(self, brief: Brief) -> list[dict[str, Any]]:
        return self.server.events[brief.attempt_id]

    def texts(self, brief: Brief) -> list[str]:
        return [event["data"]["text"] for event in self.events(brief) if event["type"] == "text"]

    def living(self, attempt_id: UUID) -> list[int]:
        return [process.pid for process in marked(attempt_id, self.root.boot_id)]

    async def until_text(self, brief: Brief, text: str) -> None:
        await until(lambda: text in self.texts(brief))

    async def close(self) -> None:
        await self.supervisor.detach_all()
        for path in self.root.attempts.iterdir():
            found = AttemptDirectory.find(self.root.attempts, UUID(path.name))
            if found is not None:
                for number in (1, 2):
                    await stop_tree(found.process(number).tree(self.root.boot_id), 0.0)
        for attempt_id in self.server.briefs:
            await stop_tree(ProcessTree(attempt_id, None, None, self.root.boot_id), 0.0)
        await self.plane.close()


async def until(condition: Callable[[], object]) -> None:
    """Wait for a condition, with a deadline that only a hang misses."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "the condition never came true"
        await asyncio.sleep(0.01)
