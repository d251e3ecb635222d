"""Types of fields that several bodies share, with their limits."""

from datetime import UTC, datetime
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, StringConstraints, model_validator

LONGEST_TEXT = 500_000  # characters


def _storable(value: str) -> str:
    if "\0" in value:
        raise ValueError("must not contain the NUL character")
    return value


def _not_blank(value: str) -> str:
    if not value.strip():
        raise ValueError("must not be empty")
    return value


#: Any text, possibly empty.
Text = Annotated[str, StringConstraints(max_length=LONGEST_TEXT), AfterValidator(_storable)]
#: Text that says something.
FilledText = Annotated[Text, AfterValidator(_not_blank)]
#: A name or title: one line's worth, without white space around it.
Name = Annotated[
    str,
    StringConstraints(strip_whitespace=True, min_length=1, max_length=200),
    AfterValidator(_storable),
]
Title = Annotated[
    str,
    StringConstraints(strip_whitespace=True, min_length=1, max_length=500),
    AfterValidator(_storable),
]
Email = Annotated[
    str,
    StringConstraints(strip_whitespace=True, max_length=320, pattern=r"^[^@\s\x00]+@[^@\s\x00]+$"),
]


def _future(value: datetime) -> datetime:
    if value <= datetime.now(UTC):
        raise ValueError("must be in the future")
    return value


FutureTime = Annotated[AwareDatetime, AfterValidator(_future)]


class Body(BaseModel):
    """A request's body; a field that is not known is an error, since it is most likely mistyped."""

    model_config = ConfigDict(extra="forbid")


class Patch(Body):
    """The body of a PATCH: only the fields that were sent count.

    Those named in ``nullable`` may be cleared with null; for the others null is an error.
    """

    nullable: ClassVar[frozenset[str]] = frozenset()

    @model_validator(mode="after")
    def _no_nulls(self) -> "Patch":
        for name in self.model_fields_set - self.nullable:
            if getattr(self, name) is None:
                raise ValueError(f"{name} can't be null")
        return self

    def changes(self) -> dict[str, Any]:
        """The fields that were sent."""
        return {name: getattr(self, name) for name in sorted(self.model_fields_set)}
