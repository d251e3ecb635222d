"""Which agent CLIs this machine has, and their versions: what a runtime registers with."""

import os
import subprocess
from collections.abc import Iterable

import structlog

from domain.brief import ProviderInfo
from domain.errors import ProviderMissing
from machine.config import MachineConfig
from machine.executables import find_executable
from providers.base import Provider

log = structlog.get_logger()

#: The heaviest CLI needs several CPU seconds for its version (agent CLIs §0); a hung one is skipped.
VERSION_SECONDS = 60.0


def installed(providers: Iterable[Provider], config: MachineConfig) -> list[ProviderInfo]:
    """Those whose executable is found, each with the first line its version command prints."""
    path = os.environ.get("PATH", os.defpath)
    found = []
    for provider in providers:
        try:
            binary = find_executable(provider, config.binaries, path)
        except ProviderMissing:
            continue
        found.append(ProviderInfo(name=provider.name, path=binary, version=_version(provider, binary)))
    return found


def _version(provider: Provider, binary: str) -> str | None:
    """None when the command hangs or says nothing: the CLI is listed all the same."""
    try:
        answer = subprocess.run(
            provider.version_argv(binary),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=VERSION_SECONDS,
            check=False,
            text=True,
            errors="replace",
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        log.warning("version_unknown", provider=provider.name, error=str(error))
        return None
    lines = answer.stdout.strip().splitlines()
    return lines[0][:200] if lines else None
