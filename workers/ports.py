"""TCP ports of the embedded stack: remembered from start to start, chosen when they are taken."""

import secrets
import socket
from collections.abc import Callable

from domain.errors import Conflict
from workers.folder import Ports

#: Below the range that operating systems take for outgoing connections, so that a port is free next time too.
_FIRST, _LAST = 20000, 29999
_NAMES = ("api", "ui", "temporal")


def choose(asked: Ports, remembered: Ports, notify: Callable[[str], None]) -> Ports:
    """Ports for this start: asked for, else remembered, else any free ones.

    Raises `Conflict` when a port that was asked for is taken.
    """
    chosen: dict[str, int] = {}
    for name in _NAMES:
        chosen[name] = _choose(
            name, getattr(asked, name), getattr(remembered, name), set(chosen.values()), notify
        )
    return Ports(**chosen)


def is_free(port: int) -> bool:
    """Whether a server could listen on this port of 127.0.0.1 now."""
    with socket.socket() as probe:
        # Connections of an earlier server that wait for their end are no hindrance.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def _choose(name: str, asked: int, remembered: int, taken: set[int], notify: Callable[[str], None]) -> int:
    if asked:
        if asked in taken or not is_free(asked):
            raise Conflict(f"Port {asked} ({name}) is in use: choose another one, or leave it out.")
        return asked
    if remembered and remembered not in taken and is_free(remembered):
        return remembered
    port = _any_free(taken)
    if remembered:
        notify(f"port {remembered} ({name}) is in use now, taking {port}")
    return port


def _any_free(taken: set[int]) -> int:
    for _ in range(1000):
        port = _FIRST + secrets.randbelow(_LAST - _FIRST + 1)
        if port not in taken and is_free(port):
            return port
    raise Conflict(f"No free port between {_FIRST} and {_LAST}.")
