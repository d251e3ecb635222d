"""Prometheus metrics: requests as they are served, tasks and outbox as the database has them."""

import time
from asyncio import Lock

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.deps import PREFIX
from domain.reasons import Reason
from domain.statuses import TaskStatus
from store import statistics
from store.database import Database

#: Counting all tasks is not for free: scrapes within this time share one count.
FRESH_SECONDS = 10.0


class Metrics:
    """The numbers of one API process, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        labels = ("method", "route", "status")
        self._requests = Counter("segue_http_requests", "Requests served.", labels, registry=self.registry)
        self._durations = Histogram(
            "segue_http_request_duration_seconds",
            "Time until the answer was sent; a stream counts until its first byte.",
            ("method", "route"),
            registry=self.registry,
        )
        self._tasks = Gauge("segue_tasks", "Tasks by status.", ("status",), registry=self.registry)
        self._ended = Gauge(
            "segue_tasks_ended", "Ended tasks by reason.", ("reason",), registry=self.registry
        )
        self._unsent = Gauge(
            "segue_outbox_unsent", "Outbox rows that Temporal has not taken yet.", registry=self.registry
        )
        self._counted_at: float | None = None
        self._lock = Lock()

    def note_request(self, method: str, route: str, status: int, seconds: float) -> None:
        self._requests.labels(method, route, str(status)).inc()
        self._durations.labels(method, route).observe(seconds)

    async def scrape(self, database: Database) -> bytes:
        """The exposition text, with counts from the database that are at most 10 s old."""
        async with self._lock:
            if self._counted_at is None or time.monotonic() - self._counted_at > FRESH_SECONDS:
                await self._count(database)
                self._counted_at = time.monotonic()
        return generate_latest(self.registry)

    async def _count(self, database: Database) -> None:
        async with database.begin() as conn:
            statuses, reasons = await statistics.task_counts(conn)
            unsent = await statistics.unsent_outbox(conn)
        for status in TaskStatus:
            self._tasks.labels(status).set(statuses.get(status, 0))
        for reason in Reason:
            self._ended.labels(reason).set(reasons.get(reason, 0))
        self._unsent.set(unsent)


class RequestMeter:
    """Counts requests by the route's template, never by the address: ids are not labels."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.perf_counter()

        async def note(message: Message) -> None:
            if message["type"] == "http.response.start":
                seconds = time.perf_counter() - began
                self._metrics.note_request(scope["method"], _route(scope), message["status"], seconds)
            await send(message)

        await self._app(scope, receive, note)


def _route(scope: Scope) -> str:
    """The template of the route that served it; what nobody serves has one label.

    The framework leaves the route as its router knows it, without the prefix.
    """
    path = getattr(scope.get("route"), "path", None)
    if not isinstance(path, str):
        return "unmatched"
    return PREFIX + path if scope["path"].startswith(PREFIX) else path
