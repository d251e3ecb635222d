"""The driver in front of fake agents, good and bad, read by the adapter's own parser."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from domain.events import Event, EventType
from domain.reasons import Reason
from domain.statuses import Continuity
from providers import acp_driver
from providers.acp import AcpProvider
from providers.base import EndedRun, LaunchRequest, ParsedRun, Verdict
from tests.fakes import acp_agent
from tests.machine.conftest import plane_server, site
from tests.machine.site import Site, until

__all__ = ["plane_server", "site"]

pytestmark = pytest.mark.slow

ACP = AcpProvider()
AGENT = str(Path(acp_agent.__file__).resolve())
CAPTURES = Path(__file__).parent / "captures" / "acp"
PATIENCE = 240.0
MARK = "SEGUE_TEST_ACP_RUN"


@dataclass(frozen=True)
class Played:
    """A driver's run, as the runner would see it."""

    parsed: ParsedRun
    verdict: Verdict
    exit_code: int
    events: list[Event]
    lines: list[bytes]
    stderr: str

    def texts(self, kind: EventType = EventType.TEXT) -> list[str]:
        return [event.data["text"] for event in self.events if event.type is kind]

    def types(self) -> str:
        return " ".join(event.type for event in self.events)


@dataclass
class Bench:
    """Runs the driver in a directory of its own."""

    work_dir: Path
    env: dict[str, str] = field(default_factory=dict)

    def run(
        self, *behaviour: str, prompt: str = "hi", session: str | None = None, model: str | None = None
    ) -> Played:
        return self.run_command((sys.executable, AGENT, *behaviour), prompt, session, model)

    def run_command(
        self,
        command: tuple[str, ...],
        prompt: str = "hi",
        session: str | None = None,
        model: str | None = None,
    ) -> Played:
        process = self.start(command, session, model)
        stdout, stderr = process.communicate(prompt.encode(), timeout=PATIENCE)
        return self.judge(process.returncode, stdout, stderr, session)

    def start(
        self, command: tuple[str, ...], session: str | None = None, model: str | None = None
    ) -> subprocess.Popen[bytes]:
        request = LaunchRequest(
            sys.executable, str(self.work_dir), session_id=session, model=model, args=command
        )
        return subprocess.Popen(
            ACP.command(request).argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=self.work_dir,
            env={"PATH": os.environ["PATH"], "HOME": str(self.work_dir), MARK: self.mark, **self.env},
        )

    @property
    def mark(self) -> str:
        return str(self.work_dir)

    def judge(self, code: int, stdout: bytes, stderr: bytes, session: str | None = None) -> Played:
        parser = ACP.parser(session)
        lines = stdout.split(b"\n")
        events = [event for line in lines for event in parser.feed(line)]
        parsed = parser.parsed()
        run = EndedRun(
            parsed, code if code >= 0 else None, -code if code < 0 else None, stderr.decode(), session
        )
        return Played(parsed, ACP.classify(run), code, events, lines, stderr.decode())

    def left(self) -> list[int]:
        """Processes of this bench that still live."""
        return [process.pid for process in psutil.process_iter() if self._is_ours(process)]

    def _is_ours(self, process: psutil.Process) -> bool:
        try:
            return process.environ().get(MARK) == self.mark and process.status() != psutil.STATUS_ZOMBIE
        except psutil.Error:
            return False


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """A working directory; what a failed test leaves running in it is ended."""
    bench = Bench(tmp_path)
    yield bench
    for pid in bench.left():
        os.kill(pid, signal.SIGKILL)


def test_a_session_goes_on_and_its_history_is_not_told_again(bench: Bench) -> None:
    """Fresh, then loaded by an agent that keeps telling the history after it has loaded."""
    first = bench.run("good", prompt="one")
    assert (first.verdict.reason, first.exit_code) == (Reason.COMPLETED, 0)
    assert first.parsed.session_id == acp_agent.SESSION
    assert first.types() == "session text result"
    second = bench.run("late", prompt="two", session=acp_agent.SESSION)
    assert second.verdict.reason == Reason.COMPLETED
    assert second.parsed.session_id == acp_agent.SESSION
    # What comes a moment after the answer still belongs to it.
    assert second.texts() == ["ok (n=2) and more"]


def test_a_session_that_cannot_be_opened_is_refused(bench: Bench) -> None:
    """An unknown id, an agent that can't load, and any other error of the load."""
    for behaviour in (("good",), ("forgets",), ("fails", "session/load", "-32603", "service failure")):
        played = bench.run(*behaviour, session=acp_agent.OTHER)
        assert (played.verdict.reason, played.verdict.resume_refused) == (Reason.RESUME_REJECTED, True)
        assert (played.parsed.session_id, played.parsed.tools_used, played.exit_code) == (None, 0, 1)
    played = bench.run("fails", "session/load", "-32603", "connection refused", session=acp_agent.OTHER)
    assert (played.verdict.reason, played.verdict.resume_refused) == (Reason.PROVIDER_NETWORK, False)


def test_a_session_is_resumed_where_it_cannot_be_loaded(bench: Bench) -> None:
    """With the chosen model, by way of the session's options."""
    played = bench.run("resumes", model="large")
    assert played.texts() == ["large (n=1)"]
    assert played.events[0].data["model"] == "large"
    assert bench.run("resumes", session=acp_agent.SESSION).texts() == ["small (n=2)"]


def test_a_model_that_cannot_be_chosen_is_a_failure(bench: Bench) -> None:
    """Another model than the agent's would be a silent lie."""
    played = bench.run("good", model="large")
    assert played.verdict.reason == Reason.MODEL_UNAVAILABLE
    assert played.parsed.session_id is None


def test_permissions_are_granted_once_and_recorded(bench: Bench) -> None:
    """The rest that agents ask a client for is refused; they have tools of their own."""
    played = bench.run("asks")
    tool_use, permission, refusal = (
        e for e in played.events if e.type in (EventType.TOOL_USE, EventType.RAW)
    )
    assert tool_use.data["input"] == {"path": "a.txt"}
    assert (permission.data["line"], permission.data["note"]) == ("Edit a.txt", "permission granted: Once")
    assert refusal.data["note"].startswith("permission refused")
    result = next(event for event in played.events if event.type is EventType.TOOL_RESULT)
    assert json.loads(result.data["output"]) == {"outcome": {"outcome": "selected", "optionId": "once"}}
    assert json.loads(played.parsed.result_text) == [{"outcome": {"outcome": "cancelled"}}, [-32601] * 3]


def test_a_question_that_nobody_can_answer_ends_the_turn_as_one(bench: Bench) -> None:
    """The reason carries the question."""
    played = bench.run("asks", "question")
    assert (played.verdict.reason, played.verdict.message) == (Reason.NEEDS_INPUT, "Which colour?")


def test_garbage_is_noted_and_skipped(bench: Bench) -> None:
    """Between any two messages; endless garbage is noted only so often."""
    played = bench.run("garbage")
    assert played.verdict.reason == Reason.COMPLETED
    assert played.texts() == ["ok (n=1)"]
    assert "plain words" in [event.data["line"] for event in played.events if event.type is EventType.RAW]
    played = bench.run("chatterbox")
    assert played.verdict.reason == Reason.COMPLETED
    assert played.types().split().count("raw") == acp_driver.NOISE_NOTES


def test_a_flood_is_read_to_its_end(bench: Bench) -> None:
    """In order and complete; chunks of one message are joined."""
    played = bench.run("flood", "2000")
    assert "".join(played.texts()) == "".join(f"w{number} " for number in range(2000))
    assert played.verdict.reason == Reason.COMPLETED


def test_messages_of_megabytes_pass_and_larger_ones_are_skipped(bench: Bench) -> None:
    """The run goes on after both."""
    played = bench.run("huge")
    assert sum(text.count("x") for text in played.texts()) == 8 * acp_agent.MIB
    assert all("y" not in text for text in played.texts())
    skipped = next(event for event in played.events if event.type is EventType.RAW)
    assert skipped.data["bytes"] > acp_driver.LINE_LIMIT
    assert played.parsed.result_text == "the end"


@pytest.mark.parametrize(
    "behaviour, reason",
    [
        (
            ("exits", "initialize", "Error: missing API key, OPENAI_API_KEY is required"),
            Reason.MISSING_CONFIG,
        ),
        (("exits", "session/new"), Reason.PROCESS_FAILURE),
        (("exits", "session/prompt", "fetch failed: ECONNREFUSED"), Reason.PROVIDER_NETWORK),
        (("modern",), Reason.RUNTIME_VERSION_UNSUPPORTED),
        (("guarded",), Reason.PROVIDER_AUTH_OR_ACCESS),
        (("ends", "max_tokens"), Reason.CONTEXT_OVERFLOW),
        (("ends", "max_turn_requests"), Reason.ITERATION_LIMIT),
        (("ends", "refusal"), Reason.REFUSAL),
        (("ends", "cancelled"), Reason.PROCESS_FAILURE),
        (("ends", "whatever"), Reason.UNKNOWN),
        (("ends", "end_turn"), Reason.COMPLETED),
        (("ends", "end_turn", "❌ API call failed: HTTP 429 Too Many Requests"), Reason.PROVIDER_RATE_LIMIT),
        (("ends", "end_turn", "[DEBUG] Error: HTTP 429 Too Many Requests, retrying"), Reason.COMPLETED),
        (("fails", "session/prompt", "400", "{bad request}"), Reason.API_INVALID_REQUEST),
        (("fails", "session/prompt", "-32603", "API Error: 529 overloaded"), Reason.PROVIDER_RATE_LIMIT),
        (("fails", "session/prompt", "-32603", "Internal error"), Reason.UNKNOWN),
    ],
)
def test_bad_endings_have_their_reasons(bench: Bench, behaviour: tuple[str, ...], reason: Reason) -> None:
    """Whether by a stop reason, an error, an exit, or stderr beside an empty answer."""
    played = bench.run(*behaviour)
    assert played.verdict.reason == reason
    assert played.parsed.result_seen
    # A turn without a sign of work leaves no session behind that could be gone on in.
    assert (played.parsed.session_id is not None) == (behaviour[:2] == ("ends", "end_turn"))


def test_a_lost_session_that_shows_as_a_refusal_is_refused(bench: Bench) -> None:
    """Nothing was said and nothing done, and the session was to go on."""
    bench.run("good")
    played = bench.run("ends", "refusal", session=acp_agent.SESSION)
    assert (played.verdict.reason, played.verdict.resume_refused) == (Reason.RESUME_REJECTED, True)


def test_a_login_by_key_needs_nobody(bench: Bench) -> None:
    """Without the key the message names the agent's ways to log in."""
    assert "Log in: Opens a browser" in bench.run("guarded").verdict.message
    bench.env["KEY_FOR_TESTS"] = "secret"
    assert bench.run("guarded").verdict.reason == Reason.COMPLETED


def test_a_missing_command_is_named(bench: Bench) -> None:
    """Not on PATH, and none given at all."""
    played = bench.run_command(("no-such-agent", "--acp"))
    assert played.verdict.reason == Reason.RUNTIME_MISSING_EXECUTABLE
    assert "no-such-agent" in played.verdict.message
    assert bench.run_command(()).verdict.reason == Reason.MISSING_CONFIG


def test_sigterm_lets_the_agent_cancel(bench: Bench) -> None:
    """What it says then is kept, and the exit code tells of the signal."""
    played = _stop(bench, "cancellable", until=b'"session"')
    assert played.exit_code == acp_driver.EXIT_STOPPED
    assert "".join(played.texts()) == "working no more"
    assert played.parsed.session_id == acp_agent.SESSION
    # It is no result: who stopped the run knows why, a watchdog for example.
    assert not played.parsed.result_seen
    assert played.lines[-2].startswith(b'{"type": "stopped"')
    _wait_until_nothing_is_left(bench)


@pytest.mark.parametrize("behaviour, until", [("stubborn", b'"session"'), ("mute", b"")])
def test_sigterm_ends_an_agent_that_listens_to_nothing(bench: Bench, behaviour: str, until: bytes) -> None:
    """With its children, within the grace that the runner gives; what it had said is kept."""
    played = _stop(bench, behaviour, until=until)
    assert played.exit_code == acp_driver.EXIT_STOPPED
    assert not played.parsed.result_seen
    assert "".join(played.texts()) == ("working\non it" if until else "")
    assert (
        ACP.limits.stop_grace > acp_driver.CANCEL_SECONDS + acp_driver.LEAVE_SECONDS + acp_driver.TERM_SECONDS
    )
    _wait_until_nothing_is_left(bench)


def test_a_driver_killed_outright_takes_a_good_agent_with_it(bench: Bench) -> None:
    """The end of its input tells the agent."""
    process = bench.start((sys.executable, AGENT, "cancellable"))
    with process:
        _write_prompt(process)
        _read_until(process, b'"session"')
        process.kill()
    _wait_until_nothing_is_left(bench)


@pytest.mark.parametrize("agent, answer", [("gemini", "done: <untrusted"), ("opencode", "done: from-tool")])
def test_recorded_agents_read_like_live_ones(bench: Bench, agent: str, answer: str) -> None:
    """Gemini CLI's and OpenCode's own words, from transcripts: a tool, then a loaded session."""
    transcript = str(CAPTURES / f"{agent}_transcript.jsonl")
    first = bench.run("replay", transcript, "0")
    assert first.verdict.reason == Reason.COMPLETED
    assert first.parsed.result_text.startswith(answer)
    assert first.types() == "session tool_use tool_result text usage result"
    assert first.parsed.usage.input_tokens > 0
    session = first.parsed.session_id
    assert session is not None
    second = bench.run("replay", transcript, "1", session=session)
    assert second.verdict.reason == Reason.COMPLETED
    assert second.parsed.session_id == session
    assert second.parsed.result_text.endswith("BANANA")


def test_the_driver_needs_nothing_of_ours(tmp_path: Path) -> None:
    """A copy of the file alone runs anywhere: the package may be replaced under a live run."""
    driver = tmp_path / "elsewhere.py"
    driver.write_bytes(Path(acp_driver.__file__).read_bytes())
    done = subprocess.run(
        [sys.executable, "-I", str(driver), "--", sys.executable, AGENT, "good"],
        input=b"hi",
        capture_output=True,
        cwd=tmp_path,
        timeout=PATIENCE,
        check=True,
    )
    assert b"ok (n=1)" in done.stdout
    version = subprocess.run(
        ACP.version_argv(sys.executable), capture_output=True, text=True, timeout=PATIENCE, check=True
    )
    assert version.stdout.startswith("agent-client-protocol 0.")


async def test_the_runner_goes_on_and_starts_anew_where_it_must(site: Site) -> None:
    """A session from run to run; a lost one is replaced within the attempt, and disclosed."""
    first = site.brief("one", provider="acp", args=[sys.executable, AGENT, "good"])
    before = await site.run(first)
    assert (before.reason, before.session_id) == (Reason.COMPLETED, acp_agent.SESSION)
    terms = {"args": first.args, "continuity": Continuity.RESUMED}
    second = await site.next_brief(first, "two", session_id=before.session_id, **terms)
    assert (await site.run(second)).session_id == acp_agent.SESSION
    assert site.texts(second) == ["ok (n=2)"]
    third = await site.next_brief(first, "three", session_id=acp_agent.OTHER, **terms)
    outcome = await site.run(third)
    assert (outcome.reason, outcome.refused_session_id) == (Reason.COMPLETED, acp_agent.OTHER)
    assert (outcome.session_id, site.texts(third)) == (acp_agent.SESSION, ["ok (n=1)"])


async def test_a_cancel_of_the_runner_reaches_the_agent(site: Site) -> None:
    """Its last words are kept, its session too, and nothing of it is left."""
    brief = site.brief("one", provider="acp", args=[sys.executable, AGENT, "cancellable"])
    run = await site.start(brief)
    await until(lambda: run.session_id is not None)
    assert await run.cancel() == []
    assert site.living(brief.attempt_id) == []
    outcome = await run.wait()
    assert (outcome.reason, outcome.session_id) == (Reason.CANCELLED, acp_agent.SESSION)
    assert "".join(site.texts(brief)) == "working no more"


def _stop(bench: Bench, behaviour: str, until: bytes) -> Played:
    """SIGTERM once the line with ``until`` is printed (empty: once the agent lives)."""
    process = bench.start((sys.executable, AGENT, behaviour))
    with process:
        _write_prompt(process)
        read = _read_until(process, until) if until else _wait_for_agent(bench)
        process.terminate()
        stdout, stderr = process.communicate(timeout=PATIENCE)
    return bench.judge(process.returncode, read + stdout, stderr)


def _write_prompt(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    process.stdin.write(b"hi")
    process.stdin.close()
    process.stdin = None


def _read_until(process: subprocess.Popen[bytes], mark: bytes) -> bytes:
    assert process.stdout is not None
    read = b""
    for line in process.stdout:
        read += line
        if mark in line:
            return read
    pytest.fail(f"the driver ended without {mark!r}: {read!r}")


def _wait_for_agent(bench: Bench) -> bytes:
    _wait_until(lambda: len(bench.left()) > 1, "the agent never started")
    return b""


def _wait_until_nothing_is_left(bench: Bench) -> None:
    _wait_until(lambda: not bench.left(), "processes are left")


def _wait_until(condition: Callable[[], bool], message: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, message
        time.sleep(0.02)
