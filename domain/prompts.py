"""The text that an agent reads on stdin, and the one sentence that discloses lost context.

Standing facts stand in a marked block, the person's own words below it, so that an agent (and the
built-in ``script`` agent) can tell them apart.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from uuid import UUID

from domain.brief import Prompt
from domain.routing import without_address
from domain.statuses import Continuity, ContinuityReason

CONTEXT_OPEN = "<segue-context>"
CONTEXT_CLOSE = "</segue-context>"
_TAG_NAME = re.compile("segue-context", re.IGNORECASE)

_NOTICES: dict[ContinuityReason, str] = {
    ContinuityReason.POISONED: (
        "Your earlier conversation here could not be used again because its last run failed in a way "
        "that would repeat. Your files are still in the working directory."
    ),
    ContinuityReason.RETIRED: (
        "Your earlier conversation here kept failing and was retired. "
        "Your files are still in the working directory."
    ),
    ContinuityReason.RUNTIME_CHANGED: (
        "You now run on another machine than last time: that conversation and its files are not on it."
    ),
    ContinuityReason.PROVIDER_CHANGED: (
        "Your earlier conversation belongs to another agent program and can't be continued. "
        "Your files are still in the working directory."
    ),
    ContinuityReason.WORKDIR_GONE: (
        "Your earlier working directory is gone, and your conversation with it. "
        "This directory is new and empty."
    ),
    ContinuityReason.DIRECTORY_CHANGED: (
        "You work in another directory than before: the project's own one was set or taken away. "
        "Your earlier conversation stayed with the earlier directory."
    ),
    ContinuityReason.SESSION_MISSING: (
        "Your earlier conversation is no longer stored on this machine. "
        "Your files are still in the working directory."
    ),
    ContinuityReason.SESSION_NEVER_RECORDED: (
        "Your earlier run ended before its conversation was recorded. "
        "The working directory holds what it left."
    ),
    ContinuityReason.ROLLOUT_MISSING: (
        "The record of your earlier conversation never reached the disk. "
        "The working directory holds what it left."
    ),
    ContinuityReason.RESUME_REJECTED: (
        "Your earlier conversation could not be resumed, so this is a new one. "
        "Your files are still in the working directory."
    ),
}


def continuity_notice(continuity: Continuity, reason: ContinuityReason | None) -> str | None:
    """What to tell the agent about lost context, or None when nothing was lost."""
    if continuity is not Continuity.LOST or reason is None:
        return None
    return _NOTICES.get(reason, "Your earlier conversation here could not be continued.")


def compose(prompt: Prompt, continuity: Continuity, reason: ContinuityReason | None) -> str:
    """The whole text for stdin, ending with a newline."""
    resumed = continuity is Continuity.RESUMED
    context = prompt.short_context if resumed else prompt.full_context
    notice = continuity_notice(continuity, reason)
    block = "\n\n".join(part for part in (context, notice) if part)
    if not block and not _TAG_NAME.search(prompt.message):
        return f"{prompt.message}\n"
    return f"{CONTEXT_OPEN}\n{_defused(block)}\n{CONTEXT_CLOSE}\n\n{prompt.message}\n"


def _defused(context: str) -> str:
    """Context quotes people (an issue's text, a note): no line of theirs may end the block early."""
    return _TAG_NAME.sub("segue context", context)


@dataclass(frozen=True)
class IssueFacts:
    """What the prompt of an issue task is written from."""

    key: str
    title: str
    body: str
    status: str
    parent_key: str | None = None


@dataclass(frozen=True)
class CommentFacts:
    """One comment that is delivered with the task, oldest first."""

    author: str
    body: str


@dataclass(frozen=True)
class AgentFacts:
    name: str
    instructions: str = ""
    id: UUID | None = None


@dataclass(frozen=True)
class ChatFacts:
    """One turn of a private chat. ``comes_from_a_run``: the session it resumes was made elsewhere."""

    person: str
    message: str
    comes_from_a_run: bool = False


@dataclass(frozen=True)
class TaskFacts:
    agent: AgentFacts
    issue: IssueFacts | None = None
    comments: Sequence[CommentFacts] = field(default_factory=tuple)
    handoff_note: str | None = None
    chat: "ChatFacts | None" = None


_HOW_TO_REPLY = (
    "Your final answer is posted as your comment. "
    "The `segue` command works here with your own token (see `segue --help`)."
)


def build_prompt(facts: TaskFacts) -> Prompt:
    """The prompt of one task: every comment of its batch is in the message, whatever the session knows."""
    return Prompt(
        full_context=_full_context(facts),
        short_context=_short_context(facts),
        message=_message(facts),
    )


def _full_context(facts: TaskFacts) -> str:
    parts = [f"You are {facts.agent.name}, an agent of this workspace."]
    if facts.agent.instructions:
        parts.append(f"Your instructions:\n{facts.agent.instructions}")
    if facts.issue:
        parts.append(_describe_issue(facts.issue, with_body=bool(facts.comments)))
    if facts.chat:
        parts.append(_describe_chat(facts.chat))
    parts.append(_situation(facts))
    return "\n\n".join(part for part in parts if part)


def _short_context(facts: TaskFacts) -> str:
    where = f"Issue {facts.issue.key} (status {facts.issue.status})." if facts.issue else ""
    if facts.chat and facts.chat.comes_from_a_run:
        where = _describe_chat(facts.chat)
    return "\n\n".join(part for part in (where, _situation(facts)) if part)


def _describe_chat(chat: ChatFacts) -> str:
    return f"This is a private chat with {chat.person}, who alone reads your answers."


def _describe_issue(issue: IssueFacts, *, with_body: bool) -> str:
    lines = [f"Issue {issue.key}: {issue.title}", f"Status: {issue.status}"]
    if issue.parent_key:
        lines.append(f"Parent issue: {issue.parent_key}")
    if with_body and issue.body:
        lines.append(f"Description:\n{issue.body}")
    return "\n".join(lines)


def _situation(facts: TaskFacts) -> str:
    lines = []
    if facts.handoff_note:
        lines.append(f"Hand-off note: {facts.handoff_note}")
    if facts.comments:
        authors = ", ".join(dict.fromkeys(comment.author for comment in facts.comments))
        count = len(facts.comments)
        lines.append(f"{count} new comment{'s' if count > 1 else ''} by {authors}, below, oldest first.")
    elif facts.issue:
        lines.append("The issue was assigned to you; its description is below.")
    if facts.issue:
        lines.append(_HOW_TO_REPLY)
    return "\n".join(lines)


def _message(facts: TaskFacts) -> str:
    if facts.chat is not None:
        return facts.chat.message
    if facts.comments:
        return "\n\n".join(_words(comment.body, facts.agent) for comment in facts.comments)
    if facts.issue:
        return facts.issue.body or facts.issue.title
    return ""


def _words(body: str, agent: AgentFacts) -> str:
    return without_address(body, agent.id) if agent.id else body
