"""A whole deployment for each test that asks."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.fixtures import model_server
from tests.scenarios.deployment import Deployment
from tests.scenarios.gateway import Gateway

__all__ = ["model_server"]

Deploy = Callable[..., Deployment]


@pytest.fixture
def deploy(
    tmp_path: Path, database_url: str, temporal_address: str, temporal_namespace: str
) -> Iterator[Deploy]:
    """Start a deployment with these settings; it is ended with the test."""
    made: list[Deployment] = []

    def start(*, runtimes: int = 1, slots: int = 20, **settings: Any) -> Deployment:
        given = {f"SEGUE_{name.upper()}": str(value) for name, value in settings.items()}
        deployment = Deployment(tmp_path, database_url, temporal_address, temporal_namespace, given)
        made.append(deployment)
        return deployment.up(runtimes=runtimes, slots=slots)

    yield start
    for deployment in made:
        deployment.close()


@pytest.fixture
def segue(deploy: Deploy) -> Deployment:
    """The usual deployment: one runtime."""
    return deploy()


@pytest.fixture
def gateway(temporal_address: str) -> Iterator[Gateway]:
    """A way to the Temporal server that a test can close and open."""
    gateway = Gateway(temporal_address)
    yield gateway
    gateway.end()
