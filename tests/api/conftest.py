"""The application over a migrated database, and a workspace in it."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest
from fastapi import FastAPI

from api.app import ApiDeps, create_app
from store.database import Database
from store.secretbox import SecretBox
from tests.api.office import Office, opened
from tests.api.wire import Server


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    database = Database(database_url)
    yield database
    await database.dispose()


@pytest.fixture
def deps(database: Database) -> ApiDeps:
    return ApiDeps(
        database=database,
        secret_box=SecretBox(SecretBox.new_key()),
        version="test",
        temporal_namespace="segue",
        temporal_ui_url="http://temporal.example",
        allowed_hosts=["localhost", "127.0.0.1"],
    )


@pytest.fixture
def app(deps: ApiDeps) -> FastAPI:
    return create_app(deps)


@pytest.fixture
async def office(app: FastAPI, database: Database) -> AsyncIterator[Office]:
    async with opened(app, database) as office:
        yield office


@pytest.fixture
async def other_office(app: FastAPI, database: Database) -> AsyncIterator[Office]:
    """Another tenant of the same installation."""
    async with opened(app, database) as office:
        yield office


@pytest.fixture
def server(deps: ApiDeps) -> Iterator[Server]:
    # A pool of its own: connections belong to the loop that made them.
    own = Database(deps.database.url)
    with Server(create_app(ApiDeps(**(vars(deps) | {"database": own})))) as server:
        yield server
    asyncio.run(own.dispose())
