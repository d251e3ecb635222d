"""The documentation tells the truth: links lead somewhere, and what the code has is described.

What a table of the docs repeats from the code is compared with the code, so neither can change alone.
"""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from typer.core import TyperGroup

from api.app import ApiDeps, create_app
from api.deps import PREFIX
from cli.app import app
from domain.errors import MachineError, SegueError
from domain.reasons import RULES, ReasonRule
from domain.statuses import ContinuityReason, LeaseKind, TaskStatus, WaitKind
from providers import registry
from store.database import Database
from store.secretbox import SecretBox
from workers.settings import ProviderSettings, Settings

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])
DECISIONS = sorted((DOCS / "decisions").glob("[0-9]*.md"))

_FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`[^`\n]+`")
_LINK = re.compile(r"\[[^\]\n]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ +(.+)$", re.MULTILINE)


def _text(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def _name(page: Path) -> str:
    return str(page.relative_to(ROOT))


# --- links ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_links_within_the_repository_resolve(page: Path) -> None:
    """A relative link names a file that is there, and an anchor names one of its headings."""
    broken = [link for link in _links(page) if not _resolves(page, link)]
    assert broken == []


def _links(page: Path) -> list[str]:
    prose = _CODE.sub("", _FENCE.sub("", page.read_text(encoding="utf-8")))
    return [link for link in _LINK.findall(prose) if "://" not in link]


def _resolves(page: Path, link: str) -> bool:
    path, _, anchor = link.partition("#")
    target = (page.parent / path).resolve() if path else page
    if not target.is_relative_to(ROOT) or not target.exists():
        return False
    return not anchor or anchor in _anchors(target)


def _anchors(page: Path) -> set[str]:
    headings = _HEADING.findall(_FENCE.sub("", page.read_text(encoding="utf-8")))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_page_is_in_an_index() -> None:
    """Nobody has to guess that a page exists: the README names it, or the index of decisions."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert [page.name for page in DOCS.glob("*.md") if _name(page) not in readme] == []
    index = _text("decisions/README.md")
    assert [page.name for page in DECISIONS if page.name[:4] not in index] == []


@pytest.mark.parametrize("decision", DECISIONS, ids=_name)
def test_a_decision_has_its_parts(decision: Path) -> None:
    """Each says when, why, what, and what follows."""
    text = decision.read_text(encoding="utf-8")
    assert text.startswith(f"# {decision.name[:4]} ")
    assert re.search(r"^\d{4}-\d\d-\d\d, (accepted|replaced by \d{4})\.$", text, re.MULTILINE)
    assert {"## Context", "## Decision", "## Consequences"} <= set(text.splitlines())


# --- commands -------------------------------------------------------------------------------------


def _commands() -> dict[str, set[str]]:
    """The options of every command, by its whole name."""
    return dict(_below(typer.main.get_command(app), ("segue",)))


def _below(command: object, path: tuple[str, ...]) -> Iterator[tuple[str, set[str]]]:
    if isinstance(command, TyperGroup):
        for name, one in command.commands.items():
            yield from _below(one, (*path, name))
        return
    parameters = getattr(command, "params", ())
    yield " ".join(path), {option for one in parameters for option in (*one.opts, *one.secondary_opts)}


COMMANDS = _commands()
_GLOBAL_OPTIONS = {"-o", "--output", "--profile", "--api-url", "--token", "--version", "-h", "--help"}


@pytest.mark.parametrize("command", COMMANDS)
def test_command_is_documented_with_an_example(command: str) -> None:
    """A row of cli.md has its name, and an example that begins with it."""
    assert re.search(rf"^\| `{command}` \| `{command}[ `]", _text("cli.md"), re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_commands_that_the_docs_show_exist(page: Path) -> None:
    """What a page tells people to type names a command, and options that it has."""
    wrong = [line for line in _shown_commands(page) if not _is_command(line)]
    assert wrong == []


def _shown_commands(page: Path) -> Iterator[str]:
    text = page.read_text(encoding="utf-8")
    for block in _FENCE.findall(text):
        yield from re.findall(r"^(?:\$ )?(?:\.venv/bin/)?(segue .*)$", block, re.MULTILINE)
    yield from (code[1:-1] for code in _CODE.findall(_FENCE.sub("", text)) if code.startswith("`segue "))


def _is_command(line: str) -> bool:
    words = shlex.split(line, comments=True)
    command = _longest_command(words)
    if command is None:
        # The command itself, or the name of a group, in a sentence.
        return any(name.startswith(f"{line} ") for name in COMMANDS) or set(words[1:]) <= _GLOBAL_OPTIONS
    options = {word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)}
    return options <= COMMANDS[command] | _GLOBAL_OPTIONS


def _longest_command(words: list[str]) -> str | None:
    starts = (" ".join(words[:count]) for count in range(len(words), 1, -1))
    return next((start for start in starts if start in COMMANDS), None)


# --- settings -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", Settings.model_fields)
def test_setting_is_documented(name: str) -> None:
    """A row of operations.md has its key, its variable and its default."""
    row = re.search(
        rf"^\| `{name}` \| `SEGUE_{name.upper()}` \| (.*?) ?\|", _text("operations.md"), re.MULTILINE
    )
    assert row is not None
    default = Settings.model_fields[name].default
    if isinstance(default, str | int | float):
        assert row[1] == f"`{default:g}`" if isinstance(default, float) else f"`{default}`"
    elif isinstance(default, list):
        assert row[1] == ", ".join(f"`{one}`" for one in default)


def test_only_settings_are_documented() -> None:
    """No row is left of a setting that is gone."""
    rows = re.findall(r"^\| `(\w+)` \| `SEGUE_\w+` \|", _text("operations.md"), re.MULTILINE)
    assert set(rows) == set(Settings.model_fields)


@pytest.mark.parametrize("name", ProviderSettings.model_fields)
def test_setting_of_a_provider_is_documented(name: str) -> None:
    """The example of a provider's table shows every key."""
    assert re.search(rf"^{name} = ", _text("operations.md"), re.MULTILINE)


# --- words ----------------------------------------------------------------------------------------


def test_table_of_reasons_is_the_codes() -> None:
    """reasons.md repeats the table of `domain.reasons`, in its order and in its words."""
    rows = [
        line for line in _text("reasons.md").splitlines() if line.startswith("| `") and line.count("|") == 7
    ]
    assert rows == [_row(rule) for rule in RULES.values()]


def _row(rule: ReasonRule) -> str:
    marks = ["yes" if mark else "" for mark in (rule.retryable, rule.poisons, rule.quota)]
    return f"| {' | '.join([f'`{rule.reason}`', rule.meaning, *marks, rule.advice or ''])} |"


@pytest.mark.parametrize(
    "page, word",
    [
        *(("reasons.md", reason.value) for reason in ContinuityReason),
        *(("architecture.md", kind.value) for kind in (*LeaseKind, *WaitKind, *TaskStatus)),
        *(("providers.md", name) for name in registry.names()),
    ],
)
def test_word_is_explained(page: str, word: str) -> None:
    """What people meet in answers stands in the docs."""
    assert f"`{word}`" in _text(page)


# --- proofs ---------------------------------------------------------------------------------------

_PROOF = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_tests_that_the_docs_name_exist(page: Path) -> None:
    """A page that points to a test as a proof points to one that is there."""
    missing = [proof for proof in _PROOF.findall(page.read_text(encoding="utf-8")) if not _is_test(*proof)]
    assert missing == []


def _is_test(path: str, name: str) -> bool:
    file = ROOT / path
    return file.exists() and bool(
        re.search(rf"^(?:async )?def {name}\(", file.read_text(encoding="utf-8"), re.MULTILINE)
    )


def test_every_field_note_has_a_proof() -> None:
    """Each is there once, and its last column is nothing but tests."""
    rows = [line.strip("| ").split(" | ") for line in _text("field-notes.md").splitlines() if _is_note(line)]
    notes = [row[0] for row in rows]
    assert len(notes) == len(set(notes)) == 33
    assert [row[0] for row in rows if len(row) != 4 or re.sub(r"[, ]", "", _PROOF.sub("", row[3]))] == []


def _is_note(line: str) -> bool:
    return re.match(r"\| [RW]\d+ \|", line) is not None


# --- the API --------------------------------------------------------------------------------------


def test_every_call_is_documented() -> None:
    """The tables of api.md have each path with its methods, and no other."""
    rows = re.findall(r"^\| `(/\S*)` \| ([A-Z, ]+) \|", _text("api.md"), re.MULTILINE)
    assert {path: set(methods.split(", ")) for path, methods in rows} == _calls()


def _calls() -> dict[str, set[str]]:
    deps = ApiDeps(
        # An engine connects when it is used, which nobody does here.
        database=Database("postgresql://nobody@127.0.0.1:1/none", pool_size=1),
        secret_box=SecretBox(SecretBox.new_key()),
        version="0",
        allowed_hosts=["*"],
    )
    paths = create_app(deps).openapi()["paths"]
    return {
        re.sub(r"\{\w+\}", "{id}", path.removeprefix(PREFIX)): {method.upper() for method in methods}
        for path, methods in paths.items()
        if path.startswith(PREFIX)
    }


def test_every_error_code_is_documented() -> None:
    """A client that compares codes can look each of them up."""
    codes = {one.code for one in _descendants(SegueError) if not issubclass(one, MachineError)}
    undocumented = {code for code in codes if f"`{code}`" not in _text("api.md")}
    assert undocumented == set()


def _descendants(error: type[SegueError]) -> Iterator[type[SegueError]]:
    for one in error.__subclasses__():
        if one.__module__ == SegueError.__module__:
            yield one
            yield from _descendants(one)
