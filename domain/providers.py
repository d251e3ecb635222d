"""The agent CLIs that an agent can be made for; the adapters themselves live in ``providers``."""

PROVIDER_NAMES = ("claude", "codex", "opencode", "gemini", "acp", "script")

#: The provider whose agents name the command to run in their ``args``.
ACP = "acp"
