"""A process that runs one service for exactly as long as the test session lives.

It is started as a script, in a session of its own, so that Ctrl-C and a killed terminal don't reach
it before the tests have ended. The session holds an exclusive lock on the *lifeline* file; the kernel
drops that lock however the session ends (also by SIGKILL), and that is what the keeper waits for.
Standard library only: it starts with ``python -I -S`` in a fraction of a full interpreter's time.
"""

import argparse
import fcntl
import os
import pwd
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

POLL_SECONDS = 0.2
STOP_SECONDS = 20.0


def main() -> int:
    """Run the command until it ends by itself (1) or the session is over (0; its folder is removed)."""
    options = _read_options()
    alive = Path(options.alive).open("w")  # noqa: SIM115 - held until the process is gone
    fcntl.flock(alive, fcntl.LOCK_EX)
    service = _start(options)
    while not _session_is_over(options.lifeline):
        if service.poll() is not None:
            return 1  # the folder stays: its log says why
        time.sleep(POLL_SECONDS)
    _stop(service, signal.Signals[options.stop_signal])
    _remove(Path(options.folder))
    return 0


def _read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", required=True, help="the service's own folder, removed at the end")
    parser.add_argument("--alive", required=True, help="file locked for as long as this keeper lives")
    parser.add_argument("--lifeline", required=True, help="file locked for as long as the session lives")
    parser.add_argument("--stop-signal", required=True, help="what ends the service at once, such as SIGQUIT")
    parser.add_argument("--user", type=int, help="user id to run the service as")
    parser.add_argument("command", nargs="+")
    return parser.parse_args()


def _start(options: argparse.Namespace) -> "subprocess.Popen[bytes]":
    identity: dict[str, Any] = {}
    if options.user is not None:
        group = pwd.getpwuid(options.user).pw_gid
        identity = {"user": options.user, "group": group, "extra_groups": []}
    with (Path(options.folder) / "log").open("ab") as log:
        return subprocess.Popen(
            options.command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=options.folder,
            start_new_session=True,
            **identity,
        )


def _session_is_over(lifeline: str) -> bool:
    try:
        with Path(lifeline).open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except FileNotFoundError:
        return True
    return True


def _stop(service: "subprocess.Popen[bytes]", stop_signal: signal.Signals) -> None:
    for attempt in (stop_signal, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(service.pid, attempt)
        try:
            service.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            continue
        return


def _remove(folder: Path) -> None:
    """Remove the service's folder and, if it was the last one, what a killed session left."""
    shutil.rmtree(folder, ignore_errors=True)
    session = folder.parent
    if not any(entry.is_dir() for entry in session.iterdir()):
        shutil.rmtree(session, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
