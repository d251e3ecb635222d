"""A provider whose command is the agent's ``args``: any process can be an agent. Output as `script`'s."""

from providers import registry
from providers.base import Launch, LaunchRequest, Provider
from providers.script import ScriptProvider

SESSION = '{"type":"session","session_id":"3f0e5c1a-0000-4000-8000-000000000001"}'
RESULT = '{"type":"result","success":true,"text":"done"}'


class ToyProvider(ScriptProvider):
    """Runs ``args`` as they are."""

    name = "toy"

    def command(self, request: LaunchRequest) -> Launch:
        return Launch(argv=tuple(request.args))


def provider(name: str) -> Provider:
    """The registry's providers and the toy."""
    return ToyProvider() if name == "toy" else registry.get(name)
