"""Plans of the hot statements with 10⁵ tasks in the tables: none reads a big table from end to end."""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import event, select, text
from sqlalchemy.ext.asyncio import AsyncConnection

from domain.events import EventType
from domain.permissions import Actor
from domain.steps import ResolveInput
from store import (
    attempts,
    comments,
    dispatch,
    enqueue,
    leases,
    outbox,
    reconcile,
    taskviews,
    transcripts,
)
from store.models import Issue, Task
from store.pages import Page
from store.secretbox import SecretBox
from tests.store.board import Board, outcome

pytestmark = pytest.mark.slow

#: Tables that grow for ever. The others stay small, or are read whole on purpose.
BIG = {"tasks", "events", "comments", "task_comments", "attempts", "sessions", "lane_sessions", "directories"}

#: 20 000 lanes with five ended tasks each, and what belongs to them. Ids follow from the numbers.
_FILL = """
create function pg_temp.id(kind text, n bigint) returns uuid immutable language sql as
    $$ select md5(kind || n)::uuid $$;
insert into issues (id, workspace_id, number, title, creator_type)
    select pg_temp.id('issue', n), :workspace, n + 10, 'An issue', 'member' from generate_series(1, 20000) n;
insert into lanes (id, workspace_id, kind, agent_id, issue_id, last_position)
    select pg_temp.id('lane', n), :workspace, 'issue', :agent, pg_temp.id('issue', n), 5
    from generate_series(1, 20000) n;
insert into directories (id, workspace_id, runtime_id, lane_id, path)
    select pg_temp.id('directory', n), :workspace, :runtime, pg_temp.id('lane', n), '/w/' || n
    from generate_series(1, 20000) n;
insert into sessions (id, workspace_id, provider, provider_session_id, runtime_id, lane_id, directory_id,
                      last_status, last_reason, last_ended_at)
    select pg_temp.id('session', n), :workspace, 'script', 'bulk-' || n, :runtime, pg_temp.id('lane', n),
           pg_temp.id('directory', n), 'completed', 'completed', now()
    from generate_series(1, 20000) n;
insert into lane_sessions (lane_id, session_id)
    select pg_temp.id('lane', n), pg_temp.id('session', n) from generate_series(1, 20000) n;
insert into tasks (id, workspace_id, lane_id, lane_position, rank, kind, trigger_type, agent_id, runtime_id,
                   issue_id, status, attempt, reason, started_at, ended_at)
    select pg_temp.id('task', n), :workspace, pg_temp.id('lane', n % 20000 + 1), n / 20000 + 1, now(),
           'issue', 'comment', :agent, :runtime, pg_temp.id('issue', n % 20000 + 1), 'completed', 1,
           'completed', now(), now()
    from generate_series(0, 99999) n;
insert into attempts (id, workspace_id, task_id, number, runtime_id, provider, ops_queue, runs_queue,
                      directory_id, used_session_id, continuity, dispatched_at, started_at, ended_at, reason)
    select pg_temp.id('attempt', n), :workspace, pg_temp.id('task', n), 1, :runtime, 'script', 'o', 'r',
           pg_temp.id('directory', n % 20000 + 1), pg_temp.id('session', n % 20000 + 1), 'resumed', now(),
           now(), now(), 'completed'
    from generate_series(0, 99999) n;
insert into comments (id, workspace_id, issue_id, author_type, author_id, body)
    select pg_temp.id('comment', n), :workspace, pg_temp.id('issue', n % 20000 + 1), 'member', :member, 'hi'
    from generate_series(0, 99999) n;
insert into task_comments (task_id, comment_id, lane_id)
    select pg_temp.id('task', n), pg_temp.id('comment', n), pg_temp.id('lane', n % 20000 + 1)
    from generate_series(0, 99999) n;
insert into events (task_id, seq, attempt, type, at, data)
    select pg_temp.id('task', n), s, 1, 'text', now(), '{"text": "hi"}'
    from generate_series(0, 99999) n, generate_series(1, 2) s;
"""


async def fill(board: Board, agent: UUID, runtime: UUID) -> None:
    """The rows in bulk. Checking 10⁶ references that are true by construction would take most of the time."""
    values = {
        "workspace": board.workspace_id,
        "agent": agent,
        "runtime": runtime,
        "member": board.member_id,
    }
    async with board.database.begin() as conn:
        await conn.execute(text("set local session_replication_role = replica"))
        for statement in _split(_FILL):
            used = {name: value for name, value in values.items() if f":{name}" in statement}
            await conn.execute(text(statement), used)
        await conn.execute(text("analyze"))


def _split(script: str) -> list[str]:
    return [part.replace("::uuid", "\\:\\:uuid") for part in script.split(";\n") if part.strip()]


@contextmanager
def recorded(board: Board) -> Iterator[list[tuple[str, Any]]]:
    """The statements that are executed meanwhile, with their parameters."""
    seen: list[tuple[str, Any]] = []

    def note(_conn: Any, _cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        seen.append((statement, parameters))

    engine = board.database.engine.sync_engine
    event.listen(engine, "before_cursor_execute", note)
    try:
        yield seen
    finally:
        event.remove(engine, "before_cursor_execute", note)


async def whole_reads(board: Board, statements: list[tuple[str, Any]]) -> set[str]:
    """Big tables that the plans of these statements read sequentially."""
    found: set[str] = set()
    async with board.database.begin() as conn:
        for statement, parameters in statements:
            rows = await conn.exec_driver_sql(f"explain (format json) {statement}", parameters)
            found |= _sequential(rows.scalar_one()) & BIG
    return found


def _sequential(node: Any) -> set[str]:
    """Names of the relations under a plan's node that are scanned sequentially."""
    if isinstance(node, list):
        return set().union(*(_sequential(part) for part in node)) if node else set()
    if not isinstance(node, dict):
        return set()
    here = {node["Relation Name"]} if node.get("Node Type") == "Seq Scan" else set()
    return here.union(*(_sequential(part) for part in node.values()))


async def test_no_hot_statement_reads_a_big_table_whole(board: Board) -> None:
    """Every statement of a task's life, of the lists, of the waker and of the reconciler uses an index."""
    runtime = await board.runtime(slots=1)
    agent = await board.agent(runtime, at_once=1)
    await fill(board, agent, runtime)
    hot = await _life(board, agent) | await _queries(board, agent, runtime)
    slow = {name: tables for name, made in hot.items() if (tables := await whole_reads(board, made))}
    assert slow == {}
    unindexed: list[tuple[str, Any]] = [
        ("select 1 from tasks join events on seq = tasks.attempt where error = 'x'", {})
    ]
    assert await whole_reads(board, unindexed) == {"tasks", "events"}, "the check itself sees nothing"


async def _life(board: Board, agent: UUID) -> dict[str, list[tuple[str, Any]]]:
    """The statements of two tasks in lanes with a history: the second waits and is granted by the first."""
    old = await board.rows(select(Issue.id).where(Issue.number.in_([17, 18])).order_by(Issue.number))
    with recorded(board) as enqueued:
        first, second = [await board.task(agent, row.id) for row in old]
    with recorded(board) as resolved:
        resolution = await board.resolve(first)
        await board.resolve(second)
    assert resolution.session_id is not None
    with recorded(board) as run:
        await board.start(resolution)
        seq = await board.say(first, EventType.RESULT, success=True, text="done")
    with recorded(board) as ended:
        await board.record(first, resolution, outcome(session=resolution.session_id, result_seq=seq))
    assert await board.outbox("wake") == [second]
    with recorded(board) as again:
        await board.retry(first)
        await board.cancel(second)
    return {"enqueue": enqueued, "resolve": resolved, "run": run, "record": ended, "retry": again}


async def _queries(board: Board, agent: UUID, runtime: UUID) -> dict[str, list[tuple[str, Any]]]:
    task = (await board.rows(select(Task.__table__).where(Task.status == "completed").limit(1)))[0]
    open_task = (await board.rows(select(Task.id).where(Task.status == "queued").limit(1)))[0].id
    resolution = await board.resolve(open_task)
    assert resolution.attempt_id is not None
    attempt_id, links = resolution.attempt_id, taskviews.TemporalLinks(None, "default")
    member = Actor(board.workspace_id, member_id=board.member_id)
    part = Page(limit=50)
    narrowed = {
        "all": taskviews.TaskFilter(),
        "agent": taskviews.TaskFilter(agent_id=agent),
        "issue": taskviews.TaskFilter(issue_id=task.issue_id),
        "runtime": taskviews.TaskFilter(runtime_id=runtime),
        "status": taskviews.TaskFilter(status=["completed"]),
        "reason": taskviews.TaskFilter(reason=["completed"]),
    }
    calls: dict[str, Callable[[AsyncConnection], Awaitable[Any]]] = {
        "outbox claim": lambda conn: outbox.claim(conn, 10),
        "tasks to check": reconcile.tasks_to_check,
        "stops to check": reconcile.stops_to_check,
        "wake granted": reconcile.wake_granted,
        "expire dispatched": lambda conn: reconcile.expire_dispatched(conn, timedelta(hours=2)),
        "repair leases": reconcile.repair_leases,
        "mark offline": lambda conn: reconcile.mark_offline(conn, timedelta(days=1)),
        "sweep": lambda conn: leases.grant_all(conn, board.workspace_id),
        "resolve again": lambda conn: dispatch.resolve(
            conn, ResolveInput(task_id=open_task, attempt=1), board.rules
        ),
        "brief": lambda conn: attempts.brief(
            conn, runtime_id=runtime, attempt_id=attempt_id, secrets=SecretBox(SecretBox.new_key())
        ),
        "event page": lambda conn: transcripts.page(conn, board.workspace_id, task.id, 0, 100),
        "event chapter": lambda conn: transcripts.chapter(conn, task.id, 0, 100),
        "comment page": lambda conn: comments.page(conn, task.issue_id, part),
        "task": lambda conn: taskviews.get(conn, member, task.id, links),
        "rerun": lambda conn: enqueue.rerun(conn, actor=board.actor, issue_id=task.issue_id, task_id=task.id),
    }
    for name, filter_ in narrowed.items():
        calls[f"tasks of {name}"] = lambda conn, filter_=filter_: taskviews.page(  # type: ignore[misc]
            conn, member, part, filter_, links
        )
    made: dict[str, list[tuple[str, Any]]] = {}
    for name, call in calls.items():
        with recorded(board) as statements:
            async with board.database.begin() as conn:
                await call(conn)
        made[name] = statements
    return made
