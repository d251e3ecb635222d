"""Where the API is and who calls: command line, environment, a profile, or the local stack's own record."""

import os
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from domain.errors import InvalidInput

API_URL_VARIABLE = "SEGUE_API_URL"
TOKEN_VARIABLE = "SEGUE_TOKEN"  # noqa: S105 - the name of a variable
PROFILE_VARIABLE = "SEGUE_PROFILE"
DEFAULT_PROFILE = "default"


@dataclass(frozen=True)
class Connection:
    """An API and a token for it."""

    api_url: str
    token: str


def config_file() -> Path:
    """``$XDG_CONFIG_HOME/segue/config.toml``, by default below ``~/.config``.

    It has one table a profile: ``[default]`` with ``api_url`` and ``token``.
    Raises `RuntimeError` when nothing says where ``~`` is.
    """
    base = os.environ.get("XDG_CONFIG_HOME")
    return (Path(base) if base else Path.home() / ".config") / "segue" / "config.toml"


def find(api_url: str | None, token: str | None, profile: str | None) -> Connection:
    """What to use, given what the command line says. Raises `InvalidInput` when something is missing.

    A profile that was named wins over the environment, since naming it is the more deliberate act.
    """
    named = profile or os.environ.get(PROFILE_VARIABLE)
    environment = (os.environ.get(API_URL_VARIABLE), os.environ.get(TOKEN_VARIABLE))
    places = [(api_url, token), environment, _profile(named or DEFAULT_PROFILE, required=named is not None)]
    if profile is not None:
        places[1:] = [places[2], environment]
    return _first(places)


def _first(places: list[tuple[str | None, str | None]]) -> Connection:
    """The first address and the first token; the local stack's token is for the local stack only."""
    address = next((place[0] for place in places if place[0]), None)
    token = next((place[1] for place in places if place[1]), None)
    if address is None or token is None:
        stack = _local_stack()
        if stack is not None and address in {None, stack.api_url}:
            return Connection(stack.api_url, token or stack.token)
    if address is None:
        raise InvalidInput(
            f"No Segue is known: start one with `segue up`, or set {API_URL_VARIABLE} and {TOKEN_VARIABLE}."
        )
    if token is None:
        raise InvalidInput(
            f"No token for {address}: set {TOKEN_VARIABLE}, give --token, or add it to a profile."
        )
    if not (token.isascii() and token.isprintable()):
        raise InvalidInput("The token holds characters that no token has: was it copied whole?")
    return Connection(address.rstrip("/"), token)


def _profile(name: str, *, required: bool) -> tuple[str | None, str | None]:
    try:
        file = config_file()
    except RuntimeError as error:
        # A container may run us as a user without a name or a home; the environment can still say it all.
        if required:
            raise InvalidInput(
                f"There is no profile [{name}]: {error} Set HOME or XDG_CONFIG_HOME."
            ) from error
        return None, None
    profiles = _read(file) or {}
    if name not in profiles:
        if required:
            known = ", ".join(profiles) or "none"
            raise InvalidInput(f"There is no profile [{name}] in {file} (known: {known}).")
        return None, None
    profile = profiles[name]
    unknown = set(profile) - {"api_url", "token"}
    if unknown:
        raise InvalidInput(f"{file}: unknown key {min(unknown)!r} in [{name}]; known: api_url, token.")
    return profile.get("api_url"), profile.get("token")


def _local_stack() -> Connection | None:
    from workers.folder import StackFolder, default_folder

    record = StackFolder(default_folder()).read()
    return Connection(record.api_url, record.token) if record is not None and record.token else None


def _read(file: Path) -> dict[str, Any] | None:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise InvalidInput(f"{file} can't be read: {error}.") from error
