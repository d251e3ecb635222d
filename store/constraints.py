"""Violations of named constraints, told to people as conflicts."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import psycopg
from sqlalchemy.exc import IntegrityError

from domain.errors import Conflict


@contextmanager
def refused_as(messages: Mapping[str, str]) -> Iterator[None]:
    """Raise `Conflict` with the message of the violated constraint; the transaction is lost."""
    try:
        yield
    except IntegrityError as error:
        original = error.orig
        name = original.diag.constraint_name if isinstance(original, psycopg.Error) else None
        if name is not None and name in messages:
            raise Conflict(messages[name]) from error
        raise
