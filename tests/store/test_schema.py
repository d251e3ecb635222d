"""Migrations: up, down and up again, in step with the models."""

import pytest
from alembic import command
from sqlalchemy import create_engine, inspect

from store import schema
from store.database import sqlalchemy_url
from store.models import Base

pytestmark = pytest.mark.slow


def tables(url: str) -> set[str]:
    engine = create_engine(sqlalchemy_url(url))
    try:
        return set(inspect(engine).get_table_names())
    finally:
        engine.dispose()


def test_up_down_and_up_again(empty_database_url: str) -> None:
    """All tables come, all go but Alembic's own, and all come back."""
    modelled = set(Base.metadata.tables)
    assert schema.current(empty_database_url) is None
    for _ in range(2):
        schema.upgrade(empty_database_url)
        assert schema.current(empty_database_url) == schema.head()
        assert tables(empty_database_url) == modelled | {"alembic_version"}
        schema.downgrade(empty_database_url, "base")
        assert schema.current(empty_database_url) is None
        assert tables(empty_database_url) == {"alembic_version"}


def test_upgrading_again_changes_nothing(database_url: str) -> None:
    """Every start of a process may ask for it."""
    schema.upgrade(database_url)
    assert schema.current(database_url) == schema.head()


def test_the_migrations_make_what_the_models_say(database_url: str) -> None:
    """Alembic finds no difference between the migrated database and the models."""
    command.check(schema.alembic_config(database_url))
