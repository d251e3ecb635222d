"""Continuing a finished run in a chat: what it carries, and what the issue will see of it.

Pure rules of the design's section 6. The session and the directory are carried separately: a
withheld session leaves the directory, and a chat never claims a continuity that it does not have.
"""

from uuid import UUID

from pydantic import BaseModel, ConfigDict

from domain.pointer import SessionFacts, session_refusal
from domain.statuses import ContinuityReason, TaskKind, TaskStatus

#: Providers that can branch a session off, so that its source stays as it is (`providers.base`).
FORKING = frozenset({"claude", "codex", "script"})


class SourceFacts(BaseModel):
    """A run that is to be continued, and the agent as it is now."""

    model_config = ConfigDict(frozen=True)

    #: The agent's provider.
    provider: str
    #: Where the run was, if that runtime still exists.
    runtime_id: UUID | None
    started: bool
    session: SessionFacts | None = None


class ContinuationDecision(BaseModel):
    """``session_reason`` says why the session is withheld; ``fork``, that the chat branches it off."""

    model_config = ConfigDict(frozen=True)

    session_carried: bool
    session_reason: ContinuityReason | None = None
    fork: bool = False

    @property
    def shared_with_issue(self) -> bool:
        """The issue's next run goes on from the same session, and so sees what was said in the chat."""
        return self.session_carried and not self.fork


def refusal(kind: TaskKind, status: TaskStatus) -> str | None:
    """The code of the conflict that a run of this kind and status can't be continued for, or None."""
    if kind is TaskKind.CHAT:
        return "task_is_chat"
    return None if status.terminal else "task_not_terminal"


def decide(source: SourceFacts, *, fork: bool | None) -> ContinuationDecision:
    """``fork`` is the caller's wish; None means: where the provider can."""
    withheld = _withheld(source)
    if withheld is not None:
        return ContinuationDecision(session_carried=False, session_reason=withheld)
    return ContinuationDecision(
        session_carried=True, fork=source.provider in FORKING if fork is None else fork
    )


def _withheld(source: SourceFacts) -> ContinuityReason | None:
    if source.started and source.runtime_id is None:
        return ContinuityReason.RUNTIME_CHANGED
    if source.session is None or source.runtime_id is None:
        return ContinuityReason.SESSION_NEVER_RECORDED
    return session_refusal(source.session, provider=source.provider, runtime_id=source.runtime_id)
