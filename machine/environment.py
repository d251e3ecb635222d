"""The environment of an agent process: little of the worker's, all of the agent's, and who it is.

In this order, later ones win:

1. from the worker, by the allow-list below (plus ``MachineConfig.inherit``): a worker's own
   credentials, and what marks a nested agent, never reach an agent by accident;
2. the agent's ``env``, which can't set what identifies the run or the user (`is_reserved`);
3. what the provider's command needs;
4. ``SEGUE_*`` of this attempt, and a private ``TMPDIR``.
"""

import os
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from domain.brief import Brief
from machine.processes import MARKER

#: Inherited by exact name …
INHERITED = frozenset(
    [
        "PATH",
        "HOME",
        "USER",
        "LOGNAME",
        "SHELL",
        "TERM",
        "LANG",
        "LANGUAGE",
        "TZ",
        "SSL_CERT_FILE",
        "SSL_CERT_DIR",
        "REQUESTS_CA_BUNDLE",
        "CURL_CA_BUNDLE",
        "NODE_EXTRA_CA_CERTS",
        "HTTP_PROXY",
        "HTTPS_PROXY",
        "NO_PROXY",
        "ALL_PROXY",
        "http_proxy",
        "https_proxy",
        "no_proxy",
        "all_proxy",
        "SSH_AUTH_SOCK",
        "DOCKER_HOST",
        "DBUS_SESSION_BUS_ADDRESS",
        "LD_LIBRARY_PATH",
        "SEGUE_SCRIPT_HOME",
    ]
)
#: … and by these beginnings.
INHERITED_PREFIXES = ("LC_", "XDG_")

#: An agent CLI that sees one of these believes that it runs inside another one (field notes I6).
NESTED = frozenset(
    [
        "CLAUDECODE",
        "CLAUDE_CODE_ENTRYPOINT",
        "CLAUDE_CODE_SSE_PORT",
        "CLAUDE_CODE_SESSION_ID",
        "CLAUDE_CODE_EXECPATH",
        "CODEX_SANDBOX",
        "CODEX_SANDBOX_NETWORK_DISABLED",
        "CODEX_THREAD_ID",
        "OPENCODE",
        "OPENCODE_PID",
        "OPENCODE_CLIENT",
        "OPENCODE_SERVER",
        "GEMINI_CLI",
        "GEMINI_CLI_IDE_SERVER_PORT",
        "AGENT",
    ]
)

_RESERVED = frozenset(["PATH", "HOME", "USER", "LOGNAME", "SHELL", "TERM", "TMPDIR", "TMP", "TEMP"])
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


@dataclass(frozen=True)
class Identity:
    """What an agent process is told about itself."""

    brief: Brief
    api_url: str
    token: str
    temporary: Path


def is_reserved(name: str) -> bool:
    """Whether an agent's ``env`` may not set this name."""
    return name in _RESERVED or name.startswith("SEGUE_")


def inherited(worker: Mapping[str, str], more: Iterable[str] = ()) -> dict[str, str]:
    """The part of the worker's environment that agents get."""
    allowed = INHERITED.union(more)
    env = {k: v for k, v in worker.items() if k in allowed or k.startswith(INHERITED_PREFIXES)}
    env["PATH"] = _with_own_command(env.get("PATH") or os.defpath)
    return env


def settings(brief: Brief, worker: Mapping[str, str], more: Iterable[str] = ()) -> dict[str, str]:
    """The environment without what one attempt adds: where a provider keeps its sessions follows from it."""
    own = {k: v for k, v in brief.env.items() if _is_settable(k, v)}
    env = {**inherited(worker, more), **own}
    return {k: v for k, v in env.items() if k not in NESTED}


def complete(base: Mapping[str, str], provider: Mapping[str, str], identity: Identity) -> dict[str, str]:
    """The whole environment of one agent process."""
    temporary = str(identity.temporary)
    return {
        **base,
        **provider,
        **_segue_variables(identity),
        "TMPDIR": temporary,
        "TMP": temporary,
        "TEMP": temporary,
    }


def _is_settable(name: str, value: str) -> bool:
    return bool(_NAME.match(name)) and "\0" not in value and not is_reserved(name)


def _segue_variables(identity: Identity) -> dict[str, str]:
    brief = identity.brief
    always = {
        "SEGUE_API_URL": identity.api_url,
        "SEGUE_TOKEN": identity.token,
        "SEGUE_WORKSPACE_ID": str(brief.workspace_id),
        "SEGUE_AGENT_ID": str(brief.agent_id),
        "SEGUE_AGENT_NAME": brief.agent_name,
        "SEGUE_TASK_ID": str(brief.task_id),
        "SEGUE_ATTEMPT": str(brief.attempt),
        MARKER: str(brief.attempt_id),
    }
    where = {
        "SEGUE_ISSUE_ID": brief.issue_id,
        "SEGUE_ISSUE_KEY": brief.issue_key,
        "SEGUE_CHAT_ID": brief.chat_id,
        "SEGUE_AUTOPILOT_RUN_ID": brief.autopilot_run_id,
    }
    return {**always, **{name: str(value) for name, value in where.items() if value is not None}}


def _with_own_command(path: str) -> str:
    # Last, so that `segue` is found but our own interpreter never hides the project's.
    own = str(Path(sys.executable).parent)
    return path if own in path.split(os.pathsep) else f"{path}{os.pathsep}{own}"
