"""What one follow-up task costs, counted exactly: history events, database statements, HTTP calls."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import httpx
import psycopg
from temporalio.api.enums.v1 import EventType

from bench import measure
from bench.lab import Lab
from bench.measure import Row
from workers import postgres

_HISTORY_GOAL = 26
_LINE = re.compile(r"^[^\[]+\[(?P<pid>\d+)\] LOG:  (?:statement|execute [^:]+): (?P<text>.*)$")
_ENDS = ("commit", "rollback")

#: A transaction is known by words that no other has: which process, then what its statements begin with.
_STEPS = (
    ("api", "insert into comments", "enqueue (POST comment)"),
    ("api", "insert into tokens", "start (POST start)"),
    ("api", "with moved as", "one batch (POST events)"),
    ("api", "insert into sessions", "pin (POST session)"),
    ("api", "owners", "brief (GET brief)"),
    ("api", "last_seen_at", "heartbeat of the runtime"),
    ("control", "update outbox set claimed_until", "waker: claim"),
    ("control", "delete from outbox", "waker: sent"),
    ("control", "insert into comments", "record_terminal"),
    ("control", "insert into attempts", "resolve_resume"),
)


@dataclass
class Transaction:
    """Statements between BEGIN and its end, of one connection."""

    process: str
    statements: list[str] = field(default_factory=list)

    @property
    def step(self) -> str:
        text = "\n".join(self.statements).lower()
        for process, words, step in _STEPS:
            if process == self.process and words in text:
                return step
        return f"{self.process}: other"


async def measured(lab: Lab) -> list[Row]:
    """Three rows, of a turn with two batches of events at most: its agent says one line and ends."""
    agent, issue = lab.segue.agent("Counted"), lab.segue.issue("counted")
    for _ in range(2):
        await lab.ended(lab.ask(agent, issue, "say warm"))
    await lab.quiet()
    with _logged_statements(lab) as log:
        calls = _requests(lab)
        task_id = lab.ask(agent, issue, "say counted")
        await lab.ended(task_id)
        await lab.quiet()
        await lab.floor.client.get_workflow_handle(f"task/{task_id}").result()
        calls = _requests(lab) - calls
    transactions = _transactions(log(), _processes(lab))
    return [
        await _history_row(lab, task_id),
        _statements_row(transactions),
        _calls_row(calls),
    ]


async def _history_row(lab: Lab, task_id: str) -> Row:
    handle = lab.floor.client.get_workflow_handle(f"task/{task_id}")
    events = (await handle.fetch_history()).events
    kinds = Counter(EventType.Name(event.event_type).removeprefix("EVENT_TYPE_").lower() for event in events)
    notes = [", ".join(f"{kind} {number}" for kind, number in kinds.items())]
    return measure.count("history events a follow-up task", _HISTORY_GOAL, len(events), notes)


def _statements_row(transactions: list[Transaction]) -> Row:
    steps: dict[str, list[int]] = defaultdict(list)
    texts: dict[str, list[str]] = {}
    for transaction in transactions:
        if transaction.process in ("api", "control"):
            steps[transaction.step].append(len(transaction.statements))
            texts.setdefault(transaction.step, transaction.statements)
    periodic = {step for step in steps if "other" in step or "heartbeat" in step}
    total = sum(sum(counts) for step, counts in steps.items() if step not in periodic)
    notes = [
        f"{step}: {' + '.join(map(str, counts))}"
        + (" (periodic, not counted)" if step in periodic else "")
        + f" [{'; '.join(_short(text) for text in texts[step])}]"
        for step, counts in steps.items()
    ]
    return measure.count("database statements a follow-up task", None, total, notes)


def _short(statement: str) -> str:
    words = " ".join(statement.split())
    table = re.search(r"\b(?:from|into|update|of)\s+([a-z_]+)", words, re.IGNORECASE)
    return f"{words.split()[0].lower()} {table.group(1) if table else words[7:40]}"


def _calls_row(calls: Counter[str]) -> Row:
    own = {route: number for route, number in calls.items() if "/metrics" not in route}
    counted = {route: number for route, number in own.items() if "heartbeat" not in route}
    notes = [", ".join(f"{route} {number}" for route, number in sorted(own.items()))]
    return measure.count("HTTP calls a follow-up task", None, sum(counted.values()), notes)


def _requests(lab: Lab) -> Counter[str]:
    """Requests served so far, by method and route."""
    text = httpx.get(f"{lab.segue.api_url}/metrics", timeout=60).text
    found: Counter[str] = Counter()
    pattern = r'^segue_http_requests_total\{method="(\w+)",route="([^"]+)",status="\d+"\} (\S+)$'
    for method, route, number in re.findall(pattern, text, re.MULTILINE):
        found[f"{method} {route}"] += int(float(number))
    return found


@contextmanager
def _logged_statements(lab: Lab) -> Iterator["_Log"]:
    """PostgreSQL writes every statement to its log meanwhile."""
    _configure(lab, {"log_statement": "all"})
    log = _Log(lab)
    try:
        yield log
    finally:
        _configure(lab, {"log_statement": "none"})


class _Log:
    """What PostgreSQL has written since this was made."""

    def __init__(self, lab: Lab) -> None:
        self._path = lab.services.log
        self._offset = self._path.stat().st_size

    def __call__(self) -> str:
        with self._path.open("rb") as file:
            file.seek(self._offset)
            return file.read().decode(errors="replace")


def _configure(lab: Lab, settings: Mapping[str, str]) -> None:
    with psycopg.connect(postgres.url(lab.services.data, "postgres"), autocommit=True) as admin:
        for name, value in settings.items():
            admin.execute(f"alter system set {name} = '{value}'".encode())
        admin.execute("select pg_reload_conf()")


def _processes(lab: Lab) -> dict[str, str]:
    """Which of our processes each connection belongs to."""
    return {str(pid): name for pid, name in lab.rows("select pid, application_name from pg_stat_activity")}


def _transactions(log: str, processes: Mapping[str, str]) -> list[Transaction]:
    """The finished transactions, without their BEGIN and end."""
    open_ones: dict[str, Transaction] = {}
    finished = []
    for line in _entries(log):
        match = _LINE.match(line)
        if match is None:
            continue
        text, pid = match["text"], match["pid"]
        first = text.split(maxsplit=1)[0].lower().rstrip(";") if text.split() else ""
        if first == "begin":
            open_ones[pid] = Transaction(processes.get(pid, "unknown"))
        elif first in _ENDS:
            if pid in open_ones:
                finished.append(open_ones.pop(pid))
        elif pid in open_ones:
            open_ones[pid].statements.append(text)
    return finished


def _entries(log: str) -> Iterator[str]:
    """Log entries on one line each: a statement's further lines begin with a tab."""
    entry = ""
    for line in log.splitlines():
        if line.startswith("\t"):
            entry += " " + line.strip()
        else:
            yield entry
            entry = line
    yield entry
