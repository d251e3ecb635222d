"""The application over a migrated database, and a workspace in it."""

from collections.abc import AsyncIterator

import pytest
from fastapi import FastAPI

from api.app import ApiDeps, create_app
from store.database import Database
from store.secretbox import SecretBox
from tests.api.office import Office, opened


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
