"""Stopping: everything of an attempt ends, and nothing else does."""

import asyncio
import signal
import subprocess
import sys
from pathlib import Path
from uuid import uuid4

from domain.outcomes import OutcomeStatus
from machine.attempt import AttemptDirectory, ProcessState
from machine.launch import record_of
from machine.processes import MARKER, identify
from providers.base import Limits
from tests.machine.site import Site, until

QUICK = Limits(startup=600, idle=600, tool_idle=600, after_result=600, stop_grace=0.5)
#: Starts a tool in a session of its own, as real agents do, and one that left the agent's parentage too.
TOOLS = (
    "tool = [sys.executable, '-I', '-S', '-c', 'import time; time.sleep(600)']\n"
    "orphan = 'import os, time\\nif os.fork() == 0:\\n    os.setsid(); time.sleep(600)\\n'\n"
    "subprocess.Popen(tool, start_new_session=True)\n"
    "subprocess.run([sys.executable, '-I', '-S', '-c', orphan])\n"
)


async def test_cancel_ends_the_whole_tree(site: Site) -> None:
    """Agent, setsid tools and their orphans are gone when cancel returns; the outcome is cancelled."""
    site.new_supervisor(limits={"toy": QUICK})
    brief = site.python(TOOLS + "say('here'); time.sleep(600)")
    run = await site.start(brief)
    await site.until_text(brief, "here")
    assert len(site.living(brief.attempt_id)) == 3
    assert await run.cancel() == []
    assert site.living(brief.attempt_id) == []
    outcome = await run.wait()
    assert (outcome.status, outcome.reason) == (OutcomeStatus.CANCELLED, "cancelled")
    assert site.texts(brief) == ["here"]


async def test_a_normal_exit_reaps_the_tree_too(site: Site) -> None:
    """What an agent leaves behind ends with it."""
    brief = site.python(TOOLS + "say('here'); done()")
    assert (await site.run(brief)).reason == "completed"
    assert site.living(brief.attempt_id) == []
    assert site.process(brief.attempt_id).reaped


async def test_a_grandchild_that_holds_the_output_delays_nothing(site: Site) -> None:
    """The `script` agent's setsid grandchild with the agent's stdout is ended, the run is complete."""
    brief = site.brief("spawn 600\nsay after")
    assert (await site.run(brief)).reason == "completed"
    assert site.living(brief.attempt_id) == []


async def test_cancel_ends_what_a_killed_shim_left(site: Site) -> None:
    """Without a shim the tree is found by the agent's record and by the marker."""
    site.new_supervisor(limits={"toy": QUICK})
    brief = site.python(TOOLS + "say('here'); time.sleep(600)")
    run = await site.start(brief)
    await site.until_text(brief, "here")
    shim = site.process(brief.attempt_id).shim()
    assert shim
    shim.send(signal.SIGKILL, site.root.boot_id)
    await until(lambda: not shim.alive(site.root.boot_id))
    assert await run.cancel() == []
    assert site.living(brief.attempt_id) == []
    assert (await run.wait()).reason == "cancelled"


async def test_strays_of_a_killed_shim_end_with_the_agent(site: Site) -> None:
    """Shim killed, agent done: its tools are found by the marker before the run counts as over."""
    site.new_supervisor(limits={"toy": QUICK})
    brief = site.python(TOOLS + "say('here')\nwhile not os.path.exists('go'): time.sleep(0.01)\ndone()")
    run = await site.start(brief)
    await site.until_text(brief, "here")
    shim = site.process(brief.attempt_id).shim()
    assert shim
    shim.send(signal.SIGKILL, site.root.boot_id)
    Path(site.directory(brief.attempt_id).record.work_dir, "go").touch()
    assert (await run.wait()).reason == "completed"
    assert site.living(brief.attempt_id) == []


async def test_an_agent_that_ignores_sigterm_is_killed(site: Site) -> None:
    """After the grace comes SIGKILL."""
    site.new_supervisor(limits={"script": QUICK})
    brief = site.brief("ignore-term\nsay here\nsleep 600")
    run = await site.start(brief)
    await site.until_text(brief, "here")
    await run.cancel()
    outcome = await run.wait()
    assert (outcome.reason, outcome.signal) == ("cancelled", signal.SIGKILL)
    assert site.living(brief.attempt_id) == []


async def test_an_agent_gets_time_to_leave(site: Site) -> None:
    """SIGTERM comes first: what the agent still says on its way out is kept."""
    brief = site.python(
        "def leave(*_): say('bye'); os._exit(7)\nsignal.signal(signal.SIGTERM, leave); say('here')\n"
        "while True: time.sleep(600)"
    )
    run = await site.start(brief)
    await site.until_text(brief, "here")
    await run.cancel()
    outcome = await run.wait()
    assert (outcome.reason, outcome.exit_code) == ("cancelled", 7)
    assert site.texts(brief) == ["here", "bye"]


async def test_a_stopped_agent_is_ended(site: Site) -> None:
    """A process in SIGSTOP gets its SIGTERM."""
    brief = site.python("say('here'); os.kill(os.getpid(), signal.SIGSTOP); time.sleep(600)")
    run = await site.start(brief)
    await site.until_text(brief, "here")
    await run.cancel()
    assert (await run.wait()).reason == "cancelled"


async def test_a_result_that_was_read_beats_the_cancel(site: Site) -> None:
    """The turn was over: cancelling the lingering process leaves it completed."""
    site.new_supervisor(limits={"script": QUICK})
    brief = site.brief("say here\nlinger 600")
    run = await site.start(brief)
    await until(lambda: any(event["type"] == "result" for event in site.events(brief)))
    await run.cancel()
    assert (await run.wait()).reason == "completed"


async def test_cancel_before_the_start_starts_nothing(site: Site) -> None:
    """While the API is away a cancel needs no answer, and the agent never runs."""
    brief = site.python("open('ran', 'w')")
    gate = await site.supervisor.gate(brief)
    site.server.away = True
    run = await site.supervisor.attach(brief.attempt_id, brief=brief, gate=gate)
    assert await run.cancel() == []
    outcome = await run.wait()
    assert outcome.reason == "cancelled"
    site.server.away = False
    again = await site.new_supervisor().attach(brief.attempt_id, brief=brief, gate=gate)
    assert await again.wait() == outcome
    assert gate.work_dir
    assert not Path(gate.work_dir, "ran").exists()


async def test_cancel_right_after_the_start_leaves_nothing(site: Site) -> None:
    """Wherever the start is, the cancel comes before or after it, never beside it."""
    site.new_supervisor(limits={"toy": QUICK})
    for pause in (0.0, 0.01, 0.03, 0.06, 0.1):
        brief = site.python("say('here'); time.sleep(600)")
        run = await site.start(brief)
        await asyncio.sleep(pause)
        assert await run.cancel() == []
        assert (await run.wait()).reason == "cancelled"
        assert site.living(brief.attempt_id) == []


async def test_stop_attempt_kills_and_tells_the_outcome(site: Site) -> None:
    """The stop of an attempt that no run follows: killed by its record, harvested, idempotent."""
    site.new_supervisor(limits={"toy": QUICK})
    brief = site.python(TOOLS + "say('here'); time.sleep(600)")
    run = await site.start(brief)
    await site.until_text(brief, "here")
    await run.detach()
    supervisor = site.new_supervisor()
    result = await supervisor.stop_attempt(brief.attempt_id)
    assert result.stopped
    assert result.outcome
    assert result.outcome.reason == "cancelled"
    assert site.living(brief.attempt_id) == []
    assert await supervisor.stop_attempt(brief.attempt_id) == result


async def test_stop_attempt_keeps_what_had_ended_by_itself(site: Site) -> None:
    """A run that completed alone is harvested as completed, not as cancelled."""
    brief = site.python("say('here')\nwhile not os.path.exists('go'): time.sleep(0.01)\ndone()")
    run = await site.start(brief)
    await site.until_text(brief, "here")
    await run.detach()
    process = site.process(brief.attempt_id)
    Path(site.directory(brief.attempt_id).record.work_dir, "go").touch()
    await until(lambda: process.state(site.root.boot_id) is ProcessState.ENDED)
    result = await site.new_supervisor().stop_attempt(brief.attempt_id)
    assert result.outcome
    assert result.outcome.reason == "completed"


async def test_stop_attempt_without_a_directory_walks_by_the_marker(site: Site) -> None:
    """When the records are lost the marker still finds the processes, and only those."""
    attempt_id = uuid4()
    sleeper = ["sleep", "600"]
    marked = subprocess.Popen(sleeper, env={MARKER: str(attempt_id), "PATH": "/usr/bin:/bin"})
    other = subprocess.Popen(sleeper, env={MARKER: str(uuid4()), "PATH": "/usr/bin:/bin"})
    try:
        result = await site.supervisor.stop_attempt(attempt_id)
        assert (result.stopped, result.outcome) == (True, None)
        assert await asyncio.to_thread(marked.wait) == -signal.SIGKILL
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


async def test_a_stopped_attempt_is_never_started(site: Site) -> None:
    """A prepared attempt that was stopped stays stopped, even for a late start."""
    brief = site.python("open('ran', 'w')")
    gate = await site.supervisor.gate(brief)
    AttemptDirectory.create(site.root.attempts, record_of(brief, gate, "nonce", site.root.boot_id))
    result = await site.supervisor.stop_attempt(brief.attempt_id)
    assert result.stopped
    run = await site.supervisor.attach(brief.attempt_id, brief=brief, gate=gate)
    assert (await run.wait()).reason == "cancelled"
    assert brief.attempt_id not in site.server.starts


async def test_a_recycled_pid_is_not_signalled(site: Site) -> None:
    """A record whose start time does not fit names nobody."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        found = identify(process.pid, site.root.boot_id)
        assert found is not None
        assert found.start_time is not None
        stale = found.__class__(found.pid, found.start_time - 1, found.boot_id, found.at)
        assert not stale.send(signal.SIGKILL, site.root.boot_id)
        assert not stale.send_group(signal.SIGKILL, site.root.boot_id)
        assert process.poll() is None
    finally:
        process.kill()
        process.wait()
