"""The exact commands of the adapter with the real Codex, against the fake model API."""

import glob
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from domain.reasons import Reason
from providers.base import EndedRun, LaunchRequest, ParsedRun, Verdict, parser_for
from providers.codex import CodexProvider
from tests.fakes.model_server import ModelServer
from tests.fakes.responses_api import ResponsesApi
from tests.machine.conftest import plane_server, site
from tests.machine.site import Site

__all__ = ["plane_server", "site"]

pytestmark = pytest.mark.real_agents("codex")

CODEX = CodexProvider()
PATIENCE = 240.0
UNKNOWN = "11111111-2222-4333-8444-555555555555"

CONFIG = """
model_provider = "fake"

[model_providers.fake]
name = "fake"
base_url = "{url}/v1"
env_key = "FAKE_API_KEY"
wire_api = "responses"
request_max_retries = 0
stream_max_retries = 0
"""


@pytest.fixture
def server() -> Iterator[ModelServer]:
    """A fake Responses API that nobody has talked to."""
    with ModelServer(ResponsesApi()) as server:
        yield server


def _inputs(server: ModelServer) -> list[list[dict[str, Any]]]:
    return [request.body["input"] for request in server.requests if request.path == "/v1/responses"]


class Bench:
    """Runs Codex in a directory of its own, with its home and its API there."""

    def __init__(self, binary: Path, server: ModelServer, folder: Path) -> None:
        self._binary = binary
        self.home = folder / "codex-home"
        self.home.mkdir()
        (self.home / "config.toml").write_text(CONFIG.format(url=server.url))
        self.work_dir = folder / "work"
        self.work_dir.mkdir()
        self.env = {
            "HOME": str(folder),
            "PATH": os.environ["PATH"],
            "LANG": "C.UTF-8",
            "CODEX_HOME": str(self.home),
            "FAKE_API_KEY": "dummy",
        }

    def run(
        self,
        prompt: str,
        session: str | None = None,
        *,
        fork: bool = False,
        kill: bool = False,
        args: tuple[str, ...] = (),
    ) -> tuple[ParsedRun, Verdict]:
        request = LaunchRequest(
            str(self._binary),
            str(self.work_dir),
            model="fake-model",
            args=args,
            session_id=session,
            fork=fork,
        )
        launch = CODEX.command(request)
        with subprocess.Popen(
            launch.argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=self.work_dir,
            env={**self.env, **launch.env},
            start_new_session=True,  # npm's command is a program around the real one
        ) as process:
            assert process.stdin is not None
            process.stdin.write(prompt.encode())
            process.stdin.flush()
            process.stdin.close()
            process.stdin = None
            if kill:
                self._wait_until_stored(prompt)
                os.killpg(process.pid, signal.SIGKILL)
            stdout, stderr = process.communicate(timeout=PATIENCE)
        parser = parser_for(CODEX, session, fork=fork)
        for line in stdout.split(b"\n"):
            parser.feed(line)
        code = process.returncode
        run = EndedRun(
            parser.parsed(),
            code if code >= 0 else None,
            -code if code < 0 else None,
            stderr.decode(),
            session,
            datetime.now(UTC),
        )
        return run.parsed, CODEX.classify(run)

    def rollouts(self, session: str) -> list[Path]:
        """The thread's files where the adapter looks for them."""
        patterns = CODEX.session_paths(session, str(self.work_dir), self.env) or ()
        return [Path(path) for pattern in patterns for path in glob.glob(pattern)]  # noqa: PTH207 - absolute

    def _wait_until_stored(self, prompt: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while not any(prompt in path.read_text() for path in self.home.glob("sessions/*/*/*/*.jsonl")):
            assert time.monotonic() < deadline, "Codex never stored its prompt"
            time.sleep(0.05)


@pytest.fixture
def bench(codex_path: Path, server: ModelServer, tmp_path: Path) -> Bench:
    """A fresh home for Codex, and the fake API behind it."""
    return Bench(codex_path, server, tmp_path)


def test_a_thread_is_resumed_and_forked(bench: Bench, server: ModelServer) -> None:
    """The same id and a longer conversation, then a new id with all of it."""
    first, verdict = bench.run("--the word is KIWI")
    assert verdict.reason == Reason.COMPLETED
    thread = first.session_id
    assert thread is not None
    assert bench.rollouts(thread)
    assert first.usage.output_tokens == 7
    second, _ = bench.run("[[tool bash echo so]]", thread)
    assert (second.session_id, second.tools_used, second.open_tools) == (thread, 1, 0)
    assert second.result_text.rstrip().endswith("so")
    assert "KIWI" in str(_inputs(server)[-1])
    fork, verdict = bench.run("again", thread, fork=True)
    assert verdict.reason == Reason.COMPLETED
    assert fork.session_id not in {None, thread}
    assert "KIWI" in str(_inputs(server)[-1])
    assert fork.usage.output_tokens == 0, "what a fork spent itself is not stated"
    lengths = [len(items) for items in _inputs(server)]
    assert lengths == sorted(set(lengths))


def test_a_refused_thread_is_refused(bench: Bench) -> None:
    """An unknown one, one whose rollout is gone, and the fork of either."""
    session = bench.run("hello")[0].session_id
    assert session is not None
    (rollout,) = bench.rollouts(session)
    rollout.unlink()
    for thread, fork in ((UNKNOWN, False), (session, False), (UNKNOWN, True)):
        parsed, verdict = bench.run("hi", thread, fork=fork)
        assert (verdict.reason, verdict.resume_refused) == (Reason.RESUME_REJECTED, True)
        assert (parsed.session_id, parsed.revealed_session_id) == (None, None)
        assert not bench.rollouts(thread)


def test_what_is_no_uuid_begins_a_new_thread(bench: Bench) -> None:
    """Codex says nothing of it, so such an id must never get so far: it names no session."""
    parsed, verdict = bench.run("hi", "not-a-uuid")
    assert verdict.reason == Reason.COMPLETED
    assert parsed.session_id not in {None, "not-a-uuid"}
    assert CODEX.session_paths("not-a-uuid", str(bench.work_dir), bench.env) == ()


@pytest.mark.parametrize(
    "prompt,reason",
    [
        ("[[status 400 bad]]", Reason.API_INVALID_REQUEST),
        ("[[status 401 who]]", Reason.PROVIDER_AUTH_OR_ACCESS),
        ("[[status 404 what]]", Reason.MODEL_UNAVAILABLE),
        ("[[status 429 slow down]]", Reason.PROVIDER_RATE_LIMIT),
        ("[[status 500 oh]]", Reason.PROVIDER_SERVER_ERROR),
        ("[[fail context_length_exceeded long]]", Reason.CONTEXT_OVERFLOW),
        ("[[drop]]", Reason.PROVIDER_NETWORK),
    ],
)
def test_failures_have_their_reasons(bench: Bench, prompt: str, reason: Reason) -> None:
    """Each of the API's refusals; the thread was stored with the prompt all the same."""
    parsed, verdict = bench.run(prompt)
    assert (verdict.reason, parsed.success, parsed.session_id) == (reason, False, None)
    assert parsed.revealed_session_id is not None
    assert bench.rollouts(parsed.revealed_session_id)


def test_a_usage_limit_says_when_it_ends(bench: Bench) -> None:
    """Codex prints the minute of the machine's own clock; ours is never before the true moment."""
    _, verdict = bench.run("[[limit 7200]]")
    assert verdict.reason == Reason.PROVIDER_QUOTA_LIMIT
    assert verdict.resets_at is not None
    over = verdict.resets_at - datetime.now(UTC)
    assert timedelta(0) < over <= timedelta(seconds=7200 + 61)


def test_own_permissions_hold_in_a_resumed_thread(bench: Bench) -> None:
    """Flags of the agent reach ``resume``, which knows fewer of them itself."""
    session = bench.run("hello")[0].session_id
    parsed, verdict = bench.run("more", session, args=("--sandbox", "read-only", "--add-dir", "/"))
    assert (verdict.reason, parsed.session_id) == (Reason.COMPLETED, session)


def test_a_run_killed_before_its_first_answer_can_be_resumed(bench: Bench, server: ModelServer) -> None:
    """Once its thread is stored: it is named, found, and still knows the prompt."""
    parsed, verdict = bench.run("the word is KIWI [[hang]]", kill=True)
    assert verdict.reason == Reason.PROCESS_FAILURE
    session = parsed.revealed_session_id
    assert session is not None
    assert bench.rollouts(session)
    assert bench.run("[[say go on]]", session)[0].session_id == session
    assert "KIWI" in str(_inputs(server)[-1])


async def test_a_thread_whose_rollout_went_is_withheld(
    bench: Bench, site: Site, codex_path: Path, server: ModelServer
) -> None:
    """The whole way over the runner: a run that is good, a session that is missing."""
    site.new_supervisor(binaries={"codex": str(codex_path)})
    env = {"CODEX_HOME": str(bench.home), "FAKE_API_KEY": "dummy"}
    kept = await site.run(site.brief("[[say hello]]", provider="codex", model="fake-model", env=env))
    assert (kept.reason, kept.session_rollout_missing) == (Reason.COMPLETED, False)
    assert kept.session_id is not None
    prompt = f"[[tool bash rm {bench.home}/sessions/*/*/*/*.jsonl]]"
    lost = await site.run(site.brief(prompt, provider="codex", model="fake-model", env=env))
    assert (lost.reason, lost.session_rollout_missing) == (Reason.COMPLETED, True)
