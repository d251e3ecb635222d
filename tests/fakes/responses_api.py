"""OpenAI's Responses API, streaming, as far as Codex needs it.

It knows the directives of `tests.fakes.model_server`, and two more:

==================  =======================================================================
``[[fail C M]]``    the stream ends with ``response.failed``, code C and message M
``[[limit N]]``     the account's usage limit is reached; it resets in N seconds
==================  =======================================================================

``n`` of the default answer counts the messages of the request, of whatever role.
"""

import json
import time
from collections.abc import Iterator
from itertools import count

from tests.fakes.model_server import Directive, Exchange, Json, Request, directive_in

_WORD_PAUSE = 0.1


class ResponsesApi:
    """``POST /v1/responses``."""

    paths: tuple[str, ...] = ("/v1/responses",)
    _TOOLS = {"bash": "exec_command"}  # noqa: RUF012 - constant

    def __init__(self) -> None:
        self._numbers = count(1)

    def answer(self, request: Request, exchange: Exchange) -> None:
        items: list[Json] = request.body.get("input") or []
        output = _tool_output(items)
        if output is not None:
            exchange.send_events(self._stream(items, [self._message(f"done: {output}")]))
            return
        directive = directive_in(_last_words(items))
        match directive.word:
            case "status" | "limit":
                self._refuse(exchange, directive)
            case "fail":
                exchange.send_events(self._failing(directive.rest))
            case "hang":
                exchange.hang()
            case "drop":
                exchange.drop()
            case _:
                pause = _WORD_PAUSE if directive.word == "slow" else 0.0
                exchange.send_events(self._stream(items, self._output(directive, items), pause))

    def _output(self, directive: Directive, items: list[Json]) -> list[Json]:
        match directive.word:
            case "slow":
                words = (f"word{number} " for number in range(1, int(directive.rest) + 1))
                return [self._message("".join(words))]
            case "tool":
                return [self._message("calling a tool"), self._call(directive.rest)]
            case "say":
                return [self._message(directive.rest)]
            case _:
                return [self._message(f"ok (n={len(_messages(items))})")]

    def _message(self, text: str) -> Json:
        content = [{"type": "output_text", "text": text, "annotations": []}]
        return {
            "id": f"msg_fake_{next(self._numbers)}",
            "type": "message",
            "status": "completed",
            "role": "assistant",
            "content": content,
        }

    def _call(self, rest: str) -> Json:
        name, _, command = rest.partition(" ")
        number = next(self._numbers)
        return {
            "id": f"fc_fake_{number}",
            "type": "function_call",
            "status": "completed",
            "call_id": f"call_fake_{number}",
            "name": self._TOOLS.get(name, name),
            "arguments": json.dumps({"cmd": command}),
        }

    def _refuse(self, exchange: Exchange, directive: Directive) -> None:
        if directive.word == "limit":
            resets_at = int(time.time()) + int(directive.rest)
            error: Json = {"type": "usage_limit_reached", "message": "limit", "resets_at": resets_at}
            exchange.send_json(429, {"error": error})
            return
        status, _, message = directive.rest.partition(" ")
        kind = "invalid_request_error" if int(status) == 400 else "api_error"
        error = {"message": message or "fake error", "type": kind, "param": None, "code": None}
        exchange.send_json(int(status), {"error": error})

    def _stream(self, items: list[Json], output: list[Json], pause: float = 0.0) -> Iterator[Json]:
        response = self._response()
        yield {"type": "response.created", "response": response}
        for index, item in enumerate(output):
            yield {"type": "response.output_item.added", "output_index": index, "item": item}
            for delta in _deltas(item):
                yield {**delta, "output_index": index}
                time.sleep(pause)
            yield {"type": "response.output_item.done", "output_index": index, "item": item}
        done = {**response, "status": "completed", "output": output, "usage": _usage(items)}
        yield {"type": "response.completed", "response": done}

    def _failing(self, rest: str) -> Iterator[Json]:
        code, _, message = rest.partition(" ")
        response = self._response()
        yield {"type": "response.created", "response": response}
        error = {"code": code, "message": message or "fake error"}
        yield {"type": "response.failed", "response": {**response, "status": "failed", "error": error}}

    def _response(self) -> Json:
        return {"id": f"resp_fake_{next(self._numbers)}", "object": "response", "status": "in_progress"}


def _messages(items: list[Json]) -> list[Json]:
    return [item for item in items if item.get("type", "message") == "message"]


def _last_words(items: list[Json]) -> str:
    users = [item for item in _messages(items) if item.get("role") == "user"]
    return _text_of(users[-1]) if users else ""


def _text_of(message: Json) -> str:
    content: str | list[Json] = message.get("content") or ""
    if isinstance(content, str):
        return content
    return "\n".join(part.get("text", "") for part in content)


def _tool_output(items: list[Json]) -> str | None:
    """The output of the tool call that the request answers; None when it ends with a message."""
    last = items[-1] if items else {}
    if last.get("type") != "function_call_output":
        return None
    output = last.get("output")
    return output if isinstance(output, str) else json.dumps(output)


def _usage(items: list[Json]) -> Json:
    tokens = 10 * len(_messages(items))
    return {
        "input_tokens": tokens,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": 7,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": tokens + 7,
    }


def _deltas(item: Json) -> Iterator[Json]:
    if item["type"] != "message":
        yield {
            "type": "response.function_call_arguments.delta",
            "item_id": item["id"],
            "delta": item["arguments"],
        }
        return
    for word in item["content"][0]["text"].split(" "):
        yield {
            "type": "response.output_text.delta",
            "item_id": item["id"],
            "content_index": 0,
            "delta": f"{word} ",
        }
