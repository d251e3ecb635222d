"""Pytest fixtures of the fakes."""

from collections.abc import Iterator

import pytest

from tests.fakes.model_server import ModelServer


@pytest.fixture
def model_server() -> Iterator[ModelServer]:
    """A fake model API that nobody has talked to."""
    with ModelServer() as server:
        yield server
