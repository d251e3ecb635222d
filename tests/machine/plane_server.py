"""A real HTTP server that speaks the runtime plane from memory, and can be away, gone, or strict."""

import asyncio
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any, Self
from uuid import UUID, uuid4

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from domain.brief import Brief

DEADLINE_SECONDS = 120.0
TOKEN = "sgt_" + "t0ken" * 6


class PlaneServer:
    """State may be read and changed by the test while the server runs in its own thread."""

    def __init__(self) -> None:
        self.briefs: dict[UUID, Brief] = {}
        self.starts: dict[UUID, dict[str, Any]] = {}
        self.events: dict[UUID, list[dict[str, Any]]] = defaultdict(list)
        self.posted: dict[UUID, list[int]] = defaultdict(list)
        self.sessions: dict[UUID, list[str]] = defaultdict(list)
        self.first_seq = 1
        #: Answer every call with 503.
        self.away = False
        #: Answer like a proxy that knows no such page.
        self.misrouted = False
        self.not_standing: set[UUID] = set()
        self.gone: set[UUID] = set()
        self.largest_body = 64 * 1024 * 1024
        self.faults = 0
        self.workspace_id = uuid4()
        #: What may be deleted, by id, and why; others are unknown, or not answered at all.
        self.collect: dict[UUID, tuple[bool, str]] = {}
        self.silent_about_unknown = False
        self.asked: list[dict[str, Any]] = []
        self.on_check: Callable[[], None] = lambda: None
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        config = uvicorn.Config(self._app(), log_level="error", lifespan="off", timeout_graceful_shutdown=1)
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not self._server.started:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join(DEADLINE_SECONDS)
        self._listener.close()

    def acked(self, attempt_id: UUID) -> int:
        return self.first_seq - 1 + len(self.events[attempt_id])

    def _serve(self) -> None:
        asyncio.run(self._server.serve(sockets=[self._listener]))

    def _app(self) -> Starlette:
        base = "/api/v1/runtime/attempts/{attempt:uuid}"
        return Starlette(
            routes=[
                Route(f"{base}/brief", self._brief),
                Route(f"{base}/start", self._start, methods=["POST"]),
                Route(f"{base}/events", self._events, methods=["POST"]),
                Route(f"{base}/session", self._session, methods=["POST"]),
                Route(base, self._state),
                Route("/api/v1/runtime/gc/check", self._collection, methods=["POST"]),
            ],
        )

    def _refusal(self, attempt_id: UUID) -> Response | None:
        if self.misrouted:
            return Response("<h1>404</h1>", status_code=404, media_type="text/html")
        if self.away:
            return JSONResponse({"code": "unavailable"}, status_code=503)
        if attempt_id in self.gone or attempt_id not in self.briefs:
            return JSONResponse({"code": "not_found", "title": "Not found"}, status_code=404)
        return None

    async def _collection(self, request: Request) -> Response:
        if self.away:
            return JSONResponse({"code": "unavailable"}, status_code=503)
        body = await request.json()
        self.asked.append(body)
        self.on_check()
        answer = {
            "workspace_id": str(self.workspace_id),
            "directories": self._decisions([one["id"] for one in body["directories"]]),
            "attempts": self._decisions(body["attempts"]),
        }
        return JSONResponse(answer)

    def _decisions(self, ids: list[str]) -> list[dict[str, Any]]:
        decisions = []
        for one in ids:
            if UUID(one) in self.collect or not self.silent_about_unknown:
                collect, reason = self.collect.get(UUID(one), (False, "unknown"))
                decisions.append({"id": one, "collect": collect, "reason": reason})
        return decisions

    async def _brief(self, request: Request) -> Response:
        attempt_id = request.path_params["attempt"]
        return self._refusal(attempt_id) or JSONResponse(self.briefs[attempt_id].model_dump(mode="json"))

    async def _start(self, request: Request) -> Response:
        attempt_id = request.path_params["attempt"]
        if refusal := self._refusal(attempt_id):
            return refusal
        body = await request.json()
        claim = {key: body[key] for key in ("machine_id", "boot_id", "nonce")}
        is_first = attempt_id not in self.starts
        if self.starts.setdefault(attempt_id, claim) != claim:
            return JSONResponse({"code": "attempt_elsewhere"}, status_code=409)
        answer = {
            "token": TOKEN,
            "first_seq": self.first_seq,
            "acked_seq": self.acked(attempt_id),
            "started": is_first,
        }
        return JSONResponse(answer)

    async def _state(self, request: Request) -> Response:
        attempt_id = request.path_params["attempt"]
        if refusal := self._refusal(attempt_id):
            return refusal
        state = {
            "attempt_id": str(attempt_id),
            "standing": attempt_id not in self.not_standing,
            "first_seq": self.first_seq,
            "acked_seq": self.acked(attempt_id),
        }
        return JSONResponse(state)

    async def _events(self, request: Request) -> Response:
        attempt_id = request.path_params["attempt"]
        if refusal := self._refusal(attempt_id):
            return refusal
        body = await request.body()
        if len(body) > self.largest_body:
            return JSONResponse({"code": "too_large"}, status_code=413)
        for event in (await request.json())["events"]:
            self.posted[attempt_id].append(event["seq"])
            if event["seq"] > self.acked(attempt_id) + 1:
                self.faults += 1
                return JSONResponse({"code": "invalid_input", "detail": "a gap"}, status_code=400)
            if event["seq"] == self.acked(attempt_id) + 1:
                self.events[attempt_id].append(event)
        return JSONResponse({"acked_seq": self.acked(attempt_id)})

    async def _session(self, request: Request) -> Response:
        attempt_id = request.path_params["attempt"]
        if refusal := self._refusal(attempt_id):
            return refusal
        self.sessions[attempt_id].append((await request.json())["session_id"])
        return Response(status_code=204)
