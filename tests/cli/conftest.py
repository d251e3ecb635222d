"""A stack for all tests of a file, and the command that talks to it."""

from collections.abc import Iterator

import pytest

from tests.cli.command import Segue
from tests.cli.up import Up


@pytest.fixture(scope="module")
def segue(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Segue]:
    """A stack with an agent called Ada, for all tests of this file."""
    folder = tmp_path_factory.mktemp("stack")
    up = Up(folder / "data")
    try:
        up.ready()
        command = Segue(up, folder)
        command.run("agent", "create", "Ada", "--provider", "script", "--runtime", "local")
        yield command
    finally:
        up.end()
