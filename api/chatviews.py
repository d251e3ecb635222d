"""Chats and their messages as people see them: in answers and in streams."""

from datetime import datetime
from uuid import UUID

from pydantic import BaseModel

from domain.chats import ChatStatus, MessageKind, MessageRole
from store.rows import AnyRow


class Chat(BaseModel):
    """``runtime_id`` is set where the chat is bound to a machine: it goes on from a run there.

    ``session_carried`` and ``session_reason`` say what a continuation could take along (null: none).
    """

    id: UUID
    agent_id: UUID
    title: str
    status: ChatStatus
    runtime_id: UUID | None
    continued_from_task_id: UUID | None
    session_carried: bool | None
    session_reason: str | None
    fork: bool
    unread: int
    last_message_at: datetime | None
    created_at: datetime

    @classmethod
    def of(cls, row: AnyRow) -> "Chat":
        return cls(**{name: getattr(row, name) for name in cls.model_fields})


class Message(BaseModel):
    """``queued``: its turn has not started. ``seq`` grows with every message and every change of one."""

    id: UUID
    role: MessageRole
    content: str
    task_id: UUID | None
    kind: MessageKind
    reason: str | None
    created_at: datetime
    seq: int
    queued: bool

    @classmethod
    def of(cls, row: AnyRow) -> "Message":
        return cls(**{name: getattr(row, name) for name in cls.model_fields})
