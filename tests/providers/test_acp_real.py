"""The driver around real ACP agents (claude-agent-acp, codex-acp), against the fake model APIs."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from domain.reasons import Reason
from providers import acp_driver
from providers.acp import AcpProvider
from providers.base import EndedRun, LaunchRequest, ParsedRun, Verdict
from tests.fakes.model_server import MessagesApi, ModelServer
from tests.fakes.responses_api import ResponsesApi

ACP = AcpProvider()
PATIENCE = 240.0
MARK = "SEGUE_TEST_ACP_RUN"
UNKNOWN = "11111111-2222-4333-8444-555555555555"

CODEX_CONFIG = """
model = "fake-model"
model_provider = "fake"

[model_providers.fake]
name = "fake"
base_url = "{url}/v1"
env_key = "FAKE_API_KEY"
wire_api = "responses"
request_max_retries = 0
stream_max_retries = 0

[features]
plugins = false

[analytics]
enabled = false
"""


@dataclass(frozen=True)
class Bench:
    """Runs one ACP agent in a directory of its own."""

    command: tuple[str, ...]
    work_dir: Path
    env: Mapping[str, str]
    server: ModelServer

    def run(self, prompt: str, session: str | None = None) -> tuple[ParsedRun, Verdict]:
        with self.start(prompt, session) as process:
            stdout, stderr = process.communicate(timeout=PATIENCE)
        return self.judge(process.returncode, stdout, stderr, session)

    def start(self, prompt: str, session: str | None = None) -> subprocess.Popen[bytes]:
        request = LaunchRequest(sys.executable, str(self.work_dir), session_id=session, args=self.command)
        process = subprocess.Popen(
            ACP.command(request).argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=self.work_dir,
            env={**self.env, MARK: str(self.work_dir)},
        )
        assert process.stdin is not None
        process.stdin.write(prompt.encode())
        process.stdin.close()
        process.stdin = None
        return process

    def judge(
        self, code: int, stdout: bytes, stderr: bytes, session: str | None = None
    ) -> tuple[ParsedRun, Verdict]:
        parser = ACP.parser(session)
        for line in stdout.split(b"\n"):
            parser.feed(line)
        parsed = parser.parsed()
        return parsed, ACP.classify(EndedRun(parsed, code, None, stderr.decode()[-8000:], session))

    def was_told(self, word: str, *, with_: str) -> bool:
        """Whether the model was sent both in one request (agents ask for titles and the like beside)."""
        bodies = [str(request.body) for request in self.server.requests]
        return any(word in body and with_ in body for body in bodies)

    def left(self) -> list[list[str]]:
        """The commands that still run of this bench, whoever's children they are by now."""
        return [command for process in psutil.process_iter() if (command := self._command_of(process))]

    def _command_of(self, process: psutil.Process) -> list[str]:
        try:
            ours = process.environ().get(MARK) == str(self.work_dir)
            return process.cmdline() if ours and process.status() != psutil.STATUS_ZOMBIE else []
        except psutil.Error:
            return []


@pytest.fixture
def server() -> Iterator[ModelServer]:
    """Both vendors' fake APIs."""
    with ModelServer(MessagesApi(), ResponsesApi()) as server:
        yield server


@pytest.fixture(
    params=[
        pytest.param("claude", marks=pytest.mark.real_agents("claude", "claude_acp")),
        pytest.param("codex", marks=pytest.mark.real_agents("codex", "codex_acp")),
    ]
)
def bench(request: pytest.FixtureRequest, server: ModelServer, tmp_path: Path) -> Bench:
    """A real agent with a fresh home, and the fake API behind it."""
    work_dir = tmp_path / "work"
    work_dir.mkdir()
    env = {"HOME": str(tmp_path), "PATH": os.environ["PATH"], "LANG": "C.UTF-8"}
    path = str(request.getfixturevalue(f"{request.param}_path"))
    agent = str(request.getfixturevalue(f"{request.param}_acp_path"))
    if request.param == "claude":
        env |= {
            "CLAUDE_CODE_EXECUTABLE": path,
            "ANTHROPIC_BASE_URL": server.url,
            "ANTHROPIC_API_KEY": "dummy",
            "CLAUDE_CODE_MAX_RETRIES": "0",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_AUTOUPDATER": "1",
            "IS_SANDBOX": "1",
        }
        return Bench((agent,), work_dir, env, server)
    home = tmp_path / "codex-home"
    home.mkdir()
    (home / "config.toml").write_text(CODEX_CONFIG.format(url=server.url))
    env |= {"CODEX_PATH": path, "CODEX_HOME": str(home), "FAKE_API_KEY": "dummy"}
    return Bench((agent,), work_dir, env, server)


def test_a_conversation_goes_on_in_a_second_process(bench: Bench) -> None:
    """A tool that needs a permission, then a load: the model is sent all that was said before."""
    first, verdict = bench.run("the word is KIWI [[tool bash touch made-by-tool && echo so]]")
    assert verdict.reason == Reason.COMPLETED
    assert first.tools_used == 1
    assert (bench.work_dir / "made-by-tool").exists()
    assert "so" in first.result_text
    assert first.usage.output_tokens == 14
    session = first.session_id
    assert session is not None
    second, verdict = bench.run("[[say go on]]", session)
    assert verdict.reason == Reason.COMPLETED
    # The history, which these agents tell when they load a session, is no part of the second run.
    assert (second.session_id, second.result_text, second.tools_used) == (session, "go on", 0)
    assert bench.was_told("KIWI", with_="go on")


def test_failures_have_their_reasons(bench: Bench) -> None:
    """The API's refusal, however the agent shows it, and an unknown session."""
    parsed, verdict = bench.run("[[status 400 bad]]")
    assert (verdict.reason, parsed.success) == (Reason.API_INVALID_REQUEST, False)
    parsed, verdict = bench.run("hi", UNKNOWN)
    assert (verdict.reason, verdict.resume_refused) == (Reason.RESUME_REJECTED, True)
    assert parsed.session_id is None


def test_a_cancelled_run_leaves_nothing_and_can_be_gone_on_with(bench: Bench) -> None:
    """SIGTERM while a tool runs: the agent cancels, ends its tool, and remembers the turn."""
    process = bench.start("the word is KIWI [[tool bash tail -f /dev/null]]")
    with process:
        assert process.stdout is not None
        read = b""
        while b"tool_call" not in read:
            line = process.stdout.readline()
            assert line, read
            read += line
        _wait_until(lambda: any("tail" in words for words in bench.left()), "the tool never ran")
        process.terminate()
        stdout, stderr = process.communicate(timeout=PATIENCE)
    assert process.returncode == acp_driver.EXIT_STOPPED
    _wait_until(lambda: not bench.left(), "processes are left")
    session = bench.judge(process.returncode, read + stdout, stderr)[0].session_id
    assert session is not None
    assert bench.run("[[say go on]]", session)[1].reason == Reason.COMPLETED
    assert bench.was_told("KIWI", with_="go on")


def _wait_until(condition: Callable[[], bool], message: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, message
        time.sleep(0.05)
