"""What people are told when an agent had to go on without its earlier conversation.

The agent itself is told by `domain.prompts`. Silent loss is a defect (the design, section 5).
"""

from domain.statuses import ContinuityReason

_NEW = "The agent began a new conversation"
_FILES = "Its files are still there."

_NOTICES: dict[ContinuityReason, str] = {
    ContinuityReason.POISONED: f"{_NEW}: its last run failed in a way that would repeat. {_FILES}",
    ContinuityReason.RETIRED: f"{_NEW}: the earlier one kept failing. {_FILES}",
    ContinuityReason.RUNTIME_CHANGED: (
        f"{_NEW}: it now runs on another machine, where the earlier one and its files are not."
    ),
    ContinuityReason.PROVIDER_CHANGED: (
        f"{_NEW}: the earlier one belongs to another agent program. {_FILES}"
    ),
    ContinuityReason.WORKDIR_GONE: (
        f"{_NEW} in a new, empty directory: the earlier directory is gone, and the conversation with it."
    ),
    ContinuityReason.DIRECTORY_CHANGED: (
        f"{_NEW}: it works in another directory now, and the earlier one stayed with its own."
    ),
    ContinuityReason.SESSION_MISSING: f"{_NEW}: the earlier one is no longer stored on its machine. {_FILES}",
    ContinuityReason.SESSION_NEVER_RECORDED: (
        f"{_NEW}: the earlier run ended before its conversation was recorded. What it left is still there."
    ),
    ContinuityReason.ROLLOUT_MISSING: (
        f"{_NEW}: the record of the earlier one never reached the disk. What it left is still there."
    ),
    ContinuityReason.RESUME_REJECTED: f"{_NEW}: the earlier one could not be resumed. {_FILES}",
    ContinuityReason.SESSION_CHANGED: (
        f"{_NEW}: it was asked to resume the earlier one and silently did not. {_FILES}"
    ),
}


def continuity_notice(reason: ContinuityReason) -> str:
    """A sentence or two for the person in the chat."""
    return _NOTICES.get(reason, f"{_NEW}: the earlier one could not be continued.")
