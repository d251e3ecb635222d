"""The services that other tests stand on."""

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import psutil
import psycopg
import pytest
from temporalio import workflow
from temporalio.client import Client
from temporalio.common import SearchAttributeKey, SearchAttributePair, TypedSearchAttributes
from temporalio.worker import Worker

from domain.names import SEARCH_ATTRIBUTES
from store import schema
from tests.services.session import FOLDER_VARIABLE

ROOT = Path(__file__).parents[2]


@workflow.defn
class Echo:
    """The smallest workflow that proves a server works."""

    @workflow.run
    async def run(self, word: str) -> str:
        """Answer what was asked."""
        return word


def test_database_has_the_present_schema(database_url: str) -> None:
    """A fresh database is at the newest migration."""
    assert schema.current(database_url) == schema.head()


@pytest.mark.parametrize("turn", [1, 2])
def test_databases_are_not_shared(database_url: str, turn: int) -> None:
    """What one test writes, the next one does not see."""
    with psycopg.connect(database_url) as connection:
        assert connection.execute("SELECT to_regclass('left_behind')").fetchone() == (None,)
        connection.execute("CREATE TABLE left_behind (turn int)")


def test_empty_database_is_empty(empty_database_url: str) -> None:
    """A database for tests of migrations has none applied."""
    assert schema.current(empty_database_url) is None


async def test_namespace_runs_workflows_with_our_search_attributes(temporal_client: Client) -> None:
    """A fresh namespace is usable at once, search attributes included."""
    pairs = [SearchAttributePair(SearchAttributeKey.for_keyword(name), "x") for name in SEARCH_ATTRIBUTES]
    async with Worker(temporal_client, task_queue="echo", workflows=[Echo]):
        answer = await temporal_client.execute_workflow(
            Echo.run, "hello", id="echo", task_queue="echo", search_attributes=TypedSearchAttributes(pairs)
        )
    assert answer == "hello"


@pytest.mark.slow
@pytest.mark.parametrize("signal_name", ["SIGKILL", "SIGINT"])
async def test_services_end_with_their_session(tmp_path: Path, signal_name: str) -> None:
    """However the tests end, no server and no folder of theirs stays behind."""
    session = _Nested(tmp_path)
    try:
        folder = await session.folder_with_services()
        session.end(signal_name)
        async with asyncio.timeout(120):
            while folder.exists():
                await asyncio.sleep(0.1)
    finally:
        session.end("SIGKILL")
    assert not _processes_naming(folder)


class _Nested:
    """A test session inside a test, which starts both services and waits to be ended."""

    def __init__(self, tmp_path: Path) -> None:
        self._note = tmp_path / "folder"
        (tmp_path / "test_nested.py").write_text(
            textwrap.dedent(f"""
                import os, pathlib, time

                def test_hold(postgres_url, temporal_address):
                    draft = pathlib.Path({str(tmp_path / "draft")!r})
                    draft.write_text(os.environ[{FOLDER_VARIABLE!r}])
                    draft.rename({str(self._note)!r})
                    time.sleep(200)
            """)
        )
        pytest_command = [sys.executable, "-m", "pytest", "-c", "/dev/null", "-p", "tests.conftest"]
        self._process = subprocess.Popen(
            [*pytest_command, "-p", "no:cacheprovider", "--rootdir", str(tmp_path), str(tmp_path)],
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
            env={k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "SEGUE_TEST_"))},
        )

    async def folder_with_services(self) -> Path:
        """Wait until both run; the folder that holds them."""
        async with asyncio.timeout(200):
            while not self._note.exists():
                assert self._process.poll() is None, "the nested session ended early"
                await asyncio.sleep(0.1)
        return Path(self._note.read_text())

    def end(self, signal_name: str) -> None:
        """Send the signal, and reap the session."""
        if self._process.poll() is None:
            self._process.send_signal(signal.Signals[signal_name])
            self._process.wait(120)


def _processes_naming(folder: Path) -> list[str]:
    commands = (" ".join(process.info["cmdline"] or []) for process in psutil.process_iter(["cmdline"]))
    return [command for command in commands if str(folder) in command]
