"""The resume pointer: every case of the design's table, and what must hold for all facts."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.pointer import (
    DirectoryFacts,
    PointerFacts,
    PointerMode,
    ResumeDecision,
    SessionFacts,
    resolve,
    retirement_reason,
)
from domain.reasons import RETIRED_REPEATED_FAILURE, Reason, poisons
from domain.statuses import Continuity, ContinuityReason

HERE, ELSEWHERE = uuid4(), uuid4()
EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


def session(directory: UUID | None, **changed: Any) -> SessionFacts:
    """A healthy session on this runtime whose last run completed."""
    facts: dict[str, Any] = {
        "id": uuid4(),
        "provider": "script",
        "provider_session_id": "s",
        "runtime_id": HERE,
        "directory_id": directory,
        "last_status": "completed",
        "last_reason": "completed",
        "last_ended_at": EPOCH,
    }
    return SessionFacts(**(facts | changed))


def directory(**changed: Any) -> DirectoryFacts:
    """A usable directory on this runtime."""
    facts: dict[str, Any] = {"id": uuid4(), "runtime_id": HERE, "created_at": EPOCH}
    return DirectoryFacts(**(facts | changed))


def facts(
    sessions: list[SessionFacts],
    directories: list[DirectoryFacts],
    *,
    mode: PointerMode = PointerMode.LANE,
    ran_before: bool | None = None,
) -> PointerFacts:
    ran = bool(directories) if ran_before is None else ran_before
    return PointerFacts(
        mode=mode,
        provider="script",
        runtime_id=HERE,
        sessions=sessions,
        directories=directories,
        ran_before=ran,
    )


def words(decision: ResumeDecision) -> tuple[Continuity, ContinuityReason | None]:
    return decision.continuity, decision.reason


# --- the design's table ---------------------------------------------------------------------------


def test_the_next_comment_of_the_same_lane_is_resumed() -> None:
    """Same agent, same issue: the same session in the same directory."""
    home = directory()
    past = session(home.id)
    decision = resolve(facts([past], [home]))
    assert (decision.session_id, decision.directory_id) == (past.id, home.id)
    assert words(decision) == (Continuity.RESUMED, None)


def test_a_lane_of_its_own_starts_first() -> None:
    """Another agent, a child or a parent has a lane without history: new directory, no session."""
    assert resolve(facts([], [])) == ResumeDecision(
        session_id=None, directory_id=None, continuity=Continuity.FIRST
    )


def test_a_rerun_is_fresh_in_a_new_directory() -> None:
    """Fresh asked for wins over a perfectly good pointer."""
    home = directory()
    decision = resolve(facts([session(home.id)], [home], mode=PointerMode.FRESH))
    assert (decision.session_id, decision.directory_id) == (None, None)
    assert words(decision) == (Continuity.FRESH, ContinuityReason.ASKED_FOR)


def test_another_runtime_loses_session_and_directory() -> None:
    """The old directory is not on this machine, so a new one is made."""
    home = directory(runtime_id=ELSEWHERE)
    decision = resolve(facts([session(home.id, runtime_id=ELSEWHERE)], [home]))
    assert (decision.session_id, decision.directory_id) == (None, None)
    assert words(decision) == (Continuity.LOST, ContinuityReason.RUNTIME_CHANGED)


@pytest.mark.parametrize("reason", [reason for reason in Reason if poisons(reason)])
def test_a_poisoned_session_is_dropped_and_the_directory_kept(reason: Reason) -> None:
    """API 400, Codex stall, iteration limit and their like: fresh session, same directory."""
    home = directory()
    decision = resolve(facts([session(home.id, last_status="failed", last_reason=reason)], [home]))
    assert (decision.session_id, decision.directory_id) == (None, home.id)
    assert words(decision) == (Continuity.LOST, ContinuityReason.POISONED)


_HARMLESS = [r for r in Reason if not poisons(r) and r not in (Reason.COMPLETED, Reason.CANCELLED)]


@pytest.mark.parametrize("reason", _HARMLESS)
def test_a_failure_that_does_not_poison_keeps_the_context(reason: Reason) -> None:
    """A crash, a lost runtime, a timeout or a network cut is resumed."""
    home = directory()
    past = session(home.id, last_status="failed", last_reason=reason)
    assert resolve(facts([past], [home])).session_id == past.id


def test_a_cancelled_run_is_resumed() -> None:
    """A person's stop keeps the conversation."""
    home = directory()
    past = session(home.id, last_status="cancelled", last_reason="cancelled")
    assert words(resolve(facts([past], [home]))) == (Continuity.RESUMED, None)


def test_a_pinned_session_without_an_end_is_resumed() -> None:
    """The worker died mid-run: the retry goes on with the pinned session."""
    home = directory()
    past = session(home.id, last_status=None, last_reason=None, last_ended_at=None)
    assert resolve(facts([past], [home], mode=PointerMode.TASK)).session_id == past.id


def test_a_collected_directory_takes_the_session_with_it() -> None:
    """Long after the issue was done: a new directory, no session, disclosed."""
    home = directory(gone=True)
    decision = resolve(facts([session(home.id)], [home]))
    assert (decision.session_id, decision.directory_id) == (None, None)
    assert words(decision) == (Continuity.LOST, ContinuityReason.WORKDIR_GONE)


# --- the rules between the rows -------------------------------------------------------------------


def test_only_the_latest_session_counts() -> None:
    """An older healthy session never stands in for a refused one: it would go back in time."""
    home = directory()
    sick = session(home.id, last_status="failed", last_reason=Reason.CONTEXT_OVERFLOW)
    assert resolve(facts([sick, session(home.id)], [home])).session_id is None


def test_another_provider_loses_the_session_only() -> None:
    """The files stay, whatever program wrote them."""
    home = directory()
    decision = resolve(facts([session(home.id, provider="claude")], [home]))
    assert decision.directory_id == home.id
    assert words(decision) == (Continuity.LOST, ContinuityReason.PROVIDER_CHANGED)


def test_a_run_that_never_revealed_its_session_is_told_as_lost() -> None:
    """Something ran, nothing was recorded: that is no first run."""
    home = directory()
    decision = resolve(facts([], [home]))
    assert decision.directory_id == home.id
    assert words(decision) == (Continuity.LOST, ContinuityReason.SESSION_NEVER_RECORDED)


def test_a_session_of_an_older_directory_is_not_used_in_the_newest() -> None:
    """Agent CLIs find sessions by directory: in another one the resume would fail or start cold."""
    old, new = directory(), directory(created_at=EPOCH + timedelta(1))
    decision = resolve(facts([session(old.id)], [new, old]))
    assert decision.directory_id == new.id
    assert words(decision) == (Continuity.LOST, ContinuityReason.SESSION_NEVER_RECORDED)


def test_the_newest_usable_directory_is_taken() -> None:
    """A gone directory and one on another machine are passed over."""
    gone, foreign, usable = directory(gone=True), directory(runtime_id=ELSEWHERE), directory()
    decision = resolve(facts([session(usable.id)], [gone, foreign, usable]))
    assert (decision.directory_id, decision.continuity) == (usable.id, Continuity.RESUMED)


@pytest.mark.parametrize(
    "newest_on, expected",
    [(HERE, ContinuityReason.WORKDIR_GONE), (ELSEWHERE, ContinuityReason.RUNTIME_CHANGED)],
)
@pytest.mark.parametrize("healthy", [True, False])
def test_a_lost_directory_is_told_before_a_refused_session(
    newest_on: UUID, expected: ContinuityReason, *, healthy: bool
) -> None:
    """Nobody is told that files are still there when the directory is gone, whatever the session was."""
    home = directory(runtime_id=newest_on, gone=newest_on == HERE)
    last = {} if healthy else {"last_status": "failed", "last_reason": Reason.ITERATION_LIMIT}
    decision = resolve(facts([session(home.id, runtime_id=newest_on, **last)], [home]))
    assert words(decision) == (Continuity.LOST, expected)


@pytest.mark.parametrize(
    "retired, expected",
    [
        ("resume_rejected", ContinuityReason.RESUME_REJECTED),
        ("session_missing", ContinuityReason.SESSION_MISSING),
        (RETIRED_REPEATED_FAILURE, ContinuityReason.RETIRED),
        (Reason.CONTEXT_OVERFLOW, ContinuityReason.POISONED),
        (None, ContinuityReason.RETIRED),
    ],
)
def test_a_retired_session_says_what_it_was_retired_for(
    retired: str | None, expected: ContinuityReason
) -> None:
    """The word for people follows the retirement, even when the last run looks healthy."""
    home = directory()
    past = session(home.id, retired_at=EPOCH, retired_reason=retired)
    assert resolve(facts([past], [home])).reason is expected
    assert retirement_reason(retired) is expected


# --- a chat that continues a run ------------------------------------------------------------------


def seeded(past: SessionFacts | None, home: DirectoryFacts, **changed: Any) -> ResumeDecision:
    """What a continuation's turn goes on from when it has nothing of its own yet."""
    known = facts([] if past is None else [past], [home], ran_before=True)
    return resolve(known.model_copy(update=changed))


def test_a_continuation_branches_its_seed_off() -> None:
    """The source's session is resumed in its directory, and stays as it is."""
    home = directory()
    past = session(home.id, foreign=True)
    decision = seeded(past, home, fork=True)
    assert (decision.session_id, decision.directory_id, decision.fork) == (past.id, home.id, True)
    assert words(decision) == (Continuity.RESUMED, None)


@pytest.mark.parametrize("fork, foreign", [(True, False), (False, True), (False, False)])
def test_only_a_foreign_session_is_branched_off_and_only_if_agreed(*, fork: bool, foreign: bool) -> None:
    """Once the chat has a session of its own, it goes on with that one."""
    home = directory()
    assert not seeded(session(home.id, foreign=foreign), home, fork=fork).fork


def test_a_refused_seed_is_not_branched_off() -> None:
    """There is nothing to branch off: the run starts a session of its own."""
    home = directory()
    decision = seeded(session(home.id, foreign=True, retired_at=EPOCH), home, fork=True)
    assert (decision.session_id, decision.fork) == (None, False)


def test_the_first_turn_says_why_the_session_was_withheld() -> None:
    """The directory is carried all the same."""
    home = directory()
    decision = seeded(None, home, withheld=ContinuityReason.POISONED)
    assert (decision.session_id, decision.directory_id) == (None, home.id)
    assert words(decision) == (Continuity.LOST, ContinuityReason.POISONED)


def test_a_continuation_without_anything_says_so() -> None:
    """The source never started, or its machine is gone: no directory either."""
    decision = resolve(facts([], []).model_copy(update={"withheld": ContinuityReason.RUNTIME_CHANGED}))
    assert decision.directory_id is None
    assert words(decision) == (Continuity.LOST, ContinuityReason.RUNTIME_CHANGED)


# --- a project's own directory --------------------------------------------------------------------

LOCAL = uuid4()


def in_local(*sessions: SessionFacts, directories: list[DirectoryFacts], **changed: Any) -> ResumeDecision:
    given_facts = facts(list(sessions), directories, **changed)
    return resolve(given_facts.model_copy(update={"local_directory_id": LOCAL}))


def test_the_first_run_goes_into_the_projects_own_directory() -> None:
    """Whatever lies in it, the conversation is the lane's first."""
    decision = in_local(directories=[])
    assert (decision.directory_id, *words(decision)) == (LOCAL, Continuity.FIRST, None)


def test_the_lanes_session_is_resumed_in_the_projects_own_directory() -> None:
    """Session rules are the usual ones; the directory belongs to no lane."""
    past = session(LOCAL)
    decision = in_local(past, directories=[], ran_before=True)
    assert (decision.session_id, decision.directory_id) == (past.id, LOCAL)
    assert words(decision) == (Continuity.RESUMED, None)


def test_a_rerun_is_fresh_in_the_projects_own_directory() -> None:
    """There is no other one: no session, the same directory."""
    decision = in_local(session(LOCAL), directories=[], mode=PointerMode.FRESH)
    assert (decision.session_id, decision.directory_id) == (None, LOCAL)
    assert words(decision) == (Continuity.FRESH, ContinuityReason.ASKED_FOR)


def test_a_run_without_a_session_is_told_apart_from_the_first() -> None:
    """It left files in the project's directory."""
    decision = in_local(directories=[], ran_before=True)
    assert words(decision) == (Continuity.LOST, ContinuityReason.SESSION_NEVER_RECORDED)


@pytest.mark.parametrize("last_reason", ["completed", "iteration_limit"])
def test_moving_into_the_projects_own_directory_is_said(last_reason: str) -> None:
    """The earlier session and files stayed where they are, healthy or not."""
    home = directory()
    status = "completed" if last_reason == "completed" else "failed"
    past = session(home.id, last_status=status, last_reason=last_reason)
    decision = in_local(past, directories=[home])
    assert (decision.session_id, decision.directory_id) == (None, LOCAL)
    assert words(decision) == (Continuity.LOST, ContinuityReason.DIRECTORY_CHANGED)


def test_leaving_the_projects_own_directory_is_said() -> None:
    """The project no longer names it: a retry doesn't go back either."""
    local = directory(id=LOCAL, local=True)
    for mode in (PointerMode.LANE, PointerMode.TASK):
        decision = resolve(facts([session(LOCAL)], [local], mode=mode))
        assert (decision.session_id, decision.directory_id) == (None, None)
        assert words(decision) == (Continuity.LOST, ContinuityReason.DIRECTORY_CHANGED)
    home = directory()
    decision = resolve(facts([session(LOCAL)], [home]))
    assert (decision.session_id, decision.directory_id) == (None, home.id)
    assert words(decision) == (Continuity.LOST, ContinuityReason.DIRECTORY_CHANGED)


# --- whatever the facts ---------------------------------------------------------------------------

_DIRECTORIES = [uuid4() for _ in range(3)]
_runtimes = st.sampled_from([HERE, ELSEWHERE])
_reasons = st.sampled_from([*Reason, None])
_sessions = st.builds(
    SessionFacts,
    id=st.uuids(),
    provider=st.sampled_from(["script", "claude"]),
    provider_session_id=st.just("s"),
    runtime_id=_runtimes,
    directory_id=st.sampled_from([*_DIRECTORIES, LOCAL, None]),
    last_status=st.sampled_from(["completed", "failed", "cancelled", None]),
    last_reason=_reasons,
    retired_at=st.sampled_from([EPOCH, None]),
    retired_reason=_reasons,
    foreign=st.booleans(),
)
_directories = st.builds(
    DirectoryFacts,
    id=st.sampled_from(_DIRECTORIES),
    runtime_id=_runtimes,
    created_at=st.just(EPOCH),
    gone=st.booleans(),
    local=st.booleans(),
)
_facts = st.builds(
    PointerFacts,
    mode=st.sampled_from(PointerMode),
    provider=st.just("script"),
    runtime_id=st.just(HERE),
    sessions=st.lists(_sessions, max_size=3),
    directories=st.lists(_directories, max_size=3, unique_by=lambda d: d.id),
    ran_before=st.booleans(),
    local_directory_id=st.sampled_from([LOCAL, None]),
    withheld=st.sampled_from([ContinuityReason.POISONED, None]),
    fork=st.booleans(),
)


@given(_facts)
def test_never_an_unfit_session(given_facts: PointerFacts) -> None:
    """No session of another runtime or provider, retired, poisoned, or of another directory is resumed."""
    decision = resolve(given_facts)
    if decision.session_id is None:
        return
    chosen = next(s for s in given_facts.sessions if s.id == decision.session_id)
    assert chosen == given_facts.sessions[0]
    assert (chosen.runtime_id, chosen.provider, chosen.retired_at) == (HERE, "script", None)
    assert not (chosen.last_status == "failed" and poisons(chosen.last_reason or ""))
    assert decision.directory_id is not None
    assert chosen.directory_id in (None, decision.directory_id)


@given(_facts)
def test_the_words_fit_the_decision(given_facts: PointerFacts) -> None:
    """Resumed exactly with a session; lost always with a reason; first only if nothing ran."""
    decision = resolve(given_facts)
    assert (decision.continuity is Continuity.RESUMED) == (decision.session_id is not None)
    assert (decision.reason is not None) == (decision.continuity in (Continuity.LOST, Continuity.FRESH))
    if decision.continuity is Continuity.FIRST:
        assert not given_facts.ran_before
        assert not given_facts.withheld
        assert not given_facts.sessions
    assert (decision.continuity is Continuity.FRESH) == (given_facts.mode is PointerMode.FRESH)


@given(_facts)
def test_a_branch_is_of_an_agreed_foreign_session(given_facts: PointerFacts) -> None:
    """Never without a session, and never of the lane's own."""
    decision = resolve(given_facts)
    chosen = next((s for s in given_facts.sessions if s.id == decision.session_id), None)
    assert decision.fork == (chosen is not None and chosen.foreign and given_facts.fork)


@given(_facts)
def test_only_a_usable_directory_is_reused(given_facts: PointerFacts) -> None:
    """A reused directory is on this runtime, not gone and no project's; asked-for fresh never reuses one."""
    decision = resolve(given_facts)
    if given_facts.local_directory_id is not None:
        assert decision.directory_id == given_facts.local_directory_id
    elif decision.directory_id is not None:
        chosen = next(d for d in given_facts.directories if d.id == decision.directory_id)
        assert (chosen.runtime_id, chosen.gone, chosen.local) == (HERE, False, False)
        assert given_facts.mode is not PointerMode.FRESH
