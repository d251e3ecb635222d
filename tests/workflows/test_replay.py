"""Histories of released workflows replay with today's code: a change that breaks one must be patched.

``histories/`` grows and is never rewritten; `python -m tests.workflows.record_histories` adds to it.
"""

from pathlib import Path

import pytest
from temporalio.client import WorkflowHistory
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.worker import Replayer

from workers.control import sandbox
from workflows.chat import ChatWorkflow
from workflows.stop import StopAttemptWorkflow
from workflows.task import TaskWorkflow

HISTORIES = sorted((Path(__file__).parent / "histories").glob("*.json"))


def test_there_are_histories() -> None:
    """An empty folder would prove nothing."""
    assert len(HISTORIES) >= 6


@pytest.mark.parametrize("path", HISTORIES, ids=lambda path: path.stem)
async def test_a_stored_history_replays(path: Path) -> None:
    """The commands of today's code are those of the day it was recorded."""
    replayer = Replayer(
        workflows=[TaskWorkflow, ChatWorkflow, StopAttemptWorkflow],
        data_converter=pydantic_data_converter,
        workflow_runner=sandbox(),
    )
    await replayer.replay_workflow(WorkflowHistory.from_json(path.stem, path.read_text()))
