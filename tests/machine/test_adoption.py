"""What happens to a run when its worker does not live as long as it."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from domain.brief import Brief
from domain.errors import RunDetached
from domain.outcomes import OutcomeStatus
from machine import shim
from machine.attempt import AttemptDirectory, ProcessState
from machine.ending import Stop, StopCause
from machine.launch import record_of
from machine.processes import identify, stop_tree
from machine.records import write_record
from providers.base import Limits
from tests.machine.site import DEADLINE_SECONDS, Site, until

Worker = Callable[[Brief | None], Awaitable[asyncio.subprocess.Process]]

COUNTING = (
    "say('begin')\n"
    "for n in range(300):\n"
    "    say(str(n)); time.sleep(0.01)\n"
    "while not os.path.exists('go'): time.sleep(0.01)\n"
    "done()\n"
)
NUMBERS = ["begin", *map(str, range(300))]


@pytest.fixture
async def worker(site: Site) -> AsyncIterator[Worker]:
    """Start the machine part of a worker as a process; killed when the test ends."""
    started: list[asyncio.subprocess.Process] = []

    async def start(brief: Brief | None) -> asyncio.subprocess.Process:
        words = [str(site.root.path), site.server.url, *([brief.model_dump_json()] if brief else [])]
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.machine.worker_process", *words, stdout=asyncio.subprocess.PIPE
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.returncode is None:
            process.kill()
        await process.communicate()


def let_it_end(site: Site, brief: Brief) -> None:
    Path(site.directory(brief.attempt_id).record.work_dir, "go").touch()


async def test_a_killed_worker_costs_no_event(site: Site, worker: Worker) -> None:
    """kill -9 in mid-run, twice: the agent goes on, and every event is stored exactly once."""
    brief = site.python(COUNTING)
    first = await worker(brief)
    await site.until_text(brief, "20")
    first.kill()
    await first.wait()
    second = await worker(None)
    await site.until_text(brief, "150")
    second.kill()
    await second.wait()
    let_it_end(site, brief)
    run = await site.supervisor.attach(brief.attempt_id)
    outcome = await run.wait()
    assert outcome.reason == "completed"
    assert site.texts(brief) == NUMBERS
    assert site.server.faults == 0
    assert outcome.last_seq == len(site.events(brief))


async def test_a_run_that_ended_alone_is_harvested(site: Site, worker: Worker) -> None:
    """The agent ends while no worker lives: the next one finds events, exit code and outcome."""
    brief = site.python(COUNTING)
    first = await worker(brief)
    await site.until_text(brief, "begin")
    first.kill()
    await first.wait()
    let_it_end(site, brief)
    process = site.process(brief.attempt_id)
    await until(lambda: process.state(site.root.boot_id) is ProcessState.ENDED)
    adopted = await site.supervisor.look_after_living()
    assert adopted == [brief.attempt_id]
    outcome = await (await site.supervisor.attach(brief.attempt_id)).wait()
    assert (outcome.reason, outcome.exit_code) == ("completed", 0)
    assert site.texts(brief) == NUMBERS
    assert await site.new_supervisor().look_after_living() == []


async def test_detach_leaves_the_run_to_its_adopter(site: Site) -> None:
    """A drain lets go; the same process is followed on, and nothing is stored twice."""
    brief = site.python(COUNTING)
    run = await site.start(brief)
    await site.until_text(brief, "20")
    agent = site.process(brief.attempt_id).agent()
    await site.supervisor.detach_all()
    with pytest.raises(RunDetached):
        await run.wait()
    assert site.living(brief.attempt_id)
    adopted = await site.new_supervisor().attach(brief.attempt_id)
    let_it_end(site, brief)
    assert (await adopted.wait()).reason == "completed"
    assert site.process(brief.attempt_id).agent() == agent
    assert site.texts(brief) == NUMBERS


async def test_one_reads_while_another_waits(site: Site) -> None:
    """Two tailers of one attempt: the newcomer waits for the lock and returns the kept outcome."""
    brief = site.python(COUNTING)
    run = await site.start(brief)
    await site.until_text(brief, "20")
    other = await site.new_supervisor().attach(brief.attempt_id)
    let_it_end(site, brief)
    assert await other.wait() == await run.wait()
    assert site.texts(brief) == NUMBERS
    assert len(site.server.posted[brief.attempt_id]) == len(site.events(brief))


async def test_asking_again_joins_the_living_run(site: Site) -> None:
    """A redelivery to the same worker gets the run that is there."""
    brief = site.python(COUNTING)
    run = await site.start(brief)
    assert await site.supervisor.attach(brief.attempt_id) is run
    await site.until_text(brief, "begin")
    let_it_end(site, brief)
    await run.wait()


async def test_a_process_that_vanished_ends_as_runtime_recovery(site: Site) -> None:
    """Shim and agent killed: proven dead without an exit record, and without a result."""
    brief = site.python("say('here'); time.sleep(600)")
    run = await site.start(brief)
    await site.until_text(brief, "here")
    process = site.process(brief.attempt_id)
    watcher, agent = process.shim(), process.agent()
    assert watcher
    assert agent
    watcher.send(signal.SIGKILL, site.root.boot_id)
    agent.send(signal.SIGKILL, site.root.boot_id)
    outcome = await run.wait()
    assert (outcome.status, outcome.reason) == (OutcomeStatus.FAILED, "runtime_recovery")


async def test_a_killed_shim_does_not_end_the_run(site: Site) -> None:
    """The agent goes on without its shim; its result still counts."""
    brief = site.python(COUNTING)
    run = await site.start(brief)
    await site.until_text(brief, "20")
    supervisor_shim = site.process(brief.attempt_id).shim()
    assert supervisor_shim
    supervisor_shim.send(signal.SIGKILL, site.root.boot_id)
    let_it_end(site, brief)
    outcome = await run.wait()
    assert outcome.reason == "completed"
    assert site.texts(brief) == NUMBERS


async def test_after_a_reboot_a_run_is_dead(site: Site) -> None:
    """A record of another boot names no process of today, whatever runs under its pid."""
    brief = site.python("say('here'); time.sleep(600)")
    run = await site.start(brief)
    await site.until_text(brief, "here")
    await run.detach()
    process = site.process(brief.attempt_id)
    watcher = process.shim()
    assert watcher
    watcher.send(signal.SIGKILL, site.root.boot_id)
    await stop_tree(process.tree(site.root.boot_id), 0.0)
    today = identify(os.getpid(), site.root.boot_id)
    assert today
    record = {"pid": today.pid, "start_time": today.start_time, "boot_id": "an-earlier-boot", "at": 0.0}
    write_record(process.path / "shim.json", record)
    write_record(process.path / "agent.json", record)
    outcome = await (await site.new_supervisor().attach(brief.attempt_id)).wait()
    assert outcome.reason == "runtime_recovery"
    assert site.texts(brief) == ["here"]


async def test_prepared_before_a_reboot_is_not_started_after_it(site: Site) -> None:
    """An attempt of an earlier boot that never started is given back for a retry."""
    brief = site.python("open('ran', 'w')")
    gate = await site.supervisor.gate(brief)
    AttemptDirectory.create(site.root.attempts, record_of(brief, gate, "nonce", "an-earlier-boot"))
    outcome = await (await site.supervisor.attach(brief.attempt_id, brief=brief)).wait()
    assert outcome.reason == "runtime_recovery"
    assert gate.work_dir
    assert not Path(gate.work_dir, "ran").exists()


async def test_a_start_that_was_cut_short_is_taken_up(site: Site) -> None:
    """Prepared and claimed, then the worker died: the same nonce starts it, once."""
    brief = site.brief("say hello")
    gate = await site.supervisor.gate(brief)
    AttemptDirectory.create(site.root.attempts, record_of(brief, gate, "nonce", site.root.boot_id))
    site.server.starts[brief.attempt_id] = {
        "machine_id": site.root.machine_id,
        "boot_id": site.root.boot_id,
        "nonce": "nonce",
    }
    assert await site.supervisor.look_after_living() == []
    outcome = await (await site.supervisor.attach(brief.attempt_id)).wait()
    assert outcome.reason == "completed"
    assert site.texts(brief) == ["hello"]


async def test_a_stop_decided_by_a_dead_worker_is_carried_out(site: Site) -> None:
    """The journal has the watchdog's decision, the worker died over it: the reason stays the watchdog's."""
    brief = site.python("say('here'); time.sleep(600)")
    run = await site.start(brief)
    await site.until_text(brief, "here")
    await run.detach()
    journal = site.process(brief.attempt_id).journal()
    journal.record_stop(Stop(StopCause.IDLE_WATCHDOG, result_seen=False, detail="silent"))
    outcome = await (await site.new_supervisor().attach(brief.attempt_id)).wait()
    assert outcome.reason == "idle_watchdog"
    assert site.living(brief.attempt_id) == []


async def test_reading_again_gives_the_same_events(site: Site) -> None:
    """After the end was journalled and the outcome lost, a second reading numbers the same sequence."""
    site.new_supervisor(limits={"toy": Limits(startup=60, idle=0.3, stop_grace=0.5)})
    brief = site.python("say('here'); time.sleep(600)")
    outcome = await site.run(brief)
    first = [(e["seq"], e["type"], e["data"]) for e in site.events(brief)]
    site.server.events[brief.attempt_id].clear()
    (site.directory(brief.attempt_id).path / "outcome.json").unlink()
    again = await (await site.new_supervisor().attach(brief.attempt_id)).wait()
    assert again == outcome
    assert [(e["seq"], e["type"], e["data"]) for e in site.events(brief)] == first


async def test_an_attempt_that_no_longer_stands_is_left_alone(site: Site) -> None:
    """Look after it no more, but kill nothing: only a stop does that."""
    brief = site.python("say('here'); time.sleep(600)")
    run = await site.start(brief)
    await site.until_text(brief, "here")
    await run.detach()
    site.server.not_standing.add(brief.attempt_id)
    supervisor = site.new_supervisor()
    await supervisor.look_after_living()
    await until(lambda: supervisor.running() == [])
    assert site.living(brief.attempt_id)
    result = await supervisor.stop_attempt(brief.attempt_id)
    assert result.stopped
    assert result.outcome
    assert result.outcome.reason == "cancelled"


async def test_a_second_shim_refuses(site: Site) -> None:
    """The attempt is taken exclusively: another shim exits at once with 75 and starts nothing."""
    brief = site.python("say('here'); time.sleep(600)")
    await site.start(brief)
    await site.until_text(brief, "here")
    process = site.process(brief.attempt_id)
    process.spec.write_bytes(shim.Spec("/", (0, 0), ["/bin/false"], {}).encode())
    second = await asyncio.create_subprocess_exec(
        sys.executable, "-I", "-S", shim.__file__, str(process.path), site.root.boot_id
    )
    assert await asyncio.wait_for(second.wait(), DEADLINE_SECONDS) == shim.EXIT_TAKEN
    assert process.spec.exists()


async def test_signals_to_the_shim_cost_nothing(site: Site) -> None:
    """SIGTERM, SIGINT and SIGHUP to the shim are ignored: the exit is still recorded."""
    brief = site.python(COUNTING)
    run = await site.start(brief)
    await site.until_text(brief, "begin")
    living = site.process(brief.attempt_id).shim()
    assert living
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        os.kill(living.pid, number)
    let_it_end(site, brief)
    assert (await run.wait()).exit_code == 0


async def test_the_spec_with_its_secrets_is_gone_once_read(site: Site) -> None:
    """Nothing but the 0600 list of values to redact stays while the agent runs."""
    brief = site.python("say('here'); time.sleep(600)", env={"KEY": "a-secret-value"})
    await site.start(brief)
    await site.until_text(brief, "here")
    folder = site.directory(brief.attempt_id).path
    holders = [p for p in folder.rglob("*") if p.is_file() and b"a-secret-value" in p.read_bytes()]
    assert [p.name for p in holders] == ["secrets.json"]
    assert holders[0].stat().st_mode & 0o777 == 0o600
    assert folder.stat().st_mode & 0o777 == 0o700
