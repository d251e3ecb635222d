"""Continuing a finished run in a chat, through the real router with real tokens.

The fifteen behaviours that the founding text names for it, each with the row that was kept; then what
follows from privacy, races and the preview.
"""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import func, select, update

from api.deps import PREFIX
from domain.continuation import FORKING
from domain.statuses import TERMINAL, Role, TaskStatus
from providers import registry
from store.models import Agent, Attempt, Chat, Directory, Lane, LaneSession, Outbox, Runtime, Session, Task
from tests.api.office import API, Machine, Office, Person, answered, made_by, refused


class Run:
    """A finished run of an agent on an issue."""

    def __init__(
        self, office: Office, machine: Machine, agent: dict[str, Any], issue: dict[str, Any]
    ) -> None:
        self.office = office
        self.machine = machine
        self.agent = agent
        self.issue = issue["issue"]
        self.task_id: str = issue["triggered"][0]["task_id"]

    @property
    def path(self) -> str:
        return f"{API}/tasks/{self.task_id}/continue-in-chat"

    @property
    def preview_path(self) -> str:
        return f"{API}/tasks/{self.task_id}/continuation"

    async def goes_on(self, by: Person | None = None, status: int = 201, **body: Any) -> dict[str, Any]:
        """The answer of continuing it, by its owner if nobody else is named."""
        call = (by or self.office.owner).http.post(self.path, json=body)
        made: dict[str, Any] = await answered(call, status)
        return made

    async def preview(self, by: Person | None = None) -> dict[str, Any]:
        shown: dict[str, Any] = await answered((by or self.office.owner).http.get(self.preview_path))
        return shown


async def _queued(office: Office, title: str = "Fix the login", **agent: Any) -> Run:
    machine = await office.machine()
    made = await office.agent(machine.id, **agent)
    issue = await office.issue(title=title, assignee={"type": "agent", "id": made["id"]})
    return Run(office, machine, made, issue)


async def _finished(office: Office, reason: str = "completed", **more: Any) -> Run:
    run = await _queued(office, **more)
    attempt_id, _ = await office.started(run.machine, run.task_id)
    await office.ended(run.task_id, attempt_id, reason)
    return run


async def _chat_row(office: Office, chat_id: str) -> Any:
    async with office.database.begin() as conn:
        return (await conn.execute(select(Chat.__table__).where(Chat.id == UUID(chat_id)))).one()


async def _seed_row(office: Office, chat_id: str) -> Any:
    """The chat's seed with its session and directory, or None."""
    query = (
        select(LaneSession.source_task_id, Session.provider_session_id, Directory.path)
        .join(Lane, Lane.id == LaneSession.lane_id)
        .outerjoin(Session, Session.id == LaneSession.session_id)
        .outerjoin(Directory, Directory.id == LaneSession.directory_id)
        .where(Lane.chat_id == UUID(chat_id))
    )
    async with office.database.begin() as conn:
        return (await conn.execute(query)).one_or_none()


async def _counts(office: Office) -> tuple[int, int, int]:
    """Chats, chat lanes and outbox rows of chats: what a refused call must not make."""
    async with office.database.begin() as conn:
        return (
            await conn.scalar(select(func.count()).select_from(Chat)) or 0,
            await conn.scalar(select(func.count()).select_from(Lane).where(Lane.kind == "chat")) or 0,
            await conn.scalar(select(func.count()).select_from(Outbox).where(Outbox.kind == "chat")) or 0,
        )


# --- the founding text's fifteen ------------------------------------------------------------------


async def test_a_healthy_run_gives_both_halves_of_its_pointer(office: Office) -> None:
    """1: session and directory are carried, and stand in the chat's own rows."""
    run = await _finished(office)
    made = await run.goes_on()
    assert (made["session_carried"], made["session_reason"], made["reopened"]) == (True, None, False)
    seed = await _seed_row(office, made["chat"]["id"])
    assert (str(seed.source_task_id), seed.provider_session_id) == (run.task_id, "session-1")
    assert seed.path.startswith("/w/")
    chat = await _chat_row(office, made["chat"]["id"])
    assert (chat.session_carried, chat.session_reason, chat.fork) == (True, None, True)


@pytest.mark.parametrize("reason", ["api_invalid_request", "iteration_limit", "context_overflow"])
async def test_an_unsafe_session_is_withheld_and_the_directory_kept(office: Office, reason: str) -> None:
    """2: half of the pointer is enough for a chat; the other half is not taken on trust."""
    run = await _finished(office, reason)
    made = await run.goes_on()
    seed = await _seed_row(office, made["chat"]["id"])
    assert (seed.provider_session_id, seed.path is not None) == (None, True)


async def test_a_run_without_a_recorded_session_carries_its_directory(office: Office) -> None:
    """3: never recorded is a reason of its own."""
    run = await _finished(office)
    await _forget_session(office, run)
    made = await run.goes_on()
    assert (made["session_carried"], made["session_reason"]) == (False, "session_never_recorded")
    seed = await _seed_row(office, made["chat"]["id"])
    assert (seed.provider_session_id, seed.path is not None) == (None, True)


async def test_a_run_that_never_started_carries_nothing(office: Office) -> None:
    """4: no session and no directory is no seed at all, and no blank one."""
    run = await _queued(office)
    await answered(office.owner.http.post(f"{API}/tasks/{run.task_id}/cancel"), 202)
    made = await run.goes_on()
    assert (made["session_carried"], made["session_reason"]) == (False, "session_never_recorded")
    assert await _seed_row(office, made["chat"]["id"]) is None
    assert (await run.preview())["work_dir"] is None


async def test_the_terminal_statuses_are_the_ones_that_can_be_continued(office: Office) -> None:
    """5: decided over the whole domain of statuses, so that a new one can't default to a yes."""
    run = await _finished(office)
    possible = set()
    for status in TaskStatus:
        async with office.database.begin() as conn:
            await conn.execute(update(Task).where(Task.id == UUID(run.task_id)).values(status=status))
        shown = await run.preview()
        assert shown["reason"] == (None if shown["possible"] else "task_not_terminal")
        if shown["possible"]:
            possible.add(status)
    assert possible == TERMINAL


async def test_the_title_is_cut_between_characters(office: Office) -> None:
    """6: never inside one that people see as a whole."""
    run = await _finished(office, title="é" * 118 + "👩‍👩‍👧 and more")
    made = await run.goes_on()
    assert made["chat"]["title"] == "é" * 118 + "…"


async def test_the_machine_is_the_runs_and_not_the_agents_present_one(office: Office) -> None:
    """7: the chat is bound to the runtime of the task, also after the agent was bound to another."""
    run = await _finished(office)
    elsewhere = await office.machine()
    path = f"{API}/agents/{run.agent['id']}"
    await answered(office.owner.http.patch(path, json={"runtime_id": elsewhere.id}))
    made = await run.goes_on()
    assert made["chat"]["runtime_id"] == run.machine.id
    assert made["session_carried"] is True
    sent = await made_by(
        office.owner.http.post(f"{API}/chats/{made['chat']['id']}/messages", json={"content": "go on"})
    )
    task = await answered(office.owner.http.get(f"{API}/tasks/{sent['task_id']}"))
    assert task["runtime_id"] == run.machine.id


async def test_a_second_call_opens_the_same_chat(office: Office) -> None:
    """8: 200 and `reopened`, one row."""
    run = await _finished(office)
    first = await run.goes_on()
    second = await run.goes_on(status=200)
    assert second["reopened"] is True
    assert second["chat"]["id"] == first["chat"]["id"]
    assert second["session_carried"] is True
    assert await _counts(office) == (1, 1, 1)


@pytest.mark.parametrize("status", sorted(set(TaskStatus) - TERMINAL))
async def test_a_run_that_has_not_ended_is_refused(office: Office, status: str) -> None:
    """9: 409, and nothing is made."""
    run = await _queued(office)
    async with office.database.begin() as conn:
        await conn.execute(update(Task).where(Task.id == UUID(run.task_id)).values(status=status))
    await refused(office.owner.http.post(run.path), 409, "task_not_terminal")
    assert await _counts(office) == (0, 0, 0)


async def test_a_resume_unsafe_failure_opens_without_its_session(office: Office) -> None:
    """10: the chat is made, and says what it could not take along, and why."""
    run = await _finished(office, "api_invalid_request")
    made = await run.goes_on()
    assert (made["session_carried"], made["session_reason"]) == (False, "session_poisoned")
    chat = await _chat_row(office, made["chat"]["id"])
    assert (chat.session_carried, chat.session_reason) == (False, "session_poisoned")
    again = await run.goes_on(status=200)
    assert (again["session_carried"], again["session_reason"]) == (False, "session_poisoned")


async def test_a_turn_of_a_chat_is_not_continued(office: Office) -> None:
    """11: it has its chat. Somebody else's turn is not there at all."""
    run = await _finished(office)
    chat = (await run.goes_on())["chat"]
    sent = await made_by(
        office.owner.http.post(f"{API}/chats/{chat['id']}/messages", json={"content": "go on"})
    )
    turn = f"{API}/tasks/{sent['task_id']}"
    await refused(office.owner.http.post(f"{turn}/continue-in-chat"), 409, "task_is_chat")
    assert (await answered(office.owner.http.get(f"{turn}/continuation")))["reason"] == "task_is_chat"
    admin = await office.person(Role.ADMIN)
    await refused(admin.http.post(f"{turn}/continue-in-chat"), 404, "not_found")
    await refused(admin.http.get(f"{turn}/continuation"), 404, "not_found")
    assert await _counts(office) == (1, 1, 1)


async def test_another_workspace_finds_nothing(office: Office, other_office: Office) -> None:
    """12: 404, for its owner too, and nothing is made."""
    run = await _finished(office)
    for call in (other_office.owner.http.post(run.path), other_office.owner.http.get(run.preview_path)):
        await refused(call, 404, "not_found")
    assert await _counts(office) == (0, 0, 0)


async def test_who_may_not_start_the_agent_may_not_continue_its_run(office: Office) -> None:
    """13: the gate is the right to start the agent, which an admin who may look does not have."""
    run = await _finished(office, permission="private")
    for person in (await office.person(), await office.person(Role.ADMIN)):
        await refused(person.http.post(run.path), 403, "invocation_not_allowed")
        await refused(person.http.get(run.preview_path), 403, "invocation_not_allowed")
    assert await _counts(office) == (0, 0, 0)


async def test_an_archived_agent_is_refused(office: Office) -> None:
    """14: 400, which goes before the task's own state, and the preview says so."""
    run = await _queued(office)
    await answered(office.owner.http.post(f"{API}/agents/{run.agent['id']}/archive"))
    await refused(office.owner.http.post(run.path), 400, "invalid_input")
    shown = await run.preview()
    assert (shown["possible"], shown["reason"]) == (False, "target_unavailable")
    assert await _counts(office) == (0, 0, 0)


async def test_the_title_is_the_issues(office: Office) -> None:
    """15: and no project comes along."""
    made = await (await _finished(office, title="Fix the login")).goes_on()
    assert made["chat"]["title"] == "Fix the login"
    assert (await _chat_row(office, made["chat"]["id"])).title == "Fix the login"


async def test_the_route_is_there_for_who_has_a_token(office: Office) -> None:
    """401 without, 403 with a runtime's, 404 for an unknown task, 422 for an unknown field, else 201."""
    run = await _finished(office)
    for call in (office.client().post(run.path), office.client().get(run.preview_path)):
        await refused(call, 401, "unauthenticated")
    await refused(run.machine.http.post(run.path), 403, "not_allowed")
    unknown = run.path.replace(run.task_id, str(UUID(int=1)))
    await refused(office.owner.http.post(unknown), 404, "not_found")
    await refused(office.owner.http.post(run.path, json={"forked": True}), 422, "unprocessable")
    assert await _counts(office) == (0, 0, 0)
    response = await office.owner.http.post(run.path)
    assert response.status_code == 201
    assert response.headers["location"] == f"{PREFIX}/chats/{response.json()['chat']['id']}"
    assert await _counts(office) == (1, 1, 1)


# --- one chat for a member and a run --------------------------------------------------------------


async def test_fifty_calls_at_once_make_one_chat(office: Office) -> None:
    """One 201, the rest 200, all with the same chat."""
    run = await _finished(office)
    answers = await asyncio.gather(*(office.owner.http.post(run.path) for _ in range(50)))
    assert sorted(answer.status_code for answer in answers) == [200] * 49 + [201]
    assert len({answer.json()["chat"]["id"] for answer in answers}) == 1
    assert [answer.json()["reopened"] for answer in answers].count(False) == 1
    assert await _counts(office) == (1, 1, 1)


async def test_two_members_get_a_chat_each(office: Office) -> None:
    """Neither can read the other's."""
    run = await _finished(office)
    second = await office.person()
    mine, theirs = await asyncio.gather(run.goes_on(), run.goes_on(second))
    assert mine["chat"]["id"] != theirs["chat"]["id"]
    for person, foreign in ((second, mine), (office.owner, theirs)):
        path = f"{API}/chats/{foreign['chat']['id']}"
        await refused(person.http.get(path), 404, "not_found")
        await refused(person.http.get(f"{path}/messages"), 404, "not_found")
    assert (await run.preview())["existing_chat_id"] == mine["chat"]["id"]
    assert (await run.preview(second))["existing_chat_id"] == theirs["chat"]["id"]


async def test_asking_again_takes_the_chat_out_of_the_archive(office: Office) -> None:
    """An archived continuation goes on."""
    run = await _finished(office)
    chat = (await run.goes_on())["chat"]
    await answered(office.owner.http.post(f"{API}/chats/{chat['id']}/archive"))
    again = await run.goes_on(status=200)
    assert (again["chat"]["id"], again["chat"]["status"]) == (chat["id"], "active")


async def test_a_deleted_chat_makes_room_for_another(office: Office) -> None:
    """The index covers living chats only."""
    run = await _finished(office)
    first = (await run.goes_on())["chat"]
    assert (await office.owner.http.delete(f"{API}/chats/{first['id']}")).status_code == 204
    assert (await run.preview())["existing_chat_id"] is None
    second = (await run.goes_on())["chat"]
    assert second["id"] != first["id"]
    assert await _counts(office) == (2, 2, 2)


async def test_a_chat_outlives_its_source(office: Office) -> None:
    """The issue goes, and its tasks with it: the chat is read and goes on all the same."""
    run = await _finished(office)
    chat = (await run.goes_on())["chat"]
    assert (await office.owner.http.delete(f"{API}/issues/{run.issue['id']}")).status_code == 204
    shown = await answered(office.owner.http.get(f"{API}/chats/{chat['id']}"))
    assert shown["continued_from_task_id"] == run.task_id
    await made_by(office.owner.http.post(f"{API}/chats/{chat['id']}/messages", json={"content": "on"}))


# --- what is carried, and what the preview says ---------------------------------------------------


async def test_the_preview_says_what_the_call_does(office: Office) -> None:
    """Before the click: possible, carried, forked, where, and whether the machine is there."""
    run = await _finished(office)
    shown = await run.preview()
    assert shown == {
        "possible": True,
        "reason": None,
        "session_carried": True,
        "session_reason": None,
        "fork": True,
        "shared_with_issue": False,
        "work_dir": shown["work_dir"],
        "runtime_online": True,
        "existing_chat_id": None,
    }
    assert shown["work_dir"].startswith("/w/")
    assert await _counts(office) == (0, 0, 0)


async def test_an_offline_or_draining_machine_is_said_before(office: Office) -> None:
    """The chat can be made; its turns wait."""
    run = await _finished(office)
    await answered(office.owner.http.post(f"{API}/runtimes/{run.machine.id}/drain"))
    assert (await run.preview())["runtime_online"] is False
    machine = f"{API}/runtimes/{run.machine.id}"
    await answered(office.owner.http.patch(machine, json={"draining": False}))
    assert (await run.preview())["runtime_online"] is True
    async with office.database.begin() as conn:
        await conn.execute(update(Runtime).values(last_seen_at=datetime.now(UTC) - timedelta(hours=1)))
    shown = await run.preview()
    assert (shown["possible"], shown["runtime_online"]) == (True, False)
    await run.goes_on()


async def test_without_a_fork_the_issue_sees_the_chat(office: Office) -> None:
    """The chat's wish is kept in its row; where the provider can't fork, the preview says it before."""
    run = await _finished(office)
    made = await run.goes_on(fork=False)
    assert made["chat"]["fork"] is False
    assert (await _chat_row(office, made["chat"]["id"])).fork is False
    other = await _finished(office, provider="acp", args=["agent"])
    shown = await other.preview()
    assert (shown["fork"], shown["shared_with_issue"]) == (False, True)
    await refused(office.owner.http.post(other.path, json={"fork": True}), 400, "invalid_input")
    assert (await other.goes_on())["chat"]["fork"] is False


async def test_a_session_that_can_never_work_again_is_withheld(office: Office) -> None:
    """Retired, or of another program than the agent's present one."""
    retired = await _finished(office)
    async with office.database.begin() as conn:
        await conn.execute(
            update(Session).values(retired_at=func.now(), retired_reason="session_rollout_missing")
        )
    made = await retired.goes_on()
    assert (made["session_carried"], made["session_reason"]) == (False, "session_rollout_missing")
    changed = await _finished(office)
    async with office.database.begin() as conn:
        await conn.execute(update(Agent).where(Agent.id == UUID(changed.agent["id"])).values(provider="acp"))
    made = await changed.goes_on()
    assert (made["session_carried"], made["session_reason"]) == (False, "provider_changed")


async def test_a_deleted_machine_leaves_a_chat_without_memory(office: Office) -> None:
    """What lay there is out of reach: the chat runs where the agent does, and says what is lost."""
    run = await _finished(office)
    elsewhere = await office.machine()
    agent = f"{API}/agents/{run.agent['id']}"
    await answered(office.owner.http.patch(agent, json={"runtime_id": elsewhere.id}))
    assert (await office.owner.http.delete(f"{API}/runtimes/{run.machine.id}")).status_code == 204
    shown = await run.preview()
    assert (shown["possible"], shown["session_reason"], shown["work_dir"]) == (True, "runtime_changed", None)
    made = await run.goes_on()
    assert (made["session_carried"], made["session_reason"]) == (False, "runtime_changed")
    assert made["chat"]["runtime_id"] is None


async def test_a_dangling_source_is_no_error(office: Office) -> None:
    """The source is a soft reference, which no key holds."""
    run = await _finished(office)
    chat = (await run.goes_on())["chat"]
    async with office.database.begin() as conn:
        await conn.execute(
            update(Chat).where(Chat.id == UUID(chat["id"])).values(continued_from_task_id=UUID(int=9))
        )
    shown = await answered(office.owner.http.get(f"{API}/chats/{chat['id']}"))
    assert shown["continued_from_task_id"] == str(UUID(int=9))
    await made_by(office.owner.http.post(f"{API}/chats/{chat['id']}/messages", json={"content": "on"}))


def test_the_rule_knows_which_programs_can_fork() -> None:
    """The pure rule and the providers say the same."""
    assert {name for name in registry.names() if registry.get(name).can_fork} == FORKING


async def _forget_session(office: Office, run: Run) -> None:
    """As if the machine had never told one."""
    told = update(Attempt).where(Attempt.task_id == UUID(run.task_id))
    async with office.database.begin() as conn:
        await conn.execute(told.values(used_session_id=None, requested_session_id=None))
