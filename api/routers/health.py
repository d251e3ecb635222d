"""Is the process alive, can it serve, and what are its numbers."""

import asyncio
from collections.abc import Awaitable
from functools import cache

from fastapi import APIRouter, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import BaseModel

from api.deps import ApiDeps
from store import schema

router = APIRouter(tags=["health"])

TEMPORAL_SECONDS = 2.0
DATABASE_SECONDS = 5.0


class Health(BaseModel):
    status: str
    version: str


class Readiness(BaseModel):
    """``checks`` has ``ok`` or what is wrong, by part."""

    status: str
    checks: dict[str, str]


@router.get("/healthz")
async def healthz(request: Request) -> Health:
    """The process answers. Says nothing about what it depends on."""
    deps: ApiDeps = request.app.state.deps
    return Health(status="ok", version=deps.version)


@router.get("/readyz")
async def readyz(request: Request, response: Response) -> Readiness:
    """Database, schema and Temporal; 503 when one of them is not there."""
    deps: ApiDeps = request.app.state.deps
    database, temporal = await asyncio.gather(
        _verdict(_check_database(deps), DATABASE_SECONDS), _verdict(_check_temporal(deps), TEMPORAL_SECONDS)
    )
    ready = database == temporal == "ok"
    response.status_code = 200 if ready else 503
    return Readiness(
        status="ready" if ready else "not_ready", checks={"database": database, "temporal": temporal}
    )


async def _verdict(check: Awaitable[str | None], seconds: float) -> str:
    try:
        async with asyncio.timeout(seconds):
            return await check or "ok"
    except TimeoutError:
        return f"no answer within {seconds:g} s"
    except Exception as error:  # noqa: BLE001 - whatever it is, it is the answer
        return str(error) or type(error).__name__


async def _check_database(deps: ApiDeps) -> str | None:
    current = await schema.revision(deps.database)
    wanted = _wanted_schema()
    if current == wanted:
        return None
    return f"the schema is at {current}, this version needs {wanted}: run `segue db upgrade`"


@cache
def _wanted_schema() -> str:
    return schema.head()


async def _check_temporal(deps: ApiDeps) -> str | None:
    if deps.temporal_check is not None:
        await deps.temporal_check()
    return None


@router.get("/metrics", response_class=Response)
async def metrics(request: Request) -> Response:
    """Prometheus text."""
    deps: ApiDeps = request.app.state.deps
    text = await request.app.state.metrics.scrape(deps.database)
    return Response(text, media_type=CONTENT_TYPE_LATEST)
