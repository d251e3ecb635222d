"""The pointer rules a second time: the design's section 5 as a small model, written from its words.

Nothing here looks at the code under test; `test_continuity` compares the two. `decide` says what an
attempt goes on from; the methods of `Run` say what a pin and an end do to the conversation. Times are
steps of one counter, so that "last" is a plain comparison.

Where the design leaves room, the model says what a person would expect:

- The "newest" directory is the one that the lane ran in last. After a rerun made a second one, a retry
  of an older task goes back to the first: the comment after that goes on there, with its session.
- A retry of a task that never started is that task once more: fresh if that was to be fresh, and never
  the lane's latest when that was itself a retry.
- A run that gave no session id used the session that it asked for: nothing says otherwise. Another id
  is believed when the run succeeded; one that a failing resume made up is not.
- Every end counts as the session's last one, also at a quota; a strike is only a failure that is not
  waited out. A person's stop neither adds a strike nor wipes them.
- A run that nobody could speak for ended when it was set aside, not when its machine came back; a
  session id that arrives after the end is judged as that end was.
- An attempt runs with the provider that its agent had when it was granted.
- When several things were lost, the files are named before the conversation.
- An id that belongs to another lane is heard, but this lane can't go on from it: it lives elsewhere.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

#: Section 5: reasons after which a conversation can't be used again.
POISON = frozenset(
    {
        "iteration_limit",
        "agent_fallback_message",
        "api_invalid_request",
        "codex_semantic_inactivity",
        "context_overflow",
        "resume_oversized",
        "resume_rejected",
    }
)
STRIKES = 3


@dataclass(eq=False)
class Folder:
    """A working directory of a lane, on one machine."""

    path: str
    machine: str
    used_at: int
    gone: bool = False
    #: A run in it was set aside: nobody enters before the machine has spoken.
    closed: bool = False


@dataclass(eq=False)
class Conversation:
    """A provider's session. ``lost_as``: why it may not be used again, in the word for people."""

    name: str
    provider: str
    folder: Folder
    ended_at: int
    strikes: int = 0
    lost_as: str | None = None

    def retire(self, word: str) -> None:
        """For good; the first word stands."""
        self.lost_as = self.lost_as or word


@dataclass(eq=False)
class Lane:
    """One agent on one issue: where it ran, and the conversations it knows."""

    folders: list[Folder] = field(default_factory=list)
    conversations: list[Conversation] = field(default_factory=list)


@dataclass(eq=False)
class Task:
    """``wish``: ``next`` (a comment), ``fresh`` (a rerun), or ``again`` (a retry of ``source``)."""

    wish: str
    machine: str
    source: "Task | None" = None
    runs: list["Run"] = field(default_factory=list)


@dataclass(frozen=True)
class Decision:
    """What an attempt goes on from. No folder: a new one."""

    conversation: Conversation | None
    folder: Folder | None
    continuity: str
    reason: str | None = None


def decide(lane: Lane, task: Task, provider: str) -> Decision:
    """Rules 1 to 6 for the task's next attempt."""
    while not task.runs and task.wish == "again" and task.source is not None:
        task = Task(task.source.wish, task.machine, task.source.source, task.source.runs)
    if task.runs:  # its own pointer, never the latest
        own = task.runs[-1]
        return _pointer(own.used or own.asked, [own.folder], task.machine, provider)
    if task.wish == "fresh":
        return Decision(None, None, "fresh", "asked_for")
    latest = max(lane.conversations, key=lambda c: c.ended_at, default=None)
    folders = sorted(lane.folders, key=lambda f: f.used_at, reverse=True)
    return _pointer(latest, folders, task.machine, provider)


def _pointer(latest: Conversation | None, folders: Sequence[Folder], machine: str, provider: str) -> Decision:
    """The directory first and by itself; then whether the conversation can go on in it."""
    if not folders:
        return Decision(None, None, "first")
    folder = next((f for f in folders if f.machine == machine and not f.gone), None)
    if folder is None:
        moved = folders[0].machine != machine
        return Decision(None, None, "lost", "runtime_changed" if moved else "workdir_gone")
    refusal = _refusal(latest, folder, folders, provider)
    return Decision(None, folder, "lost", refusal) if refusal else Decision(latest, folder, "resumed")


def _refusal(
    latest: Conversation | None, folder: Folder, folders: Sequence[Folder], provider: str
) -> str | None:
    if latest is None:
        return "session_never_recorded"
    if latest.folder.machine != folder.machine:
        return "runtime_changed"
    if latest.provider != provider:
        return "provider_changed"
    if latest.lost_as:
        return latest.lost_as
    if latest.folder is not folder:
        if latest.folder not in folders:
            return "directory_changed"
        return "workdir_gone" if latest.folder.gone else "session_never_recorded"
    return None


@dataclass(frozen=True)
class End:
    """How a run ended. ``named``: the id it gave at last; ``refused``: the resume was, by the provider."""

    status: str
    reason: str
    named: Conversation | None = None
    refused: bool = False
    #: The provider stored nothing of the session that it named.
    not_stored: bool = False
    waits_for_quota: bool = False


@dataclass(eq=False)
class Run:
    """A started attempt. ``asked``: the conversation that it was to resume."""

    provider: str
    folder: Folder
    asked: Conversation | None
    continuity: str
    reason: str | None
    pinned: Conversation | None = None
    used: Conversation | None = None
    #: Set by its end, or before that when it is set aside.
    ended_at: int = 0
    end: End | None = None

    def pin(self, named: Conversation) -> None:
        """The id is known while the run goes on, or only after its end."""
        if self.end is None:
            self.pinned = named if self.asked in {None, named} else None
        elif self.asked is None and self.used is None:
            self.used = named
            _judge(named, self.end, self.ended_at)

    def finish(self, end: End) -> None:
        """What the run used, whether that was what it asked for, and how it is judged."""
        self.end = end
        asked, named = self.asked, end.named or self.pinned
        if asked is not None and end.refused:
            asked.retire("resume_rejected")
            self.continuity, self.reason = "lost", "resume_rejected"
            named = None if named is asked else named
            asked = None
        elif asked is not None and named not in {None, asked}:
            self.continuity, self.reason = "lost", "session_changed"
        believed = asked is None or end.status == "completed"
        self.used = (named if believed else None) or asked
        if self.used is not None:
            _judge(self.used, end, self.ended_at)
            if end.not_stored:
                self.used.retire("session_rollout_missing")


def _judge(conversation: Conversation, end: End, now: int) -> None:
    conversation.ended_at = max(conversation.ended_at, now)
    if end.status == "completed":
        conversation.strikes = 0
    if end.status != "failed" or end.waits_for_quota:
        return
    conversation.strikes += 1
    if end.reason in POISON:
        conversation.retire("resume_rejected" if end.reason == "resume_rejected" else "session_poisoned")
    elif conversation.strikes >= STRIKES:
        conversation.retire("session_retired")
