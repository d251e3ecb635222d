"""The view gate in SQL: which agents and tasks a caller may see.

The same rule as `domain.permissions.may_view`, for lists that the database filters. Chats are their
creator's alone, administrators included; a task token sees the chat that its own task belongs to.
"""

from typing import Any

from sqlalchemy import ColumnElement, and_, any_, literal, or_, select, true

from domain.permissions import Actor
from domain.statuses import Permission
from store.models import Agent, Chat, Task


def agent_visible(actor: Actor, agent: Any = Agent) -> ColumnElement[bool]:
    """Is the row of ``agent`` (the table or an alias of it) visible to ``actor``?"""
    if actor.agent_id is not None or actor.is_admin:
        return true()
    if actor.member_id is None:
        return literal(False)
    me = literal(actor.member_id, Agent.id.type)
    return or_(
        agent.owner_id == me,
        agent.permission == Permission.WORKSPACE,
        and_(agent.permission == Permission.MEMBERS, me == any_(agent.allowed_member_ids)),
    )


def task_visible(actor: Actor, task: Any = Task, agent: Any = Agent, chat: Any = Chat) -> ColumnElement[bool]:
    """Is the task visible? The query joins ``agent``, and ``chat`` by an outer join."""
    own_chat = (
        select(Task.chat_id).where(Task.id == actor.task_id).scalar_subquery()
        if actor.task_id is not None
        else None
    )
    if own_chat is not None:
        mine = task.chat_id == own_chat
    elif actor.is_member:
        mine = chat.creator_id == actor.member_id
    else:
        mine = literal(False)
    return and_(agent_visible(actor, agent), or_(task.chat_id.is_(None), mine))
