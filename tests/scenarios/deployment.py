"""Segue as its operators run it: api, control worker and runtime workers as processes of their own."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import httpx
import psutil
import psycopg

from domain.statuses import Role
from store import members, tokens
from store.database import Database
from store.secretbox import SecretBox
from tests.services.ports import free_port

#: Generous: the machines are shared, and a wait that is over early costs nothing.
DEADLINE = 120.0
POLL = 0.05
TERMINAL = ("completed", "failed", "cancelled")
#: Short enough for tests, long enough for a slow machine.
HEARTBEAT_TIMEOUT = 6.0

T = TypeVar("T")


def eventually(what: str, look: Callable[[], T | bool | None], deadline: float = DEADLINE) -> T:
    """The first true answer of ``look``; fails with ``what`` when none comes in time."""
    end = time.monotonic() + deadline
    while True:
        found = look()
        if found:
            return found  # type: ignore[return-value]
        if time.monotonic() > end:
            raise AssertionError(f"{what}: not seen within {deadline:.0f} s")
        time.sleep(POLL)


@dataclass
class Part:
    """One process, which a test may stop, kill and start again."""

    name: str
    argv: list[str]
    env: dict[str, str]
    log: Path
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> "Part":
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.argv, env=self.env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.log.parent
            )
        return self

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def check_alive(self) -> None:
        """Fail with the end of its log if the process has ended by itself."""
        assert self.process is not None
        assert self.process.poll() is None, f"{self.name} has ended:\n{self.log.read_text()[-4000:]}"

    def signal(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        """``kill -9``; what it started lives on."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def stop(self) -> None:
        """SIGTERM, and wait for the end."""
        if self.process is None or self.process.poll() is not None:
            return
        self.process.terminate()
        try:
            self.process.wait(DEADLINE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise


@dataclass
class Deployment:
    """The system of one test. Everything is reached through HTTP, like a user's."""

    folder: Path
    database_url: str
    temporal_address: str
    namespace: str
    settings: Mapping[str, str] = field(default_factory=dict)
    parts: dict[str, Part] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.port = free_port()
        self.api_url = f"http://127.0.0.1:{self.port}"
        self.env = {
            **{
                name: os.environ[name] for name in ("PATH", "LANG", "SEGUE_TEST_CLAUDE") if name in os.environ
            },
            "HOME": str(self.folder),
            "SEGUE_DATABASE_URL": self.database_url,
            "SEGUE_SECRET_KEY": SecretBox.new_key(),
            "SEGUE_TEMPORAL_ADDRESS": self.temporal_address,
            "SEGUE_TEMPORAL_NAMESPACE": self.namespace,
            "SEGUE_TEMPORAL_UI_URL": "http://ui.example",
            "SEGUE_API_URL": self.api_url,
            "SEGUE_API_PORT": str(self.port),
            "SEGUE_HEARTBEAT_TIMEOUT": str(HEARTBEAT_TIMEOUT),
            "SEGUE_RECONCILE_SECONDS": "0.5",
            "SEGUE_BEAT_SECONDS": "1",
            "SEGUE_OFFLINE_AFTER": "15",
            "SEGUE_MIN_FREE_BYTES": "1048576",
            **self.settings,
        }
        self.token = ""
        self.http = httpx.Client(base_url=f"{self.api_url}/api/v1", timeout=60)

    # --- processes --------------------------------------------------------------------------------

    def up(self, *, runtimes: int = 1, slots: int = 20) -> "Deployment":
        """Workspace, owner, api, control worker and runtimes; returns when all are ready."""
        self._bootstrap()
        self.start("api", ["api"])
        self.wait_for_api()
        self.start("control", ["worker", "control"])
        self.runtime_ids = [self.add_runtime(f"r{number}", slots=slots) for number in range(runtimes)]
        for runtime_id in self.runtime_ids:
            self.wait_online(runtime_id)
        return self

    def _bootstrap(self) -> None:
        asyncio.run(self._make_owner())
        self.http.headers["Authorization"] = f"Bearer {self.token}"

    async def _make_owner(self) -> None:
        database = Database(self.database_url)
        async with database.begin() as conn:
            self.workspace_id = await members.create_workspace(conn, name="Test", issue_prefix="SEG")
            self.member_id = await members.add_member(
                conn, workspace_id=self.workspace_id, name="Ada", email="ada@example.org", role=Role.OWNER
            )
            _, self.token = await tokens.create_member_token(
                conn, workspace_id=self.workspace_id, member_id=self.member_id, name="test"
            )
        await database.dispose()

    def start(self, name: str, arguments: list[str], env: Mapping[str, str] | None = None) -> Part:
        part = self.parts.get(name)
        if part is None:
            argv = [sys.executable, "-m", "cli", *arguments]
            log = self.folder / f"{name}.log"
            part = self.parts[name] = Part(name, argv, {**self.env, **(env or {})}, log)
        return part.start()

    def restart(self, name: str) -> Part:
        return self.parts[name].start()

    def wait_for_api(self) -> None:
        def answers() -> bool:
            self.parts["api"].check_alive()
            try:
                return self.http.get(f"{self.api_url}/healthz").is_success
            except httpx.HTTPError:
                return False

        eventually("the api answers", answers)

    def add_runtime(self, name: str, *, slots: int = 20) -> str:
        created = self.post("/runtimes", {"name": name})
        env = {
            "SEGUE_RUNTIME_TOKEN": created["token"],
            "SEGUE_ROOT": str(self.folder / name),
            "SEGUE_SLOTS": str(slots),
        }
        self.start(name, ["worker", "runtime"], env)
        runtime_id: str = created["runtime"]["id"]
        return runtime_id

    def wait_online(self, runtime_id: str) -> None:
        def online() -> bool:
            for part in self.parts.values():
                part.check_alive()
            return bool(self.get(f"/runtimes/{runtime_id}")["status"] == "online")

        eventually(f"runtime {runtime_id} is online", online)

    def close(self) -> None:
        """Stop every part, and every agent process that a test left behind."""
        self.http.close()
        for part in self.parts.values():
            part.kill()
        for process in self.agent_processes():
            process.kill()

    # --- the API ----------------------------------------------------------------------------------

    def get(self, path: str, **params: Any) -> Any:
        return self._checked(self.http.get(path, params=params))

    def post(self, path: str, body: Any = None, **headers: str) -> Any:
        return self._checked(self.http.post(path, json=body if body is not None else {}, headers=headers))

    def _checked(self, response: httpx.Response) -> Any:
        assert response.is_success, (
            f"{response.request.method} {response.url}: {response.status_code} {response.text}"
        )
        return response.json() if response.content else None

    def agent(self, name: str = "Ada", *, runtime: int = 0, provider: str = "script", **more: Any) -> str:
        body = {"name": name, "provider": provider, "runtime_id": self.runtime_ids[runtime], **more}
        agent_id: str = self.post("/agents", body)["id"]
        return agent_id

    def issue(self, title: str = "An issue", **more: Any) -> str:
        issue_id: str = self.post("/issues", {"title": title, **more})["issue"]["id"]
        return issue_id

    def ask(self, agent_id: str, issue_id: str, text: str) -> str:
        """Comment on the issue for this agent; returns the task."""
        body = f"[@Agent](mention://agent/{agent_id})\n{text}"
        triggered = self.post(f"/issues/{issue_id}/comments", {"body": body})["triggered"]
        assert [one["agent_id"] for one in triggered] == [agent_id], triggered
        task_id: str = triggered[0]["task_id"]
        return task_id

    def task(self, task_id: str) -> Any:
        return self.get(f"/tasks/{task_id}")

    def until(self, task_id: str, *statuses: str, deadline: float = DEADLINE) -> Any:
        """The task, as soon as it has one of these statuses."""

        def look() -> Any:
            task = self.task(task_id)
            return task if task["status"] in statuses else None

        return eventually(f"task {task_id} is {' or '.join(statuses)}", look, deadline)

    def ended(self, task_id: str, deadline: float = DEADLINE) -> Any:
        return self.until(task_id, *TERMINAL, deadline=deadline)

    def run(self, agent_id: str, issue_id: str, text: str) -> Any:
        """Ask, and wait for the end."""
        return self.ended(self.ask(agent_id, issue_id, text))

    def chat(self, agent_id: str, **more: Any) -> str:
        chat_id: str = self.post("/chats", {"agent_id": agent_id, **more})["id"]
        return chat_id

    def say(self, chat_id: str, text: str) -> str:
        """Send a message; returns its task."""
        task_id: str = self.post(f"/chats/{chat_id}/messages", {"content": text})["task_id"]
        return task_id

    def talk(self, chat_id: str, text: str) -> Any:
        """Send a message, and wait for the end of its turn."""
        return self.ended(self.say(chat_id, text))

    def messages(self, chat_id: str) -> list[Any]:
        """What can be read in a chat, oldest first."""
        return list(self.get(f"/chats/{chat_id}/messages", last=200)["items"])

    def continued(self, task_id: str, **more: Any) -> Any:
        """The chat that goes on with a finished run."""
        return self.post(f"/tasks/{task_id}/continue-in-chat", more)["chat"]

    def process_spans(self, *task_ids: str) -> list[tuple[Any, ...]]:
        """From start to end, for every process that ran for these tasks."""
        query = "select started_at, ended_at from attempts where task_id = any(%s) order by started_at"
        return self.rows(query, list(task_ids))

    def events(self, task_id: str) -> list[Any]:
        items: list[Any] = []
        while True:
            after = items[-1]["seq"] if items else 0
            page = self.get(f"/tasks/{task_id}/events", after=after, limit=500)
            items += page["items"]
            if not page["items"]:
                return items

    def texts(self, task_id: str) -> list[str]:
        return [event["data"]["text"] for event in self.events(task_id) if event["type"] == "text"]

    def event_with(self, task_id: str, text: str) -> Any:
        """Wait for a text event that contains ``text``."""
        return eventually(
            f"event {text!r}", lambda: next((t for t in self.texts(task_id) if text in t), None)
        )

    # --- what runs --------------------------------------------------------------------------------

    def agent_processes(self, task_id: str | None = None) -> list[psutil.Process]:
        """Living processes that carry this deployment's marker, by environment, never by name."""
        wanted = f"SEGUE_TASK_ID={task_id}" if task_id else f"SEGUE_API_URL={self.api_url}"
        return [
            process
            for process in psutil.process_iter()
            if _has_variable(process.pid, wanted) and _has_variable(process.pid, "SEGUE_ATTEMPT_ID=")
        ]

    def rows(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        """Ask the database itself."""
        with psycopg.connect(self.database_url) as conn:
            return conn.execute(query.encode(), values).fetchall()

    def lease_count(self) -> int:
        return int(self.rows("select count(*) from leases")[0][0])


def _has_variable(pid: int, start: str) -> bool:
    try:
        block = Path(f"/proc/{pid}/environ").read_bytes()
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    if status.rpartition(")")[2].split()[0] in ("Z", "X"):
        return False
    wanted = start.encode()
    return any(
        entry == wanted or (start.endswith("=") and entry.startswith(wanted)) for entry in block.split(b"\0")
    )


@contextmanager
def stopped(part: Part) -> Iterator[None]:
    """The part is frozen (SIGSTOP) for the length of the block."""
    part.signal(signal.SIGSTOP)
    try:
        yield
    finally:
        part.signal(signal.SIGCONT)
