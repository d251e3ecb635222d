"""The type of a result row whose columns the type checker can't follow."""

from typing import Any, TypeAlias

from sqlalchemy import Row

AnyRow: TypeAlias = Row[*tuple[Any, ...]]
