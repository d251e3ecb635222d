"""The exact commands of the adapter with the real Claude Code, against the fake model API."""

import glob
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from domain.reasons import Reason
from providers.base import EndedRun, LaunchRequest, ParsedRun, Verdict
from providers.claude import ClaudeProvider
from tests.fakes.fixtures import model_server
from tests.fakes.model_server import ModelServer

__all__ = ["model_server"]

pytestmark = pytest.mark.real_agents

CLAUDE = ClaudeProvider()
PATIENCE = 240.0
UNKNOWN = "11111111-2222-4333-8444-555555555555"


class Bench:
    """Runs Claude in a directory of its own, with its home and its API there."""

    def __init__(self, binary: Path, server: ModelServer, folder: Path) -> None:
        self._binary = binary
        self.work_dir = folder / "work"
        self.work_dir.mkdir()
        self.env = {
            "HOME": str(folder),
            "PATH": os.environ["PATH"],
            "LANG": "C.UTF-8",
            "ANTHROPIC_BASE_URL": server.url,
            "ANTHROPIC_API_KEY": "dummy",
            "CLAUDE_CODE_MAX_RETRIES": "0",
        }

    def run(
        self, prompt: str, session: str | None = None, *, fork: bool = False, kill: bool = False
    ) -> tuple[ParsedRun, Verdict]:
        request = LaunchRequest(str(self._binary), str(self.work_dir), session_id=session, fork=fork)
        launch = CLAUDE.command(request)
        with subprocess.Popen(
            launch.argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=self.work_dir,
            env={**self.env, **launch.env},
        ) as process:
            assert process.stdin is not None
            process.stdin.write(prompt.encode())
            process.stdin.flush()
            process.stdin.close()
            process.stdin = None
            if kill:
                self._wait_until_stored(prompt)
                process.send_signal(signal.SIGKILL)
            stdout, stderr = process.communicate(timeout=PATIENCE)
        parser = CLAUDE.parser(None if fork else session)
        for line in stdout.split(b"\n"):
            parser.feed(line)
        code = process.returncode
        run = EndedRun(
            parser.parsed(),
            code if code >= 0 else None,
            -code if code < 0 else None,
            stderr.decode(),
            session,
        )
        return run.parsed, CLAUDE.classify(run)

    def holds(self, session: str) -> bool:
        """Whether the session's file is where the adapter looks for it."""
        patterns = CLAUDE.session_paths(session, str(self.work_dir), self.env) or ()
        found = [Path(path) for pattern in patterns for path in glob.glob(pattern)]  # noqa: PTH207 - absolute
        return any(path.stat().st_size for path in found)

    def _wait_until_stored(self, prompt: str) -> None:
        # Claude stores a prompt shortly after it asked the API, not before.
        deadline = time.monotonic() + PATIENCE
        files = Path(self.env["HOME"], ".claude", "projects")
        while not any(prompt in path.read_text() for path in files.glob("*/*.jsonl")):
            assert time.monotonic() < deadline, "Claude never stored its prompt"
            time.sleep(0.05)


@pytest.fixture
def bench(claude_path: Path, model_server: ModelServer, tmp_path: Path) -> Bench:
    """A fresh home for Claude, and the fake API behind it."""
    return Bench(claude_path, model_server, tmp_path)


def test_a_conversation_is_resumed_and_forked(bench: Bench, model_server: ModelServer) -> None:
    """The same id and a longer conversation, then a new id with all of it."""
    first, verdict = bench.run("--hello")
    assert verdict.reason == Reason.COMPLETED
    session = first.session_id
    assert session is not None
    assert bench.holds(session)
    second, _ = bench.run("[[tool bash echo so]]", session)
    assert (second.session_id, second.result_text, second.tools_used) == (session, "done: so", 1)
    fork, _ = bench.run("again", session, fork=True)
    assert fork.success
    assert fork.session_id not in {None, session}
    lengths = [len(messages) for messages in model_server.conversations()]
    assert lengths == sorted(set(lengths))
    assert second.usage.cost_usd is not None
    assert fork.usage.cost_usd is not None


def test_failures_have_their_reasons(bench: Bench) -> None:
    """The API's refusal, a cut connection and an unknown session."""
    parsed, verdict = bench.run("[[status 400 bad]]")
    assert (verdict.reason, parsed.success) == (Reason.API_INVALID_REQUEST, False)
    assert bench.run("[[drop]]")[1].reason == Reason.PROVIDER_NETWORK
    parsed, verdict = bench.run("hi", UNKNOWN)
    assert (verdict.reason, verdict.resume_refused) == (Reason.RESUME_REJECTED, True)
    assert parsed.session_id is None
    assert not bench.holds(UNKNOWN)


def test_a_run_killed_before_its_first_answer_can_be_resumed(bench: Bench, model_server: ModelServer) -> None:
    """Once its session is stored: it is named, found, and still knows the prompt."""
    parsed, verdict = bench.run("the word is KIWI [[hang]]", kill=True)
    assert verdict.reason == Reason.PROCESS_FAILURE
    session = parsed.revealed_session_id
    assert session is not None
    assert bench.holds(session)
    assert bench.run("[[say go on]]", session)[0].session_id == session
    assert "KIWI" in str(model_server.conversations()[-1])
