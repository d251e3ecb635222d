"""The known providers by name."""

from domain.errors import InvalidInput
from providers.acp import AcpProvider
from providers.base import Provider
from providers.claude import ClaudeProvider
from providers.codex import CodexProvider
from providers.script import ScriptProvider

_PROVIDERS: dict[str, Provider] = {
    provider.name: provider
    for provider in (AcpProvider(), ClaudeProvider(), CodexProvider(), ScriptProvider())
}


def names() -> tuple[str, ...]:
    """The names an agent's ``provider`` may have, sorted."""
    return tuple(sorted(_PROVIDERS))


def get(name: str) -> Provider:
    """The adapter called ``name``; raises `InvalidInput` for a name that is not known."""
    try:
        return _PROVIDERS[name]
    except KeyError:
        known = ", ".join(names())
        msg = f"Unknown provider {name!r}. Known providers: {known}."
        raise InvalidInput(msg) from None
