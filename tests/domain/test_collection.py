"""What may be deleted: every rule, and what no age outweighs."""

from dataclasses import replace
from datetime import timedelta
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.collection import (
    AttemptUse,
    CollectionReason,
    CollectionRules,
    DirectoryUse,
    judge_attempt,
    judge_directory,
)

HERE = uuid4()
RULES = CollectionRules()
LONG, SHORT = timedelta(days=400), timedelta(hours=1)
#: A directory that nobody has used for very long, on an open issue.
OLD = DirectoryUse(
    runtime_id=HERE,
    kind="managed",
    placed=True,
    gone=False,
    leased=False,
    open_task=False,
    shared=False,
    subject_deleted=False,
    subject_over=False,
    untouched=LONG,
    unused=LONG,
)
#: One that a run has just left.
USED = replace(OLD, untouched=SHORT, unused=SHORT)


def judged(use: DirectoryUse | None, age: timedelta = LONG) -> tuple[bool, CollectionReason]:
    return judge_directory(use, runtime_id=HERE, age=age, rules=RULES)


@pytest.mark.parametrize(
    "use, collect, reason",
    [
        (USED, False, "recent"),
        (OLD, True, "unused"),
        (replace(USED, unused=timedelta(days=29)), False, "recent"),
        (replace(USED, gone=True), True, "gone"),
        (replace(USED, gone=True, open_task=True), True, "gone"),
        (replace(USED, subject_deleted=True), True, "deleted"),
        (replace(USED, subject_over=True), False, "recent"),
        (replace(USED, subject_over=True, unused=LONG, untouched=timedelta(hours=23)), True, "unused"),
        (replace(USED, subject_over=True, untouched=timedelta(hours=25)), True, "settled"),
        (replace(USED, placed=False), False, "recent"),
        (replace(USED, placed=False, unused=timedelta(hours=25)), True, "never_used"),
        (replace(OLD, leased=True, gone=True, subject_deleted=True), False, "leased"),
        (replace(OLD, open_task=True, subject_deleted=True), False, "open_task"),
        (replace(OLD, runtime_id=uuid4(), gone=True), False, "other_runtime"),
        (replace(OLD, kind="local", subject_deleted=True), False, "local_directory"),
        (replace(USED, shared=True, subject_deleted=True), False, "recent"),
        (replace(USED, shared=True, subject_over=True, untouched=LONG), False, "recent"),
        (replace(OLD, shared=True), True, "unused"),
    ],
)
def test_directory(use: DirectoryUse, *, collect: bool, reason: str) -> None:
    """The rules, one by one, with the default times: a day, thirty days."""
    assert judged(use) == (collect, reason)


def test_unknown_directory_is_collected_when_it_is_old() -> None:
    """A restored database knows less than the machine, so an orphan waits for three days."""
    assert judged(None, timedelta(hours=71)) == (False, CollectionReason.UNKNOWN)
    assert judged(None, timedelta(hours=73)) == (True, CollectionReason.ORPHAN)
    assert judged(None, timedelta(days=-400)) == (False, CollectionReason.UNKNOWN)


@given(
    st.builds(
        DirectoryUse,
        runtime_id=st.sampled_from([HERE, uuid4()]),
        kind=st.sampled_from(["managed", "local"]),
        placed=st.booleans(),
        gone=st.booleans(),
        leased=st.booleans(),
        open_task=st.booleans(),
        shared=st.booleans(),
        subject_deleted=st.booleans(),
        subject_over=st.booleans(),
        untouched=st.timedeltas(),
        unused=st.timedeltas(),
    )
)
def test_what_is_in_use_is_never_collected(use: DirectoryUse) -> None:
    """Whatever else is true: no lease, no open task's pointer, no local directory, no other runtime's."""
    collect, _ = judged(use)
    if use.leased or use.kind == "local" or use.runtime_id != HERE or (use.open_task and not use.gone):
        assert not collect


def test_attempt() -> None:
    """The files of an attempt may go when it has ended, or when nobody knows it any more."""
    assert judge_attempt(AttemptUse(HERE, ended=True), runtime_id=HERE) == (True, CollectionReason.ENDED)
    standing = judge_attempt(AttemptUse(HERE, ended=False), runtime_id=HERE)
    assert standing == (False, CollectionReason.STANDING)
    other = judge_attempt(AttemptUse(uuid4(), ended=True), runtime_id=HERE)
    assert other == (False, CollectionReason.OTHER_RUNTIME)
    assert judge_attempt(None, runtime_id=HERE) == (True, CollectionReason.ORPHAN)
