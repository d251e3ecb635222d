"""What an agent CLI must offer to be run: the `Provider` protocol and its values.

A provider is pure: it says which command to start, turns output lines into events, and judges how
the run ended. Starting, reading and killing processes is `machine`'s work; looking at files that a
provider names (`Provider.session_paths`) as well.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from domain.events import Event
from domain.outcomes import Usage


@dataclass(frozen=True)
class Limits:
    """Watchdog limits of a provider, in seconds, counted without the machine's sleep."""

    startup: float = 120.0
    idle: float = 30 * 60.0
    #: While a tool call is open.
    tool_idle: float = 2 * 3600.0
    #: From the result event to the process's own exit; then it is terminated, still completed.
    after_result: float = 10.0
    #: From SIGTERM to SIGKILL.
    stop_grace: float = 5.0


@dataclass(frozen=True)
class LaunchRequest:
    """What a command line is built from. The prompt is not part of it: it goes to stdin."""

    binary: str
    work_dir: str
    model: str | None = None
    args: Sequence[str] = ()
    session_id: str | None = None
    fork: bool = False


@dataclass(frozen=True)
class Launch:
    """A command and the variables that this provider needs on top of the environment."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ParsedRun:
    """What the parser knows after the last byte; a pure function of the output's bytes."""

    #: The session the provider revealed after it accepted the prompt.
    session_id: str | None = None
    #: Named, but no sign of acceptance yet. A run that dies so early may still have stored its prompt:
    #: where `Provider.session_paths` finds the session, it can be gone on with.
    revealed_session_id: str | None = None
    #: A result event was seen; ``success`` is its own word (never the exit code's).
    result_seen: bool = False
    success: bool = False
    result_text: str = ""
    #: Structured failure facts in the provider's own words, for the classifier.
    error_kind: str | None = None
    error_status: int | None = None
    error_text: str = ""
    tools_used: int = 0
    open_tools: int = 0
    usage: Usage = Usage()
    resets_at: datetime | None = None
    #: The failure reason of a watchdog's stop at this point, where the provider knows better than the
    #: watchdog what the silence means.
    stall_reason: str | None = None


@dataclass(frozen=True)
class EndedRun:
    """A finished process, as the classifier sees it."""

    parsed: ParsedRun
    exit_code: int | None
    signal: int | None
    #: The last lines of stderr, decoded, without ANSI sequences (at most 8 KiB).
    stderr_tail: str = ""
    requested_session_id: str | None = None
    #: When the process ended (null: nobody recorded it), for messages that state a time relative to it.
    ended_at: datetime | None = None


@dataclass(frozen=True)
class Verdict:
    """How a run ended: ``reason`` is ``completed`` or a failure reason of `domain.reasons`."""

    reason: str
    #: What went wrong, for a person (empty on success).
    message: str = ""
    #: The line that proves it, cut at 2,000 characters.
    evidence: str = ""
    #: The provider refused the requested session, so it must be retired.
    resume_refused: bool = False
    resets_at: datetime | None = None


class Parser(Protocol):
    """Turns the lines of one process into events. State and output depend on the bytes alone."""

    def feed(self, line: bytes) -> list[Event]:
        """Events of one line (without its newline). Never raises: what it can't read is ``raw``."""
        ...

    def parsed(self) -> ParsedRun:
        """What is known so far; may be asked at any time."""
        ...


class Provider(Protocol):
    """The adapter for one agent CLI."""

    name: str
    #: A session can be copied so that the original stays as it is.
    can_fork: bool
    limits: Limits

    def executable(self) -> str:
        """The name looked for on PATH when the worker's TOML gives no path.

        A built-in provider names an absolute path; a search of PATH (`shutil.which`) answers it as is.
        """
        ...

    def version_argv(self, binary: str) -> tuple[str, ...]:
        """The command that prints the version on its first line of stdout."""
        ...

    def command(self, request: LaunchRequest) -> Launch:
        """The command of a fresh run, or of a resumed one when ``session_id`` is set."""
        ...

    def parser(self, requested_session_id: str | None = None) -> Parser:
        """A parser for one process's output.

        ``requested_session_id`` is the session that the run must go on in: another id is believed
        only after the run succeeded. None for a new session and for a fork, whose id is new by right.
        """
        ...

    def classify(self, run: EndedRun) -> Verdict:
        """Judge a run that ended by itself (cancels and watchdogs are judged by the runner)."""
        ...

    def session_paths(self, session_id: str, work_dir: str, env: Mapping[str, str]) -> tuple[str, ...] | None:
        """Glob patterns of which one must match a non-empty file for the session to exist.

        ``work_dir`` is a real path, ``env`` the environment of the agent's process. No pattern at all:
        the session can't exist. None: this provider's store can't be looked into, so the session is
        taken as existing.
        """
        ...


def verifies_session(provider: Provider) -> bool:
    """Whether a session counts only when `Provider.session_paths` finds it after the run.

    A provider that sometimes names a session which it never stores says so with
    ``verify_session_after_run = True``.
    """
    return getattr(provider, "verify_session_after_run", False) is True


def parser_for(provider: Provider, session_id: str | None, *, fork: bool) -> Parser:
    """The parser of a run on these terms.

    A fork's output reads like a new session's, unless the provider has a ``fork_parser`` of its own.
    """
    if not fork:
        return provider.parser(session_id)
    make: Callable[[], Parser] = getattr(provider, "fork_parser", provider.parser)
    return make()
