"""Which agents a comment or an issue write starts."""

import time
from typing import Any
from uuid import UUID

import pytest

from domain.routing import (
    CommentRouting,
    Mention,
    is_note,
    issue_write_starts_run,
    mentions,
    route_comment,
)

#: Fixed, since they become part of test names.
ASSIGNEE, PARENT, OWNER, OTHER, AUTHOR = (UUID(int=number) for number in range(1, 6))


def link(target: UUID | str, kind: str = "agent") -> str:
    return f"[@Name](mention://{kind}/{target})"


def route(body: str, **around: Any) -> list[str]:
    facts: dict[str, Any] = {"body": body, "author_is_member": True}
    return route_comment(CommentRouting(**(facts | around)))


@pytest.mark.parametrize(
    "body, found",
    [
        ("hello @Name", []),
        (link("x"), [Mention("agent", "x")]),
        (f"{link('x')} and {link('y')} and {link('x')}", [Mention("agent", "x"), Mention("agent", "y")]),
        (link("m", "member"), [Mention("member", "m")]),
        (link("", "all"), [Mention("all", "")]),
        (link("x", "squad"), []),
        ("[@Two\nlines](mention://agent/x)", []),
        ("[@N](mention://agent/x y)", []),
        ("[@N](https://example.org)", []),
        ("[@a [b](mention://agent/x)", [Mention("agent", "x")]),
        ("[@a] b](mention://agent/x)", []),
        ("@N](mention://agent/x)", []),
    ],
)
def test_mentions_are_links(body: str, found: list[Mention]) -> None:
    """Only mention links count, once each and in order; a plain ``@name`` is text."""
    assert mentions(body) == found


@pytest.mark.parametrize("opening", ["[@", "[@N](mention://agent/", "[@N](", "](mention://agent/x)", "[@]("])
def test_openings_that_nothing_closes_cost_no_more_than_their_length(opening: str) -> None:
    """A text of the longest size is read in passing: a request's thread must never be held for minutes.

    Quadratic time would be more than a minute here, so the bound is wide enough for the slowest machine.
    """
    body = (opening * 500_000)[:500_000]
    began = time.process_time()
    mentions(body)
    assert time.process_time() - began < 10


@pytest.mark.parametrize(
    "body, note", [("/note", True), (" /NOTE x", True), ("/notes", False), ("x /note", False), ("", False)]
)
def test_a_note_begins_with_its_word(body: str, *, note: bool) -> None:
    """``/note`` as the first word, however it is written."""
    assert is_note(body) is note


@pytest.mark.parametrize(
    "body, around, expected",
    [
        # 1: notes start nobody, mention or not
        (f"/note {link(OTHER)}", {"assignee_agent_id": ASSIGNEE}, []),
        # 2: explicit mentions win, over everything around them and over @all
        (link(OTHER), {"assignee_agent_id": ASSIGNEE, "parent_agent_id": PARENT}, [OTHER]),
        (f"{link('', 'all')} {link(OTHER)}", {}, [OTHER]),
        (f"{link(OTHER)} {link(ASSIGNEE)}", {}, [OTHER, ASSIGNEE]),
        (link("no-id"), {"assignee_agent_id": ASSIGNEE}, ["no-id"]),
        # 3, 4: @all and people start nobody
        (link("", "all"), {"assignee_agent_id": ASSIGNEE}, []),
        (link("m", "member"), {"parent_agent_id": PARENT}, []),
        # 5: agents start by naming only
        ("hi", {"author_is_member": False, "author_agent_id": AUTHOR, "assignee_agent_id": ASSIGNEE}, []),
        (link(OTHER), {"author_is_member": False, "author_agent_id": AUTHOR}, [OTHER]),
        # the system's own words quote agents: they start nobody
        (link(OTHER), {"author_is_member": False}, []),
        # 6: a reply to an agent's comment is for that agent
        ("hi", {"parent_agent_id": PARENT, "is_reply": True, "assignee_agent_id": ASSIGNEE}, [PARENT]),
        # 7: a reply in a thread is for the thread's agents
        ("hi", {"is_reply": True, "thread_agent_ids": [OWNER, OTHER]}, [OWNER, OTHER]),
        # 8: in a thread without agents for nobody, the assignee included
        ("hi", {"is_reply": True, "assignee_agent_id": ASSIGNEE}, []),
        # 9: otherwise for the assignee, if there is one
        ("hi", {"assignee_agent_id": ASSIGNEE}, [ASSIGNEE]),
        ("hi", {}, []),
    ],
)
def test_routing(body: str, around: dict[str, Any], expected: list[UUID | str]) -> None:
    """The reference's nine steps (2.2), in their order."""
    assert route(body, **around) == [str(target) for target in expected]


@pytest.mark.parametrize(
    "old, new, assigned, own, starts",
    [
        (None, "todo", False, False, True),
        (None, "backlog", False, False, False),
        (None, "done", False, False, True),
        ("todo", "todo", True, False, True),
        ("done", "done", True, False, True),
        ("todo", "backlog", True, False, False),
        ("backlog", "todo", False, False, True),
        ("backlog", "todo", False, True, False),
        ("backlog", "todo", True, True, True),
        ("backlog", "done", False, False, False),
        ("backlog", "cancelled", False, False, False),
        ("backlog", "backlog", False, False, False),
        ("todo", "in_progress", False, False, False),
    ],
)
def test_issue_writes(old: str | None, new: str, *, assigned: bool, own: bool, starts: bool) -> None:
    """The single predicate of create, assignment and status change (reference, 2.1)."""
    assert (
        issue_write_starts_run(
            assignee_changed=assigned, old_status=old, new_status=new, by_agents_own_task=own
        )
        is starts
    )
