"""The fake model API itself."""

import json
from typing import Any

import httpx
import pytest

from tests.fakes.fixtures import model_server
from tests.fakes.model_server import ModelServer

__all__ = ["model_server"]


def _ask(server: ModelServer, *texts: str, stream: bool = False, **more: Any) -> httpx.Response:
    messages = [{"role": "user", "content": text} for text in texts]
    body = {"model": "m", "messages": messages, "stream": stream, **more}
    return httpx.post(f"{server.url}/v1/messages", json=body, timeout=60)


def _text(answer: httpx.Response) -> str:
    content = answer.json()["content"]
    return "".join(block.get("text", "") for block in content)


def test_the_default_answer_counts_the_messages(model_server: ModelServer) -> None:
    """So a resumed conversation shows."""
    assert _text(_ask(model_server, "one")) == "ok (n=1)"
    assert _text(_ask(model_server, "one", "two")) == "ok (n=2)"
    assert [len(messages) for messages in model_server.conversations()] == [1, 2]


def test_the_last_directive_decides(model_server: ModelServer) -> None:
    """Directives of earlier messages are history."""
    assert _text(_ask(model_server, "[[status 400 old]]", "please [[say hello you]]")) == "hello you"


def test_an_error_has_its_status_and_message(model_server: ModelServer) -> None:
    """In the form of the real API."""
    answer = _ask(model_server, "[[status 429 slow down]]")
    assert answer.status_code == 429
    assert answer.json()["error"] == {"type": "rate_limit_error", "message": "slow down"}


def test_a_tool_is_called_and_its_result_ends_the_turn(model_server: ModelServer) -> None:
    """First the call, then the answer to its result."""
    call = _ask(model_server, "[[tool bash echo hi]]").json()
    assert call["stop_reason"] == "tool_use"
    assert call["content"][1]["input"]["command"] == "echo hi"
    result = [{"type": "tool_result", "tool_use_id": "x", "content": "hi"}]
    body = {"messages": [{"role": "user", "content": result}]}
    assert _text(httpx.post(f"{model_server.url}/v1/messages", json=body)) == "done: hi"


def test_a_stream_is_made_of_events(model_server: ModelServer) -> None:
    """Start, deltas, end; joined they are the answer."""
    answer = _ask(model_server, "[[slow 3]]", stream=True)
    events = [json.loads(line[6:]) for line in answer.text.split("\n") if line.startswith("data: ")]
    assert (events[0]["type"], events[-1]["type"]) == ("message_start", "message_stop")
    deltas = [event["delta"]["text"] for event in events if event["type"] == "content_block_delta"]
    assert "".join(deltas) == "word1 word2 word3 "


def test_a_dropped_connection_is_an_error(model_server: ModelServer) -> None:
    """The client sees no answer at all."""
    with pytest.raises(httpx.TransportError):
        _ask(model_server, "[[drop]]")


def test_a_hanging_answer_ends_with_the_server() -> None:
    """Closing the server lets everything go."""
    with ModelServer() as server, pytest.raises(httpx.ReadTimeout):
        httpx.post(
            f"{server.url}/v1/messages",
            json={"messages": [{"role": "user", "content": "[[hang]]"}]},
            timeout=1,
        )


def test_other_paths_are_not_found(model_server: ModelServer) -> None:
    """With a JSON body, and they are recorded."""
    answer = httpx.get(f"{model_server.url}/v1/models?x=1")
    assert answer.status_code == 404
    assert answer.json()["error"]["type"] == "not_found_error"
    assert model_server.requests[-1].path == "/v1/models"
    counted = httpx.post(f"{model_server.url}/v1/messages/count_tokens", json={"messages": [{}]})
    assert counted.json() == {"input_tokens": 10}
