"""Lists in pages, newest first, continued after the last row that was seen."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import Select, tuple_


@dataclass(frozen=True)
class Page:
    """What part of a list is wanted: ``limit`` rows older than ``before`` (created at, id)."""

    limit: int
    before: tuple[datetime, UUID] | None = None


def newest_first(query: Select[Any], model: Any, page: Page) -> Select[Any]:
    """The page's rows and one more, whose presence says that there is a next page."""
    if page.before is not None:
        query = query.where(tuple_(model.created_at, model.id) < tuple_(*page.before))
    return query.order_by(model.created_at.desc(), model.id.desc()).limit(page.limit + 1)
