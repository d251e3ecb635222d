"""A migrated database and a small workspace in it."""

from collections.abc import AsyncIterator

import pytest

from store.database import Database
from tests.store.board import Board


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    database = Database(database_url)
    yield database
    await database.dispose()


@pytest.fixture
async def board(database: Database) -> Board:
    return await Board(database).open()
