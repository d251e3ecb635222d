"""The client: answers, problems, pages, and an API that is away; and event streams that break."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from cli import client as module
from cli import runs
from cli.client import ApiClient, ApiProblem
from cli.profiles import Connection
from domain.errors import Unavailable

Handler = Callable[[httpx.Request], httpx.Response]


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits between tries here."""
    monkeypatch.setattr(module, "_FIRST_PAUSE", 0.0)
    for name in ("_FIRST_PAUSE", "_LONGEST_PAUSE", "_FIRST_POLL", "_LONGEST_POLL"):
        monkeypatch.setattr(runs, name, 0.0)


def _client(handler: Handler) -> ApiClient:
    return ApiClient(Connection("http://api.test", "sgu_t"), transport=httpx.MockTransport(handler))


def _answers(*answers: httpx.Response | Exception) -> tuple[list[httpx.Request], Handler]:
    """A server that gives these answers one after the other, and the requests it saw."""
    seen: list[httpx.Request] = []
    left: Iterator[httpx.Response | Exception] = iter(answers)

    def handle(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        answer = next(left)
        if isinstance(answer, Exception):
            raise answer
        return answer

    return seen, handle


def test_token_and_prefix_are_sent() -> None:
    """Every call goes below /api/v1 with the caller's token."""
    seen, handler = _answers(httpx.Response(200, json={"ok": True}))
    with _client(handler) as client:
        assert client.get("/me", limit=None) == {"ok": True}
    assert str(seen[0].url) == "http://api.test/api/v1/me"
    assert seen[0].headers["authorization"] == "Bearer sgu_t"


def test_problem_becomes_a_message() -> None:
    """Detail and field errors of problem+json are what the person reads."""
    problem = {
        "title": "Unprocessable input",
        "detail": "The body is not acceptable.",
        "code": "unprocessable",
        "errors": [{"pointer": "/name", "detail": "too long"}],
    }
    _, handler = _answers(httpx.Response(422, json=problem))
    with _client(handler) as client, pytest.raises(ApiProblem) as caught:
        client.post("/agents", {})
    assert (caught.value.status, caught.value.problem_code) == (422, "unprocessable")
    assert str(caught.value) == "The body is not acceptable. [/name: too long]"


def test_answer_that_is_no_problem_document_is_shown_too() -> None:
    """A proxy's error page still gives a usable message."""
    _, handler = _answers(httpx.Response(418, text="<html>"))
    with _client(handler) as client, pytest.raises(ApiProblem, match="418"):
        client.post("/agents", {})


def test_reading_is_tried_again_and_writing_is_not() -> None:
    """Only what is safe to repeat is repeated."""
    _, handler = _answers(
        httpx.ConnectError("refused"), httpx.Response(503, json={}), httpx.Response(200, json={})
    )
    with _client(handler) as client:
        assert client.get("/me") == {}
    seen, handler = _answers(httpx.ConnectError("refused"))
    with _client(handler) as client, pytest.raises(Unavailable, match="segue doctor"):
        client.post("/issues", {})
    assert len(seen) == 1


def test_lists_are_read_page_by_page_up_to_the_limit() -> None:
    """The cursor is followed, and no page is fetched in vain."""
    first = httpx.Response(200, json={"items": [{"id": 1}, {"id": 2}], "next": "c"})
    second = httpx.Response(200, json={"items": [{"id": 3}, {"id": 4}], "next": "d"})
    seen, handler = _answers(first, second)
    with _client(handler) as client:
        assert [one["id"] for one in client.items("/tasks", most=3, status=None)] == [1, 2, 3]
    assert [request.url.params.get("cursor") for request in seen] == [None, "c"]


def _sse(*messages: tuple[int, str, dict[str, Any]]) -> httpx.Response:
    lines = [f"id: {seq}\nevent: {kind}\ndata: {json.dumps(data)}\n\n" for seq, kind, data in messages]
    text = ": keep-alive\n\nretry: 1000\n\n" + "".join(lines)
    return httpx.Response(200, text=text, headers={"content-type": "text/event-stream"})


def test_event_stream_goes_on_where_it_broke() -> None:
    """After a cut, a refused connection and a 503 every event is seen once, in order."""
    seen, handler = _answers(
        _sse((1, "text", {"data": {"text": "a"}}), (2, "text", {"data": {"text": "b"}})),
        httpx.ConnectError("refused"),
        httpx.Response(503, json={"detail": "starting"}),
        _sse((3, "text", {"data": {"text": "c"}}), (4, "end", {"status": "completed"})),
    )
    with _client(handler) as client:
        events = list(runs.live_events(client, "t"))
    assert [event["data"]["text"] for event in events] == ["a", "b", "c"]
    assert [request.headers.get("last-event-id") for request in seen] == [None, "2", "2", "2"]


def test_event_stream_of_another_ones_task_is_an_error() -> None:
    """A refusal is final: nobody waits for it to change."""
    _, handler = _answers(httpx.Response(404, json={"detail": "There is no such task."}))
    with _client(handler) as client, pytest.raises(ApiProblem, match="no such task"):
        list(runs.live_events(client, "t"))


def _task(status: str, **more: Any) -> httpx.Response:
    return httpx.Response(200, json={"status": status, "attempt": 1, "wait_reason": None} | more)


def test_waiting_shows_each_change_once_and_survives_an_api_that_is_away() -> None:
    """People see what changed; an outage is waited for."""
    _, handler = _answers(
        _task("queued"), _task("queued"), *[httpx.ConnectError("refused")] * 5, _task("running"),
        _task("failed"),
    )  # fmt: skip
    seen: list[str] = []
    with _client(handler) as client:
        ended = runs.until_ended(client, "t", lambda task: seen.append(task["status"]))
    assert seen == ["queued", "running", "failed"]
    assert runs.exit_code(ended) == 1


@pytest.mark.parametrize("status,code", [("completed", 0), ("failed", 1), ("cancelled", 3)])
def test_exit_code_is_the_outcome(status: str, code: int) -> None:
    """A script can tell how the run ended."""
    assert runs.exit_code({"status": status}) == code


def test_every_event_type_has_a_text_or_none() -> None:
    """A person sees one line each; the result repeats the text events and usage is in `task show`."""
    assert runs.as_text({"type": "tool_use", "data": {"name": "Bash", "input": {"command": "ls"}}}) == (
        '→ Bash {"command": "ls"}'
    )
    assert runs.as_text({"type": "error", "data": {"message": "boom"}}) == "! boom"
    assert runs.as_text({"type": "usage", "data": {}}) is None
    assert runs.as_text({"type": "something new", "data": {}}) is None
