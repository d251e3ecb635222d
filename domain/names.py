"""Names that Temporal, the database and people see; each computed here and nowhere else.

A name once released never changes its form: running workflows would be stranded (field notes T26).
"""

from uuid import UUID

CONTROL_QUEUE = "segue-control"

TASK_WORKFLOW = "Task"
STOP_WORKFLOW = "StopAttempt"
CHAT_WORKFLOW = "Chat"

RESOLVE_RESUME = "resolve_resume"
GATE_WORKDIR = "gate_workdir"
RUN_AGENT = "run_agent"
RECORD_TERMINAL = "record_terminal"
SET_ASIDE = "set_aside"
STOP_ATTEMPT = "stop_attempt"
SETTLE_ATTEMPT = "settle_attempt"

WAKE_SIGNAL = "wake"
TURN_SIGNAL = "turn"
CLOSE_SIGNAL = "close"

#: All of type Keyword; created with the embedded server, checked by `segue doctor`.
SEARCH_ATTRIBUTES = (
    "SegueAgent",
    "SegueIssue",
    "SegueChat",
    "SegueRuntime",
    "SegueTrigger",
    "SegueReason",
)

OUTBOX_CHANNEL = "segue_outbox"
#: Payload: the id of a task whose transcript or status, or of a chat whose messages have news.
EVENTS_CHANNEL = "segue_events"


def task_workflow_id(task_id: UUID) -> str:
    return f"task/{task_id}"


def stop_workflow_id(attempt_id: UUID) -> str:
    return f"stop/{attempt_id}"


def chat_workflow_id(chat_id: UUID) -> str:
    return f"chat/{chat_id}"


def ops_queue(runtime_id: UUID) -> str:
    return f"segue-runtime-{runtime_id}-ops"


def runs_queue(runtime_id: UUID) -> str:
    return f"segue-runtime-{runtime_id}-runs"


def issue_key(prefix: str, number: int) -> str:
    return f"{prefix}-{number}"
