"""``segue demo``: one real pass through the product, printed step by step."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from cli import runs
from cli.client import ApiClient
from cli.invocation import Invocation, verb
from cli.issues import reply
from cli.output import Json, Output, notice
from cli.profiles import Connection
from domain.errors import SegueError

root = typer.Typer()

_STOP_SECONDS = 120.0
#: For a run of a second, on a machine that is ten times slower than usual.
_RUN_SECONDS = 180.0


class DemoFailed(SegueError):
    """A step did not do what it shows."""

    code = "demo_failed"


@verb(root, "demo")
def demo(
    invocation: Invocation,
    *,
    keep: Annotated[
        bool,
        typer.Option("--keep", help="Leave the stack running at the end until Ctrl-C, and keep its folder."),
    ] = False,
) -> None:
    """Start everything in a temporary folder, run the built-in agent, and go on with it in a chat."""
    # Being told to end is no reason to leave a stack behind.
    signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit(128 + signal.SIGTERM))
    folder = Path(tempfile.mkdtemp(prefix="segue-demo-"))
    try:
        with _stack(folder, invocation.output) as stack:
            with ApiClient(_connection(folder)) as client:
                chat = Tour(client, invocation.output).walk()
            _go_on(invocation.output, folder, client.api_url, chat=chat if keep else None)
            if keep:
                _wait_for_interrupt(stack)
    finally:
        if keep:
            notice(f"the data is kept in {folder}; go on with: segue up --data {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)


class Tour:
    """The steps, each checked: a demo that shows something false is worse than none."""

    def __init__(self, client: ApiClient, output: Output) -> None:
        self._client = client
        self._output = output
        self._step = 0

    def walk(self) -> str:
        """Returns the id of the chat that the tour ends in."""
        ada = self._agent("Ada")
        issue = self._issue(ada)
        first = self._comment(issue, ada, "remember colour=teal\nsay I will remember that.")
        second = self._comment(issue, ada, "recall colour\nturns\ncwd")
        self._expect(
            second["continuity"]["state"] == "resumed", "the second run resumes the first one's session"
        )
        self._expect(second["work_dir"] == first["work_dir"], "it runs in the same directory")
        self._expect("teal" in reply(second), "it remembers")
        bob = self._agent("Bob")
        other = self._comment(issue, bob, "recall colour\ncwd")
        self._expect(other["work_dir"] != first["work_dir"], "another agent has a directory of its own")
        self._expect("unknown" in reply(other), "and a conversation of its own")
        return self._continue(second)

    def _continue(self, run: Json) -> str:
        """Go on from a finished run in a chat; returns the chat's id."""
        made = self._client.post(f"/tasks/{run['id']}/continue-in-chat")
        chat = made["chat"]
        self._say(
            "Continued in a chat",
            {
                "task": run["id"],
                "chat": chat["id"],
                "branch of the conversation": "yes" if chat["fork"] else "no",
            },
        )
        self._expect(made["session_carried"], "the run's conversation comes along")
        turn = self._message(chat, "recall colour\nturns\ncwd")
        self._expect("teal" in reply(turn), "a chat remembers what the issue's run was told")
        self._expect(turn["work_dir"] == run["work_dir"], "in the run's directory")
        self._expect(
            turn["session_id"] != run["session_id"], "on a branch, so the issue knows nothing of the chat"
        )
        return str(chat["id"])

    def _message(self, chat: Json, text: str) -> Json:
        sent = self._client.post(f"/chats/{chat['id']}/messages", {"content": text})
        return self._ran("Message in the chat", text, sent["task_id"])

    def _agent(self, name: str) -> Json:
        runtime = next(one for one in self._client.items("/runtimes") if one["status"] == "online")
        agent = self._client.post(
            "/agents", {"name": name, "provider": "script", "runtime_id": runtime["id"]}
        )
        self._say(
            f"Agent {name}", {"provider": "script, a toy agent that is a real process", "id": agent["id"]}
        )
        return agent

    def _issue(self, agent: Json) -> Json:
        content = {"title": "Choose a colour", "body": "say Let us begin."}
        issue: Json = self._client.post("/issues", content)["issue"]
        self._say(f"Issue {issue['key']}", {"title": issue["title"], "for": agent["name"]})
        return issue

    def _comment(self, issue: Json, agent: Json, text: str) -> Json:
        mention = f"[@{agent['name']}](mention://agent/{agent['id']})"
        made = self._client.post(f"/issues/{issue['id']}/comments", {"body": f"{mention}\n{text}"})
        started = [one["task_id"] for one in made["triggered"] if one["task_id"]]
        if len(started) != 1:
            raise DemoFailed(f"The comment should have started {agent['name']}: {made['triggered']}.")
        return self._ran(f"Comment to {agent['name']}", text, started[0])

    def _ran(self, heading: str, text: str, task_id: str) -> Json:
        """Wait for a run, and show what it was asked and what came of it."""
        task = self._ended(task_id)
        self._say(
            heading,
            {
                "text": text.replace("\n", " · "),
                "task": task["id"],
                "outcome": task["reason"],
                "continuity": task["continuity"]["state"],
                "directory": task["work_dir"],
                "reply": reply(task).replace("\n", " · "),
            },
        )
        self._expect(task["status"] == "completed", "the run completes")
        return task

    def _ended(self, task_id: str) -> Json:
        try:
            return runs.until_ended(self._client, task_id, seconds=_RUN_SECONDS)
        except TimeoutError as error:
            raise DemoFailed(f"{error} Run it with --keep and look at the logs.") from error

    def _say(self, heading: str, facts: Json) -> None:
        self._step += 1
        _print_block(self._output, f"{self._step}  {heading}", facts)

    def _expect(self, truth: bool, what: str) -> None:  # noqa: FBT001 - reads as a sentence
        if not truth:
            raise DemoFailed(f"The demo expected that {what}. Run it with --keep and look at the logs.")
        self._output.say(f"   ✓ {what}")


def _print_block(output: Output, heading: str, facts: Json) -> None:
    print(f"\n{output.bold(heading)}", flush=True)
    longest = max(map(len, facts))
    for name, value in facts.items():
        output.say(f"   {name.ljust(longest)}  {value}")


@contextmanager
def _stack(folder: Path, output: Output) -> Iterator["subprocess.Popen[str]"]:
    """A stack of our own, stopped in order at the end; it also ends when this process is killed."""
    from workers import lifeline

    command = [sys.executable, "-P", "-m", "cli", "up", "--data", str(folder)]
    print(output.bold("Starting PostgreSQL, Temporal, api, control worker and runtime worker"), flush=True)
    # A session of its own: Ctrl-C is for us, and we stop the stack in order.
    environment = os.environ | {lifeline.STACK_VARIABLE: str(os.getpid())}
    stack = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        assert stack.stdout is not None, "piped above"
        ready = stack.stdout.readline().split()
        if not ready:
            raise DemoFailed("The stack did not come up; what it said is above.")
        facts: Json = dict(word.split("=", 1) for word in ready[1:])
        _print_block(output, "0  Ready", {**facts, "data": folder})
        yield stack
    finally:
        _stop(stack)


def _stop(stack: "subprocess.Popen[str]") -> None:
    if stack.poll() is None:
        stack.send_signal(signal.SIGTERM)
    try:
        stack.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        stack.send_signal(signal.SIGTERM)
        stack.wait()


def _connection(folder: Path) -> Connection:
    from workers.folder import StackFolder

    record = StackFolder(folder).read()
    assert record is not None, "a stack that is ready has written its record"
    return Connection(record.api_url, record.token)


def _go_on(output: Output, folder: Path, api_url: str, *, chat: str | None) -> None:
    """``chat`` is set when the stack stays, and names the one to talk to."""
    keep = chat is not None
    data = str(folder) if keep else "DIR"
    facts: Json = {
        "start": "segue up" + (f" --data {data}" if keep else ""),
        "look": f"SEGUE_DATA={data} segue issue list" if keep else "segue issue list",
        "agent": "segue agent create Ada --provider claude --runtime local",
        "ask": 'segue issue create "Fix the login" --assign Ada',
        "follow": "segue task list, then segue task logs -f TASK",
        "continue": "segue task continue TASK --open",
        "talk": f'segue chat send {chat or "CHAT"} "recall colour" --wait',
    }
    if keep:
        facts["api"] = f"{api_url}/openapi.json"
    else:
        facts["keep"] = "segue demo --keep leaves this stack running, to look around in it"
    _print_block(output, "To go on", facts)
    print()


def _wait_for_interrupt(stack: "subprocess.Popen[str]") -> None:
    notice("the stack is running; Ctrl-C stops it")
    try:
        stack.wait()
    except KeyboardInterrupt:
        notice("stopping")
