"""What stands before every route: the Host allow-list and the limit on a body's size."""

from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.deps import PREFIX
from api.problems import problem
from domain.errors import HostNotAllowed, TooLarge

#: Health checks come from load balancers that name the machine by its address.
_ANY_HOST = ("/healthz", "/readyz")
_MIB = 1024 * 1024
BODY_LIMIT = 4 * _MIB
#: Event batches of a runtime: a single tool result may be large.
RUNTIME_BODY_LIMIT = 64 * _MIB
_RUNTIME_PATHS = f"{PREFIX}/runtime/"


class HostGate:
    """Refuses foreign Host headers: a web page must not reach a local API by DNS rebinding."""

    def __init__(self, app: ASGIApp, allowed: Sequence[str]) -> None:
        self._app = app
        self._allowed = {name.lower() for name in allowed}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or self._passes(scope):
            await self._app(scope, receive, send)
            return
        answer = problem(
            HostNotAllowed,
            "This API does not answer for the host in the Host header. "
            "Add it to the allowed hosts (SEGUE_ALLOWED_HOSTS) if it should.",
        )
        await answer(scope, receive, send)

    def _passes(self, scope: Scope) -> bool:
        if "*" in self._allowed or scope["path"] in _ANY_HOST:
            return True
        return _host_name(Headers(scope=scope).get("host", "")) in self._allowed


def _host_name(host: str) -> str:
    """The name without its port; IPv6 addresses keep no brackets."""
    host = host.strip().lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]


class BodyGate:
    """Refuses bodies above the limit, by their announced length and by what really arrives."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        limit = RUNTIME_BODY_LIMIT if scope["path"].startswith(_RUNTIME_PATHS) else BODY_LIMIT
        announced = Headers(scope=scope).get("content-length", "0")
        if announced.isdecimal() and int(announced) > limit:
            await _too_large(limit)(scope, receive, send)
            return
        counted = _Counted(receive, limit)
        await self._app(scope, counted.receive, send)


class _Counted:
    """Counts a body without an announced length; over the limit reading it raises `TooLarge`."""

    def __init__(self, receive: Receive, limit: int) -> None:
        self._receive = receive
        self._limit = limit
        self._seen = 0

    async def receive(self) -> Message:
        message = await self._receive()
        self._seen += len(message.get("body", b""))
        if self._seen > self._limit:
            raise TooLarge(_explain(self._limit))
        return message


def _too_large(limit: int) -> ASGIApp:
    return problem(TooLarge, _explain(limit), headers={"Connection": "close"})


def _explain(limit: int) -> str:
    return f"The body is larger than the {limit // _MIB} MiB that this call takes."
