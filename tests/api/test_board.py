"""Issues and comments, and whom they start."""

import asyncio
from typing import Any

from domain.statuses import Role
from tests.api.office import API, Machine, Office, answered, made_by, refused


def mention(agent: dict[str, Any]) -> str:
    return f"[@{agent['name']}](mention://agent/{agent['id']})"


async def resting(office: Office, agent: dict[str, Any]) -> str:
    """Key of a new issue that is assigned to the agent and has not started it."""
    assignee = {"type": "agent", "id": agent["id"]}
    key: str = (await office.issue(assignee=assignee, status="backlog"))["issue"]["key"]
    return key


async def test_issue_answers_to_its_id_and_its_key(office: Office) -> None:
    """The key is made of the workspace's prefix and a number, whatever its letters' case."""
    created = (await office.issue(title="Teal"))["issue"]
    assert created["key"] == "SEG-1"
    for ref in (created["id"], "SEG-1", "seg-1"):
        assert (await answered(office.owner.http.get(f"{API}/issues/{ref}")))["id"] == created["id"]
    await refused(office.owner.http.get(f"{API}/issues/SEG-2"), 404, "not_found")
    await refused(office.owner.http.get(f"{API}/issues/ABC-1"), 404, "not_found")
    await refused(office.owner.http.get(f"{API}/issues/nonsense"), 404, "not_found")


async def test_assigned_agent_starts_unless_in_the_backlog(office: Office) -> None:
    """Creating starts the assignee; in the backlog it waits until the issue leaves it."""
    agent = await office.agent((await office.machine()).id)
    assignee = {"type": "agent", "id": agent["id"]}
    started = await office.issue(assignee=assignee)
    assert [t["outcome"] for t in started["triggered"]] == ["queued"]
    waiting = await office.issue(assignee=assignee, status="backlog")
    assert waiting["triggered"] == []
    key = waiting["issue"]["key"]
    moved = await answered(office.owner.http.patch(f"{API}/issues/{key}", json={"status": "todo"}))
    assert [t["outcome"] for t in moved["triggered"]] == ["queued"]
    again = await answered(office.owner.http.patch(f"{API}/issues/{key}", json={"status": "in_progress"}))
    assert again["triggered"] == []


async def test_handoff_note_reaches_the_task(office: Office) -> None:
    """A hand-off note is stored with the run that the assignment starts."""
    machine = await office.machine()
    agent = await office.agent(machine.id)
    key = (await office.issue())["issue"]["key"]
    body = {"assignee": {"type": "agent", "id": agent["id"]}, "handoff_note": "mind the gap"}
    changed = await answered(office.owner.http.patch(f"{API}/issues/{key}", json=body))
    resolution = await office.dispatched(changed["triggered"][0]["task_id"])
    brief = await answered(machine.http.get(f"{API}/runtime/attempts/{resolution.attempt_id}/brief"))
    assert "mind the gap" in brief["prompt"]["full_context"]


async def test_comment_starts_the_assignee_and_joins_its_queued_task(office: Office) -> None:
    """A second comment joins the task that has not started yet."""
    agent = await office.agent((await office.machine()).id)
    key = (await office.issue(assignee={"type": "agent", "id": agent["id"]}, status="backlog"))["issue"][
        "key"
    ]
    first = await made_by(office.owner.http.post(f"{API}/issues/{key}/comments", json={"body": "say hi"}))
    second = await made_by(office.owner.http.post(f"{API}/issues/{key}/comments", json={"body": "say ho"}))
    assert [t["outcome"] for t in first["triggered"]] == ["queued"]
    assert [t["outcome"] for t in second["triggered"]] == ["coalesced"]
    assert first["triggered"][0]["task_id"] == second["triggered"][0]["task_id"]
    assert first["comment"]["author"] == {"type": "member", "id": str(office.owner.id)}


async def test_mentions_start_exactly_those_agents(office: Office) -> None:
    """Explicit mentions win over the assignee; malformed and unknown ones are answered, not errors."""
    machine = await office.machine()
    assigned, named, other = [await office.agent(machine.id) for _ in range(3)]
    key = (await office.issue(assignee={"type": "agent", "id": assigned["id"]}, status="backlog"))["issue"][
        "key"
    ]
    body = (
        f"{mention(other)} {mention(named)} [@x](mention://agent/not-an-id) "
        "[@y](mention://agent/01900000-0000-7000-8000-000000000000)"
    )
    written = await made_by(office.owner.http.post(f"{API}/issues/{key}/comments", json={"body": body}))
    assert [(t["agent_id"], t["outcome"], t["reason"]) for t in written["triggered"]] == [
        (other["id"], "queued", None),
        (named["id"], "queued", None),
        ("00000000-0000-0000-0000-000000000000", "blocked", "target_unavailable"),
        ("01900000-0000-7000-8000-000000000000", "blocked", "invocation_not_allowed"),
    ]


async def test_note_starts_nobody(office: Office) -> None:
    """A comment that begins with /note is only written."""
    agent = await office.agent((await office.machine()).id)
    key = (await office.issue(assignee={"type": "agent", "id": agent["id"]}, status="backlog"))["issue"][
        "key"
    ]
    written = await made_by(
        office.owner.http.post(f"{API}/issues/{key}/comments", json={"body": "/note to self"})
    )
    assert written["triggered"] == []


async def test_reply_goes_to_the_threads_agent(office: Office) -> None:
    """A reply in a thread whose root named an agent starts that agent, not the assignee."""
    machine = await office.machine()
    assigned, named = await office.agent(machine.id), await office.agent(machine.id)
    key = (await office.issue(assignee={"type": "agent", "id": assigned["id"]}, status="backlog"))["issue"][
        "key"
    ]
    comments = f"{API}/issues/{key}/comments"
    root = await made_by(office.owner.http.post(comments, json={"body": mention(named)}))
    reply = {"body": "and?", "parent_id": root["comment"]["id"]}
    first = await made_by(office.owner.http.post(comments, json=reply))
    assert [t["agent_id"] for t in first["triggered"]] == [named["id"]]
    deeper = {"body": "well?", "parent_id": first["comment"]["id"]}
    second = await made_by(office.owner.http.post(comments, json=deeper))
    assert [t["agent_id"] for t in second["triggered"]] == [named["id"]]


async def test_reply_to_a_foreign_comment_is_refused(office: Office) -> None:
    """A parent must be a comment of the same issue."""
    one, two = [(await office.issue())["issue"]["key"] for _ in range(2)]
    root = await made_by(office.owner.http.post(f"{API}/issues/{one}/comments", json={"body": "a"}))
    body = {"body": "b", "parent_id": root["comment"]["id"]}
    await refused(office.owner.http.post(f"{API}/issues/{two}/comments", json=body), 422, "unprocessable")


async def test_blocked_targets_keep_the_comment(office: Office) -> None:
    """Writing and starting are independent: a private agent blocks, an unbound one says so to its owner."""
    machine = await office.machine()
    member = await office.person()
    private = await office.agent(machine.id, permission="private")
    unbound = await office.agent(None)
    key = (await office.issue())["issue"]["key"]
    comments = f"{API}/issues/{key}/comments"
    body = {"body": f"{mention(private)} {mention(unbound)}"}
    written = await made_by(member.http.post(comments, json=body))
    assert [(t["outcome"], t["reason"]) for t in written["triggered"]] == [
        ("blocked", "invocation_not_allowed"),
        ("blocked", "agent_runtime_required"),
    ]
    listed = await answered(member.http.get(comments))
    assert [item["id"] for item in listed["items"]] == [written["comment"]["id"]]


async def test_members_permission_lets_only_those_start_it(office: Office) -> None:
    """An agent for named members starts for them, and for no admin who is not named."""
    named, admin = await office.person(), await office.person(Role.ADMIN)
    agent = await office.agent(
        (await office.machine()).id, permission="members", allowed_member_ids=[str(named.id)]
    )
    comments = f"{API}/issues/{(await office.issue())['issue']['key']}/comments"
    body = {"body": mention(agent)}
    refusal = await made_by(admin.http.post(comments, json=body))
    assert refusal["triggered"][0]["reason"] == "invocation_not_allowed"
    started = await made_by(named.http.post(comments, json=body))
    assert started["triggered"][0]["outcome"] == "queued"


async def test_comment_takes_few_statements(office: Office) -> None:
    """A comment that starts an agent is one transaction of few statements, authentication included."""
    agent = await office.agent((await office.machine()).id)
    key = (await office.issue(assignee={"type": "agent", "id": agent["id"]}, status="backlog"))["issue"][
        "key"
    ]
    with office.counted() as statements:
        await made_by(office.owner.http.post(f"{API}/issues/{key}/comments", json={"body": "say hi"}))
    assert len(statements) <= 10, "\n\n".join(statements)


async def test_edited_comment_starts_whom_it_names_only_now(office: Office) -> None:
    """Only agents that the old text did not name are started by an edit, and only authors edit."""
    machine = await office.machine()
    old, new = await office.agent(machine.id), await office.agent(machine.id)
    key = (await office.issue())["issue"]["key"]
    written = await made_by(
        office.owner.http.post(f"{API}/issues/{key}/comments", json={"body": mention(old)})
    )
    path = f"{API}/comments/{written['comment']['id']}"
    body = {"body": f"{mention(old)} {mention(new)}"}
    edited = await answered(office.owner.http.patch(path, json=body))
    assert [t["agent_id"] for t in edited["triggered"]] == [new["id"]]
    assert edited["comment"]["edited_at"] is not None
    admin = await office.person(Role.ADMIN)
    await refused(admin.http.patch(path, json=body), 403, "not_allowed")


async def test_deleted_comment_cancels_the_task_it_alone_started(office: Office) -> None:
    """A queued task with nothing else to read ends; the comment is gone."""
    agent = await office.agent((await office.machine()).id)
    key = (await office.issue())["issue"]["key"]
    comments = f"{API}/issues/{key}/comments"
    written = await made_by(office.owner.http.post(comments, json={"body": mention(agent)}))
    await answered(office.owner.http.delete(f"{API}/comments/{written['comment']['id']}"), 204)
    task = await answered(office.owner.http.get(f"{API}/tasks/{written['triggered'][0]['task_id']}"))
    assert task["status"] == "cancelled"
    assert (await answered(office.owner.http.get(comments)))["items"] == []


async def test_deleted_issue_is_gone_and_its_tasks_end(office: Office) -> None:
    """Tasks of a deleted issue are cancelled, its children stand alone."""
    agent = await office.agent((await office.machine()).id)
    created = await office.issue(assignee={"type": "agent", "id": agent["id"]})
    key = created["issue"]["key"]
    child = (await office.issue(parent_id=key))["issue"]
    assert child["parent_id"] == created["issue"]["id"]
    await answered(office.owner.http.delete(f"{API}/issues/{key}"), 204)
    await refused(office.owner.http.get(f"{API}/issues/{key}"), 404, "not_found")
    await refused(
        office.owner.http.post(f"{API}/issues/{key}/comments", json={"body": "x"}), 404, "not_found"
    )
    await refused(office.owner.http.delete(f"{API}/issues/{key}"), 404, "not_found")
    task = await answered(office.owner.http.get(f"{API}/tasks/{created['triggered'][0]['task_id']}"))
    assert (task["status"], task["reason"]) == ("cancelled", "cancelled")
    assert (await answered(office.owner.http.get(f"{API}/issues/{child['id']}")))["parent_id"] is None


async def test_comment_and_deletion_at_once_leave_no_task(office: Office) -> None:
    """Whichever comes first: the comment is refused, or the task that it started is cancelled."""
    agent = await office.agent((await office.machine()).id)
    for _ in range(5):
        path = f"{API}/issues/{await resting(office, agent)}"
        comment, gone = await asyncio.gather(
            office.owner.http.post(f"{path}/comments", json={"body": "say hi"}),
            office.owner.http.delete(path),
        )
        assert gone.status_code == 204
        assert comment.status_code in {201, 404}
    tasks = await answered(office.owner.http.get(f"{API}/agents/{agent['id']}/tasks"))
    assert {task["status"] for task in tasks["items"]} <= {"cancelled"}


async def test_issues_made_at_once_have_numbers_of_their_own(office: Office) -> None:
    """Numbers are neither doubled nor skipped."""
    made = await asyncio.gather(*(office.issue() for _ in range(8)))
    assert {item["issue"]["key"] for item in made} == {f"SEG-{n}" for n in range(1, 9)}


async def test_comments_at_once_share_one_task(office: Office) -> None:
    """Comments that arrive together are all delivered, by one task that has not started."""
    agent = await office.agent((await office.machine()).id)
    path = f"{API}/issues/{await resting(office, agent)}/comments"
    written = await asyncio.gather(
        *(made_by(office.owner.http.post(path, json={"body": f"say {n}"})) for n in range(6))
    )
    triggered = [answer["triggered"][0] for answer in written]
    assert len({answer["task_id"] for answer in triggered}) == 1
    assert sorted(answer["outcome"] for answer in triggered) == ["coalesced"] * 5 + ["queued"]


async def test_parents_are_inherited_from_and_never_cyclic(office: Office) -> None:
    """A sub-issue takes its parent's project; an issue can't be put below itself."""
    project = await made_by(office.owner.http.post(f"{API}/projects", json={"name": "P"}))
    top = (await office.issue(project_id=project["id"]))["issue"]
    low = (await office.issue(parent_id=top["id"]))["issue"]
    assert low["project_id"] == project["id"]
    children = await answered(office.owner.http.get(f"{API}/issues/{top['key']}/children"))
    assert [item["id"] for item in children["items"]] == [low["id"]]
    path = f"{API}/issues/{top['key']}"
    for parent in (low["id"], top["id"]):
        await refused(office.owner.http.patch(path, json={"parent_id": parent}), 422, "unprocessable")
    cleared = await answered(office.owner.http.patch(f"{API}/issues/{low['key']}", json={"parent_id": None}))
    assert cleared["issue"]["parent_id"] is None


async def test_rerun_starts_fresh_or_retries_the_named_task(office: Office) -> None:
    """Without a task the assignee runs afresh; a task of another issue is not found."""
    machine = await office.machine()
    agent = await office.agent(machine.id)
    created = await office.issue(assignee={"type": "agent", "id": agent["id"]})
    key, task_id = created["issue"]["key"], created["triggered"][0]["task_id"]
    path = f"{API}/issues/{key}/rerun"
    rerun = await answered(office.owner.http.post(path), 202)
    assert rerun["task_id"] != task_id
    await refused(office.owner.http.post(path, json={"task_id": task_id}), 409, "task_not_terminal")
    attempt_id, _ = await office.started(machine, task_id)
    await office.ended(task_id, attempt_id)
    retried = await answered(office.owner.http.post(path, json={"task_id": task_id}), 202)
    shown = await answered(office.owner.http.get(f"{API}/tasks/{retried['task_id']}"))
    assert shown["rerun_of_task_id"] == task_id
    elsewhere = (await office.issue())["issue"]["key"]
    body = {"task_id": task_id}
    await refused(office.owner.http.post(f"{API}/issues/{elsewhere}/rerun", json=body), 404, "not_found")


async def test_agent_at_work_writes_as_itself_and_does_not_start_itself(office: Office) -> None:
    """A task token comments as its agent; naming itself on its own issue starts nothing."""
    machine: Machine = await office.machine()
    agent, peer = await office.agent(machine.id), await office.agent(machine.id)
    created = await office.issue(assignee={"type": "agent", "id": agent["id"]})
    _, started = await office.started(machine, created["triggered"][0]["task_id"])
    at_work = office.client(started["token"])
    comments = f"{API}/issues/{created['issue']['key']}/comments"
    plain = await made_by(at_work.post(comments, json={"body": "done so far"}))
    assert plain["comment"]["author"] == {"type": "agent", "id": agent["id"]}
    assert plain["comment"]["source_task_id"] == created["triggered"][0]["task_id"]
    assert plain["triggered"] == []
    named = await made_by(at_work.post(comments, json={"body": f"{mention(agent)} {mention(peer)}"}))
    assert [(t["outcome"], t["reason"]) for t in named["triggered"]] == [
        ("blocked", "self_trigger_suppressed"),
        ("queued", None),
    ]


async def test_lists_go_on_where_the_page_ended(office: Office) -> None:
    """Pages are newest first, without repeats or holes, and filters hold."""
    keys = [(await office.issue(status="todo" if n % 2 else "done"))["issue"]["key"] for n in range(5)]
    seen: list[str] = []
    cursor: dict[str, str] = {}
    while True:
        page = await answered(office.owner.http.get(f"{API}/issues", params={"limit": 2, **cursor}))
        seen += [item["key"] for item in page["items"]]
        if page["next"] is None:
            break
        cursor = {"cursor": page["next"]}
    assert seen == keys[::-1]
    done = await answered(office.owner.http.get(f"{API}/issues", params={"status": "done"}))
    assert [item["key"] for item in done["items"]] == [keys[4], keys[2], keys[0]]
    for bad in ("nonsense", "e30=", "WyJ4IiwgInkiXQ=="):
        await refused(office.owner.http.get(f"{API}/issues", params={"cursor": bad}), 400, "invalid_input")
    await refused(office.owner.http.get(f"{API}/issues", params={"limit": 0}), 422, "unprocessable")
