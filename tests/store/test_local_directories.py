"""Projects' own directories: checked once, shared by all who name them, one run at a time."""

from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import select

from domain.brief import LocalDirectoryCheck, RegisterRequest
from domain.errors import NotFound
from domain.statuses import Continuity, ContinuityReason, WaitKind
from domain.steps import Resolution, Resolved
from store import attempts, leases, localdirectories, projects, reconcile, runtimes
from store.ids import new_id
from store.models import Directory, Issue, Project, ProjectResource, Runtime
from store.secretbox import SecretBox
from tests.store.board import Board, outcome

pytestmark = pytest.mark.slow

PATH = "/srv/project"


class Shop:
    """A project with a local directory on one runtime."""

    def __init__(self, board: Board, runtime: UUID) -> None:
        self.board, self.runtime = board, runtime
        self.project = self.resource = new_id()

    async def open(self) -> "Shop":
        self.project, self.resource = await self.another()
        return self

    async def another(self, path: str = PATH) -> tuple[UUID, UUID]:
        """A project with a local directory: their ids."""
        project, resource = new_id(), new_id()
        workspace = self.board.workspace_id
        await self.board.insert(Project, id=project, workspace_id=workspace, name="P")
        await self.board.insert(
            ProjectResource,
            id=resource,
            workspace_id=workspace,
            project_id=project,
            kind="local_directory",
            runtime_id=self.runtime,
            path=path,
        )
        return project, resource

    async def issue(self, project: UUID | None = None) -> UUID:
        issue = await self.board.issue()
        await self.board.change(Issue, issue, project_id=project or self.project)
        return issue

    async def task(self, agent: UUID | None = None, issue: UUID | None = None) -> UUID:
        return await self.board.task(
            agent or await self.board.agent(self.runtime), issue or await self.issue()
        )

    async def answer(self, resource: UUID | None = None, **fields: Any) -> None:
        """The runtime's word: the directory is fine, unless ``fields`` say otherwise."""
        found = fields or {"path": PATH, "device": 7, "inode": 8}
        async with self.board.database.begin() as conn:
            await localdirectories.answer(
                conn,
                workspace_id=self.board.workspace_id,
                runtime_id=self.runtime,
                resource_id=resource or self.resource,
                check=LocalDirectoryCheck(**found),
            )

    async def questions(self) -> list[UUID]:
        async with self.board.database.begin() as conn:
            return [one.id for one in await localdirectories.unchecked(conn, self.runtime)]

    async def row(self, resource: UUID | None = None) -> Any:
        query = select(ProjectResource.__table__)
        return (await self.board.rows(query.where(ProjectResource.id == (resource or self.resource))))[0]

    async def directory(self, resolution: Resolution) -> Any:
        attempt = await self.board.attempt(resolution)
        query = select(Directory.__table__).where(Directory.id == attempt.directory_id)
        return (await self.board.rows(query))[0]


@pytest.fixture
async def shop(board: Board) -> Shop:
    return await Shop(board, await board.runtime()).open()


async def test_a_task_waits_for_the_check_and_is_woken_by_it(shop: Shop) -> None:
    """Pending: nobody holds the directory, somebody has to look at it."""
    task = await shop.task()
    waiting = await shop.board.resolve(task)
    assert (waiting.kind, waiting.wait_kind) == (Resolved.WAIT, WaitKind.DIRECTORY)
    assert (await shop.board.waits())[task].holder_task_id is None
    assert await shop.questions() == [shop.resource]
    await shop.answer()
    assert task in await shop.board.outbox("wake")
    resolution = await shop.board.resolve(task)
    assert (resolution.kind, resolution.work_dir) == (Resolved.RUN, PATH)
    assert resolution.continuity is Continuity.FIRST
    assert await shop.questions() == []


async def test_the_brief_names_the_directory_as_it_was_checked(shop: Shop) -> None:
    """Kind, path, device and inode are what the gate compares."""
    await shop.answer()
    resolution = await shop.board.resolve(await shop.task())
    assert resolution.attempt_id
    async with shop.board.database.begin() as conn:
        brief = await attempts.brief(
            conn,
            runtime_id=shop.runtime,
            attempt_id=resolution.attempt_id,
            secrets=SecretBox(SecretBox.new_key()),
        )
    given = brief.directory
    assert (given.kind, given.path, given.device, given.inode) == ("local", PATH, 7, 8)
    row = await shop.directory(resolution)
    assert (row.kind, row.lane_id) == ("local", None)


async def test_a_refused_directory_fails_the_task_before_any_process(shop: Shop) -> None:
    """The refusal is error and evidence, and the issue is told."""
    issue = await shop.issue()
    task = await shop.task(issue=issue)
    await shop.board.resolve(task)
    await shop.answer(refusal="/srv/project is not there")
    assert task in await shop.board.outbox("wake")
    for task_id in (task, await shop.task()):
        assert (await shop.board.resolve(task_id)).kind is Resolved.END
        row = await shop.board.row(task_id)
        assert (row.status, row.reason, row.attempt) == ("failed", "local_directory_error", 0)
        assert row.evidence == "/srv/project is not there"
    assert await shop.board.waits() == {}
    assert "is not there" in (await shop.board.comments(issue))[-1].body


async def test_the_next_comment_resumes_in_it(shop: Shop) -> None:
    """Sessions follow the usual rules; the directory is the same for all lanes."""
    await shop.answer()
    agent, issue = await shop.board.agent(shop.runtime), await shop.issue()
    first = await shop.board.run(await shop.task(agent, issue))
    second = await shop.board.resolve(await shop.task(agent, issue))
    assert (second.continuity, second.session_id) == (Continuity.RESUMED, "s-1")
    assert (await shop.directory(second)).id == (await shop.directory(first)).id


async def test_a_rerun_starts_fresh_in_it(shop: Shop) -> None:
    """Fresh asked for: no session, and no other directory either."""
    await shop.answer()
    agent, issue = await shop.board.agent(shop.runtime), await shop.issue()
    await shop.board.run(await shop.task(agent, issue))
    again = await shop.board.resolve(await shop.board.rerun(agent, issue))
    assert (again.continuity, again.session_id, again.work_dir) == (Continuity.FRESH, None, PATH)


async def test_a_retry_goes_on_in_it(shop: Shop) -> None:
    """The source task's own session, and its directory as long as the project names it."""
    await shop.answer()
    task = await shop.task()
    await shop.board.run(task, reason="process_failure")
    await shop.board.record(task, await shop.board.resolve(task, 2), outcome("process_failure"))
    again = await shop.board.resolve(await shop.board.retry(task))
    assert (again.continuity, again.work_dir) == (Continuity.RESUMED, PATH)


async def test_a_run_that_left_no_session_is_not_forgotten(shop: Shop) -> None:
    """The second run is told that there was a first one."""
    await shop.answer()
    agent, issue = await shop.board.agent(shop.runtime), await shop.issue()
    await shop.board.run(await shop.task(agent, issue), session=None)
    second = await shop.board.resolve(await shop.task(agent, issue))
    assert second.continuity_reason is ContinuityReason.SESSION_NEVER_RECORDED


async def test_lanes_take_turns_in_one_directory(shop: Shop) -> None:
    """Another agent, another issue, another project: the second waits and sees who holds it."""
    _, resource = await shop.another("/srv/link-to-project")
    other = (await shop.row(resource)).project_id
    waiters = [await shop.task(), await shop.task(issue=await shop.issue(other))]
    await shop.answer()
    await shop.answer(resource)
    assert (await shop.row(resource)).directory_id == (await shop.row()).directory_id
    first = await shop.task()
    running = await shop.board.running(first)
    for task in waiters:
        assert (await shop.board.resolve(task)).wait_kind is WaitKind.DIRECTORY
        assert (await shop.board.waits())[task].holder_task_id == first
    await shop.board.record(first, running, outcome())
    assert [task in await shop.board.outbox("wake") for task in waiters] == [True, False]
    assert (await shop.board.resolve(waiters[0])).kind is Resolved.RUN
    assert (await shop.board.waits())[waiters[1]].holder_task_id == waiters[0]


async def test_all_who_waited_for_the_check_learn_of_it(shop: Shop) -> None:
    """The first one runs, the others wait for the directory instead."""
    tasks = [await shop.task() for _ in range(3)]
    for task in tasks:
        await shop.board.resolve(task)
    await shop.answer()
    assert [task in await shop.board.outbox("wake") for task in tasks] == [True, False, False]
    waits = await shop.board.waits()
    assert [waits[task].holder_task_id for task in tasks[1:]] == [tasks[0], tasks[0]]


async def test_an_offline_runtime_is_what_is_waited_for(shop: Shop) -> None:
    """Nobody can look, and that wait has an end; falling silent wakes those who wait for a check."""
    task = await shop.task()
    await shop.board.resolve(task)
    await shop.board.change(Runtime, shop.runtime, last_seen_at=await shop.board.ago(3600))
    async with shop.board.database.begin() as conn:
        await reconcile.mark_offline(conn, shop.board.rules.queue_expiry / 10)
    assert await shop.board.outbox("wake") == [task]
    waiting = await shop.board.resolve(task)
    assert waiting.wait_kind is WaitKind.RUNTIME_OFFLINE
    assert waiting.look_again_at is not None
    await shop.board.change(Runtime, shop.runtime, online=True)
    async with shop.board.database.begin() as conn:
        await leases.grant_for_runtime(conn, shop.board.workspace_id, shop.runtime)
    assert (await shop.board.waits())[task].kind == WaitKind.DIRECTORY


async def test_deleting_the_resource_lets_waiters_go_on_without_it(shop: Shop) -> None:
    """In a directory of their own."""
    task = await shop.task()
    await shop.board.resolve(task)
    async with shop.board.database.begin() as conn:
        await projects.delete_resource(conn, shop.board.workspace_id, shop.project, shop.resource)
    assert task in await shop.board.outbox("wake")
    assert (await shop.directory(await shop.board.resolve(task))).kind == "managed"


async def test_leaving_the_directory_is_disclosed(shop: Shop) -> None:
    """The session stayed with a directory that the project no longer names, for a retry as well."""
    await shop.answer()
    agent, issue = await shop.board.agent(shop.runtime), await shop.issue()
    first = await shop.task(agent, issue)
    await shop.board.run(first)
    async with shop.board.database.begin() as conn:
        await projects.delete_resource(conn, shop.board.workspace_id, shop.project, shop.resource)
    after = await shop.board.resolve(await shop.board.retry(first))
    assert (after.session_id, after.work_dir) == (None, None)
    assert after.continuity_reason is ContinuityReason.DIRECTORY_CHANGED


async def test_the_sweep_changes_nothing_while_the_check_is_out(shop: Shop) -> None:
    """The reconciler asks for those who wait for a check, too; they keep their place."""
    task = await shop.task()
    await shop.board.resolve(task)
    before = (await shop.board.waits())[task]
    async with shop.board.database.begin() as conn:
        await leases.grant_all(conn, shop.board.workspace_id)
    assert (await shop.board.waits())[task] == before


async def test_looked_at_again_a_replaced_directory_is_the_one_that_counts(shop: Shop) -> None:
    """Same path, new identity: the row learns it, and sessions keep it."""
    await shop.answer()
    before = await shop.row()
    async with shop.board.database.begin() as conn:
        pending = await projects.check_again(conn, shop.board.workspace_id, shop.project, shop.resource)
    assert localdirectories.status(pending) is localdirectories.CheckStatus.PENDING
    await shop.answer(path=PATH, device=7, inode=99)
    assert (await shop.row()).directory_id == before.directory_id
    query = select(Directory.inode).where(Directory.id == before.directory_id)
    assert (await shop.board.rows(query))[0].inode == 99


async def test_another_machine_looks_for_itself(shop: Shop) -> None:
    """What the old machine said of its disk says nothing of the new one's."""
    for machine, asked in (("m-1", True), ("m-1", False), ("m-2", True)):
        async with shop.board.database.begin() as conn:
            request = RegisterRequest(machine_id=machine, boot_id="b", slots=2, version="0")
            await runtimes.register(conn, shop.board.workspace_id, shop.runtime, request)
        assert await shop.questions() == ([shop.resource] if asked else [])
        await shop.answer()


async def test_a_managed_directory_is_no_projects(shop: Shop) -> None:
    """A path that a lane's directory has is refused, whatever the machine says."""
    resolution = await shop.board.running(
        await shop.board.task(await shop.board.agent(shop.runtime), await shop.board.issue())
    )
    path = (await shop.directory(resolution)).path
    await shop.answer(path=path, device=1, inode=1)
    row = await shop.row()
    assert row.directory_id is None
    assert "manages" in row.refusal


async def test_only_the_runtime_that_has_it_answers(shop: Shop) -> None:
    """Another runtime's answer, and one about a deleted resource, find nothing."""
    with pytest.raises(NotFound):
        await shop.answer(new_id())
    real, shop.runtime = shop.runtime, await shop.board.runtime()
    with pytest.raises(NotFound):
        await shop.answer()
    shop.runtime = real
    assert (await shop.row()).checked_at is None
