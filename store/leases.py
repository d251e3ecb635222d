"""Leases: the one mechanism for order and capacity.

A task runs when it holds its lane, its directory, its session (if it resumes one), a slot of its
agent and a slot of its runtime: all of them, granted in one transaction, or none. The transaction
that frees a key also grants it to whom `_scan` picks and writes that task's wake; nothing is taken
that was not granted.

Everything here runs under one advisory lock a workspace, so that two transactions never decide on
the same key at once. Locks are taken in the order task row, lane rows, this lock; a grant to another
task writes leases, waits, attempts and outbox rows, and never that task's row.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from sqlalchemy import (
    and_,
    bindparam,
    delete,
    exists,
    func,
    insert,
    or_,
    select,
    text,
    tuple_,
    update,
)
from sqlalchemy.dialects.postgresql import insert as pg_insert
from sqlalchemy.ext.asyncio import AsyncConnection

from domain import names
from domain.pointer import PointerMode, ResumeDecision
from domain.statuses import (
    CAPACITY_LEASES,
    EXCLUSIVE_LEASES,
    ContinuityReason,
    LeaseKind,
    WaitKind,
)
from store import outbox, pointers
from store.ids import new_id
from store.models import (
    Agent,
    Attempt,
    Chat,
    Directory,
    Issue,
    Lease,
    LeaseWait,
    ProjectResource,
    Runtime,
    Task,
)
from store.rows import AnyRow

Key = tuple[LeaseKind, UUID]

#: Waiters looked at for one freed capacity; the rest follow when that capacity is freed again.
_SCAN_LIMIT = 200


@dataclass(frozen=True)
class Granted:
    """All leases are held; the attempt row has the pointer."""

    attempt_id: UUID


@dataclass(frozen=True)
class Blocked:
    """What stands in the way, and who (None: nobody in particular, or a machine)."""

    kind: WaitKind
    key: UUID
    holder_task_id: UUID | None = None
    #: The agent's account is known to be out of quota until then: no queue, a time.
    until: datetime | None = None
    #: The project's local directory can't be used: no queue, an end.
    refusal: str | None = None

    @property
    def queues(self) -> bool:
        return self.until is None and self.refusal is None


_LOCK = text("select pg_advisory_xact_lock(hashtextextended('segue.leases:' || :id, 0))")


async def lock(conn: AsyncConnection, workspace_id: UUID) -> None:
    """Serialise lease decisions of the workspace until the transaction ends."""
    await conn.execute(_LOCK, {"id": str(workspace_id)})


async def request(conn: AsyncConnection, task_id: UUID) -> Granted | Blocked:
    """Ask for everything that the task's next attempt needs. The caller holds `lock`."""
    return await _try(conn, task_id)


async def release(
    conn: AsyncConnection,
    *,
    workspace_id: UUID,
    task_id: UUID | None = None,
    attempt_id: UUID | None = None,
    kinds: Iterable[LeaseKind] = LeaseKind,
) -> int:
    """Give back a holder's leases of these kinds and grant them on. Returns how many there were."""
    await lock(conn, workspace_id)
    holder = Lease.task_id == task_id if task_id is not None else Lease.attempt_id == attempt_id
    rows = await conn.execute(
        delete(Lease).where(holder, Lease.kind.in_(list(kinds))).returning(Lease.kind, Lease.key)
    )
    freed = [(LeaseKind(row.kind), row.key) for row in rows]
    await _scan(conn, freed)
    return len(freed)


async def pass_to_attempt(
    conn: AsyncConnection, *, workspace_id: UUID, task_id: UUID, attempt_id: UUID
) -> None:
    """Set aside: directory and session stay closed in the attempt's name; the task's end frees the rest."""
    await lock(conn, workspace_id)
    await conn.execute(
        update(Lease)
        .where(Lease.task_id == task_id, Lease.kind.in_([LeaseKind.DIRECTORY, LeaseKind.SESSION]))
        .values(task_id=None, attempt_id=attempt_id)
    )


async def grant_for_runtime(conn: AsyncConnection, workspace_id: UUID, runtime_id: UUID) -> None:
    """Look at a runtime's waiters again: it came back, was undrained, or has more slots."""
    await lock(conn, workspace_id)
    await _scan(conn, [(LeaseKind.RUNTIME, runtime_id)])


async def grant_for_agent(conn: AsyncConnection, workspace_id: UUID, agent_id: UUID) -> None:
    """Look at an agent's waiters again: it may run more at once, or was unarchived."""
    await lock(conn, workspace_id)
    await _scan(conn, [(LeaseKind.AGENT, agent_id)])


async def grant_for_check(conn: AsyncConnection, workspace_id: UUID, resource_id: UUID) -> None:
    """A local directory's check was answered, or is no longer wanted: who waited for it asks again.

    All of them, in the order they came: what each one waits for now is the directory, not its check.
    """
    await lock(conn, workspace_id)
    for waiter in await _waiters(conn, [(LeaseKind.DIRECTORY, resource_id)]):
        await _offer(conn, waiter)


async def reconsider(conn: AsyncConnection, task_ids: Sequence[UUID]) -> None:
    """A lane's order has changed: its waiters ask again. The caller holds `lock`."""
    rows = await conn.execute(
        select(LeaseWait.task_id, LeaseWait.workspace_id)
        .join(Task, Task.id == LeaseWait.task_id)
        .where(LeaseWait.task_id.in_(task_ids))
        .order_by(Task.lane_position)
    )
    for waiter in rows.all():
        await _offer(conn, waiter)


async def grant_all(conn: AsyncConnection, workspace_id: UUID) -> None:
    """The reconciler's sweep for grants that got lost.

    Waiters for a lane, directory or session that is held are left alone: its release looks at them.
    """
    await lock(conn, workspace_id)
    held = exists().where(Lease.kind == LeaseWait.kind, Lease.key == LeaseWait.key)
    rows = await conn.execute(
        select(LeaseWait.kind, LeaseWait.key).where(LeaseWait.workspace_id == workspace_id, ~held).distinct()
    )
    # One at a time: a key with more waiters than a scan looks at must not hide the others.
    for row in rows.all():
        await _scan(conn, [(_lease_kind(WaitKind(row.kind)), row.key)])


_GIVE_UP = text(
    """
    with leases_given_back as (
        delete from leases where task_id = :task_id returning kind, key
    ), queues_left as (
        delete from lease_waits where task_id = :task_id returning kind, key
    )
    select kind, key, true as held from leases_given_back
    union all
    select kind, key, false from queues_left
    """
)


async def give_up(conn: AsyncConnection, *, workspace_id: UUID, task_id: UUID, lane_id: UUID) -> None:
    """The task ended: give back what it holds, leave every queue, and let the next ones in.

    Its lane is looked at even if it held nothing: a later task waits for an earlier one from the
    moment that one is queued.
    """
    await lock(conn, workspace_id)
    rows = (await conn.execute(_GIVE_UP, {"task_id": task_id})).all()
    freed = [(LeaseKind(row.kind), row.key) for row in rows if row.held]
    left = [(LeaseKind.LANE, lane_id)]
    left += [(_lease_kind(WaitKind(row.kind)), row.key) for row in rows if not row.held]
    await _scan(conn, freed + [key for key in left if key not in freed])


# --- one task -------------------------------------------------------------------------------------


async def _try(conn: AsyncConnection, task_id: UUID) -> Granted | Blocked:
    candidate = (await conn.execute(_CANDIDATE, {"wanted": task_id})).one()
    granted = _already_granted(candidate)
    if granted is not None:
        return granted
    decision = await _decide(conn, candidate)
    if isinstance(decision, Blocked) and not decision.queues:
        await conn.execute(delete(LeaseWait).where(LeaseWait.task_id == candidate.id))
        return decision
    if isinstance(decision, Blocked):
        await _wait(conn, candidate, decision)
        return decision
    return await _grant(conn, candidate, decision)


async def _decide(conn: AsyncConnection, candidate: AnyRow) -> ResumeDecision | Blocked:
    """The pointer, if everything that it and the attempt need is free."""
    blocked = _lane_blocker(candidate) or _local_blocker(candidate)
    if blocked is not None:
        return blocked
    decision = await pointers.decide(conn, _question(candidate))
    return (
        await _exclusive_blocker(conn, candidate, decision)
        or _quota_blocker(candidate)
        or _capacity_blocker(candidate)
        or decision
    )


_earlier = Task.__table__.alias("earlier")
_limited = Task.__table__.alias("limited")
_last = Attempt.__table__.alias("last_attempt")
#: Made once: building it for each call takes longer than sending it and waiting for its row.
_CANDIDATE = (
    select(
        Task.id,
        Task.workspace_id,
        Task.lane_id,
        Task.agent_id,
        Task.runtime_id,
        Task.pointer_mode,
        Task.rerun_of_task_id,
        Task.context,
        Task.rank,
        Task.attempt,
        Task.retry_at,
        Task.started_at,
        ProjectResource.id.label("local_id"),
        ProjectResource.checked_at.label("local_checked_at"),
        ProjectResource.refusal.label("local_refusal"),
        ProjectResource.directory_id.label("local_directory_id"),
        Chat.continued_from_task_id,
        Chat.fork,
        Chat.session_reason,
        Agent.provider,
        Agent.max_concurrent_tasks,
        Runtime.slots,
        Runtime.online,
        Runtime.draining,
        _last.c.id.label("attempt_id"),
        _last.c.number.label("attempt_number"),
        _last.c.dispatched_at.label("attempt_dispatched_at"),
        _last.c.ended_at.label("attempt_ended_at"),
        select(LeaseWait.kind).where(LeaseWait.task_id == Task.id).scalar_subquery().label("wait_kind"),
        select(func.array_agg(Lease.kind)).where(Lease.task_id == Task.id).scalar_subquery().label("held"),
        select(_earlier.c.id)
        .where(
            _earlier.c.lane_id == Task.lane_id,
            _earlier.c.lane_position < Task.lane_position,
            text("earlier.status not in ('completed', 'failed', 'cancelled')"),
        )
        .order_by(_earlier.c.lane_position)
        .limit(1)
        .scalar_subquery()
        .label("lane_holder"),
        select(func.max(_limited.c.retry_at))
        .where(
            _limited.c.agent_id == Task.agent_id,
            text("limited.status = 'waiting_quota'"),
            _limited.c.quota_waits > 0,
            _limited.c.retry_at > func.now(),
        )
        .scalar_subquery()
        .label("quota_until"),
        select(func.array_agg(Lease.slot))
        .where(Lease.kind == LeaseKind.AGENT, Lease.key == Task.agent_id)
        .scalar_subquery()
        .label("agent_slots"),
        select(func.array_agg(Lease.slot))
        .where(Lease.kind == LeaseKind.RUNTIME, Lease.key == Task.runtime_id)
        .scalar_subquery()
        .label("runtime_slots"),
    )
    .join(Agent, Agent.id == Task.agent_id)
    .join(Runtime, Runtime.id == Task.runtime_id)
    .outerjoin(Issue, Issue.id == Task.issue_id)
    .outerjoin(Chat, Chat.id == Task.chat_id)
    .outerjoin(
        ProjectResource,
        and_(
            ProjectResource.project_id == Issue.project_id,
            ProjectResource.runtime_id == Task.runtime_id,
            text("project_resources.kind = 'local_directory'"),
        ),
    )
    .outerjoin(
        _last,
        and_(
            _last.c.task_id == Task.id,
            _last.c.number
            == select(func.max(Attempt.number)).where(Attempt.task_id == Task.id).scalar_subquery(),
        ),
    )
    .where(Task.id == bindparam("wanted"))
)


def _already_granted(candidate: AnyRow) -> Granted | None:
    """An earlier transaction granted this task, and its attempt has not ended."""
    holds_capacity = set(CAPACITY_LEASES) <= set(candidate.held or ())
    if holds_capacity and candidate.attempt_id is not None and candidate.attempt_ended_at is None:
        return Granted(candidate.attempt_id)
    return None


def _lane_blocker(candidate: AnyRow) -> Blocked | None:
    if candidate.lane_holder is None:
        return None
    return Blocked(WaitKind.LANE, candidate.lane_id, candidate.lane_holder)


def _local_blocker(candidate: AnyRow) -> Blocked | None:
    """The project's directory on this runtime has not been looked at yet, or is refused."""
    if candidate.local_id is None or candidate.local_directory_id is not None:
        return None
    if candidate.local_checked_at is not None:
        refusal = candidate.local_refusal or "the project's local directory is no longer known"
        return Blocked(WaitKind.DIRECTORY, candidate.local_id, refusal=refusal)
    if not candidate.online:
        # The one who would look is away, and only this wait has an end.
        return Blocked(WaitKind.RUNTIME_OFFLINE, candidate.runtime_id)
    return Blocked(WaitKind.DIRECTORY, candidate.local_id)


def _question(candidate: AnyRow) -> pointers.PointerQuestion:
    """A further attempt goes on from the one before; the first one from what its task asks for."""
    mode, source = PointerMode(candidate.pointer_mode), candidate.rerun_of_task_id
    if candidate.started_at is not None:
        mode, source = PointerMode.TASK, candidate.id
    return pointers.PointerQuestion(
        lane_id=candidate.lane_id,
        runtime_id=candidate.runtime_id,
        provider=candidate.provider,
        mode=mode,
        source_task_id=source,
        local_directory_id=candidate.local_directory_id,
        context=candidate.context,
        seed=_seed_terms(candidate),
    )


def _seed_terms(candidate: AnyRow) -> pointers.SeedTerms | None:
    if candidate.continued_from_task_id is None:
        return None
    withheld = candidate.session_reason
    return pointers.SeedTerms(
        fork=candidate.fork, withheld=ContinuityReason(withheld) if withheld is not None else None
    )


#: Holders first, then those who wait; nobody who waits stands before a task that holds its lane.
_BEFORE_IT = text(
    """
    select 0 as step, leases.kind, leases.key, leases.granted_at as since,
           coalesce(leases.task_id, attempts.task_id) as holder
    from leases left join attempts on attempts.id = leases.attempt_id
    where (leases.kind, leases.key) in (('directory', :directory_id), ('session', :session_id))
      and leases.task_id is distinct from :task_id
    union all
    select 1, waits.kind, waits.key, waits.since, waits.task_id
    from lease_waits waits
    where (waits.kind, waits.key) in (('directory', :directory_id), ('session', :session_id))
      and waits.task_id <> :task_id
      and not cast(:holds_lane as boolean)
      and waits.since < coalesce(
          (select mine.since from lease_waits mine
           where mine.task_id = :task_id and mine.kind in ('directory', 'session')),
          now()
      )
    order by step, since limit 1
    """
)


async def _exclusive_blocker(
    conn: AsyncConnection, candidate: AnyRow, decision: ResumeDecision
) -> Blocked | None:
    """Somebody holds the directory or session, or has waited for it longer than this task."""
    if decision.directory_id is None and decision.session_id is None:
        return None
    rows = await conn.execute(
        _BEFORE_IT,
        {
            "task_id": candidate.id,
            "directory_id": decision.directory_id,
            "session_id": decision.session_id,
            "holds_lane": LeaseKind.LANE in (candidate.held or ()),
        },
    )
    row = rows.one_or_none()
    return None if row is None else Blocked(WaitKind(row.kind), row.key, row.holder)


def _quota_blocker(candidate: AnyRow) -> Blocked | None:
    """Another task of the agent has hit a quota that states its reset: don't run into it as well.

    A task is held back once, before its first attempt; then it finds out for itself (field notes Q4).
    """
    if candidate.quota_until is None or candidate.attempt > 0 or candidate.retry_at is not None:
        return None
    return Blocked(WaitKind.AGENT_CAPACITY, candidate.agent_id, until=candidate.quota_until)


def _capacity_blocker(candidate: AnyRow) -> Blocked | None:
    if not candidate.online:
        return Blocked(WaitKind.RUNTIME_OFFLINE, candidate.runtime_id)
    if len(candidate.agent_slots or ()) >= candidate.max_concurrent_tasks:
        return Blocked(WaitKind.AGENT_CAPACITY, candidate.agent_id)
    if candidate.draining or len(candidate.runtime_slots or ()) >= candidate.slots:
        return Blocked(WaitKind.RUNTIME_CAPACITY, candidate.runtime_id)
    return None


async def _wait(conn: AsyncConnection, candidate: AnyRow, blocked: Blocked) -> None:
    """Note what the task waits for; ``since`` stays while that is the same thing."""
    new = pg_insert(LeaseWait).values(
        task_id=candidate.id,
        workspace_id=candidate.workspace_id,
        kind=blocked.kind,
        key=blocked.key,
        rank=candidate.rank,
        holder_task_id=blocked.holder_task_id,
    )
    same = and_(LeaseWait.kind == new.excluded.kind, LeaseWait.key == new.excluded.key)
    changed = or_(~same, LeaseWait.holder_task_id.is_distinct_from(new.excluded.holder_task_id))
    await conn.execute(
        new.on_conflict_do_update(
            index_elements=[LeaseWait.task_id],
            set_={
                "kind": new.excluded.kind,
                "key": new.excluded.key,
                "holder_task_id": new.excluded.holder_task_id,
                "since": text(
                    "case when lease_waits.kind = excluded.kind and lease_waits.key = excluded.key "
                    "then lease_waits.since else now() end"
                ),
            },
            where=changed,
        )
    )


async def _grant(conn: AsyncConnection, candidate: AnyRow, decision: ResumeDecision) -> Granted:
    directory_id = decision.directory_id or await _new_directory(conn, candidate)
    attempt_id = await _new_attempt(conn, candidate, decision, directory_id)
    keys: list[tuple[LeaseKind, UUID, int]] = [
        (LeaseKind.LANE, candidate.lane_id, 0),
        (LeaseKind.DIRECTORY, directory_id, 0),
        (LeaseKind.AGENT, candidate.agent_id, _free_slot(candidate.agent_slots)),
        (LeaseKind.RUNTIME, candidate.runtime_id, _free_slot(candidate.runtime_slots)),
    ]
    if decision.session_id is not None:
        keys.append((LeaseKind.SESSION, decision.session_id, 0))
    await _hold(conn, candidate, keys)
    if candidate.wait_kind is not None:
        await conn.execute(delete(LeaseWait).where(LeaseWait.task_id == candidate.id))
        await _name_holder(conn, candidate.id, keys)
    return Granted(attempt_id)


async def _name_holder(
    conn: AsyncConnection, task_id: UUID, keys: Sequence[tuple[LeaseKind, UUID, int]]
) -> None:
    """Those who still wait for what was just granted see its new holder."""
    exclusive = [(kind, key) for kind, key, _ in keys if kind in EXCLUSIVE_LEASES]
    await conn.execute(
        update(LeaseWait)
        .where(tuple_(LeaseWait.kind, LeaseWait.key).in_(exclusive))
        .values(holder_task_id=task_id)
    )


_HOLD = text(
    """
    insert into leases (kind, key, slot, workspace_id, task_id)
    select kind, key, slot, cast(:workspace_id as uuid), cast(:task_id as uuid)
    from unnest(cast(:kinds as text[]), cast(:keys as uuid[]), cast(:slots as smallint[]))
         as wanted (kind, key, slot)
    """
)
_HOLD_AGAIN = text(f"{_HOLD.text} on conflict do nothing")


async def _hold(
    conn: AsyncConnection, candidate: AnyRow, keys: Sequence[tuple[LeaseKind, UUID, int]]
) -> None:
    """Insert the leases; those that a sleeping task kept are there already."""
    await conn.execute(
        _HOLD_AGAIN if candidate.held else _HOLD,
        {
            "kinds": [kind.value for kind, _, _ in keys],
            "keys": [key for _, key, _ in keys],
            "slots": [slot for _, _, slot in keys],
            "workspace_id": candidate.workspace_id,
            "task_id": candidate.id,
        },
    )


def _free_slot(used: Sequence[int] | None) -> int:
    taken = set(used or ())
    return next(slot for slot in range(len(taken) + 1) if slot not in taken)


_INSERT_DIRECTORY = insert(Directory)
_INSERT_ATTEMPT = insert(Attempt)


async def _new_directory(conn: AsyncConnection, candidate: AnyRow) -> UUID:
    directory_id = new_id()
    await conn.execute(
        _INSERT_DIRECTORY,
        {
            "id": directory_id,
            "workspace_id": candidate.workspace_id,
            "runtime_id": candidate.runtime_id,
            "lane_id": candidate.lane_id,
            "context": candidate.context,
        },
    )
    return directory_id


async def _new_attempt(
    conn: AsyncConnection, candidate: AnyRow, decision: ResumeDecision, directory_id: UUID
) -> UUID:
    attempt_id = new_id()
    await conn.execute(
        _INSERT_ATTEMPT,
        {
            "id": attempt_id,
            "workspace_id": candidate.workspace_id,
            "task_id": candidate.id,
            "number": (candidate.attempt_number or 0) + 1,
            "runtime_id": candidate.runtime_id,
            "provider": candidate.provider,
            "ops_queue": names.ops_queue(candidate.runtime_id),
            "runs_queue": names.runs_queue(candidate.runtime_id),
            "directory_id": directory_id,
            "requested_session_id": decision.session_id,
            "fork": decision.fork,
            "continuity": decision.continuity,
            "continuity_reason": decision.reason,
        },
    )
    return attempt_id


async def replace_directory(
    conn: AsyncConnection, *, workspace_id: UUID, attempt: AnyRow, lane_id: UUID, context: int, reason: str
) -> UUID:
    """The gate refused the directory: mark it gone and give the attempt a new one, session dropped."""
    await lock(conn, workspace_id)
    await conn.execute(
        update(Directory)
        .where(Directory.id == attempt.directory_id)
        .values(gone_at=func.now(), gone_reason=reason)
    )
    directory_id = new_id()
    await conn.execute(
        insert(Directory).values(
            id=directory_id,
            workspace_id=workspace_id,
            runtime_id=attempt.runtime_id,
            lane_id=lane_id,
            context=context,
        )
    )
    freed = await conn.execute(
        delete(Lease)
        .where(
            Lease.task_id == attempt.task_id,
            Lease.kind.in_([LeaseKind.DIRECTORY, LeaseKind.SESSION]),
        )
        .returning(Lease.kind, Lease.key)
    )
    keys = [(LeaseKind(row.kind), row.key) for row in freed]
    await conn.execute(
        insert(Lease).values(
            kind=LeaseKind.DIRECTORY,
            key=directory_id,
            workspace_id=workspace_id,
            task_id=attempt.task_id,
        )
    )
    await _scan(conn, keys)
    return directory_id


# --- picking the next -----------------------------------------------------------------------------


async def _scan(conn: AsyncConnection, freed: Sequence[Key]) -> None:
    """Grant what was freed to those who wait for it, best first, and write their wakes."""
    if not freed:
        return
    spent: set[UUID] = set()
    for waiter in await _waiters(conn, freed):
        if waiter.key in spent:
            continue
        answer = await _offer(conn, waiter)
        if isinstance(answer, Granted):
            if _lease_kind(WaitKind(waiter.kind)) in EXCLUSIVE_LEASES:
                spent.add(waiter.key)
        elif answer.key == waiter.key and answer.refusal is None:
            spent.add(waiter.key)


async def _offer(conn: AsyncConnection, waiter: AnyRow) -> Granted | Blocked:
    """Let one waiter ask again, and wake it when it no longer waits in a queue."""
    answer = await _try(conn, waiter.task_id)
    if isinstance(answer, Granted) or not answer.queues:
        await outbox.put(
            conn,
            workspace_id=waiter.workspace_id,
            kind=outbox.OutboxKind.WAKE,
            subject_id=waiter.task_id,
        )
    return answer


_WAITERS = (
    select(LeaseWait.task_id, LeaseWait.workspace_id, LeaseWait.kind, LeaseWait.key)
    .join(Task, Task.id == LeaseWait.task_id)
    .where(tuple_(LeaseWait.kind, LeaseWait.key).in_(bindparam("freed", expanding=True)))
    .order_by(
        text(
            "case when lease_waits.kind = 'lane' then 0 "
            "when lease_waits.kind in ('directory', 'session') then 1 else 2 end"
        ),
        text("case when lease_waits.kind = 'lane' then tasks.lane_position end"),
        text("case when lease_waits.kind in ('directory', 'session') then lease_waits.since end"),
        LeaseWait.rank,
        LeaseWait.task_id,
    )
    .limit(_SCAN_LIMIT)
)


async def _waiters(conn: AsyncConnection, freed: Sequence[Key]) -> Sequence[AnyRow]:
    """Heads of freed lanes, then waiters for directories and sessions in the order they came, then
    waiters for capacity by rank (importance with ageing: see `store.enqueue`).
    """
    by_kind = [(wait_kind, key) for kind, key in freed for wait_kind in _wait_kinds(kind)]
    return (await conn.execute(_WAITERS, {"freed": by_kind})).all()


def _wait_kinds(kind: LeaseKind) -> tuple[WaitKind, ...]:
    match kind:
        case LeaseKind.LANE:
            return (WaitKind.LANE,)
        case LeaseKind.DIRECTORY:
            return (WaitKind.DIRECTORY,)
        case LeaseKind.SESSION:
            return (WaitKind.SESSION,)
        case LeaseKind.AGENT:
            return (WaitKind.AGENT_CAPACITY,)
        case LeaseKind.RUNTIME:
            return (WaitKind.RUNTIME_CAPACITY, WaitKind.RUNTIME_OFFLINE)


def _lease_kind(kind: WaitKind) -> LeaseKind:
    return next(lease for lease in LeaseKind if kind in _wait_kinds(lease))
