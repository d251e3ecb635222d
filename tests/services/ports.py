"""Free TCP ports."""

import socket


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on at this moment.

    Somebody else can take it before it is used: who starts a server on it must look whether it came up.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def is_listening(port: int) -> bool:
    """Whether something on 127.0.0.1 accepts connections on ``port``."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True
