"""The OpenAPI document: FastAPI's, with problems as error answers and the bearer scheme."""

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from api.deps import PREFIX
from api.problems import MEDIA_TYPE, Problem

_SCHEMA = "#/components/schemas/"
_DESCRIPTIONS = {
    "400": "The request can't be understood, or names something unusable.",
    "401": "No token, or one that is unknown, expired or revoked.",
    "403": "The caller may not do this.",
    "404": "Unknown, deleted, or in another workspace.",
    "409": "The present state does not allow this.",
    "413": "The body is too large.",
    "422": "A field's value is not acceptable; `errors` says which.",
    "429": "Too many failed authentications from this address.",
    "503": "Something that Segue needs is away for the moment.",
}
_BEARER = {
    "type": "http",
    "scheme": "bearer",
    "description": "`sgu_…` of a member, `sgr_…` of a runtime, `sgt_…` of a task. It implies the workspace.",
}
_IDEMPOTENCY = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "schema": {"type": "string", "maxLength": 255},
    "description": "Repeating the call with the same key gives the first one's answer again.",
}


def install(app: FastAPI) -> None:
    """Serve our document at the app's OpenAPI address."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _document(app)
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]  # FastAPI's documented way to extend it


def _document(app: FastAPI) -> dict[str, Any]:
    document = get_openapi(
        title=app.title, version=app.version, description=app.description, routes=app.routes
    )
    components = document.setdefault("components", {})
    components["securitySchemes"] = {"bearer": _BEARER}
    schemas = components.setdefault("schemas", {})
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    problem = Problem.model_json_schema(ref_template=_SCHEMA + "{model}")
    schemas.update(problem.pop("$defs"))
    schemas["Problem"] = problem
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            _describe(path, method, operation)
    return document


def _describe(path: str, method: str, operation: dict[str, Any]) -> None:
    operation["responses"].pop("422", None)
    if not path.startswith(PREFIX):
        return
    operation["security"] = [{"bearer": []}]
    if method == "post":
        operation.setdefault("parameters", []).append(_IDEMPOTENCY)
    for status in _statuses(path, method, operation):
        operation["responses"][status] = {
            "description": _DESCRIPTIONS[status],
            "content": {MEDIA_TYPE: {"schema": {"$ref": _SCHEMA + "Problem"}}},
        }


def _statuses(path: str, method: str, operation: dict[str, Any]) -> list[str]:
    found = {"401", "403", "429", "503"}
    if "{" in path:
        found.add("404")
    if operation.get("parameters") or "requestBody" in operation:
        found |= {"400", "422"}
    if "requestBody" in operation:
        found.add("413")
    if method != "get":
        found.add("409")
    return sorted(found)
