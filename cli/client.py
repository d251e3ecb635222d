"""The HTTP client of the command line: one base address, one token, problems turned into messages."""

import time
from collections.abc import Iterator
from itertools import islice
from types import TracebackType
from typing import Any, Self

import httpx

from cli.output import Json
from cli.profiles import Connection
from domain.errors import SegueError, Unavailable

PREFIX = "/api/v1"
_TIMEOUT = httpx.Timeout(60.0, connect=10.0)
_PAGE = 100
#: Reading calls are tried again when the API is away or overloaded for a moment.
_TRIES = 4
_FIRST_PAUSE = 0.5


class ApiProblem(SegueError):
    """The API refused; the message is its own, with the next step where we know one."""

    def __init__(self, status: int, problem_code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.problem_code = problem_code


class ApiClient:
    """Synchronous calls below ``/api/v1``.

    Raises `ApiProblem` for an answer that is an error, `Unavailable` when there is no answer.
    """

    def __init__(self, connection: Connection, *, transport: httpx.BaseTransport | None = None) -> None:
        self.api_url = connection.api_url
        # Environment proxies are for the internet; an API on this machine must not go through one.
        local = httpx.URL(connection.api_url).host in {"127.0.0.1", "localhost", "::1"}
        self.http = httpx.Client(
            base_url=connection.api_url,
            headers={"Authorization": f"Bearer {connection.token}"},
            timeout=_TIMEOUT,
            transport=transport,
            trust_env=not local,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.http.close()

    def get(self, path: str, **params: Any) -> Json:
        """Read; tried again for a while when the API is away."""
        given = {name: value for name, value in params.items() if value is not None}
        pause = _FIRST_PAUSE
        for _ in range(_TRIES - 1):
            try:
                return self._call("GET", path, params=given)
            except Unavailable:
                time.sleep(pause)
                pause *= 2
        return self._call("GET", path, params=given)

    def post(self, path: str, body: Json | None = None, *, key: str | None = None) -> Json:
        """Create or act. ``key`` makes it safe to send twice (Idempotency-Key)."""
        headers = {"Idempotency-Key": key} if key else {}
        return self._call("POST", path, json=body if body is not None else {}, headers=headers)

    def patch(self, path: str, body: Json) -> Json:
        return self._call("PATCH", path, json=body)

    def delete(self, path: str) -> Json:
        return self._call("DELETE", path)

    def items(self, path: str, *, most: int | None = None, **params: Any) -> Iterator[Json]:
        """Everything in a list, page by page, at most ``most`` items."""
        return islice(self._pages(path, params | {"limit": min(most or _PAGE, _PAGE)}), most)

    def _pages(self, path: str, params: Json) -> Iterator[Json]:
        cursor: str | None = None
        while True:
            page = self.get(path, **params, cursor=cursor)
            yield from page["items"]
            cursor = page.get("next")
            if cursor is None:
                return

    def _call(self, method: str, path: str, **options: Any) -> Json:
        try:
            answer = self.http.request(method, PREFIX + path, **options)
        except httpx.TransportError as error:
            raise self.away(error) from error
        return self.checked(answer)

    def away(self, error: Exception) -> Unavailable:
        return Unavailable(f"{self.api_url} does not answer ({error}). Is it running? Try `segue doctor`.")

    def checked(self, answer: httpx.Response) -> Json:
        """The answer's content. Raises `ApiProblem` or, for faults of the server, `Unavailable`."""
        if answer.is_success:
            return answer.json() if answer.content else {}
        code, message = _problem(answer)
        if answer.status_code in {502, 503, 504}:
            raise Unavailable(f"{self.api_url}: {message}")
        raise ApiProblem(answer.status_code, code, message)


def _problem(answer: httpx.Response) -> tuple[str, str]:
    try:
        problem = answer.json()
        code = str(problem.get("code", ""))
        message = str(problem.get("detail") or problem.get("title") or answer.reason_phrase)
        fields = [_field(one) for one in problem.get("errors") or [] if not _is_said(one, message)]
    except (ValueError, AttributeError):
        code, message, fields = "", f"{answer.status_code} {answer.reason_phrase}", []
    return code, " ".join([message, *fields, *_next_step(answer.status_code)])


def _is_said(error: Any, message: str) -> bool:
    """Whether the problem's own detail quotes this field's error already."""
    return isinstance(error, dict) and bool(error.get("detail")) and str(error["detail"]) in message


def _field(error: Any) -> str:
    if not isinstance(error, dict):
        return f"[{error}]"
    place = error.get("pointer") or error.get("field") or error.get("loc") or ""
    said = error.get("detail") or error.get("message") or error.get("msg") or ""
    return f"[{place}: {said}]"


def _next_step(status: int) -> list[str]:
    if status == 401:
        return ["Check the token (SEGUE_TOKEN, --token or the profile)."]
    return []
