"""Alembic's entry: runs online with the address given by `store.schema`."""

from alembic import context
from sqlalchemy import create_engine, text
from sqlalchemy.pool import NullPool

from store.models import Base

_LOCK = 0x5E60E  # two processes that upgrade at once take turns


def run() -> None:
    engine = create_engine(context.config.attributes["url"], poolclass=NullPool)
    with engine.connect() as conn:
        context.configure(connection=conn, target_metadata=Base.metadata)
        with context.begin_transaction():
            conn.execute(text("select pg_advisory_xact_lock(:key)"), {"key": _LOCK})
            context.run_migrations()
    engine.dispose()


run()
