"""The database: one pooled engine a process, transactions, and notifications."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import psycopg
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from domain.errors import Unavailable


class Database:
    """A pooled engine. ``url`` is a libpq address (``postgresql://…``), as people write it."""

    def __init__(self, url: str, *, pool_size: int = 10) -> None:
        self.url = libpq_url(url)
        self.engine: AsyncEngine = create_async_engine(
            sqlalchemy_url(url), pool_size=pool_size, max_overflow=5, pool_pre_ping=False
        )
        self._snapshots = self.engine.execution_options(
            isolation_level="REPEATABLE READ", postgresql_readonly=True
        )

    @asynccontextmanager
    async def begin(self) -> AsyncIterator[AsyncConnection]:
        """One transaction: committed at the end, rolled back on an error."""
        async with self.engine.begin() as conn:
            yield conn

    @asynccontextmanager
    async def snapshot(self) -> AsyncIterator[AsyncConnection]:
        """Reads that all see the same moment; nothing can be written."""
        async with self._snapshots.begin() as conn:
            yield conn

    async def check(self) -> None:
        """Raise `Unavailable` if the database doesn't answer."""
        try:
            async with asyncio.timeout(5), self.engine.connect() as conn:
                await conn.execute(text("select 1"))
        except Exception as error:
            raise Unavailable(f"The database does not answer: {error}") from error

    async def listen(self, channel: str) -> AsyncIterator[str]:
        """Payloads of NOTIFY on ``channel``, on a connection of its own; an empty one first.

        The empty payload tells the reader to catch up from the tables once; it comes again after
        every reconnect, so that nothing is missed while the connection was away.
        """
        while True:
            try:
                async with await psycopg.AsyncConnection.connect(self.url, autocommit=True) as conn:
                    await conn.execute(f'LISTEN "{channel}"'.encode())
                    yield ""
                    async for notification in conn.notifies():
                        yield notification.payload
            except psycopg.OperationalError:
                await asyncio.sleep(_RECONNECT_SECONDS)

    async def dispose(self) -> None:
        await self.engine.dispose()


_RECONNECT_SECONDS = 1.0
_LIBPQ = "postgresql://"
_SQLALCHEMY = "postgresql+psycopg://"


def libpq_url(url: str) -> str:
    return url.replace(_SQLALCHEMY, _LIBPQ, 1)


def sqlalchemy_url(url: str) -> str:
    """The same address for SQLAlchemy, which wants the driver named and a host-less URL's user kept."""
    address = libpq_url(url).removeprefix("postgres://").removeprefix(_LIBPQ)
    user, at, rest = address.partition("@")
    if at and user.endswith(":"):
        address = f"{user[:-1]}@{rest}"
    return _SQLALCHEMY + address
