"""The type of a result row whose columns the type checker can't follow."""

from typing import Any, TypeAlias

from sqlalchemy import Row, Select

AnyRow: TypeAlias = Row[*tuple[Any, ...]]
AnySelect: TypeAlias = Select[*tuple[Any, ...]]
