"""The outbox: order per subject, several wakers, crashes and pauses."""

import asyncio
from uuid import UUID

import pytest
from sqlalchemy import select, text, update

from domain.names import OUTBOX_CHANNEL
from store import outbox
from store.ids import new_id
from store.models import Outbox
from store.outbox import OutboxItem, OutboxKind
from tests.store.board import Board

pytestmark = pytest.mark.slow


async def put(board: Board, subject: UUID, kind: OutboxKind = OutboxKind.WAKE) -> None:
    async with board.database.begin() as conn:
        await outbox.put(conn, workspace_id=board.workspace_id, kind=kind, subject_id=subject)


async def claim(board: Board, most: int = 10) -> list[OutboxItem]:
    async with board.database.begin() as conn:
        return await outbox.claim(conn, most)


async def sent(board: Board, items: list[OutboxItem]) -> None:
    async with board.database.begin() as conn:
        await outbox.sent(conn, [item.id for item in items])


async def pass_time(board: Board, seconds: float) -> None:
    """Make every claim look this much older."""
    earlier = Outbox.claimed_until - text(f"interval '{seconds} seconds'")
    async with board.database.begin() as conn:
        await conn.execute(update(Outbox).values(claimed_until=earlier))


async def test_a_subjects_rows_go_out_in_order(board: Board) -> None:
    """The second is not claimed before the first is accepted; another subject doesn't wait."""
    one, other = new_id(), new_id()
    for kind in (OutboxKind.START, OutboxKind.WAKE, OutboxKind.CANCEL):
        await put(board, one, kind)
    await put(board, other)
    first = await claim(board)
    assert [(item.kind, item.subject_id) for item in first] == [
        (OutboxKind.START, one),
        (OutboxKind.WAKE, other),
    ]
    assert await claim(board) == []
    await sent(board, first)
    second = await claim(board)
    assert [item.kind for item in second] == [OutboxKind.WAKE]
    await sent(board, second)
    assert [item.kind for item in await claim(board)] == [OutboxKind.CANCEL]


async def test_two_wakers_never_send_the_same_row(board: Board) -> None:
    """While one claims, the other takes different rows instead of waiting for it."""
    subjects = [new_id() for _ in range(6)]
    for subject in subjects:
        await put(board, subject)
    async with board.database.begin() as conn:
        mine = await outbox.claim(conn, 3)
        theirs = await asyncio.wait_for(claim(board, 10), timeout=60)
    assert sorted(item.subject_id for item in mine + theirs) == sorted(subjects)


async def test_many_wakers_at_once_send_everything_once(board: Board) -> None:
    """Four wakers drain it together: each row is claimed once, each subject in its order."""
    subjects = [new_id() for _ in range(20)]
    for kind in (OutboxKind.START, OutboxKind.WAKE):
        for subject in subjects:
            await put(board, subject, kind)
    delivered: list[tuple[UUID, OutboxKind]] = []

    async def waker() -> None:
        while await board.rows(select(Outbox.id).limit(1)):
            items = await claim(board, 3)
            delivered.extend((item.subject_id, item.kind) for item in items)
            await sent(board, items)

    await board.at_once(*(waker() for _ in range(4)))
    assert len(delivered) == len(set(delivered)) == 40
    for subject in subjects:
        kinds = [kind for one, kind in delivered if one == subject]
        assert kinds == [OutboxKind.START, OutboxKind.WAKE]


async def test_a_dead_wakers_rows_are_claimed_again(board: Board) -> None:
    """After the claim has run out, not before."""
    await put(board, new_id())
    (first,) = await claim(board)
    await pass_time(board, outbox.CLAIM_SECONDS - 10)
    assert await claim(board) == []
    await pass_time(board, 11)
    (again,) = await claim(board)
    assert (again.id, again.tries) == (first.id, 2)


async def test_a_failed_row_pauses_longer_each_time(board: Board) -> None:
    """2, 4, 8 … up to 30 seconds; the error is kept for people."""
    await put(board, new_id())
    for pause in (2, 4, 8, 16, 30, 30):
        (item,) = await claim(board)
        async with board.database.begin() as conn:
            await outbox.failed(conn, item, "no route")
            wait = Outbox.claimed_until - text("now()")
            row = (await conn.execute(select(wait.label("wait"), Outbox.last_error))).one()
        assert (row.wait.total_seconds(), row.last_error) == (pause, "no route")
        await pass_time(board, pause)


async def test_a_rolled_back_row_is_never_sent(board: Board) -> None:
    """It was written in the transaction that would have caused it."""

    async def crash() -> None:
        async with board.database.begin() as conn:
            await outbox.put(conn, workspace_id=board.workspace_id, kind=OutboxKind.WAKE, subject_id=new_id())
            raise RuntimeError("crash")

    with pytest.raises(RuntimeError, match="crash"):
        await crash()
    assert await claim(board) == []


async def test_a_committed_row_notifies(board: Board) -> None:
    """The waker hears of it at once, and is told to look once when it begins to listen."""
    heard = board.database.listen(OUTBOX_CHANNEL)
    assert await asyncio.wait_for(anext(heard), timeout=60) == ""
    await put(board, new_id())
    assert await asyncio.wait_for(anext(heard), timeout=60) == ""
    await heard.aclose()  # type: ignore[attr-defined]
