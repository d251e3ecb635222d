"""The fake Responses API itself."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.fakes.model_server import ModelServer
from tests.fakes.responses_api import ResponsesApi


@pytest.fixture
def server() -> Iterator[ModelServer]:
    """A fake Responses API that nobody has talked to."""
    with ModelServer(ResponsesApi()) as server:
        yield server


def _ask(server: ModelServer, *items: dict[str, Any]) -> httpx.Response:
    return httpx.post(f"{server.url}/v1/responses", json={"stream": True, "input": items}, timeout=60)


def _said(text: str, role: str = "user") -> dict[str, Any]:
    return {"type": "message", "role": role, "content": [{"type": "input_text", "text": text}]}


def _events(answer: httpx.Response) -> list[dict[str, Any]]:
    return [json.loads(line[6:]) for line in answer.text.split("\n") if line.startswith("data: ")]


def _output(answer: httpx.Response) -> list[dict[str, Any]]:
    last = _events(answer)[-1]
    assert last["type"] == "response.completed"
    output: list[dict[str, Any]] = last["response"]["output"]
    return output


def test_the_default_answer_counts_the_messages(server: ModelServer) -> None:
    """So a resumed thread shows."""
    (message,) = _output(_ask(server, _said("be good", "developer"), _said("hi")))
    assert message["content"][0]["text"] == "ok (n=2)"


def test_a_tool_is_called_and_its_output_ends_the_turn(server: ModelServer) -> None:
    """First the call, then the answer to its output."""
    _, call = _output(_ask(server, _said("[[tool bash echo hi]]")))
    assert (call["name"], json.loads(call["arguments"])) == ("exec_command", {"cmd": "echo hi"})
    (message,) = _output(_ask(server, _said("x"), {"type": "function_call_output", "output": "hi"}))
    assert message["content"][0]["text"] == "done: hi"


def test_a_stream_is_made_of_deltas(server: ModelServer) -> None:
    """Joined they are the answer."""
    events = _events(_ask(server, _said("[[slow 2]]")))
    assert events[0]["type"] == "response.created"
    deltas = [event["delta"] for event in events if event["type"].endswith(".delta")]
    assert "".join(deltas).split() == ["word1", "word2"]


def test_errors_have_their_place(server: ModelServer) -> None:
    """As a status, as the end of a stream, and as a limit that says when it ends."""
    refused = _ask(server, _said("[[status 400 bad]]"))
    assert (refused.status_code, refused.json()["error"]["message"]) == (400, "bad")
    failed = _events(_ask(server, _said("[[fail invalid_prompt no]]")))[-1]
    assert failed["response"]["error"] == {"code": "invalid_prompt", "message": "no"}
    limited = _ask(server, _said("[[limit 60]]"))
    assert (limited.status_code, limited.json()["error"]["type"]) == (429, "usage_limit_reached")
