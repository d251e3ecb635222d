"""A whole run in one worker, with real processes and a real HTTP server."""

import asyncio
import json
from pathlib import Path

import pytest

from domain.errors import AttemptElsewhere, MachineError, NotFound, RunDetached
from domain.outcomes import OutcomeStatus
from domain.statuses import Continuity, ContinuityReason
from machine.attempt import AttemptDirectory
from providers.base import Limits
from tests.machine.site import Site, until

QUICK = Limits(startup=60.0, idle=60.0, tool_idle=60.0, after_result=0.3, stop_grace=0.5)


async def test_a_run_ends_with_its_reply_and_its_session(site: Site) -> None:
    """Every event arrives in order, the session is pinned, the outcome names the reply."""
    brief = site.brief("say one\nsay two")
    outcome = await site.run(brief)
    assert (outcome.status, outcome.reason, outcome.exit_code) == (OutcomeStatus.COMPLETED, "completed", 0)
    events = site.events(brief)
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert site.texts(brief) == ["one", "two"]
    assert outcome.result_seq
    assert events[outcome.result_seq - 1]["type"] == "result"
    assert outcome.last_seq == len(events)
    assert outcome.session_id
    assert site.server.sessions[brief.attempt_id] == [outcome.session_id]
    assert outcome.started_at
    assert outcome.ended_at
    assert outcome.started_at <= outcome.ended_at


async def test_numbering_goes_on_from_the_first_seq(site: Site) -> None:
    """An attempt's first event takes the number that the API gave at its start."""
    site.server.first_seq = 41
    brief = site.brief()
    outcome = await site.run(brief)
    assert site.events(brief)[0]["seq"] == 41
    assert outcome.last_seq == 40 + len(site.events(brief))


async def test_the_next_run_resumes_in_the_same_directory(site: Site) -> None:
    """A second attempt with the first one's session finds memory and files."""
    first = site.brief("remember k=v\nwrite f.txt content")
    outcome = await site.run(first)
    second = await site.next_brief(
        first, "recall k\nread f.txt", session_id=outcome.session_id, continuity=Continuity.RESUMED
    )
    again = await site.run(second)
    assert again.reason == "completed"
    assert again.session_id == outcome.session_id
    assert site.events(second)[-1]["data"]["text"] == "v\ncontent"


async def test_a_second_ask_returns_the_kept_outcome(site: Site) -> None:
    """A run that has ended is not run again, and posts nothing more."""
    brief = site.brief()
    outcome = await site.run(brief)
    posted = list(site.server.posted[brief.attempt_id])
    run = await site.new_supervisor().attach(brief.attempt_id)
    assert await run.wait() == outcome
    assert site.server.posted[brief.attempt_id] == posted
    assert not (site.directory(brief.attempt_id).path / "secrets.json").exists()


async def test_a_large_prompt_goes_through_stdin(site: Site) -> None:
    """Three megabytes of prompt arrive whole, after the context block."""
    program = (
        "data = sys.stdin.buffer.read(); say(str(data.count(b'@'))); say(str(b'Facts.' in data)); done()"
    )
    brief = site.python(program)
    brief.prompt.message = "@" * 3_000_000
    assert (await site.run(brief)).reason == "completed"
    assert site.texts(brief) == ["3000000", "True"]


async def test_strange_bytes_end_no_run(site: Site) -> None:
    """Invalid UTF-8, NUL, U+2028, lone surrogates, two objects on a line, a torn last line: all survived."""
    brief = site.brief("garbage\nsay after")
    outcome = await site.run(brief)
    assert outcome.reason == "completed"
    texts = site.texts(brief)
    assert "line\u2028separator" in texts
    assert texts[-1] == "after"
    assert site.events(brief)[-1]["type"] == "raw"
    assert "\x00" not in json.dumps(site.events(brief), ensure_ascii=False)


async def test_a_line_of_64_mebibytes_passes_whole(site: Site) -> None:
    """No limit below 64 MiB: nothing of the line is lost."""
    brief = site.brief(f"line {64 * 1024 * 1024}\nsay after")
    outcome = await site.run(brief)
    assert outcome.reason == "completed"
    texts = site.texts(brief)
    assert sum(map(len, texts[:-1])) >= 64 * 1024 * 1024 - 1000
    assert not [event for event in site.events(brief) if event["type"] == "raw"]
    assert texts[-1] == "after"


async def test_a_longer_line_is_recorded_as_truncated(site: Site) -> None:
    """Over the limit a line becomes one raw event with its size, and the run goes on."""
    site.new_supervisor(line_limit=100_000)
    brief = site.brief("line 300000\nsay after")
    assert (await site.run(brief)).reason == "completed"
    raw = [event["data"] for event in site.events(brief) if event["type"] == "raw"]
    assert len(raw) == 1
    assert raw[0]["bytes"] >= 300_000
    assert "truncated" in raw[0]["note"]
    assert site.texts(brief) == ["after"]


async def test_exit_zero_without_a_result_is_a_failure(site: Site) -> None:
    """Silence is not success; the error event carries the reason."""
    brief = site.brief("silent")
    outcome = await site.run(brief)
    assert (outcome.status, outcome.reason) == (OutcomeStatus.FAILED, "empty_or_unparseable_output")
    last = site.events(brief)[-1]
    assert (last["type"], last["data"]["reason"]) == ("error", outcome.reason)
    assert outcome.error_seq == last["seq"]


async def test_a_crash_carries_its_stderr_as_evidence(site: Site) -> None:
    """A process that dies says so with its signal and the last of its stderr."""
    program = "print('boom: it broke', file=sys.stderr, flush=True); os.kill(os.getpid(), signal.SIGSEGV)"
    brief = site.python(program)
    outcome = await site.run(brief)
    assert (outcome.reason, outcome.signal) == ("process_failure", 11)
    assert "boom" in site.events(brief)[-1]["data"]["evidence"]


async def test_a_lingering_process_is_ended_and_stays_completed(site: Site) -> None:
    """After the result comes a grace period, then SIGTERM; the run is a success."""
    site.new_supervisor(limits={"script": QUICK})
    brief = site.brief("linger 600")
    outcome = await site.run(brief)
    assert outcome.reason == "completed"
    assert site.living(brief.attempt_id) == []


async def test_silence_at_the_start_ends_in_startup_timeout(site: Site) -> None:
    """An agent that prints nothing is stopped at the start-up deadline."""
    site.new_supervisor(limits={"toy": Limits(startup=0.3, stop_grace=0.5)})
    brief = site.python("time.sleep(600)")
    outcome = await site.run(brief)
    assert outcome.reason == "startup_timeout"
    assert site.living(brief.attempt_id) == []


async def test_silence_later_ends_in_idle_watchdog(site: Site) -> None:
    """Once it has spoken, the idle limit counts."""
    site.new_supervisor(limits={"toy": Limits(startup=60, idle=0.3, tool_idle=60, stop_grace=0.5)})
    brief = site.python("say('here'); time.sleep(600)")
    outcome = await site.run(brief)
    assert outcome.reason == "idle_watchdog"
    assert "silent for 0.3 seconds" in site.events(brief)[-1]["data"]["message"]


async def test_an_open_tool_call_has_its_own_limit(site: Site) -> None:
    """While a tool runs, the tool limit counts, not the idle limit."""
    site.new_supervisor(limits={"toy": Limits(startup=60, idle=0.2, tool_idle=60, stop_grace=0.5)})
    program = "put(type='tool_use', id='t', name='sh', input={}); time.sleep(1.5); done()"
    assert (await site.run(site.python(program))).reason == "completed"


async def test_a_missing_command_is_said_to_be_missing(site: Site) -> None:
    """A command that can't be executed ends as a missing executable, with its name."""
    brief = site.toy("/nowhere/agent")
    outcome = await site.run(brief)
    assert outcome.reason == "runtime_missing_executable"
    assert "/nowhere/agent" in site.events(brief)[-1]["data"]["evidence"]


async def test_a_replaced_directory_is_not_entered(site: Site) -> None:
    """Between gate and start the directory was swapped: the agent never runs in the other one."""
    brief = site.python("open('ran', 'w')")
    gate = await site.supervisor.gate(brief)
    assert gate.work_dir
    place = Path(gate.work_dir)
    place.rename(place.with_name("moved"))
    place.mkdir()
    run = await site.supervisor.attach(brief.attempt_id, brief=brief, gate=gate)
    outcome = await run.wait()
    assert outcome.reason == "process_failure"
    assert list(place.iterdir()) == []


async def test_a_refused_resume_is_retried_once_on_a_fresh_session(site: Site) -> None:
    """The second process discloses the loss, the numbers go on, the refused session is named."""
    first = site.brief()
    await site.run(first)
    missing = "3f0e5c1a-0000-4000-8000-00000000dead"
    brief = await site.next_brief(first, "say fresh", session_id=missing, continuity=Continuity.RESUMED)
    gate = (await site.supervisor.gate(brief)).model_copy(update={"reason": None})
    run = await site.supervisor.attach(brief.attempt_id, brief=brief, gate=gate)
    outcome = await run.wait()
    assert outcome.reason == "completed"
    assert outcome.refused_session_id == missing
    assert outcome.session_id not in (None, missing)
    seqs = [event["seq"] for event in site.events(brief)]
    assert seqs == list(range(1, len(seqs) + 1))
    assert "resume_rejected" in [event["data"].get("reason") for event in site.events(brief)]
    prompt = site.process(brief.attempt_id, 2).prompt.read_text()
    assert "could not be resumed" in prompt
    assert "Facts." in prompt
    told = [(event["seq"], event["type"], event["data"]) for event in site.events(brief)]
    site.server.events[brief.attempt_id].clear()
    (site.directory(brief.attempt_id).path / "outcome.json").unlink()
    assert await (await site.new_supervisor().attach(brief.attempt_id)).wait() == outcome
    assert [(event["seq"], event["type"], event["data"]) for event in site.events(brief)] == told


async def test_a_session_the_gate_missed_is_not_asked_for(site: Site) -> None:
    """The run is fresh, its prompt discloses the loss, and the missing session is named."""
    first = site.brief()
    await site.run(first)
    missing = "3f0e5c1a-0000-4000-8000-00000000dead"
    brief = await site.next_brief(first, "say fresh", session_id=missing, continuity=Continuity.RESUMED)
    gate = await site.supervisor.gate(brief)
    assert (gate.ok, gate.reason) == (True, ContinuityReason.SESSION_MISSING)
    outcome = await site.run(brief)
    assert (outcome.reason, outcome.refused_session_id) == ("completed", missing)
    assert "no longer stored" in site.process(brief.attempt_id).prompt.read_text()


async def test_another_session_than_the_one_asked_for_is_reported(site: Site) -> None:
    """On success the emitted id counts, so that the difference can be seen."""
    first = site.brief()
    before = await site.run(first)
    brief = await site.next_brief(
        first, "new-session\nsay x", session_id=before.session_id, continuity=Continuity.RESUMED
    )
    outcome = await site.run(brief)
    assert outcome.reason == "completed"
    assert outcome.session_id not in (None, before.session_id)


async def test_another_session_is_not_adopted_when_the_run_failed(site: Site) -> None:
    """A ghost id of a failed resume is never taken over (field notes R1)."""
    first = site.brief()
    before = await site.run(first)
    brief = await site.next_brief(
        first, "new-session\nfail unknown", session_id=before.session_id, continuity=Continuity.RESUMED
    )
    outcome = await site.run(brief)
    assert (outcome.status, outcome.session_id) == (OutcomeStatus.FAILED, None)
    assert site.server.sessions[brief.attempt_id] == []


async def test_a_fork_has_its_own_session(site: Site) -> None:
    """A forked session's new id counts at once: it is what was asked for."""
    first = site.brief("remember k=v")
    before = await site.run(first)
    brief = await site.next_brief(
        first, "recall k", session_id=before.session_id, fork=True, continuity=Continuity.RESUMED
    )
    outcome = await site.run(brief)
    assert outcome.session_id not in (None, before.session_id)
    assert site.texts(brief) == ["v"]


async def test_a_quota_outcome_states_its_reset(site: Site) -> None:
    """The reset time travels with the outcome."""
    outcome = await site.run(site.brief("quota 3600"))
    assert outcome.reason == "provider_quota_limit"
    assert outcome.resets_at is not None


async def test_no_secret_leaves_the_machine(site: Site) -> None:
    """Values of the agent's env and the task's token are taken out of every event."""
    program = (
        "say('key ' + os.environ['MY_KEY']); say('token ' + os.environ['SEGUE_TOKEN'])\n"
        "put(type='tool_use', id='t', name='sh', input={'nested': [os.environ['MY_KEY']]})\n"
        "print('stderr has', os.environ['MY_KEY'], file=sys.stderr, flush=True); sys.exit(3)"
    )
    secret = 'p"ss-w0rd\\with-escapes'
    brief = site.python(program, env={"MY_KEY": secret})
    outcome = await site.run(brief)
    assert outcome.reason == "process_failure"
    told = json.dumps(site.events(brief), ensure_ascii=False)
    assert site.texts(brief) == ["key [redacted]", "token [redacted]"]
    assert json.dumps(secret, ensure_ascii=False)[1:-1] not in told
    assert "t0ken" not in told


async def test_the_api_being_away_loses_nothing(site: Site) -> None:
    """The file is the buffer: events wait in bounded memory and arrive in order when the API is back."""
    site.new_supervisor(unposted_events=50)
    program = "say('first')\nwhile not os.path.exists('go'): time.sleep(0.01)\n"
    brief = site.python(program + "for n in range(2000): say(str(n))\ndone()")
    run = await site.start(brief)
    await site.until_text(brief, "first")
    site.server.away = True
    Path(site.directory(brief.attempt_id).record.work_dir, "go").touch()
    process = site.process(brief.attempt_id)
    await until(lambda: process.exit() is not None)
    assert not run.done
    site.server.away = False
    assert (await run.wait()).reason == "completed"
    assert site.texts(brief) == ["first", *map(str, range(2000))]
    assert site.server.faults == 0


async def test_a_proxys_404_is_not_the_apis_word(site: Site) -> None:
    """A 404 that is not the API's own problem document is waited out."""
    brief = site.python("say('a'); done()")
    gate = await site.supervisor.gate(brief)
    site.server.misrouted = True
    run = await site.supervisor.attach(brief.attempt_id, brief=brief, gate=gate)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(run.wait(), 0.5)
    site.server.misrouted = False
    assert (await run.wait()).reason == "completed"


async def test_a_batch_too_large_is_posted_in_smaller_ones(site: Site) -> None:
    """The API's body limit costs neither the run nor an event that fits."""
    site.server.largest_body = 5000
    brief = site.python("for n in range(200): say(f'{n:0100d}')\nsay('x' * 20000)\ndone()")
    outcome = await site.run(brief)
    assert outcome.reason == "completed"
    assert len(site.texts(brief)) == 200
    assert [e["data"]["note"] for e in site.events(brief) if e["type"] == "raw"] == [
        "refused by the API as too large"
    ]


async def test_an_attempt_started_elsewhere_is_never_started_here(site: Site) -> None:
    """The API's compare-and-set decides; nothing of the attempt stays on this machine."""
    brief = site.python("open('ran', 'w')")
    site.server.starts[brief.attempt_id] = {"machine_id": "other", "boot_id": "b", "nonce": "n"}
    with pytest.raises(AttemptElsewhere):
        await site.run(brief)
    assert AttemptDirectory.find(site.root.attempts, brief.attempt_id) is None


async def test_an_unknown_attempt_needs_a_gate(site: Site) -> None:
    """Nothing is started in a directory that no gate has passed."""
    with pytest.raises(MachineError):
        await site.supervisor.attach(site.brief().attempt_id)


async def test_an_attempt_that_is_gone_is_let_go_of_alive(site: Site) -> None:
    """A 404 from the API ends the following, not the process."""
    brief = site.python("say('here'); time.sleep(600)")
    run = await site.start(brief)
    await site.until_text(brief, "here")
    site.server.gone.add(brief.attempt_id)
    await run.detach()
    with pytest.raises(RunDetached):
        await run.wait()
    other = await site.new_supervisor().attach(brief.attempt_id)
    with pytest.raises(NotFound):
        await other.wait()
    assert site.living(brief.attempt_id)


async def test_the_agents_environment_is_complete_and_private(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent sees its identity and settings, not the worker's variables."""
    monkeypatch.setenv("WORKERS_OWN_SECRET", "hidden-value")
    monkeypatch.setenv("CLAUDECODE", "1")
    program = "say(json.dumps(dict(os.environ))); done()"
    brief = site.python(program, env={"ANTHROPIC_BASE_URL": "http://127.0.0.1:9", "SEGUE_TASK_ID": "forged"})
    assert (await site.run(brief)).reason == "completed"
    seen = json.loads(site.texts(brief)[0])
    assert seen["SEGUE_TASK_ID"] == str(brief.task_id)
    assert seen["SEGUE_ATTEMPT_ID"] == str(brief.attempt_id)
    assert seen["ANTHROPIC_BASE_URL"] == "http://127.0.0.1:9"
    assert not {"WORKERS_OWN_SECRET", "CLAUDECODE"} & set(seen)
    assert seen["TMPDIR"].startswith(str(site.root.path))


async def test_the_supervisor_beside_an_agent_is_small(site: Site) -> None:
    """The shim's own memory stays under the 12 MiB that a running agent may cost."""
    brief = site.python("say('here'); sys.stdin.read(); time.sleep(600)")
    await site.start(brief)
    await site.until_text(brief, "here")
    shim = site.process(brief.attempt_id).shim()
    assert shim is not None
    assert shim.alive(site.root.boot_id)
    memory = Path(f"/proc/{shim.pid}/smaps_rollup").read_text()
    private = sum(int(line.split()[1]) for line in memory.splitlines() if line.startswith("Private_"))
    assert private < 12 * 1024
