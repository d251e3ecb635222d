"""A request is one transaction: authentication, the call itself and its stored answer.

The answer is rendered before the transaction commits and sent after, so what a client has been told
is durable, and an error leaves nothing behind.
"""

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Annotated, Any

import psycopg
from fastapi import Depends
from fastapi.routing import APIRoute
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection
from starlette.requests import Request
from starlette.responses import Response

from api import auth
from api.deps import ApiDeps
from domain.errors import InvalidInput
from domain.permissions import Actor
from store import idempotency

Handler = Callable[[Request], Coroutine[Any, Any, Response]]

_LONGEST_KEY = 255

#: Two transactions took locks crosswise (a comment, say, and the deletion of its issue): nothing
#: happened, so the call is simply made again.
_CROSSED = (psycopg.errors.DeadlockDetected, psycopg.errors.SerializationFailure)
_REPETITIONS = 2


@dataclass(frozen=True)
class Call:
    """What a router works with: the transaction, the caller, and the API's surroundings."""

    conn: AsyncConnection
    actor: Actor
    deps: ApiDeps


def _call(request: Request) -> Call:
    call: Call = request.state.call
    return call


InCall = Annotated[Call, Depends(_call)]


class UnitRoute(APIRoute):
    """A route whose handler runs inside one authenticated transaction."""

    @staticmethod
    def admit(actor: Actor) -> None:
        """Raise `NotAllowed` for a kind of caller that this route is not for."""
        auth.admit_all(actor)

    def get_route_handler(self) -> Handler:
        handle = super().get_route_handler()

        async def serve(request: Request) -> Response:
            return await _serve(request, handle, self.admit)

        return serve


class PeopleRoute(UnitRoute):
    """For members and for agents at work."""

    @staticmethod
    def admit(actor: Actor) -> None:
        auth.admit_people(actor)


class MembersRoute(PeopleRoute):
    """For people alone: what is private to them is private before the agents at work for them, too."""

    @staticmethod
    def admit(actor: Actor) -> None:
        auth.admit_people(actor)
        auth.require_member(actor)


class RuntimeRoute(UnitRoute):
    """For runtime workers."""

    @staticmethod
    def admit(actor: Actor) -> None:
        auth.admit_runtimes(actor)


async def _serve(request: Request, handle: Handler, admit: Callable[[Actor], None]) -> Response:
    # Both before a connection is taken: a caller without a token, or a slow one, must not hold it.
    auth.bearer_token(request)
    await request.body()
    for _ in range(_REPETITIONS):
        try:
            return await _in_transaction(request, handle, admit)
        except DBAPIError as error:
            if not isinstance(error.orig, _CROSSED):
                raise
    return await _in_transaction(request, handle, admit)


async def _in_transaction(request: Request, handle: Handler, admit: Callable[[Actor], None]) -> Response:
    deps: ApiDeps = request.app.state.deps
    async with deps.database.begin() as conn:
        actor = await auth.authenticate(conn, request, request.app.state.limiter)
        admit(actor)
        request.state.call = Call(conn, actor, deps)
        key = _idempotency_key(request)
        if key is None or actor.token_id is None:
            return await handle(request)
        return await _serve_once(request, handle, request.state.call, key)


def _idempotency_key(request: Request) -> str | None:
    if request.method != "POST":
        return None
    key = request.headers.get("idempotency-key")
    if key is not None and not 0 < len(key) <= _LONGEST_KEY:
        raise InvalidInput(f"Idempotency-Key must have 1 to {_LONGEST_KEY} characters.")
    return key


async def _serve_once(request: Request, handle: Handler, call: Call, key: str) -> Response:
    token_id = call.actor.token_id
    assert token_id is not None, "every caller has a token"
    path = f"{request.url.path}?{request.url.query}"
    fingerprint = idempotency.fingerprint(request.method, path, await request.body())
    earlier = await idempotency.earlier_answer(call.conn, token_id, key, fingerprint)
    if earlier is not None:
        return Response(
            earlier.body,
            earlier.status,
            {"Idempotency-Replayed": "true"},
            media_type="application/json",
        )
    response = await handle(request)
    answer = idempotency.Answer(response.status_code, bytes(response.body))
    await idempotency.keep(call.conn, token_id, key, fingerprint, answer)
    return response
