"""A machine for each test."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.machine.plane_server import PlaneServer
from tests.machine.site import Site


@pytest.fixture
def plane_server() -> Iterator[PlaneServer]:
    with PlaneServer() as server:
        yield server


@pytest.fixture
async def site(
    tmp_path: Path, plane_server: PlaneServer, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Site]:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    made = Site(tmp_path, plane_server)
    yield made
    await made.close()
