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
