"""Which word of the API means what."""

from uuid import uuid4

import httpx
import pytest

from domain.errors import (
    AttemptElsewhere,
    Conflict,
    NotFound,
    PlaneUnavailable,
    SegueError,
    TooLarge,
    Unauthenticated,
)
from machine.plane import Plane, insist


def answering(status: int, **kw: object) -> Plane:
    transport = httpx.MockTransport(lambda _: httpx.Response(status, **kw))  # type: ignore[arg-type]
    return Plane("http://api", "sgr_x", transport=transport)


@pytest.mark.parametrize(
    "status,body,error",
    [
        (401, {"code": "unauthenticated"}, Unauthenticated),
        (404, {"code": "not_found"}, NotFound),
        (409, {"code": "attempt_elsewhere"}, AttemptElsewhere),
        (409, {"code": "task_terminal"}, Conflict),
        (413, {"code": "too_large"}, TooLarge),
        (404, {"detail": "Not Found"}, PlaneUnavailable),
        (408, {}, PlaneUnavailable),
        (429, {}, PlaneUnavailable),
        (500, {"code": "not_found"}, PlaneUnavailable),
        (503, {}, PlaneUnavailable),
        (302, {}, PlaneUnavailable),
        (200, {"unexpected": 1}, PlaneUnavailable),
    ],
)
async def test_a_refusal_is_told_from_a_fault(status: int, body: object, error: type[SegueError]) -> None:
    """404 is gone only in the API's own words; what is no answer of ours means that nothing is known."""
    async with answering(status, json=body) as plane:
        with pytest.raises(error) as caught:
            await plane.state(uuid4())
    assert type(caught.value) is error


async def test_a_broken_connection_means_that_nothing_is_known() -> None:
    """No server at all."""
    async with Plane("http://127.0.0.1:1", "sgr_x", timeout=5) as plane:
        with pytest.raises(PlaneUnavailable):
            await plane.state(uuid4())


async def test_the_path_the_token_and_the_body_are_the_contracts() -> None:
    """POST of pre-encoded events under /api/v1/runtime with the runtime's token."""
    seen: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(200, json={"acked_seq": 2})

    attempt_id = uuid4()
    async with Plane("http://api/", "sgr_x", transport=httpx.MockTransport(answer)) as plane:
        assert (await plane.events(attempt_id, [b'{"a":1}', b'{"b":2}'])).acked_seq == 2
    assert seen[0].url == f"http://api/api/v1/runtime/attempts/{attempt_id}/events"
    assert seen[0].headers["authorization"] == "Bearer sgr_x"
    assert seen[0].content == b'{"events":[{"a":1},{"b":2}]}'


async def test_insisting_goes_on_until_there_is_an_answer() -> None:
    """Faults and refused tokens are waited out; a refusal is raised."""
    answers: list[SegueError | str] = [PlaneUnavailable("x"), Unauthenticated("x"), "answer"]

    async def call() -> str:
        given = answers.pop(0)
        if isinstance(given, SegueError):
            raise given
        return given

    assert await insist(call, what="test", cap=0.01) == "answer"
    answers.append(NotFound("x"))
    with pytest.raises(NotFound):
        await insist(call, what="test", cap=0.01)
