"""The shape of the tree: names, and what no file may hold."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MADE_BY_TOOLS = re.compile(
    r"^(\.git|\.venv|\.state|\..*_cache|\.hypothesis|node_modules|__pycache__|.*\.egg-info|build|dist)$"
)

#: Each says nothing about what the thing is for.
EMPTY_NAMES = {"common", "helper", "helpers", "misc", "util", "utils"}

#: Written so that this file does not hold what it looks for.
FORBIDDEN_TEXTS = {
    "a folder of one machine": re.compile(r"(?<![\w.~])/(?:wor[k]|roo[t]|hom[e]/\w+|User[s]/\w+)/"),
    "a registry's host": re.compile(
        r"\b(?:pypi\.or[g]|pythonhosted\.or[g]|registry\.npmj[s]|registry\.yarnpk[g]|deb\.debia[n])"
    ),
    "where a lock file got something": re.compile(r'"resolve[d]": *"http|--(?:extra-)?index-ur[l]'),
}

WORKFLOW_MODULES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for path in (ROOT / "workflows").rglob("*.py")
    if path.name != "__init__.py"
)
#: What a workflow's module must not bring along: it would be imported again for every run.
HEAVY_MODULES = (
    "alembic",
    "api",
    "fastapi",
    "httpx",
    "machine",
    "providers",
    "psycopg",
    "sqlalchemy",
    "store",
)


def test_nothing_has_an_empty_name() -> None:
    """Modules are nouns: nothing is called utils, helpers or common."""
    named = [path for path in _files() if EMPTY_NAMES & {part.partition(".")[0] for part in _parts(path)}]
    assert named == []


@pytest.mark.parametrize("what", FORBIDDEN_TEXTS)
def test_no_file_holds(what: str) -> None:
    """The repository says nothing about the machines it was made on."""
    found = [
        f"{path.relative_to(ROOT)}: {match.group()}"
        for path in _files()
        if (match := FORBIDDEN_TEXTS[what].search(path.read_text(errors="replace")))
    ]
    assert found == []


@pytest.mark.parametrize("module", WORKFLOW_MODULES)
def test_workflow_module_imports_alone_and_light(module: str) -> None:
    """Each workflow module imports in a clean interpreter, without a warning and without baggage."""
    program = (
        f"import sys, {module}\n"
        f"found = sorted(set({HEAVY_MODULES!r}) & set(sys.modules))\n"
        "sys.exit(f'brings along {found}' if found else 0)"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def _files() -> Iterator[Path]:
    """Every file that people wrote."""
    folders = [ROOT]
    while folders:
        for path in folders.pop().iterdir():
            if MADE_BY_TOOLS.match(path.name):
                continue
            if path.is_dir():
                folders.append(path)
            elif path.is_file():
                yield path


def _parts(path: Path) -> tuple[str, ...]:
    return path.relative_to(ROOT).parts
