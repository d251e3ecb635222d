"""Who is calling: the bearer token of a request, and what kinds of callers a call admits."""

import time
from collections import OrderedDict
from collections.abc import Callable

from sqlalchemy.ext.asyncio import AsyncConnection
from starlette.requests import Request

from domain.errors import NotAllowed, TooManyRequests, Unauthenticated
from domain.permissions import Actor
from store import tokens


class FailureLimiter:
    """Counts failed authentications by client address, in memory.

    A good token always passes, also from an address that is over the limit: one misconfigured
    client must not lock out the others behind the same address.
    """

    def __init__(
        self,
        *,
        limit: int = 20,
        window: float = 60.0,  # seconds
        addresses: int = 10_000,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limit = limit
        self._window = window
        self._addresses = addresses
        self._clock = clock
        self._failures: OrderedDict[str, tuple[float, int]] = OrderedDict()

    def note_failure(self, address: str) -> None:
        """Count one. Raises `TooManyRequests` when there were too many in the window."""
        now = self._clock()
        since, count = self._failures.pop(address, (now, 0))
        if now - since >= self._window:
            since, count = now, 0
        self._failures[address] = (since, count + 1)
        if len(self._failures) > self._addresses:
            self._failures.popitem(last=False)
        if count + 1 > self._limit:
            raise TooManyRequests(
                "Too many calls with a bad token from this address. Check the token, and wait a minute."
            )


def bearer_token(request: Request) -> str:
    """The token of the Authorization header. Raises `Unauthenticated`."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise Unauthenticated("This call needs a token: `Authorization: Bearer …`.")
    return token.strip()


async def authenticate(conn: AsyncConnection, request: Request, limiter: FailureLimiter) -> Actor:
    """The caller. Raises `Unauthenticated`, or `TooManyRequests` after many failures."""
    try:
        return await tokens.authenticate(conn, bearer_token(request))
    except Unauthenticated:
        limiter.note_failure(request.client.host if request.client else "")
        raise


def admit_people(actor: Actor) -> None:
    """Members, and agents at work for them."""
    if actor.runtime_id is not None:
        raise NotAllowed("A runtime's token is for the runtime worker only; use a member's token.")


def admit_runtimes(actor: Actor) -> None:
    if actor.runtime_id is None:
        raise NotAllowed("This call is for runtime workers; use the token of a runtime.")


def admit_all(_: Actor) -> None:
    """Anybody with a good token."""


def require_member(actor: Actor) -> None:
    """People only, not agents at work. Raises `NotAllowed`."""
    if not actor.is_member:
        raise NotAllowed("Only a person may do this, with a member's token.")


def require_admin(actor: Actor) -> None:
    """Owners and admins only. Raises `NotAllowed`."""
    if not actor.is_admin:
        raise NotAllowed("Only an owner or admin of the workspace may do this.")
