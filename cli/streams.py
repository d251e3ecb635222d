"""Server-sent events of a task or a chat, followed over as many connections as it takes."""

import json
import time
from collections.abc import Iterator

import httpx

from cli.client import PREFIX, ApiClient
from cli.output import Json, notice
from domain.errors import Unavailable

_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 5.0
#: Streams send a comment every 15 s; silence beyond this means that the connection is dead.
_SILENCE_SECONDS = 60.0


def follow(client: ApiClient, path: str, after: int = 0) -> Iterator[Json]:
    """The events above number ``after`` as they happen, the ``end`` too; reconnects as often as it takes.

    Events without a number have ``seq`` 0; a stream that is opened again may repeat those.
    """
    pause, told = _FIRST_PAUSE, False
    while True:
        try:
            for event in _stream(client, path, after):
                after, pause, told = event["seq"] or after, _FIRST_PAUSE, False
                yield event
                if event["type"] == "end":
                    return
        except (httpx.TransportError, Unavailable) as error:
            if not told:
                notice(f"connection lost ({error}); trying again")
            told = True
        time.sleep(pause)
        pause = min(pause * 2, _LONGEST_PAUSE)


def _stream(client: ApiClient, path: str, after: int) -> Iterator[Json]:
    headers = {"Accept": "text/event-stream"} | ({"Last-Event-ID": str(after)} if after else {})
    timeout = httpx.Timeout(_SILENCE_SECONDS, connect=10.0)
    with client.http.stream("GET", PREFIX + path, headers=headers, timeout=timeout) as answer:
        if not answer.is_success:
            answer.read()
            client.checked(answer)
        yield from _messages(answer.iter_lines())


def _messages(lines: Iterator[str]) -> Iterator[Json]:
    """Server-sent messages as event objects, with ``seq`` and ``type`` from the envelope."""
    fields: dict[str, str] = {}
    for line in lines:
        if line.startswith(":"):
            continue
        if line:
            name, _, value = line.partition(":")
            value = value.removeprefix(" ")
            fields[name] = f"{fields[name]}\n{value}" if name == "data" and "data" in fields else value
            continue
        if "data" in fields:
            yield _event(fields)
        fields = {}


def _event(fields: dict[str, str]) -> Json:
    content = json.loads(fields["data"] or "{}")
    event: Json = content if isinstance(content, dict) else {"data": content}
    envelope: Json = {"type": fields.get("event", "message"), "seq": int(fields.get("id") or 0)}
    return event | envelope if "data" in event else envelope | {"data": event}
