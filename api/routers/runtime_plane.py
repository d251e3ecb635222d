"""The runtime plane: what runtime workers call, about themselves and their own attempts.

404 means "not yours or gone"; whatever goes wrong on this side is a 5xx, so that a worker never
takes a fault of the server for the end of its run.
"""

from uuid import UUID

from fastapi import APIRouter, Response

from api.units import Call, InCall, RuntimeRoute
from domain import names
from domain.brief import (
    AttemptState,
    Brief,
    HeartbeatAnswer,
    HeartbeatRequest,
    LocalDirectoryCheck,
    RegisterAnswer,
    RegisterRequest,
    SessionPin,
    StartAnswer,
    StartRequest,
)
from domain.collection import CollectionAnswer, CollectionRequest
from domain.events import EventBatch, EventsAcked
from store import attempts, collection, localdirectories, runtimes, tokens, transcripts

router = APIRouter(prefix="/runtime", tags=["runtime plane"], route_class=RuntimeRoute)


@router.post("/register")
async def register(call: InCall, body: RegisterRequest) -> RegisterAnswer:
    """Tell what machine this is and what it can run; sent at every start of the worker."""
    runtime_id = _runtime_id(call)
    row = await runtimes.register(call.conn, call.actor.workspace_id, runtime_id, body)
    return RegisterAnswer(
        runtime_id=runtime_id,
        workspace_id=call.actor.workspace_id,
        name=row.name,
        temporal_namespace=call.deps.temporal_namespace,
        ops_queue=names.ops_queue(runtime_id),
        runs_queue=names.runs_queue(runtime_id),
        heartbeat_seconds=call.deps.heartbeat_seconds,
    )


@router.post("/heartbeat")
async def heartbeat(call: InCall, body: HeartbeatRequest) -> HeartbeatAnswer:
    """The worker is alive. 409 when another machine has registered as this runtime since."""
    runtime_id = _runtime_id(call)
    row = await runtimes.beat(call.conn, call.actor.workspace_id, runtime_id, body)
    return HeartbeatAnswer(
        draining=row.draining,
        slots=row.slots,
        server_time=row.last_seen_at,
        local_directories=await localdirectories.unchecked(call.conn, runtime_id),
    )


@router.post("/local-directories/{resource_id}", status_code=204)
async def answer_local_directory(call: InCall, resource_id: UUID, body: LocalDirectoryCheck) -> Response:
    """What this machine found at the path of a project's local directory; the last answer holds."""
    await localdirectories.answer(
        call.conn,
        workspace_id=call.actor.workspace_id,
        runtime_id=_runtime_id(call),
        resource_id=resource_id,
        check=body,
    )
    return Response(status_code=204)


@router.post("/gc/check")
async def check_collection(call: InCall, body: CollectionRequest) -> CollectionAnswer:
    """Which directories and attempt files the machine may delete; what it may is given up in this step."""
    return await collection.check(
        call.conn,
        workspace_id=call.actor.workspace_id,
        runtime_id=_runtime_id(call),
        request=body,
        rules=call.deps.collection,
    )


@router.get("/attempts/{attempt_id}/brief")
async def get_brief(call: InCall, attempt_id: UUID, response: Response) -> Brief:
    """Everything that is needed to run the attempt, secrets included."""
    response.headers["Cache-Control"] = "no-store"
    return await attempts.brief(
        call.conn, runtime_id=_runtime_id(call), attempt_id=attempt_id, secrets=call.deps.secret_box
    )


@router.post("/attempts/{attempt_id}/start")
async def start(call: InCall, attempt_id: UUID, body: StartRequest, response: Response) -> StartAnswer:
    """Take the attempt for this machine and attempt directory; the same caller gets the same answer again."""
    response.headers["Cache-Control"] = "no-store"
    token = tokens.task_token(call.deps.secret_box.signing_key, attempt_id)
    return await attempts.start(
        call.conn, runtime_id=_runtime_id(call), attempt_id=attempt_id, request=body, token=token
    )


@router.get("/attempts/{attempt_id}")
async def get_attempt(call: InCall, attempt_id: UUID) -> AttemptState:
    """Does the attempt still stand?"""
    return await attempts.state(call.conn, runtime_id=_runtime_id(call), attempt_id=attempt_id)


@router.post("/attempts/{attempt_id}/events")
async def post_events(call: InCall, attempt_id: UUID, body: EventBatch) -> EventsAcked:
    """Store a batch of the transcript. Sending it again is fine; 409 when numbers before it are missing."""
    task_id, number = await attempts.check_standing(
        call.conn, runtime_id=_runtime_id(call), attempt_id=attempt_id
    )
    acked = await transcripts.append(call.conn, task_id=task_id, attempt=number, events=body.events)
    return EventsAcked(acked_seq=acked)


@router.post("/attempts/{attempt_id}/session", status_code=204)
async def pin_session(call: InCall, attempt_id: UUID, body: SessionPin) -> Response:
    """Note the provider's session as soon as it is known, so that a crash can't lose it."""
    await attempts.pin_session(
        call.conn,
        runtime_id=_runtime_id(call),
        attempt_id=attempt_id,
        provider_session_id=body.session_id,
    )
    return Response(status_code=204)


def _runtime_id(call: Call) -> UUID:
    runtime_id = call.actor.runtime_id
    assert runtime_id is not None, "the route admits runtimes only"
    return runtime_id
