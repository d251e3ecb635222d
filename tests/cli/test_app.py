"""The command line itself: global options anywhere, exit codes, and a quick start."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from cli.app import run


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A home directory without anything of ours."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("XDG_CONFIG_HOME", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    "arguments",
    [
        ["bogus"],
        ["issue", "show"],
        ["issue", "list", "--limit", "x"],
        ["issue", "list", "-o", "xml"],
        ["issue"],
    ],
)
def test_misuse_exits_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """What can't be understood is usage, explained on stderr."""
    assert run(arguments) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err


@pytest.mark.parametrize(
    "arguments",
    [["issue", "create", "torn \udcff"], ["issue", "show", "\udcff"], ["--token", "t\udcff", "doctor"]],
)
def test_arguments_that_are_no_text_exit_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Bytes that are not UTF-8 are named in one line, not in a traceback."""
    assert run(arguments) == 2
    assert "is not UTF-8 text" in capsys.readouterr().err


def test_token_outside_ascii_exits_2(capsys: pytest.CaptureFixture[str]) -> None:
    """A token that can't be a header is refused before it is sent."""
    assert run(["--api-url", "http://127.0.0.1:1", "--token", "sgu_\u00e4", "issue", "list"]) == 2
    assert "token" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments", [["db", "current"], ["db", "upgrade"], ["admin", "workspace", "create", "W"]]
)
def test_database_that_does_not_answer_is_one_line(
    arguments: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The verbs that go straight to the database say so when it is away."""
    monkeypatch.setenv("SEGUE_DATABASE_URL", f"postgresql://nobody@/segue?host={tmp_path}")
    assert run(arguments) == 1
    assert "The database does not answer" in capsys.readouterr().err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs the device that is always full")
def test_output_that_can_not_be_written_exits_1() -> None:
    """A full disk under stdout is one line on stderr."""
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        done = subprocess.run(
            [sys.executable, "-m", "cli", "--version"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 1
    assert "No space left" in done.stderr
    assert "Traceback" not in done.stderr


def test_help_and_version_exit_0(capsys: pytest.CaptureFixture[str]) -> None:
    """Asking for help is no mistake."""
    assert run(["issue", "comment", "-h"]) == 0
    assert "--wait" in capsys.readouterr().out
    assert run(["--version"]) == 0
    assert capsys.readouterr().out.startswith("segue ")


@pytest.mark.parametrize(
    "arguments", [["-o", "json", "admin", "secret-key"], ["admin", "secret-key", "-o", "json"]]
)
def test_global_options_stand_before_or_after_the_verb(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Nobody has to remember where they go."""
    assert run(arguments) == 0
    assert len(json.loads(capsys.readouterr().out)["secret_key"]) == 44


def test_later_global_option_wins(capsys: pytest.CaptureFixture[str]) -> None:
    """An alias can set a default that a call overrides."""
    assert run(["-o", "json", "admin", "secret-key", "-o", "text"]) == 0
    assert capsys.readouterr().out.startswith("secret_key\t")


def test_without_an_api_the_next_step_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    """The first thing a newcomer sees says what to do."""
    assert run(["issue", "list"]) == 2
    assert "segue up" in capsys.readouterr().err


def test_api_that_is_not_there_exits_1(free_port: int, capsys: pytest.CaptureFixture[str]) -> None:
    """A failure is told from misuse."""
    address = f"http://127.0.0.1:{free_port}"
    assert run(["issue", "comment", "SEG-1", "hi", "--api-url", address, "--token", "t"]) == 1
    assert "does not answer" in capsys.readouterr().err


def test_client_verbs_import_no_server() -> None:
    """`segue issue …` starts fast: what only processes need stays out."""
    servers = "temporalio sqlalchemy fastapi alembic psycopg uvicorn pydantic_settings"
    code = f"import sys, cli.app, cli.client; print(*set({servers!r}.split()) & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_runs_as_a_module(tmp_path: Path) -> None:
    """`python -m cli` is the same command, also where a folder is named like a package of ours."""
    (tmp_path / "cli").mkdir()
    command = [sys.executable, "-P", "-m", "cli", "--version"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("segue ")
