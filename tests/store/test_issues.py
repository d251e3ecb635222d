"""Issues, where requests meet: what two of them together must not bring about."""

import asyncio
from uuid import UUID

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from domain.errors import UnprocessableInput
from store import issues
from tests.store.board import Board


async def _put_below(board: Board, conn: AsyncConnection, issue_id: UUID, parent_id: UUID) -> None:
    locked = await issues.find(conn, board.workspace_id, str(issue_id), lock=True)
    await issues.change(conn, board.actor, locked, {"parent_id": parent_id})


async def _second_move(board: Board, issue_id: UUID, parent_id: UUID) -> None:
    async with board.database.begin() as conn:
        await _put_below(board, conn, issue_id, parent_id)


async def _waits_or_is_done(board: Board, move: asyncio.Task[None]) -> None:
    async with asyncio.timeout(60), board.database.engine.connect() as conn:
        while not move.done():
            waiting = await conn.scalar(
                text("select count(*) from pg_locks where not granted and locktype = 'advisory'")
            )
            if waiting:
                return
            await asyncio.sleep(0.02)


async def test_two_moves_at_once_make_no_cycle(board: Board) -> None:
    """A below B and B below A, decided at the same moment: the second one is refused."""
    one, other = await board.issue(), await board.issue()
    async with board.database.begin() as conn:
        await _put_below(board, conn, one, other)
        second = asyncio.create_task(_second_move(board, other, one))
        await _waits_or_is_done(board, second)
    with pytest.raises(UnprocessableInput, match="below itself"):
        await second
