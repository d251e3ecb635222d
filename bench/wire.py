"""A thin HTTP client: a richer one would be a good part of what is measured."""

import http.client
import json
import time
from typing import Any

#: The API closes a connection that was idle for a few seconds; a new one is made before that.
_IDLE_SECONDS = 2.0


class Wire:
    """One kept-alive connection to the API, with one token."""

    def __init__(self, port: int, token: str) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        self._used_at = 0.0
        self._headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}

    def send(self, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
        """Status and body of the answer."""
        if time.monotonic() - self._used_at > _IDLE_SECONDS:
            self._connection.close()
        self._connection.request(method, f"/api/v1{path}", body, self._headers)
        response = self._connection.getresponse()
        self._used_at = time.monotonic()
        return response.status, response.read()

    def get(self, path: str) -> Any:
        """The answer's JSON. Raises `RuntimeError` unless it is a success."""
        return self._checked(*self.send("GET", path))

    def post(self, path: str, body: Any = None) -> Any:
        """The answer's JSON. Raises `RuntimeError` unless it is a success."""
        return self._checked(*self.send("POST", path, json.dumps(body or {}).encode()))

    def stream(self, path: str) -> http.client.HTTPResponse:
        """An answer that is read line by line while it grows; nothing else may be sent after it."""
        self._connection.request("GET", f"/api/v1{path}", None, self._headers)
        return self._connection.getresponse()

    def close(self) -> None:
        self._connection.close()

    def _checked(self, status: int, content: bytes) -> Any:
        if not 200 <= status < 300:
            raise RuntimeError(f"{status}: {content.decode(errors='replace')}")
        return json.loads(content) if content else None
