"""The table of terminal reasons: meaning, retry, poison, and the advice people get.

A task has a reason exactly when it has ended. Reasons start from the upstream product's list
(``agent_error.`` prefixes dropped) and add those that a durable runner needs.
"""

from dataclasses import dataclass
from enum import StrEnum


class Reason(StrEnum):
    COMPLETED = "completed"
    CANCELLED = "cancelled"
    # the platform
    QUEUED_EXPIRED = "queued_expired"
    RUNTIME_OFFLINE = "runtime_offline"
    RUNTIME_RECOVERY = "runtime_recovery"
    OUTCOME_UNKNOWN = "outcome_unknown"
    WORKFLOW_TERMINATED = "workflow_terminated"
    STARTUP_TIMEOUT = "startup_timeout"
    IDLE_WATCHDOG = "idle_watchdog"
    TIMEOUT = "timeout"
    DISK_FULL = "disk_full"
    LOCAL_DIRECTORY_ERROR = "local_directory_error"
    INVALID_TASK_IDENTITY = "invalid_task_identity"
    # the session
    ITERATION_LIMIT = "iteration_limit"
    AGENT_FALLBACK_MESSAGE = "agent_fallback_message"
    API_INVALID_REQUEST = "api_invalid_request"
    CODEX_SEMANTIC_INACTIVITY = "codex_semantic_inactivity"
    CONTEXT_OVERFLOW = "context_overflow"
    RESUME_OVERSIZED = "resume_oversized"
    RESUME_REJECTED = "resume_rejected"
    # the provider and its account
    PROVIDER_AUTH_OR_ACCESS = "provider_auth_or_access"
    PROVIDER_QUOTA_LIMIT = "provider_quota_limit"
    PROVIDER_RATE_LIMIT = "provider_capacity_or_rate_limit"
    PROVIDER_SERVER_ERROR = "provider_server_error"
    PROVIDER_NETWORK = "provider_network"
    MODEL_UNAVAILABLE = "model_not_found_or_unavailable"
    MISSING_CONFIG = "missing_config"
    REFUSAL = "refusal"
    NEEDS_INPUT = "needs_input"
    # the agent's process
    PROCESS_FAILURE = "process_failure"
    EMPTY_OUTPUT = "empty_or_unparseable_output"
    AGENT_TIMEOUT = "agent_timeout"
    AGENT_BLOCKED = "agent_blocked"
    RUNTIME_MISSING_EXECUTABLE = "runtime_missing_executable"
    RUNTIME_VERSION_UNSUPPORTED = "runtime_version_unsupported"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class ReasonRule:
    """One row of the table. ``quota`` reasons wait for a stated reset instead of failing."""

    reason: Reason
    meaning: str
    advice: str | None
    retryable: bool = False
    poisons: bool = False
    quota: bool = False


def _rule(
    reason: Reason,
    meaning: str,
    advice: str | None,
    *,
    retryable: bool = False,
    poisons: bool = False,
    quota: bool = False,
) -> ReasonRule:
    return ReasonRule(reason, meaning, advice, retryable, poisons, quota)


_R = Reason
RULES: dict[Reason, ReasonRule] = {
    rule.reason: rule
    for rule in (
        _rule(_R.COMPLETED, "The agent finished its turn.", None),
        _rule(
            _R.CANCELLED,
            "A person stopped the task.",
            "Comment or send a message to go on: the conversation and the files are kept.",
        ),
        _rule(
            _R.QUEUED_EXPIRED,
            "The agent's machine was offline for too long, so the task never started.",
            "Start the runtime worker on that machine, then retry the task.",
        ),
        _rule(
            _R.RUNTIME_OFFLINE,
            "The agent's machine went away before the run could start.",
            "Start the runtime worker on that machine; `segue runtime list` shows its status.",
            retryable=True,
        ),
        _rule(
            _R.RUNTIME_RECOVERY,
            "The agent's process died with its machine, without leaving an exit record.",
            "It is retried with its session; if it keeps dying, look at the machine's memory and logs.",
            retryable=True,
        ),
        _rule(
            _R.OUTCOME_UNKNOWN,
            "Nobody can say yet how the run ended; its directory stays closed until its machine "
            "has confirmed that no process of it lives.",
            "Bring the machine back (`segue runtime list`), or delete the runtime if it is gone for good.",
        ),
        _rule(
            _R.WORKFLOW_TERMINATED,
            "An operator ended the task's workflow in Temporal.",
            "Retry the task to go on from its session and directory.",
        ),
        _rule(
            _R.STARTUP_TIMEOUT,
            "The agent printed nothing before the start-up deadline.",
            "Run the agent's CLI by hand on that machine: a login, a trust prompt or a tool server may hang.",
        ),
        _rule(
            _R.IDLE_WATCHDOG,
            "The agent was silent for longer than the idle limit and was stopped.",
            "Look at its last event; retry goes on in the same session.",
        ),
        _rule(_R.TIMEOUT, "Preparing the run took too long.", "Retry the task.", retryable=True),
        _rule(
            _R.DISK_FULL,
            "The machine's disk is full or below the floor that a run needs.",
            "Free space under the runtime's root, then retry.",
        ),
        _rule(
            _R.LOCAL_DIRECTORY_ERROR,
            "The project's local directory can't be used on this machine.",
            "Check the path and its permissions in the project's resources.",
        ),
        _rule(
            _R.INVALID_TASK_IDENTITY,
            "The task's agent or input is gone.",
            "Write a new comment or message.",
        ),
        _rule(
            _R.ITERATION_LIMIT,
            "The agent used up its turns.",
            "Comment to go on: the next run starts a fresh session in the same directory. "
            "Raise the turn limit if it recurs.",
            poisons=True,
        ),
        _rule(
            _R.AGENT_FALLBACK_MESSAGE,
            "The agent gave a canned fallback instead of an answer.",
            "Comment to try again: the next run starts a fresh session in the same directory.",
            poisons=True,
        ),
        _rule(
            _R.API_INVALID_REQUEST,
            "The model's API refused the conversation as invalid.",
            "The session can't be used again; the next run starts a fresh one in the same directory.",
            poisons=True,
        ),
        _rule(
            _R.CODEX_SEMANTIC_INACTIVITY,
            "Codex made no progress and was stopped.",
            "It is retried on a fresh session.",
            retryable=True,
            poisons=True,
        ),
        _rule(
            _R.CONTEXT_OVERFLOW,
            "The conversation no longer fits the model's context window.",
            "The next run starts a fresh session in the same directory.",
            poisons=True,
        ),
        _rule(
            _R.RESUME_OVERSIZED,
            "The session had grown too large to be resumed.",
            "The next run starts a fresh session in the same directory.",
            poisons=True,
        ),
        _rule(
            _R.RESUME_REJECTED,
            "The provider refused to resume the session.",
            "The next run starts a fresh session in the same directory.",
            poisons=True,
        ),
        _rule(
            _R.PROVIDER_AUTH_OR_ACCESS,
            "The provider refused the credentials or the account.",
            "Log in on the agent's machine or set the key in the agent's env, then retry.",
        ),
        _rule(
            _R.PROVIDER_QUOTA_LIMIT,
            "The account's quota or credit is used up.",
            "Wait for the reset or add credit, then retry.",
            quota=True,
        ),
        _rule(
            _R.PROVIDER_RATE_LIMIT,
            "The provider is at capacity or limits the rate.",
            "Retry later, or lower the agent's concurrency.",
            quota=True,
        ),
        _rule(
            _R.PROVIDER_SERVER_ERROR,
            "The provider's server failed.",
            "Look at the provider's status page, then retry.",
        ),
        _rule(
            _R.PROVIDER_NETWORK,
            "The connection to the provider was cut.",
            "It is retried with its session; check the machine's network if it keeps failing.",
            retryable=True,
        ),
        _rule(
            _R.MODEL_UNAVAILABLE,
            "The model does not exist or is not available to this account.",
            "Set another model on the agent.",
        ),
        _rule(
            _R.MISSING_CONFIG,
            "The agent lacks a setting it needs.",
            "Add the named setting to the agent's env.",
        ),
        _rule(_R.REFUSAL, "The model declined the request.", "Rephrase the request."),
        _rule(
            _R.NEEDS_INPUT,
            "The agent asked a question that nobody could answer during the run.",
            "Answer it in a comment or message: the session goes on.",
        ),
        _rule(
            _R.PROCESS_FAILURE,
            "The agent's process crashed or exited with an error.",
            "Look at the last events and at the agent's stderr (`segue task logs`), then retry.",
        ),
        _rule(
            _R.EMPTY_OUTPUT,
            "The agent exited without a result.",
            "Look at the last events; retry goes on in the same session.",
        ),
        _rule(
            _R.AGENT_TIMEOUT,
            "The agent gave up after its own time limit.",
            "Retry, or raise the agent's own limit.",
        ),
        _rule(_R.AGENT_BLOCKED, "The agent reported that it is blocked.", "Read its last message."),
        _rule(
            _R.RUNTIME_MISSING_EXECUTABLE,
            "The agent's executable is not on the machine.",
            "Install it there, or set `[providers.NAME] path` in the worker's TOML; "
            "`segue doctor` checks it.",
        ),
        _rule(
            _R.RUNTIME_VERSION_UNSUPPORTED,
            "The agent CLI on the machine is too old.",
            "Update it; `segue doctor` shows the versions.",
        ),
        _rule(
            _R.UNKNOWN,
            "The agent failed for a reason that Segue does not know.",
            "Read the evidence and the last events; retry goes on in the same session.",
        ),
    )
}

#: A session that failed this often in a row is retired whatever the text (field notes R15).
STRIKES = 3
RETIRED_REPEATED_FAILURE = "repeated_failure"


def rule_for(reason: str) -> ReasonRule:
    """The row of ``reason``; a name this version doesn't know is treated as ``unknown``."""
    try:
        return RULES[Reason(reason)]
    except ValueError:
        return RULES[Reason.UNKNOWN]


def poisons(reason: str) -> bool:
    return rule_for(reason).poisons


def advice_for(reason: str | None) -> str | None:
    return rule_for(reason).advice if reason else None
