"""The driver behind ``acp``: one turn of an Agent Client Protocol agent as a one-shot command.

::

    python -I acp_driver.py [--load SESSION] [--model MODEL] -- COMMAND [ARGUMENT ...]

The prompt is read from stdin to its end. COMMAND is started with pipes, in a session of its own, so that a
SIGTERM to our group reaches us alone and the agent is asked to cancel before it is ended. JSON lines go to
stdout; ``acp_parser`` reads them:

=============  ====================================================================================
agent          ``name``, ``version``: what ``initialize`` answered
session        ``session_id``, ``loaded``, ``model``: only after the agent worked on the prompt
text           ``text``, ``message_id``: consecutive chunks of one message, joined
thinking       the same
update         ``update``: another ``session/update``, as the agent sent it
permission     ``tool_call``, ``option``: a request that was granted (null: nothing in it could be)
question       ``text``: a question to the person, who is not there
noise          ``text``, ``bytes``, ``note``: what the agent printed that is no message of the protocol
result         ``stop_reason``, ``usage``, ``meta``: the last line of a turn that was answered
stopped        the same, of a turn that ended because we asked for it
error          ``kind``, ``message``, ``code``, ``data``: the last line of a turn that was not
=============  ====================================================================================

Exit codes: 0 after ``end_turn``, 1 after any other end, 143 after SIGTERM (also SIGINT, SIGHUP).

A stand-alone program: the standard library and ``agent-client-protocol``, nothing of ours. The protocol
package takes longer to import than everything else here, so it is imported while the agent starts.
"""

import argparse
import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

if TYPE_CHECKING:
    from acp.connection import Connection

Json = dict[str, Any]

EXIT_FAILED = 1
EXIT_STOPPED = 143

#: Longest message that is read; a longer one is skipped and noted.
LINE_LIMIT = 64 * 1024 * 1024
CHUNK_BYTES = 256 * 1024
#: A message of the agent is printed in parts of about this many characters, cut at white space.
TEXT_LIMIT = 64 * 1024
#: A message that grows for longer than this shows its complete lines.
TEXT_PATIENCE_SECONDS = 2.0
NOISE_LIMIT_BYTES = 1000
#: An agent that prints garbage without end is noted so many times.
NOISE_NOTES = 100

#: The protocol lets updates come after the answer they belong to.
QUIET_SECONDS, QUIET_LIMIT_SECONDS = 0.25, 2.0
#: Some agents go on replaying the history after they have answered ``session/load``.
REPLAY_QUIET_SECONDS, REPLAY_LIMIT_SECONDS = 0.5, 15.0
#: From ``session/cancel`` to the end of the connection.
CANCEL_SECONDS = 2.5
#: From the end of the agent's stdin to SIGTERM, and from there to SIGKILL.
LEAVE_SECONDS, TERM_SECONDS = 2.0, 1.5
AUTHENTICATE_SECONDS = 30.0

AUTH_REQUIRED = -32000
#: Updates that prove that the agent works on the prompt.
PROGRESS = frozenset({"agent_message_chunk", "agent_thought_chunk", "tool_call", "tool_call_update", "plan"})
TEXTS = {"agent_message_chunk": "text", "agent_thought_chunk": "thinking"}
#: Updates that say nothing about this turn.
UNTOLD = frozenset(
    {"user_message_chunk", "available_commands_update", "current_mode_update", "config_option_update"}
)
#: Best first: what is granted once leaves no trace in the person's settings.
GRANTS = ("allow_once", "allow_always")


class Failure(Exception):
    """The turn can't go on. ``kind`` is the stage it failed in, ``code`` and ``data`` the agent's words."""

    def __init__(self, kind: str, message: str, *, code: object = None, data: object = None) -> None:
        super().__init__(message)
        self.kind = kind
        self.code = code
        self.data = data


class Output:
    """Our lines on stdout. Chunks of one message are joined; every other line comes after them."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._kind = ""
        self._message_id: str | None = None
        self._held = ""
        self._timer: asyncio.TimerHandle | None = None
        self._notes = 0

    def put(self, kind: str, /, **fields: Any) -> None:
        """Print a line, after the text that came before it."""
        self.flush()
        self._print({"type": kind, **fields})

    def text(self, kind: str, text: str, message_id: str | None) -> None:
        """Take a chunk of a message."""
        if (kind, message_id) != (self._kind, self._message_id):
            self.flush()
            self._kind, self._message_id = kind, message_id
        self._held += text
        if len(self._held) >= TEXT_LIMIT:
            self._release(max(self._held.rfind(mark) for mark in "\n ") + 1 or len(self._held))
        elif self._held and self._timer is None:
            self._wind_up()

    def noise(self, line: bytes, note: str, size: int | None = None) -> None:
        self._notes += 1
        if self._notes > NOISE_NOTES:
            return
        if self._notes == NOISE_NOTES:
            note += "; what follows of this kind is not noted"
        text = line[:NOISE_LIMIT_BYTES].decode("utf-8", "replace")
        self.put("noise", text=text, bytes=len(line) if size is None else size, note=note)

    def flush(self) -> None:
        self._release(len(self._held))
        self._kind, self._message_id = "", None

    def _wind_up(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(TEXT_PATIENCE_SECONDS, self._release_lines)

    def _release_lines(self) -> None:
        self._release(self._held.rfind("\n") + 1)
        if self._held:
            self._wind_up()

    def _release(self, size: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        text, self._held = self._held[:size], self._held[size:]
        if text:
            self._print({"type": self._kind, "text": text, "message_id": self._message_id})

    def _print(self, line: Json) -> None:
        # ASCII: a lone surrogate stays an escape, and U+2028 splits no line.
        self._file.write(json.dumps(line).encode() + b"\n")
        self._file.flush()


class AgentPipe:
    """The agent's stdin and stdout as messages: the transport below the protocol's `Connection`.

    What is no message is noted and skipped; a response that would break the connection is mended.
    """

    def __init__(self, process: asyncio.subprocess.Process, output: Output) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._stdin = process.stdin
        self._stdout = process.stdout
        self._output = output
        self._buffer = bytearray()
        self._searched = 0
        self._skipped = 0

    async def send(self, message: Json) -> None:
        self._stdin.write(json.dumps(message).encode() + b"\n")
        await self._stdin.drain()

    async def receive(self) -> Json | None:
        """The next message; None at the end of the agent's output."""
        while (line := await self._line()) is not None:
            # The handlers of what came before run first, and a flood starves nobody.
            await asyncio.sleep(0)
            message = self._message_in(line)
            if message is not None:
                return message
        return None

    async def close(self) -> None:
        """End the agent's stdin."""
        self._stdin.close()
        with contextlib.suppress(OSError):
            await self._stdin.wait_closed()

    async def _line(self) -> bytes | None:
        while True:
            end = self._buffer.find(b"\n", self._searched)
            if end >= 0:
                return self._take(end)
            self._searched = len(self._buffer)
            if self._searched > LINE_LIMIT:
                self._skipped += self._searched
                self._drop(self._searched)
            chunk = await self._stdout.read(CHUNK_BYTES)
            if not chunk:
                return self._take(len(self._buffer)) if self._buffer else None
            self._buffer += chunk

    def _take(self, end: int) -> bytes:
        size = self._skipped + end
        line = bytes(self._buffer[:end]) if size <= LINE_LIMIT else b""
        self._drop(end + 1)
        self._skipped = 0
        if size > LINE_LIMIT:
            self._output.noise(b"", f"longer than {LINE_LIMIT} bytes, skipped", size)
        return line

    def _drop(self, size: int) -> None:
        del self._buffer[:size]
        self._searched = 0

    def _message_in(self, line: bytes) -> Json | None:
        if not line.strip():
            return None
        try:
            message = json.loads(line)
        except (ValueError, RecursionError):
            self._output.noise(line, "not JSON")
            return None
        if not _is_message(message):
            self._output.noise(line, "not a message of the protocol")
            return None
        error = message.get("error")
        if error is not None and not isinstance(error, dict):
            message["error"] = {"code": None, "message": str(error)}
        return dict(message)


class Turn:
    """One prompt: from ``initialize`` to the last update after its answer."""

    def __init__(self, pipe: AgentPipe, output: Output, options: argparse.Namespace, prompt: str) -> None:
        self._output = output
        self._load: str | None = options.load
        self._model: str | None = options.model
        self._prompt = prompt
        self._connection = _connect(self._handle, pipe)
        self._updated = asyncio.Event()
        self._session_id = options.load or ""
        self._current_model = ""
        #: Updates before the prompt are the history's.
        self._prompted = False
        self._announced = False
        self._cancelled = False

    async def play(self) -> bool:
        """Whether the agent says that it reached the end of its turn. Raises `Failure`."""
        agent = await self._initialize()
        opened = await self._open(agent)
        if self._model:
            await self._choose_model(opened, self._model)
        if self._load is not None:
            await self._until_quiet(REPLAY_QUIET_SECONDS, REPLAY_LIMIT_SECONDS)
        self._prompted = True
        blocks = [{"type": "text", "text": self._prompt}]
        answer = await self._ask("prompt", "session_prompt", sessionId=self._session_id, prompt=blocks)
        await self._until_quiet(QUIET_SECONDS, QUIET_LIMIT_SECONDS)
        stop_reason = answer.get("stopReason")
        if stop_reason == "end_turn":
            self._announce()
        # What is no end of the agent's own must not pass for a result: who stopped it knows why.
        kind = "stopped" if self._cancelled and stop_reason == "cancelled" else "result"
        usage, meta = answer.get("usage"), answer.get("_meta")
        self._output.put(kind, stop_reason=stop_reason, usage=usage, meta=meta)
        return bool(stop_reason == "end_turn")

    async def cancel(self) -> None:
        """Ask the agent to end its turn; its answer, if any, is what `play` waits for."""
        self._cancelled = True
        if self._prompted:
            from acp.meta import AGENT_METHODS

            with contextlib.suppress(OSError):
                await self._connection.send_notification(
                    AGENT_METHODS["session_cancel"], {"sessionId": self._session_id}
                )

    async def close(self) -> None:
        """End the connection, and the agent's stdin with it."""
        with contextlib.suppress(OSError):
            await self._connection.close()

    # -- stages -----------------------------------------------------------------------------------

    async def _initialize(self) -> Json:
        from acp.meta import PROTOCOL_VERSION

        agent = await self._ask(
            "initialize",
            "initialize",
            protocolVersion=PROTOCOL_VERSION,
            # The agent's own tools know its sandbox and its rules; ours would only be in between.
            clientCapabilities={"fs": {"readTextFile": False, "writeTextFile": False}, "terminal": False},
            clientInfo={"name": "segue", "version": _version_of("segue")},
        )
        version = agent.get("protocolVersion")
        if version != PROTOCOL_VERSION:
            raise Failure("protocol", f"The agent speaks version {version} of the protocol, not 1.")
        info = _object(agent.get("agentInfo"))
        self._output.put("agent", name=info.get("name"), version=info.get("version"))
        return agent

    async def _open(self, agent: Json) -> Json:
        try:
            return await self._open_session(agent)
        except Failure as failure:
            if failure.code != AUTH_REQUIRED:
                raise
            await self._authenticate(agent, failure)
        return await self._open_session(agent)

    async def _open_session(self, agent: Json) -> Json:
        where = {"cwd": str(Path.cwd()), "mcpServers": []}
        if self._load is None:
            opened = await self._ask("new", "session_new", **where)
            session_id = opened.get("sessionId")
            if not isinstance(session_id, str) or not session_id:
                raise Failure("new", "The agent gave its new session no id.")
            self._session_id = session_id
        else:
            opened = await self._ask("load", _way_back(agent), sessionId=self._load, **where)
        self._current_model = _current_model(opened)
        return opened

    async def _authenticate(self, agent: Json, failure: Failure) -> None:
        """By a method that needs nobody; raises a `Failure` that names the others."""
        methods = [method for method in _list(agent.get("authMethods")) if isinstance(method, dict)]
        for method in filter(_needs_nobody, methods):
            with contextlib.suppress(Failure, TimeoutError):
                asking = self._ask("authentication", "authenticate", methodId=method.get("id"))
                await asyncio.wait_for(asking, AUTHENTICATE_SECONDS)
                return
        ways = "; ".join(_describe_method(method) for method in methods) or "none"
        message = f"{failure}. The agent must be logged in on this machine first. Its ways: {ways}"
        raise Failure("authentication", message, code=failure.code, data=failure.data)

    async def _choose_model(self, opened: Json, model: str) -> None:
        if model == self._current_model:
            return
        if _object(opened.get("models")):
            # Older than the options below, no longer in the package's list, and what most agents know.
            await self._send("model", "session/set_model", {"sessionId": self._session_id, "modelId": model})
        elif option := _model_option(opened):
            await self._ask(
                "model",
                "session_set_config_option",
                sessionId=self._session_id,
                configId=option.get("id"),
                value=model,
            )
        else:
            raise Failure("model", f"The agent lets nobody choose its model, so {model!r} can't be set.")
        self._current_model = model

    async def _until_quiet(self, pause: float, limit: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit):
                while True:
                    self._updated.clear()
                    await asyncio.wait_for(self._updated.wait(), pause)

    # -- what the agent sends ---------------------------------------------------------------------

    async def _handle(self, method: str, params: Any, is_notification: bool) -> Json | None:  # noqa: FBT001
        from acp.exceptions import RequestError
        from acp.meta import CLIENT_METHODS

        content = _object(params)
        if method == CLIENT_METHODS["session_update"]:
            self._update(content)
            return None
        if method == CLIENT_METHODS["session_request_permission"]:
            return self._permit(content)
        if method == CLIENT_METHODS["elicitation_create"]:
            self._output.put("question", text=str(content.get("message") or ""))
            return {"action": "decline"}
        if is_notification:
            return None
        raise RequestError.method_not_found(method)

    def _update(self, content: Json) -> None:
        self._updated.set()
        # Another session is a subagent's, whose work the agent reports as a tool call of ours.
        if not self._prompted or content.get("sessionId", self._session_id) != self._session_id:
            return
        update = _object(content.get("update"))
        kind = str(update.get("sessionUpdate"))
        if kind in PROGRESS:
            self._announce()
        if kind in TEXTS:
            message_id = update.get("messageId")
            known = message_id if isinstance(message_id, str) else None
            self._output.text(TEXTS[kind], _text_in(update.get("content")), known)
        elif kind not in UNTOLD:
            self._output.put("update", update=update)

    def _announce(self) -> None:
        if self._announced:
            return
        self._announced = True
        loaded = self._load is not None
        self._output.put("session", session_id=self._session_id, loaded=loaded, model=self._current_model)

    def _permit(self, content: Json) -> Json:
        options = [option for option in _list(content.get("options")) if isinstance(option, dict)]
        chosen = next((o for kind in GRANTS for o in options if o.get("kind") == kind), None)
        if self._prompted:
            name = chosen.get("name") if chosen else None
            self._output.put("permission", tool_call=content.get("toolCall"), option=name)
        if chosen is None:
            return {"outcome": {"outcome": "cancelled"}}
        return {"outcome": {"outcome": "selected", "optionId": chosen.get("optionId")}}

    # -- asking the agent -------------------------------------------------------------------------

    async def _ask(self, kind: str, name: str, **params: Any) -> Json:
        from acp.meta import AGENT_METHODS

        return await self._send(kind, AGENT_METHODS[name], params)

    async def _send(self, kind: str, method: str, params: Json) -> Json:
        from acp.exceptions import RequestError

        try:
            return _object(await self._connection.send_request(method, params))
        except RequestError as error:
            stage = "authentication" if error.code == AUTH_REQUIRED else kind
            raise Failure(stage, str(error), code=error.code, data=error.data) from error
        except OSError as error:
            raise Failure("exited", f"The agent's output ended before it answered {method}.") from error


async def drive(options: argparse.Namespace, prompt: str, output: Output) -> int:
    """Start the agent, play the turn, end the agent. Returns our exit code."""
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    try:
        process = await _start(options.command)
    except Failure as failure:
        return _report(output, failure)
    try:
        return await _play(Turn(AgentPipe(process, output), output, options, prompt), output, stopped)
    finally:
        await _see_off(process)


async def _play(turn: Turn, output: Output, stopped: asyncio.Event) -> int:
    playing = asyncio.create_task(turn.play())
    stopping = asyncio.create_task(stopped.wait())
    await asyncio.wait([playing, stopping], return_when=asyncio.FIRST_COMPLETED)
    try:
        if not playing.done():
            await turn.cancel()
            await asyncio.wait([playing], timeout=CANCEL_SECONDS)
            return EXIT_STOPPED
        return 0 if playing.result() else EXIT_FAILED
    except Failure as failure:
        return _report(output, failure)
    finally:
        playing.cancel()
        stopping.cancel()
        # What became of it is known by now; an error of a cancelled turn is of no interest.
        await asyncio.wait([playing, stopping])
        _ = playing.cancelled() or playing.exception()
        output.flush()
        await turn.close()


async def _start(command: list[str]) -> asyncio.subprocess.Process:
    if not command:
        raise Failure("command", "No command: the agent's args name the program to run.")
    try:
        return await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=CHUNK_BYTES,
            start_new_session=True,
        )
    except OSError as error:
        message = f"{command[0]}: {error.strerror or error}"
        raise Failure("executable", message, code=error.errno) from error


async def _see_off(process: asyncio.subprocess.Process) -> None:
    """Wait for the agent, whose stdin has ended; then SIGTERM, then SIGKILL to its group."""
    for seconds, number in ((LEAVE_SECONDS, signal.SIGTERM), (TERM_SECONDS, signal.SIGKILL)):
        if await _has_left(process, seconds):
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
    await _has_left(process, TERM_SECONDS)


async def _has_left(process: asyncio.subprocess.Process, seconds: float) -> bool:
    try:
        await asyncio.wait_for(process.wait(), seconds)
    except TimeoutError:
        return False
    return True


def _report(output: Output, failure: Failure) -> int:
    output.put("error", kind=failure.kind, message=str(failure), code=failure.code, data=failure.data)
    return EXIT_FAILED


def _connect(handler: Callable[[str, Any, bool], Awaitable[Any]], pipe: AgentPipe) -> "Connection":
    from acp.connection import Connection

    return Connection(handler, pipe)


def _way_back(agent: Json) -> str:
    """The method that opens an old session; raises `Failure` when the agent has none."""
    capabilities = _object(agent.get("agentCapabilities"))
    if capabilities.get("loadSession") is True:
        return "session_load"
    if "resume" in _object(capabilities.get("sessionCapabilities")):
        return "session_resume"
    raise Failure("unloadable", "The agent can't open a session again.")


def _current_model(opened: Json) -> str:
    known = _object(opened.get("models")).get("currentModelId")
    if known is None:
        known = (_model_option(opened) or {}).get("currentValue")
    return known if isinstance(known, str) else ""


def _model_option(opened: Json) -> Json | None:
    options = [option for option in _list(opened.get("configOptions")) if isinstance(option, dict)]
    return next((option for option in options if "model" in (option.get("category"), option.get("id"))), None)


def _needs_nobody(method: Json) -> bool:
    """A method that takes a key from the environment, which the agent inherits from us."""
    names = [_object(variable).get("name") for variable in _list(method.get("vars"))]
    if names:
        return all(isinstance(name, str) and os.environ.get(name) for name in names)
    words = f"{method.get('id')} {method.get('name')}".lower()
    return any(word in words.replace("-", " ").replace("_", " ") for word in ("api key", "apikey"))


def _describe_method(method: Json) -> str:
    parts = (method.get("name") or method.get("id"), method.get("description"))
    return ": ".join(str(part) for part in parts if part)


def _text_in(content: object) -> str:
    block = _object(content)
    text = block.get("text")
    if isinstance(text, str):
        return text
    kind = block.get("type")
    uri = block.get("uri")
    return f"[{kind} {uri}]" if uri else f"[{kind}]"


def _is_message(value: object) -> bool:
    """A request or notification with a method's name, or a response with a usable id."""
    if not isinstance(value, dict):
        return False
    if "id" in value and not isinstance(value["id"], int | str | None):
        return False
    method = value.get("method")
    return isinstance(method, str) or (method is None and "id" in value)


def _object(value: object) -> Json:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _version_of(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "0"


def _options(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="acp_driver.py", allow_abbrev=False)
    version = f"agent-client-protocol {_version_of('agent-client-protocol')}"
    parser.add_argument("--version", action="version", version=version)
    parser.add_argument("--load", metavar="SESSION")
    parser.add_argument("--model", metavar="MODEL")
    end = words.index("--") if "--" in words else len(words)
    options = parser.parse_args(words[:end])
    options.command = words[end + 1 :]
    return options


def main() -> int:
    options = _options(sys.argv[1:])
    prompt = sys.stdin.buffer.read().decode("utf-8", "replace")
    return asyncio.run(drive(options, prompt, Output(sys.stdout.buffer)))


if __name__ == "__main__":
    sys.exit(main())
