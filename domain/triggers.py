"""What started a task: the values of a task's ``trigger.type`` that the board makes."""

from enum import StrEnum


class TriggerType(StrEnum):
    """``mention`` is a comment that names the agent; ``comment`` reached it by where it was written."""

    COMMENT = "comment"
    MENTION = "mention"
    ASSIGNMENT = "assignment"
    STATUS = "status"
