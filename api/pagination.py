"""Pages of lists: opaque cursors, and the shape of a list's answer."""

import base64
import binascii
import json
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Annotated, Any, Generic, TypeVar
from uuid import UUID

from fastapi import Depends, Query
from pydantic import BaseModel

from domain.errors import InvalidInput
from store.pages import Page

Item = TypeVar("Item")

LARGEST_PAGE = 200
DEFAULT_PAGE = 50


class Listing(BaseModel, Generic[Item]):
    """One page; ``next`` is the ``cursor`` of the page after it, or null."""

    items: list[Item]
    next: str | None = None


def _page(
    limit: Annotated[int, Query(ge=1, le=LARGEST_PAGE)] = DEFAULT_PAGE,
    cursor: Annotated[str | None, Query(max_length=500, description="`next` of the page before")] = None,
) -> Page:
    return Page(limit=limit, before=_decode(cursor) if cursor is not None else None)


Paging = Annotated[Page, Depends(_page)]


def listing(page: Page, rows: Sequence[Any], show: Callable[[Any], Item]) -> Listing[Item]:
    """The answer for rows that were asked for with one more than the limit."""
    shown = rows[: page.limit]
    more = len(rows) > page.limit
    return Listing(items=[show(row) for row in shown], next=_encode(shown[-1]) if more else None)


def _encode(row: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps([row.created_at.isoformat(), str(row.id)]).encode()).decode()


def _decode(cursor: str) -> tuple[datetime, UUID]:
    try:
        created_at, row_id = json.loads(base64.urlsafe_b64decode(cursor))
        moment = datetime.fromisoformat(created_at)
        if moment.tzinfo is None:
            raise ValueError("no time zone")  # noqa: TRY301 - one place answers for all that is wrong
        return moment, UUID(row_id)
    except (binascii.Error, ValueError, TypeError, AttributeError) as error:
        raise InvalidInput("cursor: take `next` of the page before, as it is.") from error
