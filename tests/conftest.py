"""What every test has: the services (started by the first test that asks), and the gates of markers."""

import os
import signal
from pathlib import Path

import pytest

from tests.services import ports, postgres, temporal
from tests.services.session import SessionOwner

_OWNER = pytest.StashKey[SessionOwner]()

#: Prefixes of variables that would make a test depend on where it is started.
_FOREIGN_PREFIXES = ("SEGUE_", "TEMPORAL_", "PG", "CLAUDE", "ANTHROPIC_", "CODEX_", "OPENAI_")
_TEST_PREFIX = "SEGUE_TEST_"

#: The fixtures behind all others that start a service.
_SERVICES = {"postgres_url", "temporal_address"}

#: What a marker needs unless its arguments name others (``real_agents("codex")``), and how to get it. The
#: variable ``SEGUE_TEST_<NAME>`` holds the program's path.
_PROGRAMS = {
    "real_agents": (("claude",), "make agents"),
    "browser": (("chromium",), "apt-get install chromium"),
}


def pytest_configure(config: pytest.Config) -> None:
    """Make the environment the same everywhere, and own the services if nobody else does."""
    # A background job of a shell ignores SIGINT, and so would every process that a test starts.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for name in list(os.environ):
        if name.startswith(_FOREIGN_PREFIXES) and not name.startswith(_TEST_PREFIX):
            del os.environ[name]
    for fixtures in (postgres, temporal):
        config.pluginmanager.register(fixtures)
    if not hasattr(config, "workerinput"):
        config.stash[_OWNER] = SessionOwner()


def pytest_unconfigure(config: pytest.Config) -> None:
    """End every service before the command returns."""
    owner = config.stash.get(_OWNER, None)
    if owner:
        postgres.drop_template(owner.session)
        owner.close()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Count each test that uses a service as slow, whether or not its author thought of it."""
    for item in items:
        if _SERVICES & set(getattr(item, "fixturenames", ())):
            item.add_marker("slow")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test whose program is missing, but never in CI: there it is a failure."""
    for name, (usual, remedy) in _PROGRAMS.items():
        marker = item.get_closest_marker(name)
        for program in (marker.args or usual) if marker else ():
            _require(f"SEGUE_TEST_{program.upper()}", remedy)


def _require(variable: str, remedy: str) -> None:
    if os.environ.get(variable):
        return
    message = f"{variable} names no program; get it with: {remedy}"
    if os.environ.get("CI") == "true":
        pytest.fail(message)
    pytest.skip(message)


@pytest.fixture
def free_port() -> int:
    """A TCP port of 127.0.0.1 that nobody listens on at this moment."""
    return ports.free_port()


@pytest.fixture(scope="session")
def claude_path() -> Path:
    """The real Claude Code CLI; only for tests marked ``real_agents``."""
    return Path(os.environ["SEGUE_TEST_CLAUDE"])


@pytest.fixture(scope="session")
def codex_path() -> Path:
    """The real Codex CLI; only for tests marked ``real_agents("codex")``."""
    return Path(os.environ["SEGUE_TEST_CODEX"])


@pytest.fixture(scope="session")
def claude_acp_path() -> Path:
    """Claude's real ACP agent; only for tests marked ``real_agents("claude", "claude_acp")``."""
    return Path(os.environ["SEGUE_TEST_CLAUDE_ACP"])


@pytest.fixture(scope="session")
def codex_acp_path() -> Path:
    """Codex's real ACP agent; only for tests marked ``real_agents("codex", "codex_acp")``."""
    return Path(os.environ["SEGUE_TEST_CODEX_ACP"])
