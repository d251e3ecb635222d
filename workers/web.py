"""The api as a process: uvicorn around `api.app`, ended in order by SIGTERM."""

import asyncio
from datetime import timedelta
from importlib.metadata import version

import structlog
import uvicorn
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
from temporalio.client import Client
from temporalio.service import RPCError

from api.app import create_app
from api.deps import ApiDeps
from domain.collection import CollectionRules
from domain.errors import Unavailable
from store.database import Database
from store.secretbox import SecretBox
from workers.settings import Settings, connect_temporal

log = structlog.get_logger(__name__)

#: For requests under way, and for event streams to be closed, when the process is told to end.
_GRACE_SECONDS = 5


async def run(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT. Raises `InvalidInput` for a missing setting."""
    database = Database(settings.required_database_url())
    secret_box = SecretBox(settings.required_secret_key())
    temporal = TemporalCheck(settings)
    app = create_app(
        ApiDeps(
            database=database,
            secret_box=secret_box,
            temporal_namespace=settings.temporal_namespace,
            temporal_ui_url=settings.temporal_ui_url,
            allowed_hosts=settings.allowed_hosts,
            temporal_check=temporal,
            heartbeat_seconds=settings.beat_seconds,
            offline_after=settings.offline_after,
            collection=CollectionRules(
                settled=timedelta(seconds=settings.keep_settled_seconds),
                unused=timedelta(seconds=settings.keep_unused_seconds),
                orphan=timedelta(seconds=settings.keep_orphans_seconds),
            ),
            version=version("segue"),
        )
    )
    config = uvicorn.Config(
        app,
        host=settings.api_host,
        port=settings.api_port,
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=_GRACE_SECONDS,
    )
    try:
        await uvicorn.Server(config).serve()
    finally:
        await database.dispose()


class TemporalCheck:
    """Does Temporal answer for our namespace? Connects at the first question, and again after a failure."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._client: Client | None = None
        self._connecting = asyncio.Lock()

    async def __call__(self) -> None:
        """Raises `Unavailable`."""
        try:
            client = await self._connected()
            await client.workflow_service.describe_namespace(
                DescribeNamespaceRequest(namespace=client.namespace)
            )
        except (RPCError, RuntimeError) as error:
            raise Unavailable(f"Temporal does not answer: {error}") from error

    async def _connected(self) -> Client:
        async with self._connecting:
            if self._client is None:
                self._client = await connect_temporal(self._settings)
            return self._client
