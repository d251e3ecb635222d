"""A fake agent of the Agent Client Protocol, well behaved or not: ``python acp_agent.py BEHAVIOUR [ARG]``.

A stand-alone program of the standard library. Without a bad habit it keeps its session in ``session.json``
of the working directory, tells the history when it is loaded, and answers ``ok (n=N)``, N being the number
of prompts in the session. What BEHAVIOUR changes is in the class of that name.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any, ClassVar

Json = dict[str, Any]

SESSION = "sess-1"
OTHER = "11111111-2222-4333-8444-555555555555"
MIB = 1024 * 1024


class RefusedRequest(Exception):
    """Becomes a JSON-RPC error."""

    def __init__(self, code: int, message: object, data: object = None) -> None:
        super().__init__(str(message))
        self.error = {"code": code, "message": message, "data": data}


class Agent:
    """The good agent."""

    capabilities: ClassVar[Json] = {"loadSession": True}
    auth_methods: ClassVar[list[Json]] = []

    def __init__(self, args: list[str]) -> None:
        self.args = args
        self.session_id = SESSION

    # -- the wire ---------------------------------------------------------------------------------

    def write(self, line: str) -> None:
        sys.stdout.write(line + "\n")
        sys.stdout.flush()

    def send(self, message: Json) -> None:
        self.write(json.dumps({"jsonrpc": "2.0", **message}))

    def update(self, kind: str, /, **fields: Any) -> None:
        params = {"sessionId": self.session_id, "update": {"sessionUpdate": kind, **fields}}
        self.send({"method": "session/update", "params": params})

    def say(self, text: str, message_id: str | None = None) -> None:
        more = {"messageId": message_id} if message_id else {}
        self.update("agent_message_chunk", content={"type": "text", "text": text}, **more)

    def ask(self, method: str, **params: Any) -> Json:
        """A request to the client, and its answer."""
        self.send({"id": f"ask-{method}", "method": method, "params": params})
        while True:
            message = read()
            if message.get("id") == f"ask-{method}":
                return message

    def run(self) -> None:
        while True:
            message = read()
            if "id" in message and "method" in message:
                self.serve(message)
            elif message.get("method") == "session/cancel":
                self.cancelled()

    def serve(self, message: Json) -> None:
        handler = getattr(self, "on_" + message["method"].replace("/", "_"), None)
        try:
            result = (handler or self.unknown)(message["params"])
        except RefusedRequest as refused:
            self.send({"id": message["id"], "error": refused.error})
        else:
            self.send({"id": message["id"], "result": result})
        self.after(message["method"])

    def unknown(self, params: Json) -> Json:
        raise RefusedRequest(-32601, "Method not found")

    def after(self, method: str) -> None:
        """What it does after it has answered."""

    def cancelled(self) -> None:
        """Nothing to cancel: a prompt is answered before the next message is read."""

    # -- the requests -----------------------------------------------------------------------------

    def on_initialize(self, params: Json) -> Json:
        info = {"name": "fake", "version": "1.2.3"}
        return {
            "protocolVersion": params["protocolVersion"],
            "agentInfo": info,
            "agentCapabilities": self.capabilities,
            "authMethods": self.auth_methods,
        }

    def on_session_new(self, params: Json) -> Json:
        self.store([])
        return {"sessionId": self.session_id}

    def on_session_load(self, params: Json) -> Json:
        if params["sessionId"] != self.session_id or not Path("session.json").exists():
            raise RefusedRequest(-32602, "session not found")
        for prompt in self.prompts():
            self.update("user_message_chunk", content={"type": "text", "text": prompt})
            self.say(f"HISTORY of {prompt}")
        return {}

    def on_session_prompt(self, params: Json) -> Json:
        text = params["prompt"][0]["text"]
        self.store([*self.prompts(), text])
        return self.turn(text)

    def turn(self, text: str) -> Json:
        """What the prompt makes it do."""
        self.say(f"ok (n={len(self.prompts())})")
        return {"stopReason": "end_turn"}

    def prompts(self) -> list[str]:
        prompts: list[str] = json.loads(Path("session.json").read_text())
        return prompts

    def store(self, prompts: list[str]) -> None:
        Path("session.json").write_text(json.dumps(prompts))


class Mute(Agent):
    """Never answers, ignores SIGTERM, and stays when its input ends."""

    def run(self) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        while True:
            time.sleep(1)


class Stubborn(Agent):
    """Works on the prompt for ever, whatever it is asked or sent; its tool is another process."""

    def turn(self, text: str) -> Json:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        self.say("working\non it")
        if os.fork() == 0:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        while True:
            time.sleep(1)


class Cancellable(Agent):
    """Answers the cancel as the protocol wants it."""

    def turn(self, text: str) -> Json:
        self.say("working")
        while read().get("method") != "session/cancel":
            pass
        self.say(" no more")
        return {"stopReason": "cancelled"}


class Flood(Agent):
    """ARG words in as many chunks, and as many calls of one tool."""

    def turn(self, text: str) -> Json:
        for number in range(int(self.args[0])):
            self.update("tool_call_update", toolCallId="t", status="in_progress")
            self.say(f"w{number} ", "m")
        return {"stopReason": "end_turn"}


class Garbage(Agent):
    """Prints what is no message at every turn."""

    LINES: tuple[str, ...] = (
        "plain words",
        "[1, 2]",
        "17",
        '{"neither": "a method nor an id"}',
        '{"id": [1], "result": {}}',
        '{"id": 4711, "result": {}}',
        '{"id": "x", "error": "words"}',
        '{"method": 5}',
        '{"method": "unknown/notification", "params": null}',
        '{"method": "session/update", "params": [1]}',
        '{"method": "session/update", "params": {"update": "no object"}}',
        "[" * 100_000,
        "",
    )

    def write(self, line: str) -> None:
        for garbage in self.LINES:
            super().write(garbage)
        sys.stdout.flush()
        sys.stdout.buffer.write(b"\xff\xfe\x00\n")
        super().write(line)


class Chatterbox(Garbage):
    """More garbage than anyone wants to read."""

    LINES = ("noise",) * 300


class Exits(Agent):
    """Leaves at the request that ARG names, with last words."""

    def serve(self, message: Json) -> None:
        if message["method"] == self.args[0]:
            sys.stderr.write("starting\n" + " ".join(self.args[1:]) + "\n")
            sys.exit(3)
        super().serve(message)


class Asks(Agent):
    """Asks for a permission, then for things that the client does not do, then a question."""

    def turn(self, text: str) -> Json:
        self.update("tool_call", toolCallId="t1", title="Edit", kind="edit", status="pending")
        options = [
            {"optionId": "no", "name": "No", "kind": "reject_once"},
            {"optionId": "always", "name": "Always", "kind": "allow_always"},
            {"optionId": "once", "name": "Once", "kind": "allow_once"},
        ]
        call = {"toolCallId": "t1", "title": "Edit a.txt", "rawInput": {"path": "a.txt"}}
        answer = self.ask("session/request_permission", sessionId=SESSION, toolCall=call, options=options)
        self.update("tool_call_update", toolCallId="t1", status="completed", rawOutput=answer["result"])
        refusing = self.ask("session/request_permission", sessionId=SESSION, toolCall=call, options=[])
        codes = [
            self.ask(method, sessionId=SESSION, path="/etc/passwd", command="ls", content="")["error"]["code"]
            for method in ("fs/read_text_file", "fs/write_text_file", "terminal/create")
        ]
        self.say(json.dumps([refusing["result"], codes]))
        if self.args:
            self.ask("elicitation/create", sessionId=SESSION, mode="form", message="Which colour?")
        return {"stopReason": "end_turn"}


class Huge(Agent):
    """A message of 8 MiB, and one of more than 64 MiB."""

    def turn(self, text: str) -> Json:
        self.say("x" * (8 * MIB), "big")
        self.say("y" * (64 * MIB + 1), "bigger")
        self.say("the end", "last")
        return {"stopReason": "end_turn"}


class Late(Agent):
    """Goes on telling the history after it has loaded, and its answer after it has given it."""

    def unknown(self, params: Json) -> Json:
        raise RefusedRequest(-32601, "Method not found")

    def after(self, method: str) -> None:
        if method == "session/load":
            for number in range(5):
                time.sleep(0.05)
                self.say(f"HISTORY {number}")
        if method == "session/prompt":
            time.sleep(0.05)
            self.say(" and more")


class Guarded(Agent):
    """Wants a login; a key in KEY_FOR_TESTS will do."""

    auth_methods: ClassVar[list[Json]] = [
        {"id": "browser", "name": "Log in", "description": "Opens a browser"},
        {"id": "key", "name": "Key", "type": "env_var", "vars": [{"name": "KEY_FOR_TESTS"}]},
    ]
    open = False

    def on_authenticate(self, params: Json) -> Json:
        if params["methodId"] != "key":
            raise RefusedRequest(-32603, "nobody is there")
        self.open = True
        return {}

    def on_session_new(self, params: Json) -> Json:
        if not self.open:
            raise RefusedRequest(-32000, "Authentication required")
        return super().on_session_new(params)


class Ends(Agent):
    """Ends its turn with the stop reason ARG, and says nothing; the rest of ARG goes to stderr."""

    def turn(self, text: str) -> Json:
        sys.stderr.write(" ".join(self.args[1:]) + "\n")
        return {"stopReason": self.args[0]}


class Fails(Agent):
    """Refuses the request ARG with the code and the message that follow."""

    def serve(self, message: Json) -> None:
        if message["method"] == self.args[0]:
            error = {"code": int(self.args[1]), "message": " ".join(self.args[2:])}
            self.send({"id": message["id"], "error": error})
        else:
            super().serve(message)


class Resumes(Agent):
    """Can't load a session, but resume it without its history; a model may be chosen by an option."""

    capabilities: ClassVar[Json] = {"sessionCapabilities": {"resume": {}}}
    model = "small"

    def on_session_new(self, params: Json) -> Json:
        return {**super().on_session_new(params), **self.options()}

    def on_session_resume(self, params: Json) -> Json:
        return self.options()

    def on_session_set_config_option(self, params: Json) -> Json:
        self.model = params["value"]
        return self.options()

    def turn(self, text: str) -> Json:
        self.say(f"{self.model} (n={len(self.prompts())})")
        return {"stopReason": "end_turn"}

    def options(self) -> Json:
        option = {"id": "which", "category": "model", "type": "select", "currentValue": self.model}
        return {"configOptions": [option]}


class Forgets(Agent):
    """Can't open a session again in any way."""

    capabilities: ClassVar[Json] = {}


class Modern(Agent):
    """Speaks a protocol of the future."""

    def on_initialize(self, params: Json) -> Json:
        return {**super().on_initialize(params), "protocolVersion": 99}


class Replay(Agent):
    """Says what was recorded: ARG is a transcript, and the number of the process in it."""

    def __init__(self, args: list[str]) -> None:
        super().__init__(args)
        steps = [json.loads(line) for line in Path(args[0]).read_text().splitlines()]
        starts = [place for place, step in enumerate(steps) if step.get("send") == "initialize"]
        number = int(args[1])
        self.steps: list[Json] = steps[starts[number] : [*starts, len(steps)][number + 1]]

    def serve(self, message: Json) -> None:
        while self.steps and self.steps.pop(0).get("send") != message["method"]:
            pass
        while self.steps and "recv" in self.steps[0]:
            said = self.steps.pop(0)["recv"]
            self.send({**said, "id": message["id"]} if "method" not in said else said)


def read() -> Json:
    line = sys.stdin.readline()
    if not line:
        sys.exit(0)
    message: Json = json.loads(line)
    return message


if __name__ == "__main__":
    behaviours = {kind.__name__.lower(): kind for kind in Agent.__subclasses__() + Garbage.__subclasses__()}
    behaviours["good"] = Agent
    behaviours[sys.argv[1]](sys.argv[2:]).run()
