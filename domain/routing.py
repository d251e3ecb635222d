"""Which agents a write on the board starts. Pure; `reference` for the rules: upstream 2.1 and 2.2."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from uuid import UUID

BACKLOG = "backlog"
CLOSED = frozenset({"done", "cancelled"})
ISSUE_STATUSES = ("backlog", "todo", "in_progress", "in_review", "done", "blocked", "cancelled")
PRIORITIES = ("urgent", "high", "medium", "low", "none")

# The second half of a mention link: its name is looked for backwards from here, and the target is bounded,
# since a pattern for the whole link takes quadratic time for a text of many openings that nothing closes.
_TARGET = re.compile(r"\]\(mention://(agent|member|all)/([^)\s]{0,200})\)")


class TriggerOutcome(StrEnum):
    """What became of one target of a write."""

    QUEUED = "queued"
    COALESCED = "coalesced"
    DEFERRED = "deferred"
    BLOCKED = "blocked"


@dataclass(frozen=True)
class Mention:
    kind: str
    target: str


@dataclass(frozen=True)
class CommentRouting:
    """What routing is decided from: the comment, and what stands around it on the issue."""

    body: str
    author_is_member: bool
    author_agent_id: UUID | None = None
    #: The agent that wrote the comment this one replies to.
    parent_agent_id: UUID | None = None
    is_reply: bool = False
    #: Agents mentioned in the thread's root comment, else those that its tasks ran.
    thread_agent_ids: Sequence[UUID] = ()
    assignee_agent_id: UUID | None = None


def mentions(body: str) -> list[Mention]:
    """Mention links in order, without repeats; a plain ``@name`` is none."""
    found = (Mention(*link.groups()) for link in _TARGET.finditer(body) if _named(body, link.start()))
    return list(dict.fromkeys(found))


def _named(body: str, end: int) -> bool:
    """Is there a ``[@name`` on the line before ``end``, without a bracket that closes it earlier?"""
    start = body.rfind("]", 0, end) + 1
    return body.find("[@", max(start, body.rfind("\n", start, end)), end) >= 0


def without_address(body: str, agent_id: UUID) -> str:
    """The text without the mentions that only address ``agent_id``: those that open a line.

    They say who is meant, as a name on an envelope does; what is left is what is asked.
    """
    address = re.compile(rf"^[ \t]*(?:\[@[^\]\n]*\]\(mention://agent/{agent_id}\)[ \t]*[,:]?[ \t]*)+")
    lines = []
    for line in body.split("\n"):
        rest = address.sub("", line)
        if rest or not address.match(line):
            lines.append(rest)
    return "\n".join(lines)


def is_note(body: str) -> bool:
    """A comment whose first word is ``/note`` starts nobody."""
    words = body.split(maxsplit=1)
    return bool(words) and words[0].lower() == "/note"


def route_comment(facts: CommentRouting) -> list[str]:
    """Agent ids (as written: a mention may be malformed) that the comment is for, in order."""
    by_system = not facts.author_is_member and facts.author_agent_id is None
    # A failure comment quotes the agent: the agents that it names must not start again for that.
    if is_note(facts.body) or by_system:
        return []
    links = mentions(facts.body)
    agents = [link.target for link in links if link.kind == "agent"]
    if agents:
        return agents
    if links or not facts.author_is_member:
        return []
    return [str(agent_id) for agent_id in _implicit_targets(facts)]


def _implicit_targets(facts: CommentRouting) -> Sequence[UUID]:
    if facts.parent_agent_id is not None:
        return [facts.parent_agent_id]
    if facts.is_reply:
        return list(facts.thread_agent_ids)
    return [facts.assignee_agent_id] if facts.assignee_agent_id is not None else []


def issue_write_starts_run(
    *,
    assignee_changed: bool,
    old_status: str | None,
    new_status: str,
    by_agents_own_task: bool = False,
) -> bool:
    """Does this create or update start the assigned agent? ``old_status`` is None on create.

    An agent that moves the very issue its task runs on out of the backlog doesn't start itself.
    """
    if old_status is None or assignee_changed:
        return new_status != BACKLOG
    leaves_backlog = old_status == BACKLOG and new_status != BACKLOG and new_status not in CLOSED
    return leaves_backlog and not by_agents_own_task
