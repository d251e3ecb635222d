"""Migrations from code: upgrade, downgrade, and what revision a database is at."""

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine, text

from store.database import Database, sqlalchemy_url

_MIGRATIONS = Path(__file__).parent / "migrations"


def alembic_config(url: str) -> Config:
    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS))
    config.attributes["url"] = sqlalchemy_url(url)
    return config


def upgrade(url: str, revision: str = "head") -> None:
    command.upgrade(alembic_config(url), revision)


def downgrade(url: str, revision: str) -> None:
    command.downgrade(alembic_config(url), revision)


def head() -> str:
    """The revision that this version of the code wants."""
    revision = ScriptDirectory(str(_MIGRATIONS)).get_current_head()
    assert revision is not None, "there is always a migration"
    return revision


def current(url: str) -> str | None:
    """The revision the database is at; None for an empty one."""
    engine = create_engine(sqlalchemy_url(url))
    try:
        with engine.connect() as conn:
            return MigrationContext.configure(conn).get_current_revision()
    finally:
        engine.dispose()


async def revision(database: Database) -> str | None:
    """`current` for a running process; None for a database without our tables."""
    async with database.begin() as conn:
        table = await conn.scalar(text("select to_regclass('alembic_version')"))
        if table is None:
            return None
        found: str | None = await conn.scalar(text("select version_num from alembic_version"))
        return found
