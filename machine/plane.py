"""The runtime plane of the API, as a machine speaks it.

A 404 means "not yours or gone" only when it is the API's own word (problem+json with our code): one from
a proxy in between, like every 5xx, 429, 408 and broken connection, means that nothing is known.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar
from uuid import UUID

import httpx
import structlog
from pydantic import BaseModel, ValidationError

from domain.brief import (
    AttemptState,
    Brief,
    HeartbeatAnswer,
    HeartbeatRequest,
    LocalDirectoryCheck,
    RegisterAnswer,
    RegisterRequest,
    SessionPin,
    StartAnswer,
    StartRequest,
)
from domain.collection import CollectionAnswer, CollectionRequest
from domain.errors import (
    AttemptElsewhere,
    Conflict,
    InvalidInput,
    NotAllowed,
    NotFound,
    PlaneUnavailable,
    SegueError,
    TooLarge,
    Unauthenticated,
    UnprocessableInput,
)
from domain.events import EventsAcked

log = structlog.get_logger()

T = TypeVar("T")
Answer = TypeVar("Answer", bound=BaseModel)

TIMEOUT_SECONDS = 30.0
FIRST_PAUSE_SECONDS = 0.1
#: Every run posts on its own; each post is short.
CONNECTIONS = 200

_REFUSALS: dict[int, type[SegueError]] = {
    400: InvalidInput,
    401: Unauthenticated,
    403: NotAllowed,
    404: NotFound,
    409: Conflict,
    413: TooLarge,
    422: UnprocessableInput,
}


class Plane:
    """An HTTP client of one runtime. Raises the errors of `domain.errors`; never retries by itself."""

    def __init__(
        self,
        api_url: str,
        token: str,
        *,
        transport: httpx.AsyncBaseTransport | None = None,
        timeout: float = TIMEOUT_SECONDS,
    ) -> None:
        self._http = httpx.AsyncClient(
            base_url=f"{api_url.rstrip('/')}/api/v1/runtime",
            headers={"Authorization": f"Bearer {token}"},
            transport=transport,
            timeout=timeout,
            limits=httpx.Limits(max_connections=CONNECTIONS, max_keepalive_connections=CONNECTIONS // 4),
        )

    async def register(self, request: RegisterRequest) -> RegisterAnswer:
        return await self._call("POST", "/register", RegisterAnswer, _body(request))

    async def heartbeat(self, request: HeartbeatRequest) -> HeartbeatAnswer:
        return await self._call("POST", "/heartbeat", HeartbeatAnswer, _body(request))

    async def brief(self, attempt_id: UUID) -> Brief:
        return await self._call("GET", f"/attempts/{attempt_id}/brief", Brief)

    async def start(self, attempt_id: UUID, request: StartRequest) -> StartAnswer:
        """Compare-and-set: raises `AttemptElsewhere` when another machine, boot or nonce started it."""
        return await self._call("POST", f"/attempts/{attempt_id}/start", StartAnswer, _body(request))

    async def state(self, attempt_id: UUID) -> AttemptState:
        return await self._call("GET", f"/attempts/{attempt_id}", AttemptState)

    async def events(self, attempt_id: UUID, encoded: Sequence[bytes]) -> EventsAcked:
        """Post events, each already encoded as JSON, in ascending order."""
        body = b'{"events":[' + b",".join(encoded) + b"]}"
        return await self._call("POST", f"/attempts/{attempt_id}/events", EventsAcked, body)

    async def pin_session(self, attempt_id: UUID, session_id: str) -> None:
        await self._send("POST", f"/attempts/{attempt_id}/session", _body(SessionPin(session_id=session_id)))

    async def answer_local_directory(self, resource_id: UUID, check: LocalDirectoryCheck) -> None:
        await self._send("POST", f"/local-directories/{resource_id}", _body(check))

    async def check_collection(self, request: CollectionRequest) -> CollectionAnswer:
        """What may be deleted here; unless it is a dry run, the API gives up what may."""
        return await self._call("POST", "/gc/check", CollectionAnswer, _body(request))

    async def close(self) -> None:
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _call(self, method: str, path: str, answer: type[Answer], body: bytes | None = None) -> Answer:
        response = await self._send(method, path, body)
        try:
            return answer.model_validate_json(response.content)
        except ValidationError:
            message = f"{method} {path}: the API's answer could not be read (status {response.status_code})"
            raise PlaneUnavailable(message) from None

    async def _send(self, method: str, path: str, body: bytes | None) -> httpx.Response:
        headers = {"Content-Type": "application/json"} if body is not None else None
        try:
            response = await self._http.request(method, path, content=body, headers=headers)
        except (httpx.HTTPError, httpx.StreamError) as error:
            message = f"{method} {path}: {type(error).__name__}: {error}"
            raise PlaneUnavailable(message) from error
        if not response.is_success:
            raise _refusal(method, path, response)
        return response


def _body(request: BaseModel) -> bytes:
    return request.model_dump_json().encode()


def _refusal(method: str, path: str, response: httpx.Response) -> SegueError:
    problem = _problem(response)
    message = f"{method} {path}: {response.status_code} {problem.get('detail') or problem.get('title') or ''}"
    kind = _REFUSALS.get(response.status_code)
    if kind is None or (kind is NotFound and problem.get("code") != NotFound.code):
        return PlaneUnavailable(message)
    if problem.get("code") == AttemptElsewhere.code:
        return AttemptElsewhere(message)
    return kind(message)


def _problem(response: httpx.Response) -> dict[str, Any]:
    try:
        found = response.json()
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


async def insist(
    call: Callable[[], Awaitable[T]],
    *,
    what: str,
    cap: float,
    also: tuple[type[SegueError], ...] = (),
) -> T:
    """Call until the API answers: for ever, with growing pauses of at most ``cap`` seconds.

    A token that is refused is retried too: an operator can mend it, and no run may end for it. ``also``
    names further errors to be patient with; every other refusal is raised.
    """
    patient: tuple[type[SegueError], ...] = (PlaneUnavailable, Unauthenticated, *also)
    pause = FIRST_PAUSE_SECONDS
    while True:
        try:
            return await call()
        except patient as error:
            log.warning("plane_retry", what=what, error=str(error), pause=pause)
        await asyncio.sleep(pause * random.uniform(0.7, 1.0))
        pause = min(pause * 2, cap)
