"""The bodies of T's steps, and S."""

import asyncio
import subprocess
import sys
import time
from pathlib import Path

from temporalio import activity

from bench.floor.workflow import GATE, RECORD, RESOLVE, RUN, RunTimes
from providers import script_agent

#: As the provider starts it.
AGENT = (sys.executable, "-I", "-S", str(Path(script_agent.__file__).resolve()))


@activity.defn(name=RESOLVE)
async def resolve() -> float:
    return time.time()


@activity.defn(name=GATE)
async def gate() -> float:
    return time.time()


@activity.defn(name=RUN)
async def run(spawns: bool) -> RunTimes:  # noqa: FBT001 - an activity's input
    began = time.time()
    if not spawns:
        return RunTimes(began, began, time.time())
    first_line = await _spawn()
    return RunTimes(began, first_line, time.time())


@activity.defn(name=RECORD)
async def record() -> float:
    return time.time()


def bare_spawn(home: Path) -> float:
    """S: seconds from starting the agent's process, with an empty prompt, to its first line."""
    began = time.time()
    with subprocess.Popen(
        AGENT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=_environment(home),
        cwd=home,
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        return time.time() - began


async def _spawn() -> float:
    process = await asyncio.create_subprocess_exec(
        *AGENT,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env=_environment(Path.cwd()),
    )
    assert process.stdout is not None
    await process.stdout.readline()
    first_line = time.time()
    await process.stdout.read()
    await process.wait()
    return first_line


def _environment(home: Path) -> dict[str, str]:
    return {"SEGUE_SCRIPT_HOME": str(home / "script"), "HOME": str(home)}
