"""Golden names: a released form never changes, or running workflows would be stranded."""

from uuid import UUID

from domain import names

ID = UUID("0190f6c0-0000-7000-8000-000000000001")


def test_workflow_ids() -> None:
    """The ids by which starts, wakes and cancels find their workflow."""
    assert names.task_workflow_id(ID) == "task/0190f6c0-0000-7000-8000-000000000001"
    assert names.stop_workflow_id(ID) == "stop/0190f6c0-0000-7000-8000-000000000001"
    assert names.chat_workflow_id(ID) == "chat/0190f6c0-0000-7000-8000-000000000001"


def test_queues() -> None:
    """The queues that workers of every version poll."""
    assert names.CONTROL_QUEUE == "segue-control"
    assert names.ops_queue(ID) == "segue-runtime-0190f6c0-0000-7000-8000-000000000001-ops"
    assert names.runs_queue(ID) == "segue-runtime-0190f6c0-0000-7000-8000-000000000001-runs"


def test_registered_names() -> None:
    """Workflow, activity and signal names, which stand in stored histories."""
    assert (names.TASK_WORKFLOW, names.STOP_WORKFLOW, names.WAKE_SIGNAL) == ("Task", "StopAttempt", "wake")
    assert (names.RESOLVE_RESUME, names.GATE_WORKDIR) == ("resolve_resume", "gate_workdir")
    assert (names.RUN_AGENT, names.RECORD_TERMINAL) == ("run_agent", "record_terminal")
    assert (names.SET_ASIDE, names.STOP_ATTEMPT, names.SETTLE_ATTEMPT) == (
        "set_aside",
        "stop_attempt",
        "settle_attempt",
    )


def test_search_attributes() -> None:
    """The attributes people filter by in the Temporal Web UI."""
    assert names.SEARCH_ATTRIBUTES == (
        "SegueAgent",
        "SegueIssue",
        "SegueChat",
        "SegueRuntime",
        "SegueTrigger",
        "SegueReason",
    )


def test_issue_keys() -> None:
    """What people call an issue."""
    assert names.issue_key("SEG", 12) == "SEG-12"
