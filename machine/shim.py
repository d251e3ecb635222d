"""The supervisor of one agent process: ``python -I -S shim.py PROCESS_DIRECTORY BOOT_ID``.

A stand-alone program of the standard library, small because one lives beside every running agent. It

1. takes the directory by making ``shim.json`` exclusively (a second shim exits at once with 75),
   synced before anything is started, so that no crash can lead to two agents;
2. starts the agent in a session of its own and records it in ``agent.json``; stdin is the file
   ``prompt``, stdout and stderr are files opened for appending;
3. waits for every descendant (it is a child subreaper on Linux), and writes ``exit.json`` when the
   agent itself ends;
4. ends what is left below it (SIGTERM, then SIGKILL, bounded), says so with ``reaped``, and exits.

The command and the environment come from ``spec`` (0600, it holds secrets), which is deleted once
read; nothing secret is in argv. The worker starts a shim with SIGHUP, SIGINT and SIGTERM blocked: it
ends when its agent does, and a signal to it must not cost the exit record. Killed with SIGKILL it leaves
the agent running; the worker then finds the tree by ``agent.json`` and by the marker variable.

No import of ours: it must keep working when the package is replaced under a live run. And few imports at
all, since its start-up is part of every run's: ``json`` and ``signal`` would double it.
"""

import os
import sys
import time

EXIT_TAKEN = 75
EXIT_NOT_EXECUTED = 127
REAP_GRACE_SECONDS = 2.0
REAP_LIMIT_SECONDS = 12.0
#: Space set aside at the start, so that the exit can be recorded on a disk that ran full meanwhile.
RESERVED_BYTES = 4096
#: Descriptors below this that the worker itself inherited are not passed on to the agent.
FOREIGN_DESCRIPTORS = 1024
PR_SET_CHILD_SUBREAPER = 36

SIGHUP, SIGINT, SIGKILL, SIGPIPE, SIGTERM, SIGXFSZ = 1, 2, 9, 13, 15, 25


class Spec:
    """What to start. Stored as fields that end with NUL, which none of them can contain."""

    def __init__(self, cwd: str, identity: tuple[int, int], argv: list[str], env: dict[str, str]) -> None:
        self.cwd = cwd
        #: Device and inode that ``cwd`` must have.
        self.identity = identity
        self.argv = argv
        self.env = env

    def encode(self) -> bytes:
        words = [self.cwd, *map(str, self.identity), str(len(self.argv)), *self.argv]
        words += [f"{name}={value}" for name, value in self.env.items()]
        return b"".join(os.fsencode(word) + b"\0" for word in words)

    @classmethod
    def decode(cls, content: bytes) -> "Spec":
        words = [os.fsdecode(word) for word in content.split(b"\0")[:-1]]
        count = int(words[3])
        env = {}
        for word in words[4 + count :]:
            name, _, value = word.partition("=")
            env[name] = value
        return cls(words[0], (int(words[1]), int(words[2])), words[4 : 4 + count], env)


def main(directory: str, boot_id: str) -> int:
    """Run the agent of ``directory`` to its end. Returns the shim's own exit code."""
    _let_go_of_the_starter()
    if not _take(directory, boot_id):
        return EXIT_TAKEN
    spec = _read_spec(directory)
    _reserve_exit_record(directory)
    agent = _start_agent(directory, spec)
    if agent is not None:
        _record_exit(directory, _wait_for(agent), "null")
    if agent is None or _reap_rest(agent):
        os.close(os.open(os.path.join(directory, "reaped"), os.O_WRONLY | os.O_CREAT, 0o600))
    # Only now: the worker need not wait for the disk, and a power loss leaves no process in doubt.
    _sync(os.path.join(directory, "exit.json"))
    _sync(directory)
    return 0


def _let_go_of_the_starter() -> None:
    os.closerange(3, FOREIGN_DESCRIPTORS)
    try:
        os.setsid()
    except OSError:
        pass  # the worker made this a session leader already
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _take(directory: str, boot_id: str) -> bool:
    target = os.path.join(directory, "shim.json")
    temporary = f"{target}.{os.getpid()}"
    _write(temporary, _identity(os.getpid(), f', "boot_id": "{boot_id}"'))
    _sync(temporary)
    try:
        os.link(temporary, target)  # exclusive, and complete as soon as it can be seen
    except FileExistsError:
        return False
    finally:
        os.unlink(temporary)
    _sync(directory)
    return True


def _read_spec(directory: str) -> Spec:
    path = os.path.join(directory, "spec")
    with open(path, "rb") as file:
        content = file.read()
    os.unlink(path)
    return Spec.decode(content)


def _reserve_exit_record(directory: str) -> None:
    _write(os.path.join(directory, "exit.tmp"), " " * RESERVED_BYTES)


def _start_agent(directory: str, spec: Spec) -> int | None:
    """The agent's pid; null when it could not be started, which is recorded as its exit."""
    try:
        _enter(spec)
    except OSError as error:
        _record_not_started(directory, "work_dir", error)
        return None
    try:
        pid = _spawn(directory, spec)
    except OSError as error:
        _record_not_started(directory, "command", error)
        return None
    finally:
        os.chdir("/")  # a directory in use could not be unmounted
    temporary = os.path.join(directory, "agent.tmp")
    _write(temporary, _identity(pid))
    os.rename(temporary, os.path.join(directory, "agent.json"))
    return pid


def _enter(spec: Spec) -> None:
    os.chdir(spec.cwd)
    here = os.stat(".")
    if spec.identity != (here.st_dev, here.st_ino):
        raise OSError(None, "the working directory was replaced")


def _spawn(directory: str, spec: Spec) -> int:
    appending = os.O_WRONLY | os.O_APPEND | os.O_CREAT
    return os.posix_spawnp(
        spec.argv[0],
        spec.argv,
        spec.env,
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.path.join(directory, "prompt"), os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, os.path.join(directory, "stdout"), appending, 0o600),
            (os.POSIX_SPAWN_OPEN, 2, os.path.join(directory, "stderr"), appending, 0o600),
        ],
        setsid=True,
        setsigmask=[],
        # Ignored signals survive exec, and Python ignores the last two.
        setsigdef=[SIGHUP, SIGINT, SIGTERM, SIGPIPE, SIGXFSZ],
    )


def _wait_for(agent: int) -> int:
    while True:
        pid, status = os.waitpid(-1, 0)
        if pid == agent:
            return os.waitstatus_to_exitcode(status)


def _record_not_started(directory: str, where: str, error: OSError) -> None:
    text = "".join(c if c.isascii() and c.isprintable() and c not in '"\\' else "?" for c in str(error))
    number = "null" if error.errno is None else error.errno
    complaint = f'{{"where": "{where}", "errno": {number}, "text": "{text[:1000]}"}}'
    _record_exit(directory, EXIT_NOT_EXECUTED, complaint)


def _record_exit(directory: str, code: int, complaint: str) -> None:
    ended, signal = (code, "null") if code >= 0 else ("null", -code)
    record = (
        f'{{"exit_code": {ended}, "signal": {signal}, "ended_at": {time.time()}, "not_started": {complaint}}}'
    )
    temporary = os.path.join(directory, "exit.tmp")
    # Over the reserved bytes: the blanks after it are harmless to a JSON reader.
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT, 0o600)
    os.write(descriptor, record.encode())
    os.close(descriptor)
    os.rename(temporary, os.path.join(directory, "exit.json"))


def _reap_rest(agent: int) -> bool:
    """End every process left below the shim; true when nothing is left."""
    started = time.monotonic()
    asked: set[int] = set()
    pause = 0.002
    while True:
        _collect_ended()
        rest = _descendants(os.getpid()) if sys.platform == "linux" else _group_left(agent)
        if not rest:
            return True
        elapsed = time.monotonic() - started
        if elapsed > REAP_LIMIT_SECONDS:
            return False
        for pid in rest:
            if elapsed > REAP_GRACE_SECONDS:
                _send(pid, SIGKILL)
            elif pid not in asked:
                asked.add(pid)
                _send(pid, SIGTERM)
        time.sleep(pause)
        pause = min(pause * 2, 0.05)


def _collect_ended() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def _descendants(pid: int) -> list[int]:
    found = []
    waiting = [pid]
    while waiting:
        for child in _children(waiting.pop()):
            found.append(child)
            waiting.append(child)
    return found


def _children(pid: int) -> list[int]:
    children: list[int] = []
    try:
        # Each thread lists the children that it forked itself.
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                children.extend(int(word) for word in file.read().split())
    except OSError:
        pass
    return children


def _group_left(agent: int) -> list[int]:
    try:
        os.killpg(agent, 0)
    except OSError:
        return []
    return [-agent]


def _send(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except OSError:
        pass


def _identity(pid: int, more: str = "") -> str:
    start_time = _start_time(pid)
    ticks = "null" if start_time is None else start_time
    return f'{{"pid": {pid}, "start_time": {ticks}, "at": {time.time()}{more}}}'


def _start_time(pid: int) -> int | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[19])
    except OSError:
        return None


def _write(path: str, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.write(descriptor, text.encode())
    os.close(descriptor)


def _sync(path: str) -> None:
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return
    os.fsync(descriptor)
    os.close(descriptor)


if __name__ == "__main__":
    code = main(sys.argv[1], sys.argv[2])
    os._exit(code)  # nothing to flush; skips the interpreter's own ending
