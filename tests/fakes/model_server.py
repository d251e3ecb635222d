"""A fake model API on 127.0.0.1 for real agent CLIs.

It keeps every request and answers as the last message of the person says:

==================  =======================================================================
``[[say X]]``       answers X
``[[tool bash C]]`` calls the agent's shell tool with command C; ``done: OUTPUT`` after its result
``[[status N M]]``  HTTP status N with the message M
``[[slow N]]``      N words, one every 0.1 s
``[[hang]]``        no answer until the server is closed
``[[drop]]``        the connection is cut in the middle of the answer
anything else       ``ok (n=N)``, N being the number of messages in the request
==================  =======================================================================

Each API is a class with `paths` and `answer`; `ModelServer` gives it the exchanges of its paths. Here is
Anthropic's Messages API; `ModelServer` takes others as well.
"""

import json
import re
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from typing import Any, Protocol, Self

Json = dict[str, Any]

_DIRECTIVE = re.compile(r"\[\[(\w+)(?: (.*?))?\]\]", re.DOTALL)
_WORD_PAUSE = 0.1


@dataclass(frozen=True)
class Request:
    """A request that the server got."""

    method: str
    path: str
    headers: dict[str, str]
    body: Json


@dataclass(frozen=True)
class Directive:
    """What the last message asks this server for; ``word`` is empty when it asks for nothing."""

    word: str = ""
    rest: str = ""


def directive_in(text: str) -> Directive:
    """The last directive in ``text``: earlier ones belong to what was said before."""
    found = list(_DIRECTIVE.finditer(text))
    return Directive(found[-1][1], found[-1][2] or "") if found else Directive()


class Exchange(BaseHTTPRequestHandler):
    """One request and the means to answer it."""

    protocol_version = "HTTP/1.1"
    server: "_HttpServer"

    def do_POST(self) -> None:
        self._serve()

    def do_GET(self) -> None:
        self._serve()

    def do_HEAD(self) -> None:
        self.close_connection = True
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        """Say nothing: tests read `ModelServer.requests`."""

    def send_json(self, status: int, body: Json) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def send_events(self, events: Iterator[Json]) -> None:
        """Server-sent events, each named after its ``type``; the connection's end is the stream's end."""
        self.close_connection = True
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        for event in events:
            self.wfile.write(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode())
            self.wfile.flush()

    def hang(self) -> None:
        """Keep the connection without a word until the server is closed."""
        self.close_connection = True
        self.server.closing.wait()

    def drop(self) -> None:
        """Reset the connection."""
        self.close_connection = True
        linger = b"\x01\x00\x00\x00\x00\x00\x00\x00"
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.connection.close()

    def _serve(self) -> None:
        path = self.path.partition("?")[0]
        request = Request(self.command, path, dict(self.headers), self._body())
        self.server.requests.append(request)
        api = self.server.apis.get(path)
        try:
            if api is None:
                error = {"type": "not_found_error", "message": f"no such path: {path}"}
                self.send_json(404, {"type": "error", "error": error})
            else:
                api.answer(request, self)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def _body(self) -> Json:
        data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        try:
            body = json.loads(data)
        except ValueError:
            return {}
        return body if isinstance(body, dict) else {}


class Api(Protocol):
    """One vendor's protocol."""

    paths: tuple[str, ...]

    def answer(self, request: Request, exchange: Exchange) -> None: ...


class MessagesApi:
    """Anthropic's Messages API, streaming and not, as far as Claude Code needs it."""

    paths: tuple[str, ...] = ("/v1/messages", "/v1/messages/count_tokens")
    _ERRORS = {  # noqa: RUF012 - constant
        400: "invalid_request_error",
        401: "authentication_error",
        403: "permission_error",
        404: "not_found_error",
        413: "request_too_large",
        429: "rate_limit_error",
        529: "overloaded_error",
    }
    _TOOLS = {"bash": "Bash"}  # noqa: RUF012 - constant

    def __init__(self) -> None:
        self._numbers = count(1)

    def answer(self, request: Request, exchange: Exchange) -> None:
        messages = request.body.get("messages") or []
        if request.path.endswith("/count_tokens"):
            exchange.send_json(200, {"input_tokens": 10 * len(messages)})
            return
        blocks = _last_blocks(messages)
        directive = directive_in("\n".join(_text_of(block) for block in blocks))
        result = next((block for block in blocks if block.get("type") == "tool_result"), None)
        if result is not None:
            self._send(request, exchange, [_text_block(f"done: {_text_of(result)}")])
            return
        match directive.word:
            case "status":
                self._fail(exchange, directive.rest)
            case "hang":
                exchange.hang()
            case "drop":
                exchange.drop()
            case "slow":
                words = [f"word{number} " for number in range(1, int(directive.rest) + 1)]
                self._send(request, exchange, [_text_block("".join(words))], pause=_WORD_PAUSE)
            case "tool":
                self._send(request, exchange, [_text_block("calling a tool"), self._call(directive.rest)])
            case "say":
                self._send(request, exchange, [_text_block(directive.rest)])
            case _:
                self._send(request, exchange, [_text_block(f"ok (n={len(messages)})")])

    def _call(self, rest: str) -> Json:
        name, _, command = rest.partition(" ")
        return {
            "type": "tool_use",
            "id": f"toolu_fake_{next(self._numbers)}",
            "name": self._TOOLS.get(name, name),
            "input": {"command": command, "description": "run a command"},
        }

    def _fail(self, exchange: Exchange, rest: str) -> None:
        status, _, message = rest.partition(" ")
        error = {"type": self._ERRORS.get(int(status), "api_error"), "message": message or "fake error"}
        exchange.send_json(int(status), {"type": "error", "error": error})

    def _send(self, request: Request, exchange: Exchange, content: list[Json], *, pause: float = 0.0) -> None:
        message = self._message(request, content)
        if request.body.get("stream"):
            exchange.send_events(_stream(message, pause))
        else:
            exchange.send_json(200, message)

    def _message(self, request: Request, content: list[Json]) -> Json:
        calls = any(block["type"] == "tool_use" for block in content)
        return {
            "id": f"msg_fake_{next(self._numbers)}",
            "type": "message",
            "role": "assistant",
            "model": request.body.get("model", "fake"),
            "content": content,
            "stop_reason": "tool_use" if calls else "end_turn",
            "stop_sequence": None,
            "usage": {
                "input_tokens": 10 * len(request.body.get("messages") or []),
                "output_tokens": 7,
                "cache_read_input_tokens": 0,
                "cache_creation_input_tokens": 0,
            },
        }


class _HttpServer(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, apis: Sequence[Api]) -> None:
        super().__init__(("127.0.0.1", 0), Exchange)
        self.apis = {path: api for api in apis for path in api.paths}
        self.requests: list[Request] = []
        self.closing = threading.Event()


class ModelServer:
    """The server in a thread of this process. A context manager; `url` is its base without a slash."""

    def __init__(self, *apis: Api) -> None:
        self._http = _HttpServer(apis or (MessagesApi(),))
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._http.server_address[1]}"

    @property
    def requests(self) -> list[Request]:
        """Every request so far, in order of arrival."""
        return list(self._http.requests)

    def conversations(self) -> list[list[Json]]:
        """The messages of every request for an answer, in order of arrival."""
        return [
            request.body["messages"]
            for request in self.requests
            if request.path == "/v1/messages" and "messages" in request.body
        ]

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.closing.set()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()


def _last_blocks(messages: list[Json]) -> list[Json]:
    """The content of the last message of role ``user`` (Claude Code puts system notes after it)."""
    users = [message for message in messages if message.get("role") == "user"]
    content: str | list[Json] = users[-1]["content"] if users else []
    return [_text_block(content)] if isinstance(content, str) else content


def _text_of(block: Json) -> str:
    content: str | list[Json] = block["text"] if "text" in block else block.get("content", "")
    if isinstance(content, str):
        return content
    return "\n".join(_text_of(part) for part in content)


def _text_block(text: str) -> Json:
    return {"type": "text", "text": text}


def _stream(message: Json, pause: float) -> Iterator[Json]:
    usage = {**message["usage"], "output_tokens": 1}
    yield {
        "type": "message_start",
        "message": {**message, "content": [], "stop_reason": None, "usage": usage},
    }
    for index, block in enumerate(message["content"]):
        yield from _stream_block(index, block, pause)
    yield {
        "type": "message_delta",
        "delta": {"stop_reason": message["stop_reason"], "stop_sequence": None},
        "usage": message["usage"],
    }
    yield {"type": "message_stop"}


def _stream_block(index: int, block: Json, pause: float) -> Iterator[Json]:
    if block["type"] == "text":
        start = _text_block("")
        deltas = [{"type": "text_delta", "text": piece} for piece in _pieces(block["text"])]
    else:
        start = {**block, "input": {}}
        deltas = [{"type": "input_json_delta", "partial_json": json.dumps(block["input"])}]
    yield {"type": "content_block_start", "index": index, "content_block": start}
    for delta in deltas:
        yield {"type": "content_block_delta", "index": index, "delta": delta}
        time.sleep(pause)
    yield {"type": "content_block_stop", "index": index}


def _pieces(text: str) -> list[str]:
    return re.findall(r"\S*\s*", text)[:-1] or [""]
