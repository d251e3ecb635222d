"""Conditions on a task's status, written so that the partial indexes serve them.

The statuses are literals: the planner can't match a parameter with an index's predicate.
"""

from sqlalchemy import TextClause, text


def is_open() -> TextClause:
    """The task has not ended."""
    return text("tasks.status not in ('completed', 'failed', 'cancelled')")


def not_started() -> TextClause:
    """No attempt of the task has been dispatched, and it has not ended."""
    return text("tasks.attempt = 0 and tasks.status in ('deferred', 'queued', 'waiting', 'waiting_quota')")
