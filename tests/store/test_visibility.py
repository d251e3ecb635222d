"""The view gate in SQL is the view gate of the domain."""

from itertools import product
from uuid import UUID

from sqlalchemy import insert, select

from domain.permissions import Actor, may_view
from domain.statuses import Permission, Role
from store import agents
from store.ids import new_id
from store.models import Agent, Member
from store.visibility import agent_visible
from tests.store.board import Board


async def test_sql_and_domain_agree(board: Board) -> None:
    """For every kind of caller and every permission both say the same."""
    people = [board.member_id, new_id(), new_id()]
    async with board.database.begin() as conn:
        for member_id in people[1:]:
            await conn.execute(
                insert(Member).values(
                    id=member_id,
                    workspace_id=board.workspace_id,
                    name="M",
                    email=f"{member_id}@example.org",
                    role="member",
                )
            )
        for permission, owner_id, allowed in product(Permission, (people[0], None), ([], [people[1]])):
            await conn.execute(
                insert(Agent).values(
                    workspace_id=board.workspace_id,
                    name=str(new_id()),
                    provider="script",
                    permission=permission,
                    owner_id=owner_id,
                    allowed_member_ids=allowed,
                )
            )
        rows = (await conn.execute(select(*Agent.__table__.c))).all()
        for actor in _callers(board.workspace_id, people):
            visible = set(await conn.scalars(select(Agent.id).where(agent_visible(actor))))
            assert visible == {row.id for row in rows if may_view(actor, agents.access(row))}, actor


def _callers(workspace_id: UUID, people: list[UUID]) -> list[Actor]:
    members = [
        Actor(workspace_id, member_id=member_id, role=role) for member_id, role in product(people, Role)
    ]
    at_work = [
        Actor(workspace_id, member_id=member_id, role=Role.MEMBER, agent_id=new_id(), task_id=new_id())
        for member_id in (*people, None)
    ]
    return [*members, *at_work, Actor(workspace_id, runtime_id=new_id())]
