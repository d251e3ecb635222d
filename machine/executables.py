"""Where an agent CLI lies on this machine."""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from domain.errors import ProviderMissing
from providers.base import Provider


def find_executable(provider: Provider, configured: Mapping[str, str], path: str) -> str:
    """The absolute path of the provider's command: the configured one, else the first on ``path``.

    Raises `ProviderMissing`, naming where it was looked for.
    """
    wanted = configured.get(provider.name) or provider.executable()
    found = shutil.which(Path(wanted).expanduser(), path=path)
    if found is None:
        where = "as [providers." + provider.name + "] path" if provider.name in configured else f"on {path}"
        message = (
            f"{provider.name}: no executable {wanted!r} {where}; install it, or set "
            f"`[providers.{provider.name}] path` in the worker's TOML"
        )
        raise ProviderMissing(message)
    # Not resolved: a CLI may look at the name it was called by, a virtual environment does.
    return os.path.abspath(found)  # noqa: PTH100
