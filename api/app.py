"""The application: routers, gates, and what lives as long as the process."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from api import contract, problems
from api.auth import FailureLimiter
from api.deps import PREFIX, ApiDeps
from api.gates import BodyGate, HostGate
from api.metrics import Metrics, RequestMeter
from api.routers import (
    agents,
    chats,
    comments,
    continuations,
    health,
    issues,
    me,
    members,
    projects,
    runtime_plane,
    runtimes,
    stats,
    tasks,
)
from api.streams import Listeners

__all__ = ["ApiDeps", "create_app"]

_ROUTERS = (
    me.router,
    members.router,
    runtimes.router,
    agents.router,
    projects.router,
    issues.router,
    comments.router,
    chats.router,
    chats.stream_router,
    tasks.router,
    tasks.stream_router,
    continuations.router,
    stats.router,
    runtime_plane.router,
)


def create_app(deps: ApiDeps) -> FastAPI:
    """The API over ``deps``, which belong to the caller and are not closed here."""
    app = FastAPI(
        title="Segue",
        version=deps.version,
        description="Durable, resumable runs of coding agents.",
        docs_url=None,
        redoc_url=None,
        lifespan=_lifespan,
    )
    app.state.deps = deps
    app.state.limiter = FailureLimiter()
    app.state.listeners = Listeners(deps.database)
    app.state.metrics = Metrics()
    for router in _ROUTERS:
        app.include_router(router, prefix=PREFIX)
    app.include_router(health.router)
    problems.install(app)
    contract.install(app)
    # The last one added is the first that a request meets.
    app.add_middleware(BodyGate)
    app.add_middleware(HostGate, allowed=deps.allowed_hosts)
    app.add_middleware(RequestMeter, metrics=app.state.metrics)
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    try:
        yield
    finally:
        await app.state.listeners.close()
