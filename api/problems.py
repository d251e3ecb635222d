"""Errors as ``application/problem+json`` (RFC 9457), made in one place.

``type`` is a URN of the code, ``title`` doesn't vary, ``detail`` says what to do next; validation
adds ``errors``, one entry a field.
"""

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

import psycopg
import structlog
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, Field
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from domain.errors import InvalidInput, NotFound, SegueError, Unavailable, UnprocessableInput

log = structlog.get_logger()

MEDIA_TYPE = "application/problem+json"
_RETRY_SECONDS = "2"


class FieldError(BaseModel):
    """What is wrong with one field; ``pointer`` is a JSON pointer into the body, query or headers."""

    pointer: str
    detail: str
    type: str


class Problem(BaseModel):
    """The body of every answer from 400 upwards."""

    type: str = Field(examples=["urn:segue:problem:not_found"])
    title: str
    status: int
    detail: str
    code: str
    instance: str | None = None
    errors: list[FieldError] | None = None


def problem(
    error: SegueError | type[SegueError],
    detail: str,
    *,
    instance: str | None = None,
    errors: Sequence[FieldError] | None = None,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """The answer for an error of our tree."""
    return _response(
        error.http_status,
        error.code,
        error.title,
        detail,
        instance=instance,
        errors=errors,
        headers=headers,
    )


def _response(
    status: int,
    code: str,
    title: str,
    detail: str,
    *,
    instance: str | None = None,
    errors: Sequence[FieldError] | None = None,
    headers: Mapping[str, str] | None = None,
) -> Response:
    body = Problem(
        type=f"urn:segue:problem:{code}",
        title=title,
        status=status,
        detail=detail,
        code=code,
        instance=instance,
        errors=list(errors) if errors is not None else None,
    )
    return JSONResponse(
        body.model_dump(exclude_none=True), status, media_type=MEDIA_TYPE, headers=dict(headers or {})
    )


def install(app: FastAPI) -> None:
    """Answer every error of ``app`` with a problem."""
    app.add_exception_handler(SegueError, _on_segue_error)
    app.add_exception_handler(RequestValidationError, _on_validation)
    app.add_exception_handler(HTTPException, _on_http)
    app.add_exception_handler(DBAPIError, _on_database)
    app.add_exception_handler(PoolTimeout, _on_pool_timeout)
    app.add_exception_handler(psycopg.OperationalError, _on_pool_timeout)
    app.add_exception_handler(Exception, _on_defect)


async def _on_segue_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, SegueError), "registered for it"
    return problem(error, str(error), instance=request.url.path, headers=_headers(error))


def _headers(error: SegueError) -> dict[str, str]:
    if error.http_status == HTTPStatus.UNAUTHORIZED:
        return {"WWW-Authenticate": "Bearer"}
    if error.http_status == HTTPStatus.SERVICE_UNAVAILABLE:
        return {"Retry-After": _RETRY_SECONDS}
    if error.http_status == HTTPStatus.TOO_MANY_REQUESTS:
        return {"Retry-After": "60"}
    return {}


async def _on_validation(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError), "registered for it"
    found = error.errors()
    if any(entry["type"] == "json_invalid" for entry in found):
        return problem(InvalidInput, "The body is not valid JSON.", instance=request.url.path)
    if any(entry["loc"][:1] == ("path",) for entry in found):
        return problem(NotFound, "There is nothing with this id.", instance=request.url.path)
    errors = [
        FieldError(pointer=_pointer(entry["loc"]), detail=entry["msg"], type=entry["type"]) for entry in found
    ]
    detail = "; ".join(f"{entry.pointer}: {entry.detail}" for entry in errors)
    return problem(UnprocessableInput, detail, instance=request.url.path, errors=errors)


def _pointer(location: Sequence[Any]) -> str:
    steps = (str(step).replace("~", "~0").replace("/", "~1") for step in location)
    return "#/" + "/".join(steps)


async def _on_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException), "registered for it"
    if error.status_code == HTTPStatus.NOT_FOUND:
        return problem(NotFound, "There is nothing at this address.", instance=request.url.path)
    phrase = HTTPStatus(error.status_code).phrase
    code = phrase.lower().replace(" ", "_").replace("-", "_")
    return _response(
        error.status_code,
        code,
        phrase,
        str(error.detail),
        instance=request.url.path,
        headers=error.headers,
    )


async def _on_database(request: Request, error: Exception) -> Response:
    assert isinstance(error, DBAPIError), "registered for it"
    if isinstance(error.orig, psycopg.DataError):
        log.warning("database_refused_value", path=request.url.path, error=str(error.orig))
        return problem(UnprocessableInput, "A value can't be stored as it is.", instance=request.url.path)
    if isinstance(error.orig, psycopg.OperationalError):
        return await _on_pool_timeout(request, error)
    return await _on_defect(request, error)


async def _on_pool_timeout(request: Request, error: Exception) -> Response:
    log.warning("database_unavailable", path=request.url.path, error=str(error))
    return problem(
        Unavailable,
        "The database is away or too busy for the moment; repeat the call.",
        instance=request.url.path,
        headers={"Retry-After": _RETRY_SECONDS},
    )


async def _on_defect(request: Request, error: Exception) -> Response:
    log.error("request_failed", method=request.method, path=request.url.path, exc_info=error)
    return _response(
        HTTPStatus.INTERNAL_SERVER_ERROR,
        "internal_error",
        "Internal error",
        "Segue failed to serve this call; its log says why.",
        instance=request.url.path,
    )
