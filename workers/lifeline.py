"""Parts of the embedded stack end when the stack does, however it ends."""

import ctypes
import os
import signal
import sys
import threading
import time

#: Process id of who started this process and takes it along: the stack, for each of its parts.
STACK_VARIABLE = "SEGUE_STACK_PID"
_PR_SET_PDEATHSIG = 1
_POLL_SECONDS = 1.0


def follow_stack() -> None:
    """In a part written in Python: get SIGTERM when the stack is gone. Does nothing outside of a stack."""
    stack = _stack()
    if stack is None:
        return
    signal_on_death(signal.SIGTERM)
    if sys.platform != "linux":
        threading.Thread(target=_watch, args=(stack,), daemon=True, name="lifeline").start()


def signal_on_death(number: signal.Signals) -> None:
    """Have the kernel send ``number`` when the parent dies; it outlives ``exec``, but no change of user.

    Linux only; elsewhere the next start of the stack stops what the last one left behind.
    """
    stack = _stack()
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)
    # The stack may have died before the kernel was told.
    if stack is not None and os.getppid() != stack:
        sys.exit(f"The stack (process {stack}) has ended already.")


def _stack() -> int | None:
    value = os.environ.get(STACK_VARIABLE, "")
    return int(value) if value.isdigit() else None


def _watch(stack: int) -> None:
    while os.getppid() == stack:
        time.sleep(_POLL_SECONDS)
    os.kill(os.getpid(), signal.SIGTERM)
