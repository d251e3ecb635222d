"""The ``script`` agent: a toy coding agent that does what its prompt says, line by line.

A stand-alone program for demos and tests, on the standard library alone and quick to start
(``python -I -S script_agent.py``). It behaves like the real ones where that hurts: it keeps sessions by
working directory and refuses to resume them from another one, runs tools in sessions of their own, reports
its own success in a result line, and dies of SIGTERM with code 143 and no result.

Prompt on stdin, JSON lines on stdout: ``session`` first, then ``text``, ``tool_use``, ``tool_result`` and
``rate_limit``, and ``result`` last. A prompt line is one directive; a line that is none is echoed. The
lines between ``<segue-context>`` and ``</segue-context>`` are not for this agent.

Usage: ``script_agent.py [--resume ID [--fork]] [--model NAME] | --version``. Exit codes: 0 success, 1 failed
turn, 2 usage, 143 terminated. Environment: ``SEGUE_SCRIPT_HOME`` (default ``~/.segue-script``).
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import zlib

# Names that only annotations need are not imported: each import delays every run.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType
    from typing import Any, NoReturn

VERSION = "1.0"
NOT_FOUND = "No conversation found with session ID: "
OPEN_CONTEXT = "<segue-context>"
CLOSE_CONTEXT = "</segue-context>"

_BLOCK = 64 * 1024
_SLUG_LENGTH = 80
_TERMINATED = 143


class Stopped(Exception):
    """The turn ends here; ``code`` is the exit code."""

    def __init__(self, code: int) -> None:
        self.code = code


class Failed(Exception):
    """The turn ends with a failing result."""

    def __init__(self, reason: str, message: str) -> None:
        self.reason = reason
        self.message = message


def session_file(home: str, work_dir: str, session_id: str) -> str:
    """Where the session of a working directory (a real path) is kept under ``home``; an ASCII path."""
    safe = "".join(char if char.isascii() and char.isalnum() else "-" for char in work_dir)
    # The name is only for people; the checksum keeps directories with like names apart.
    checksum = zlib.crc32(work_dir.encode("utf-8", "surrogateescape"))
    return os.path.join(home, "sessions", f"{safe[-_SLUG_LENGTH:]}-{checksum:08x}", f"{session_id}.json")


def is_session_id(text: str) -> bool:
    """Whether ``text`` has the form of an id that this agent makes (so it is safe in a path)."""
    return bool(text) and text.isascii() and text.replace("-", "").isalnum()


def _new_id() -> str:
    raw = bytearray(os.urandom(16))
    raw[6] = raw[6] & 0x0F | 0x40
    raw[8] = raw[8] & 0x3F | 0x80
    digits = raw.hex()
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


class Termination:
    """Ends the process on SIGTERM. In its ``with`` block the end is put off until the block is through.

    It leaves from within the handler: an exception could be swallowed by the code that it interrupts.
    """

    def __init__(self) -> None:
        self._held = False
        self._due = False
        self._turn: Turn | None = None

    def watch(self, turn: Turn) -> None:
        """``turn`` has a tool to kill and output to flush."""
        self._turn = turn

    def __enter__(self) -> None:
        self._held = True

    def __exit__(self, *_: object) -> None:
        self._held = False
        if self._due:
            self._leave()

    def handle(self, _number: int, _frame: FrameType | None) -> None:
        self._due = True
        if not self._held:
            self._leave()

    def _leave(self) -> NoReturn:
        if self._turn is not None:
            self._turn.clean_up()
        os._exit(_TERMINATED)


_TERMINATION = Termination()


class Output:
    """Standard output, a JSON object a line. Silenced, it writes nothing at all."""

    def __init__(self, *, silent: bool = False) -> None:
        self._silent = silent
        self._pending = bytearray()

    def emit(self, kind: str, **fields: Any) -> None:
        self.put(kind, **fields)
        self.flush()

    def put(self, kind: str, **fields: Any) -> None:
        """Like `emit`, but may wait for company: many events are one write."""
        text = json.dumps({"type": kind, **fields}, ensure_ascii=False)
        self._pending += text.encode("utf-8", "replace") + b"\n"
        if len(self._pending) >= _BLOCK:
            self.flush()

    def flush(self) -> None:
        # Taken out first: a signal in between may lose a line, as dying a moment earlier would, but
        # never writes one twice.
        block, self._pending = bytes(self._pending), bytearray()
        while block and not self._silent:
            block = block[os.write(1, block) :]

    def raw(self, data: bytes) -> None:
        self._pending += data
        self.flush()


class Session:
    """One conversation's memory. Every `save` replaces the file as a whole, so a kill tears nothing."""

    def __init__(self, home: str, work_dir: str, session_id: str) -> None:
        self.id = session_id
        self.work_dir = work_dir
        self.turns = 0
        self.memory: dict[str, str] = {}
        #: Directives that hit a quota, with the time (Unix) it resets.
        self.quotas: dict[str, float] = {}
        self._home = home
        self._path = session_file(home, work_dir, session_id)

    def load(self) -> bool:
        """Read what an earlier turn kept; False when there is no such session here."""
        try:
            with open(self._path, encoding="utf-8") as file:
                kept = json.load(file)
            if kept["work_dir"] != self.work_dir:
                return False
            self.turns = kept["turns"]
            self.memory = kept["memory"]
            self.quotas = kept["quotas"]
        except (OSError, ValueError, KeyError, TypeError):
            return False
        return True

    def copy(self) -> Session:
        """The same memory under a new id."""
        twin = Session(self._home, self.work_dir, _new_id())
        twin.turns = self.turns
        twin.memory = dict(self.memory)
        twin.quotas = dict(self.quotas)
        return twin

    def save(self) -> None:
        os.makedirs(os.path.dirname(self._path), mode=0o700, exist_ok=True)
        temporary = f"{self._path}.{os.getpid()}"
        kept = {
            "work_dir": self.work_dir,
            "turns": self.turns,
            "memory": self.memory,
            "quotas": self.quotas,
        }
        with open(temporary, "w", encoding="utf-8", errors="replace") as file:
            json.dump(kept, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, self._path)


class Turn:
    """The directives of one prompt, carried out in a session."""

    def __init__(self, session: Session, output: Output) -> None:
        self._session = session
        self._output = output
        self._tools = 0
        self._torn_end = False
        self.linger = 0.0
        self.answers: list[str] = []
        self._tool_group: int | None = None
        self._words: dict[str, Callable[[str], bool]] = {
            "say": self._say,
            "remember": self._remember,
            "recall": self._recall,
            "turns": self._turns,
            "write": self._write,
            "read": self._read,
            "sleep": self._sleep,
            "tool": self._tool,
            "fail": self._fail,
            "crash": self._crash,
            "exit": self._exit,
            "garbage": self._garbage,
            "line": self._line,
            "flood": self._flood,
            "linger": self._linger,
            "spawn": self._spawn,
            "ignore-term": self._ignore_term,
            "quota": self._quota,
            "silent": self._silent,
            "new-session": self._new_session,
            "cwd": self._cwd,
        }

    def run(self, directives: list[str]) -> None:
        for directive in directives:
            word, _, rest = directive.partition(" ")
            act = self._words.get(word)
            if act is None or not act(rest.strip()):
                self._answer(directive)

    def finish(self, prompt: str) -> None:
        """The successful result, and what was put off until after it."""
        if self._session.quotas:
            self._session.quotas = {}
            self._session.save()
        text = "\n".join(self.answers) or "ok"
        usage = {"input_tokens": len(prompt.split()), "output_tokens": len(text.split())}
        self._output.emit("result", success=True, text=text, session_id=self._session.id, usage=usage)
        if self._torn_end:
            self._output.raw(b'{"type": "text", "text": "torn of')
        time.sleep(self.linger)

    def give_up(self, reason: str, message: str) -> None:
        """The failing result."""
        self._output.emit("result", success=False, reason=reason, error=message, session_id=self._session.id)

    def clean_up(self) -> None:
        """Write what waits to be written, and leave no tool behind."""
        self._output.flush()
        if self._tool_group is not None:
            try:
                os.killpg(self._tool_group, signal.SIGKILL)
            except ProcessLookupError:
                return

    # Each directive answers False when its argument is not one, so that prose which happens to begin
    # with its word ("sleep well") is echoed like any other.

    def _say(self, rest: str) -> bool:
        self._answer(rest)
        return True

    def _remember(self, rest: str) -> bool:
        key, equals, value = rest.partition("=")
        if not equals or not key.strip():
            return False
        self._session.memory[key.strip()] = value.strip()
        self._session.save()
        self._answer(f"remembered {key.strip()}")
        return True

    def _recall(self, rest: str) -> bool:
        if not rest:
            return False
        self._answer(self._session.memory.get(rest, "unknown"))
        return True

    def _turns(self, rest: str) -> bool:
        if rest:
            return False
        self._answer(str(self._session.turns))
        return True

    def _cwd(self, rest: str) -> bool:
        if rest:
            return False
        self._answer(self._session.work_dir)
        return True

    def _write(self, rest: str) -> bool:
        path, _, text = rest.partition(" ")
        if not path:
            return False
        tool = self._use_tool("Write", path=path, text=text)
        try:
            os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
            with open(path, "w", encoding="utf-8", errors="replace", newline="") as file:
                file.write(text)
        except OSError as error:
            self._tool_failed(tool, f"cannot write {path}: {error.strerror}")
        else:
            self._tool_done(tool, f"wrote {path}")
        return True

    def _read(self, rest: str) -> bool:
        if not rest:
            return False
        tool = self._use_tool("Read", path=rest)
        try:
            with open(rest, encoding="utf-8", errors="replace", newline="") as file:
                content = file.read()
        except OSError as error:
            self._tool_failed(tool, f"cannot read {rest}: {error.strerror}")
        else:
            self._tool_done(tool, content.removesuffix("\n"))
        return True

    def _tool(self, rest: str) -> bool:
        if not rest:
            return False
        import subprocess  # slow, and most runs have no tool

        tool = self._use_tool("Bash", command=rest)
        with _TERMINATION:
            process = subprocess.Popen(
                ["/bin/sh", "-c", rest],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            self._tool_group = process.pid
        output, _ = process.communicate()
        self._tool_group = None
        text = output.decode("utf-8", "replace").rstrip("\n")
        if process.returncode:
            self._tool_failed(tool, f"{text}\nexit code {process.returncode}".lstrip("\n"))
        else:
            self._tool_done(tool, text)
        return True

    def _sleep(self, rest: str) -> bool:
        seconds = _seconds(rest)
        if seconds is None:
            return False
        time.sleep(seconds)
        return True

    def _linger(self, rest: str) -> bool:
        seconds = _seconds(rest)
        if seconds is None:
            return False
        self.linger = seconds
        return True

    def _spawn(self, rest: str) -> bool:
        seconds = _seconds(rest)
        if seconds is None:
            return False
        child = os.fork()
        if child == 0:
            _become_grandchild(seconds)
        os.waitpid(child, 0)
        return True

    def _fail(self, rest: str) -> bool:
        if not rest or " " in rest:
            return False
        raise Failed(rest, f"failed as told: {rest}")

    def _crash(self, rest: str) -> bool:
        number = _signal_number(rest or "KILL")
        if number is None:
            return False
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if number not in _UNCATCHABLE:
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        return True  # Some signals do nothing by default; then the agent goes on.

    def _exit(self, rest: str) -> bool:
        if not rest.isdecimal() or int(rest) > 255:
            return False
        raise Stopped(int(rest))

    def _garbage(self, rest: str) -> bool:
        if rest:
            return False
        for line in (
            b"\xff\xfe invalid \xc3( bytes \x80",
            b"a NUL \x00 outside of JSON",
            b'{"type": "text", "text": "a NUL \x00 and an escaped one \\u0000"}',
            '{"type": "text", "text": "line\u2028separator"}'.encode(),
            b'{"type": "text", "text": "a lone surrogate \\ud800"}',
            b'{"type": "text", "text": "first of two"}{"type": "text", "text": "second of two"}',
        ):
            self._output.raw(line + b"\n")
        self._torn_end = True
        return True

    def _line(self, rest: str) -> bool:
        size = _count(rest)
        if size is None:
            return False
        self._output.raw(b'{"type": "text", "text": "')
        block = b"x" * _BLOCK
        for start in range(0, size, _BLOCK):
            self._output.raw(block[: size - start])
        self._output.raw(b'"}\n')
        return True

    def _flood(self, rest: str) -> bool:
        count = _count(rest)
        if count is None:
            return False
        for number in range(1, count + 1):
            self._output.put("text", text=f"flood {number}")
        self._output.flush()
        return True

    def _ignore_term(self, rest: str) -> bool:
        if rest:
            return False
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        return True

    def _quota(self, rest: str) -> bool:
        seconds = _seconds(rest)
        if seconds is None:
            return False
        resets_at = self._session.quotas.get(rest)
        now = time.time()
        if resets_at is not None and now >= resets_at:
            return True
        if resets_at is None:
            resets_at = self._session.quotas[rest] = now + seconds
            self._session.save()
        self._output.emit("rate_limit", status="rejected", resets_at=resets_at)
        raise Failed("provider_quota_limit", "You've hit your limit")

    def _silent(self, rest: str) -> bool:
        if rest:
            return False
        raise Stopped(0)

    def _new_session(self, rest: str) -> bool:
        # It has happened already: an agent names its session before it starts to work.
        return not rest

    def _answer(self, text: str) -> None:
        self.answers.append(text)
        if text:
            self._output.emit("text", text=text)

    def _use_tool(self, name: str, **fields: str) -> str:
        self._tools += 1
        tool = f"tool-{self._session.turns}-{self._tools}"
        self._output.emit("tool_use", id=tool, name=name, input=fields)
        return tool

    def _tool_done(self, tool: str, text: str) -> None:
        self.answers.append(text)
        self._output.emit("tool_result", id=tool, output=text, is_error=False)

    def _tool_failed(self, tool: str, text: str) -> None:
        self.answers.append(text)
        self._output.emit("tool_result", id=tool, output=text, is_error=True)


_UNCATCHABLE = (signal.SIGKILL, signal.SIGSTOP)


def _become_grandchild(seconds: float) -> NoReturn:
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if os.fork() == 0:
        time.sleep(seconds)
    os._exit(0)


def _seconds(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 <= value <= 1e8 else None


def _count(text: str) -> int | None:
    return int(text) if text.isdecimal() and len(text) <= 10 else None


def _signal_number(name: str) -> int | None:
    if name.isdecimal():
        return int(name) if 0 < int(name) < signal.NSIG else None
    number = getattr(signal, f"SIG{name.upper().removeprefix('SIG')}", None)
    return int(number) if isinstance(number, signal.Signals) else None


def _directives(prompt: str) -> list[str]:
    """The words of the prompt, without the context block that may open it (and only there)."""
    lines = [line.strip() for line in prompt.split("\n")]
    if lines[0] == OPEN_CONTEXT and CLOSE_CONTEXT in lines:
        lines = lines[lines.index(CLOSE_CONTEXT) + 1 :]
    return [line for line in lines if line]


class Arguments:
    """The command line."""

    def __init__(self, words: list[str]) -> None:
        self.resume: str | None = None
        self.model: str | None = None
        self.fork = False
        self.version = False
        left = iter(words)
        for word in left:
            if word == "--resume":
                self.resume = _value(word, next(left, None))
            elif word == "--model":
                self.model = _value(word, next(left, None))
            elif word == "--fork":
                self.fork = True
            elif word == "--version":
                self.version = True
            else:
                _usage(f"unknown argument {word!r}")
        if self.fork and self.resume is None:
            _usage("--fork needs --resume")


def _value(option: str, value: str | None) -> str:
    return value if value is not None else _usage(f"{option} needs a value")


def _usage(message: str) -> NoReturn:
    os.write(2, f"script agent: {message}\n".encode("utf-8", "replace"))
    raise Stopped(2)


def _open_session(arguments: Arguments, directives: list[str]) -> Session | None:
    """The session of this turn; None when the one to resume is not here."""
    home = os.environ.get("SEGUE_SCRIPT_HOME") or os.path.expanduser("~/.segue-script")
    work_dir = os.path.realpath(os.getcwd())
    if arguments.resume is None:
        return Session(home, work_dir, _new_id())
    kept = Session(home, work_dir, arguments.resume)
    if not is_session_id(arguments.resume) or not kept.load():
        return None
    if "new-session" in directives:
        return Session(home, work_dir, _new_id())
    return kept.copy() if arguments.fork else kept


def _take_turn(arguments: Arguments, prompt: str) -> int:
    directives = _directives(prompt)
    output = Output(silent="silent" in directives)
    session = _open_session(arguments, directives)
    if session is None:
        error = f"{NOT_FOUND}{arguments.resume}"
        output.emit("result", success=False, error=error, session_id=arguments.resume)
        return 1
    session.turns += 1
    session.save()
    output.emit(
        "session",
        session_id=session.id,
        model=arguments.model or "script",
        version=VERSION,
        cwd=session.work_dir,
    )
    turn = Turn(session, output)
    _TERMINATION.watch(turn)
    try:
        turn.run(directives)
        turn.finish(prompt)
    except Failed as failure:
        turn.give_up(failure.reason, failure.message)
        return 1
    except KeyboardInterrupt:
        # Like Claude, which reports an interrupt as a failure and exits with code 0.
        turn.give_up("process_failure", "interrupted")
    finally:
        turn.clean_up()
    return 0


def main(words: list[str]) -> int:
    """Take one turn; the answer is the exit code."""
    signal.signal(signal.SIGTERM, _TERMINATION.handle)
    try:
        arguments = Arguments(words)
        if arguments.version:
            os.write(1, f"{VERSION} (Segue script agent)\n".encode())
            return 0
        with open(0, "rb", closefd=False) as stdin:
            prompt = stdin.read().decode("utf-8", "replace")
        return _take_turn(arguments, prompt)
    except Stopped as stopped:
        return stopped.code


if __name__ == "__main__":
    # Nothing here is buffered or registered: leaving at once spares the interpreter's shutdown.
    os._exit(main(sys.argv[1:]))
