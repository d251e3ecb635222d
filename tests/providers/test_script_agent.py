"""The toy agent's words, each in a real process, read and judged by its adapter."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psutil
import pytest

from domain.events import Event, EventType
from domain.reasons import Reason
from providers import registry
from providers.base import EndedRun, LaunchRequest, ParsedRun, Verdict
from providers.lines import PART_LIMIT

SCRIPT = registry.get("script")
UNKNOWN = "11111111-2222-4333-8444-555555555555"
#: For whatever a process has to do, on a machine that has no time for it.
PATIENCE = 60.0


@dataclass(frozen=True)
class Ended:
    """A finished run with all that is known of it."""

    events: list[Event]
    parsed: ParsedRun
    verdict: Verdict
    exit_code: int
    stdout: bytes
    stderr: str
    pid: int
    output: Path

    @property
    def session_id(self) -> str:
        assert self.parsed.session_id is not None
        return self.parsed.session_id

    @property
    def reply(self) -> str:
        return self.parsed.result_text

    def of(self, kind: EventType) -> list[Event]:
        return [event for event in self.events if event.type is kind]


class Bench:
    """Starts the agent in a working directory, with sessions of its own."""

    def __init__(self, folder: Path) -> None:
        self.work_dir = folder / "wörk dir"
        self.work_dir.mkdir()
        self.env = {"PATH": os.environ["PATH"], "HOME": str(folder), "SEGUE_ATTEMPT_ID": str(folder)}
        self._processes: list[subprocess.Popen[bytes]] = []
        self._outputs = (folder / f"output-{number}" for number in range(1000))
        self._read: dict[int, tuple[Path, str | None]] = {}

    def start(
        self,
        prompt: str | bytes,
        *,
        session: str | None = None,
        fork: bool = False,
        work_dir: Path | None = None,
        args: tuple[str, ...] = (),
    ) -> subprocess.Popen[bytes]:
        request = LaunchRequest(
            SCRIPT.executable(), "", model="toy", args=args, session_id=session, fork=fork
        )
        launch = SCRIPT.command(request)
        output = next(self._outputs)
        stdin = output.with_suffix(".in")
        stdin.write_bytes(prompt.encode() if isinstance(prompt, str) else prompt)
        # Files, as the runner has it: a pipe that a grandchild holds would never end.
        with (
            stdin.open("rb") as source,
            output.open("wb") as target,
            output.with_suffix(".err").open("wb") as errors,
        ):
            process = subprocess.Popen(
                launch.argv,
                stdin=source,
                stdout=target,
                stderr=errors,
                cwd=work_dir or self.work_dir,
                env={**self.env, **launch.env},
                start_new_session=True,
            )
        self._processes.append(process)
        self._read[process.pid] = (output, None if fork else session)
        return process

    def output(self, process: subprocess.Popen[bytes]) -> bytes:
        return self._read[process.pid][0].read_bytes()

    def end(self, process: subprocess.Popen[bytes]) -> Ended:
        process.wait(PATIENCE)
        output, requested = self._read[process.pid]
        stdout, stderr = output.read_bytes(), output.with_suffix(".err").read_text()
        parser = SCRIPT.parser(requested)
        events = [event for line in stdout.split(b"\n") for event in parser.feed(line)]
        code = process.returncode
        run = EndedRun(
            parser.parsed(),
            code if code >= 0 else None,
            -code if code < 0 else None,
            stderr,
            requested_session_id=requested,
        )
        return Ended(events, run.parsed, SCRIPT.classify(run), code, stdout, stderr, process.pid, output)

    def run(
        self,
        *lines: str,
        session: str | None = None,
        fork: bool = False,
        work_dir: Path | None = None,
        args: tuple[str, ...] = (),
    ) -> Ended:
        process = self.start("\n".join(lines), session=session, fork=fork, work_dir=work_dir, args=args)
        return self.end(process)

    def living(self) -> list[psutil.Process]:
        """The processes that have this bench's mark in their environment."""
        return [process for process in psutil.process_iter() if self._is_mine(process)]

    def _is_mine(self, process: psutil.Process) -> bool:
        try:
            return process.environ().get("SEGUE_ATTEMPT_ID") == self.env["SEGUE_ATTEMPT_ID"]
        except psutil.Error:
            return False

    def close(self) -> None:
        """Leave no process of this bench behind, not even one that left its session."""
        for left in self.living():
            left.kill()
        for process in self._processes:
            process.wait(PATIENCE)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """A working directory and a home for the agent."""
    made = Bench(tmp_path)
    yield made
    made.close()


def _eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "the condition never came true"
        time.sleep(0.01)


# Talking


def test_every_line_is_answered(bench: Bench) -> None:
    """Directives give their answers, other lines their echo, joined by newlines."""
    ended = bench.run("say hello there", "", "  what is this?  ", "recall nothing", "turns", "cwd")
    answers = ["hello there", "what is this?", "unknown", "1", os.path.realpath(bench.work_dir)]
    assert ended.reply == "\n".join(answers)
    assert [event.data["text"] for event in ended.of(EventType.TEXT)] == answers
    assert ended.verdict == Verdict(reason="completed")
    assert (ended.exit_code, ended.stderr) == (0, "")


def test_the_session_comes_first_and_the_result_last(bench: Bench) -> None:
    """As real agents do it, and the session names model, version and directory."""
    ended = bench.run("say x")
    assert [event.type.value for event in ended.events] == ["session", "text", "usage", "result"]
    assert ended.events[0].data == {
        "session_id": ended.session_id,
        "model": "toy",
        "version": "1.0",
        "cwd": os.path.realpath(bench.work_dir),
    }
    assert ended.events[-1].data["session_id"] == ended.session_id


@pytest.mark.parametrize("prompt", ["", "\n \n", "sleep 0", "<segue-context>\nfail x\n</segue-context>\n\n"])
def test_nothing_to_do_is_ok(bench: Bench, prompt: str) -> None:
    """A prompt without an answer is answered with ``ok``."""
    assert bench.run(prompt).reply == "ok"


def test_the_context_block_is_not_for_this_agent(bench: Bench) -> None:
    """Its lines are neither carried out nor echoed."""
    ended = bench.run("<segue-context>", "fail refusal", "facts", "</segue-context>", "", "say mine")
    assert ended.reply == "mine"


@pytest.mark.parametrize(
    "line",
    [
        "sleep well",
        "turns of phrase",
        "exit now",
        "remember me",
        "write",
        "Say it",
        "flood warning",
        "quota?",
    ],
)
def test_prose_is_echoed(bench: Bench, line: str) -> None:
    """A line that only begins like a directive is none."""
    assert bench.run(line).reply == line


def test_any_bytes_are_a_prompt(bench: Bench) -> None:
    """Invalid UTF-8, NUL and U+2028 in the prompt are echoed as far as they can be."""
    ended = bench.end(bench.start(b"say a\xff\x00b\xe2\x80\xa8c"))
    assert ended.reply == "a\ufffd\ufffdb\u2028c"


# Memory


def test_a_session_remembers(bench: Bench) -> None:
    """A resumed turn knows what was said, and counts on."""
    first = bench.run("remember fruit=passion fruit", "recall fruit")
    assert first.reply == "remembered fruit\npassion fruit"
    second = bench.run("recall fruit", "turns", session=first.session_id)
    assert second.reply == "passion fruit\n2"
    assert second.session_id == first.session_id


def test_a_fresh_session_knows_nothing(bench: Bench) -> None:
    """Sessions of one directory are apart."""
    first = bench.run("remember a=1")
    second = bench.run("recall a")
    assert second.reply == "unknown"
    assert second.session_id != first.session_id


def test_a_fork_leaves_its_source_alone(bench: Bench) -> None:
    """The copy has a new id and the old memory; what it learns stays with it."""
    first = bench.run("remember a=1")
    fork = bench.run("recall a", "remember a=2", session=first.session_id, fork=True)
    assert fork.reply.startswith("1\n")
    assert fork.session_id != first.session_id
    assert bench.run("recall a", session=first.session_id).reply == "1"
    assert bench.run("recall a", session=fork.session_id).reply == "2"


def test_a_resume_from_another_directory_is_refused(bench: Bench, tmp_path: Path) -> None:
    """Like Claude's: exit code 1, an error that names the id, and nothing else."""
    first = bench.run("remember a=1")
    other = tmp_path / "other"
    other.mkdir()
    ended = bench.run("recall a", session=first.session_id, work_dir=other)
    assert ended.exit_code == 1
    assert [event.type.value for event in ended.events] == ["result"]
    assert ended.verdict.reason == Reason.RESUME_REJECTED
    assert ended.verdict.resume_refused
    assert ended.verdict.evidence == f"No conversation found with session ID: {first.session_id}"
    assert ended.parsed.session_id is None


def test_a_symbolic_link_to_the_directory_is_the_directory(bench: Bench, tmp_path: Path) -> None:
    """Sessions belong to the real path."""
    link = tmp_path / "link"
    link.symlink_to(bench.work_dir)
    first = bench.run("remember a=1", work_dir=link)
    assert bench.run("recall a", session=first.session_id).reply == "1"


@pytest.mark.parametrize("session", [UNKNOWN, "", "../../x", "a/b", "\u00e4"])
def test_an_unknown_session_is_refused(bench: Bench, session: str) -> None:
    """Whatever its form."""
    assert bench.run("hi", session=session).verdict.reason == Reason.RESUME_REJECTED


def test_the_adapter_knows_the_sessions_file(bench: Bench) -> None:
    """The pattern it names matches exactly while the session can be resumed there."""
    ended = bench.run("hi")
    work_dir = os.path.realpath(bench.work_dir)
    (pattern,) = SCRIPT.session_paths(ended.session_id, work_dir, bench.env) or ()
    assert pattern.isascii() or not str(bench.work_dir.parent).isascii()
    assert Path(pattern).stat().st_size > 0
    (elsewhere,) = SCRIPT.session_paths(ended.session_id, "/", bench.env) or ()
    assert not Path(elsewhere).exists()
    assert SCRIPT.session_paths("../x", work_dir, bench.env) == ()
    home = {"SEGUE_SCRIPT_HOME": "/h"}
    (other,) = SCRIPT.session_paths(ended.session_id, work_dir, home) or ()
    assert other.startswith("/h/sessions/")


def test_sessions_can_be_kept_elsewhere(bench: Bench, tmp_path: Path) -> None:
    """``SEGUE_SCRIPT_HOME`` is where the sessions are."""
    first = bench.run("remember a=1")
    bench.env["SEGUE_SCRIPT_HOME"] = str(tmp_path / "elsewhere")
    assert bench.run("hi", session=first.session_id).verdict.reason == Reason.RESUME_REJECTED
    second = bench.run("remember a=2")
    shutil.rmtree(tmp_path / ".segue-script")
    assert bench.run("recall a", session=second.session_id).reply == "2"


def test_a_killed_turn_keeps_what_it_had(bench: Bench) -> None:
    """After SIGKILL in the middle of a turn the session is there, with that turn counted."""
    process = bench.start("remember a=1\nsleep 1000")
    _eventually(lambda: b"remembered a" in bench.output(process))
    process.kill()
    ended = bench.end(process)
    assert ended.verdict.reason == Reason.PROCESS_FAILURE
    assert bench.run("recall a", "turns", session=ended.session_id).reply == "1\n2"


def test_a_kill_at_any_moment_leaves_a_whole_session(bench: Bench) -> None:
    """However far a turn of many changes got, its session is readable and at least as new as its words."""
    session = bench.run("hi").session_id
    prompt = "\n".join(f"remember n={number}" for number in range(2000))
    for pause in (0.0, 0.003, 0.01):
        process = bench.start(prompt, session=session)
        _eventually(lambda process=process: b'"text"' in bench.output(process))  # type: ignore[misc]
        time.sleep(pause)
        process.kill()
        said = bench.end(process).stdout.count(b"remembered n")
        known = bench.run("recall n", session=session).reply
        assert int(known) >= said - 1


def test_another_session_than_asked_for(bench: Bench) -> None:
    """``new-session`` silently starts a new conversation under a new id, and succeeds."""
    first = bench.run("remember a=1")
    ended = bench.run("new-session", "recall a", session=first.session_id)
    assert ended.reply == "unknown"
    assert ended.session_id != first.session_id
    assert ended.verdict.reason == Reason.COMPLETED


# Working


def test_files_are_written_and_read(bench: Bench) -> None:
    """Paths are those of the working directory; folders are made."""
    ended = bench.run("write a/b.txt some words", "read a/b.txt", "read missing")
    assert (bench.work_dir / "a" / "b.txt").read_text() == "some words"
    assert ended.reply == "wrote a/b.txt\nsome words\ncannot read missing: No such file or directory"
    assert [event.data["name"] for event in ended.of(EventType.TOOL_USE)] == ["Write", "Read", "Read"]
    assert [event.data["is_error"] for event in ended.of(EventType.TOOL_RESULT)] == [False, False, True]


def test_a_tool_runs_its_command(bench: Bench) -> None:
    """Its output is a tool result and part of the reply; a failing one says its exit code."""
    ended = bench.run("tool echo out; echo err >&2", "tool exit 3")
    use, result = ended.of(EventType.TOOL_USE)[0], ended.of(EventType.TOOL_RESULT)[0]
    assert use.data["input"] == {"command": "echo out; echo err >&2"}
    assert result.data["id"] == use.data["id"]
    assert ended.reply == "out\nerr\nexit code 3"
    assert (ended.parsed.tools_used, ended.parsed.open_tools) == (2, 0)
    assert ended.verdict.reason == Reason.COMPLETED


def test_a_killed_agent_leaves_its_tool_behind(bench: Bench) -> None:
    """Like real agents': the tool is in a session of its own, which a kill of the group does not reach."""
    process = bench.start("tool echo $$ > pid; exec sleep 1000")
    pid_file = bench.work_dir / "pid"
    _eventually(lambda: pid_file.exists() and pid_file.read_text().endswith("\n"))
    tool = psutil.Process(int(pid_file.read_text()))
    os.killpg(process.pid, signal.SIGKILL)
    assert bench.end(process).parsed.open_tools == 1
    assert tool.is_running()


def test_a_terminated_agent_takes_its_tool_along(bench: Bench) -> None:
    """SIGTERM: exit code 143, no result, no tool left."""
    process = bench.start("say before\ntool echo $$ > pid; exec sleep 1000")
    pid_file = bench.work_dir / "pid"
    _eventually(lambda: pid_file.exists() and pid_file.read_text().endswith("\n"))
    tool = psutil.Process(int(pid_file.read_text()))
    process.terminate()
    ended = bench.end(process)
    assert (ended.exit_code, ended.stderr) == (143, "")
    assert not ended.parsed.result_seen
    assert ended.verdict.reason == Reason.PROCESS_FAILURE
    assert ended.of(EventType.TEXT)[0].data == {"text": "before"}
    _eventually(lambda: not tool.is_running() or tool.status() == psutil.STATUS_ZOMBIE)


def test_an_agent_may_ignore_termination(bench: Bench) -> None:
    """After ``ignore-term`` only SIGKILL ends it."""
    process = bench.start("ignore-term\nsay deaf\nsleep 1000")
    _eventually(lambda: b"deaf" in bench.output(process))
    process.terminate()
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.3)
    process.kill()
    assert bench.end(process).exit_code == -signal.SIGKILL


def test_an_interrupt_is_a_failure_with_exit_code_0(bench: Bench) -> None:
    """Like Claude's: the result event tells, not the exit code."""
    process = bench.start("say before\nsleep 1000")
    _eventually(lambda: b"before" in bench.output(process))
    process.send_signal(signal.SIGINT)
    ended = bench.end(process)
    assert ended.exit_code == 0
    assert ended.verdict.reason == Reason.PROCESS_FAILURE


def test_a_grandchild_holds_the_output(bench: Bench) -> None:
    """``spawn`` leaves a process in a session of its own with the agent's output open."""
    ended = bench.run("spawn 1000", "say bye")
    assert ended.reply == "bye"
    (left,) = bench.living()
    assert os.getpgid(left.pid) not in {os.getpgid(0), ended.pid}
    assert Path(f"/proc/{left.pid}/fd/1").readlink() == ended.output


def test_an_agent_may_linger_after_its_result(bench: Bench) -> None:
    """The result is out while the process lives; killed then, it has still succeeded."""
    process = bench.start("linger 1000\nsay done")
    _eventually(lambda: b'"result"' in bench.output(process))
    assert process.poll() is None
    process.kill()
    ended = bench.end(process)
    assert ended.verdict.reason == Reason.COMPLETED
    assert ended.reply == "done"


def test_an_agent_may_be_slow(bench: Bench) -> None:
    """``sleep`` takes its time."""
    start = time.monotonic()
    bench.run("sleep 0.3")
    assert time.monotonic() - start >= 0.3


# Failing


def test_a_failure_as_told(bench: Bench) -> None:
    """``fail`` ends with that reason; what was said before stays said, what comes after is not."""
    ended = bench.run("say one", "fail context_overflow", "say two")
    assert ended.exit_code == 1
    assert ended.verdict.reason == Reason.CONTEXT_OVERFLOW
    assert not ended.parsed.success
    assert [event.data["text"] for event in ended.of(EventType.TEXT)] == ["one"]
    assert ended.events[-1].data["reason"] == "context_overflow"


@pytest.mark.parametrize("reason", ["nonsense", "completed", "cancelled"])
def test_a_failure_for_no_reason_is_unknown(bench: Bench, reason: str) -> None:
    """A failing result can't claim to be none."""
    assert bench.run(f"fail {reason}").verdict.reason == Reason.UNKNOWN


@pytest.mark.parametrize(
    "line,exit_code,reason",
    [
        ("crash", -signal.SIGKILL, Reason.PROCESS_FAILURE),
        ("crash SEGV", -signal.SIGSEGV, Reason.PROCESS_FAILURE),
        ("crash SIGTERM", -signal.SIGTERM, Reason.PROCESS_FAILURE),
        ("crash 6", -signal.SIGABRT, Reason.PROCESS_FAILURE),
        ("exit 7", 7, Reason.PROCESS_FAILURE),
        ("exit 0", 0, Reason.EMPTY_OUTPUT),
    ],
)
def test_an_end_without_a_result(bench: Bench, line: str, exit_code: int, reason: Reason) -> None:
    """Crashes and exits come without a result; the session and what was said are kept."""
    ended = bench.run("remember a=1", line, "say never")
    assert ended.exit_code == exit_code
    assert ended.verdict.reason == reason
    assert not ended.parsed.result_seen
    assert bench.run("recall a", session=ended.session_id).reply == "1"


def test_a_silent_agent_prints_nothing(bench: Bench) -> None:
    """Exit code 0 and no output at all is a failure."""
    ended = bench.run("say nothing", "silent")
    assert (ended.stdout, ended.exit_code) == (b"", 0)
    assert ended.verdict.reason == Reason.EMPTY_OUTPUT


def test_a_quota_resets(bench: Bench) -> None:
    """A rate limit with its reset time first; the same prompt in the same session goes on after it."""
    prompt = ("say before", "quota 0.2", "say after")
    before = datetime.now(UTC)
    first = bench.run(*prompt)
    assert first.verdict.reason == Reason.PROVIDER_QUOTA_LIMIT
    resets_at = first.verdict.resets_at
    assert resets_at is not None
    assert timedelta(0) < resets_at - before < timedelta(seconds=PATIENCE)
    (limit,) = first.of(EventType.RATE_LIMIT)
    assert limit.data["resets_at"] == resets_at.isoformat()
    _eventually(lambda: datetime.now(UTC) > resets_at)
    second = bench.run(*prompt, session=first.session_id)
    assert second.reply == "before\nafter"
    assert bench.run("quota 1000", session=first.session_id).verdict.resets_at is not None


def test_a_quota_holds_until_its_reset(bench: Bench) -> None:
    """Too early a retry hits the same limit with the same reset time."""
    first = bench.run("quota 1000")
    second = bench.run("quota 1000", session=first.session_id)
    assert second.verdict.reason == Reason.PROVIDER_QUOTA_LIMIT
    assert second.verdict.resets_at == first.verdict.resets_at


# Bad output


def test_garbage_does_not_hide_the_result(bench: Bench) -> None:
    """Invalid bytes, NUL, U+2028, surrogates, two objects on a line and a torn end are survived."""
    ended = bench.run("garbage", "say still here")
    assert ended.verdict.reason == Reason.COMPLETED
    assert ended.reply == "still here"
    assert len(ended.of(EventType.RAW)) == 3
    assert ended.events[-1].type is EventType.RAW
    assert not ended.stdout.endswith(b"\n")
    texts = [event.data["text"] for event in ended.of(EventType.TEXT)]
    assert texts == [
        "a NUL \ufffd and an escaped one \ufffd",
        "line\u2028separator",
        "a lone surrogate \ufffd",
        "first of two",
        "second of two",
        "still here",
    ]
    for event in ended.events:
        assert "\x00" not in event.model_dump_json()


def test_a_flood_arrives_whole(bench: Bench) -> None:
    """Each of many events, in order."""
    texts = [event.data["text"] for event in bench.run("flood 5000").of(EventType.TEXT)]
    assert texts == [f"flood {number}" for number in range(1, 5001)]


def test_a_long_line_arrives_whole(bench: Bench) -> None:
    """One line, several text events, nothing missing."""
    ended = bench.run("line 1000000")
    assert max(len(line) for line in ended.stdout.split(b"\n")) > 1_000_000
    parts = [event.data for event in ended.of(EventType.TEXT)]
    assert "".join(part["text"] for part in parts) == "x" * 1_000_000
    assert [part["part"] for part in parts] == list(range(1, 1_000_000 // PART_LIMIT + 2))


# The command


@pytest.mark.parametrize("args", [("--what",), ("word",), ("--model",)])
def test_a_wrong_command_line_is_a_usage_error(bench: Bench, args: tuple[str, ...]) -> None:
    """Exit code 2 and a word on stderr."""
    ended = bench.run("hi", args=args)
    assert (ended.exit_code, ended.stdout) == (2, b"")
    assert "script agent:" in ended.stderr


def test_own_arguments_cannot_choose_the_session(bench: Bench) -> None:
    """Session flags among an agent's arguments are dropped."""
    assert bench.run("turns", args=("--resume", UNKNOWN, "--fork")).reply == "1"


def test_the_version_is_the_first_line(bench: Bench) -> None:
    """The executable is this Python, found as it is named."""
    binary = shutil.which(SCRIPT.executable())
    assert binary == sys.executable
    shown = subprocess.run(SCRIPT.version_argv(binary), capture_output=True, check=True, cwd="/")
    assert shown.stdout.split(b"\n")[0] == b"1.0 (Segue script agent)"


def test_the_program_needs_nothing_but_python(bench: Bench) -> None:
    """Its file runs alone, from a copy, and imports nothing slow before it works."""
    from providers import script_agent

    copy = shutil.copy(script_agent.__file__, bench.work_dir / "agent.py")
    command = [sys.executable, "-I", "-S", "-X", "importtime", copy]
    shown = subprocess.run(
        command, input=b"say hi", capture_output=True, check=True, env=bench.env, cwd=bench.work_dir
    )
    assert json.loads(shown.stdout.splitlines()[-1])["text"] == "hi"
    imported = {line.rpartition(b"|")[2].strip() for line in shown.stderr.splitlines()}
    assert not imported & {b"subprocess", b"pathlib", b"typing", b"dataclasses", b"argparse", b"uuid"}
