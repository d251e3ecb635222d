"""What people write for a thing (a name, an id, the beginning of an id), turned into its id."""

import re
from collections.abc import Iterable
from typing import Any
from uuid import UUID

from cli.client import ApiClient
from cli.output import Json
from domain.errors import InvalidInput, NotFound

#: So many of the newest tasks or chats are looked through for the beginning of an id.
_RECENT = 500
_HEX = re.compile(r"[0-9a-f-]{4,35}")


def agent_id(client: ApiClient, reference: str) -> str:
    """Raises `NotFound`, or `InvalidInput` when several fit."""
    return _named(client, "agent", "/agents", reference, archived="true")


def runtime_id(client: ApiClient, reference: str) -> str:
    """Raises `NotFound`, or `InvalidInput` when several fit."""
    return _named(client, "runtime", "/runtimes", reference)


def project_id(client: ApiClient, reference: str) -> str:
    """Raises `NotFound`, or `InvalidInput` when several fit."""
    return _named(client, "project", "/projects", reference)


def task_id(client: ApiClient, reference: str) -> str:
    """A task's id; the beginning of one is looked for among the newest tasks."""
    return _recent(client, "task", "/tasks", reference)


def chat_id(client: ApiClient, reference: str) -> str:
    """A chat's id; the beginning of one is looked for among the caller's newest chats."""
    return _recent(client, "chat", "/chats", reference)


def agent_names(client: ApiClient) -> dict[str, str]:
    """The names of all standing agents, by id."""
    return {agent["id"]: agent["name"] for agent in client.items("/agents")}


def _recent(client: ApiClient, noun: str, path: str, reference: str) -> str:
    """Of things that have no name; nothing is fetched for a whole id."""
    if _is_id(reference):
        return reference
    recent = client.items(path, most=_RECENT) if _HEX.fullmatch(reference.lower()) else ()
    return _beginning(noun, reference, recent)


def _named(client: ApiClient, noun: str, path: str, reference: str, **filters: Any) -> str:
    """The only one of that name; a standing one goes before archived ones of the same name."""
    if _is_id(reference):
        return reference
    everything = list(client.items(path, **filters))
    everything = _standing(everything, reference) or everything
    same = [item["id"] for item in everything if item["name"] == reference]
    if len(same) == 1:
        return str(same[0])
    alike = [item["id"] for item in everything if item["name"].lower() == reference.lower()]
    if len(alike) == 1:
        return str(alike[0])
    return _beginning(noun, reference, everything)


def _standing(items: list[Json], reference: str) -> list[Json]:
    name = reference.lower()
    return [item for item in items if item["name"].lower() == name and not item.get("archived_at")]


def _beginning(noun: str, reference: str, items: Iterable[Json]) -> str:
    fits = [str(item["id"]) for item in items if item["id"].startswith(reference.lower())]
    if not fits or not _HEX.fullmatch(reference.lower()):
        raise NotFound(f"There is no {noun} {reference!r}: see `segue {noun} list`.")
    if len(fits) > 1:
        raise InvalidInput(f"{reference!r} fits {len(fits)} {noun}s: write more of the id.")
    return fits[0]


def _is_id(text: str) -> bool:
    try:
        UUID(text)
    except ValueError:
        return False
    return True
