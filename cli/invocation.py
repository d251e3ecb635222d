"""One call of the command line: its global options, which may stand before or after the verb."""

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from cli.output import Format, Output
from cli.profiles import find

if TYPE_CHECKING:
    from cli.client import ApiClient

Verb = TypeVar("Verb", bound=Callable[..., None])

_PANEL = "Global options"

OutputOption = Annotated[
    Format | None,
    typer.Option("-o", "--output", help="text (default), json or jsonl.", rich_help_panel=_PANEL),
]
ProfileOption = Annotated[
    str | None, typer.Option("--profile", help="A profile of the config file.", rich_help_panel=_PANEL)
]
ApiUrlOption = Annotated[
    str | None, typer.Option("--api-url", help="Where the API is (SEGUE_API_URL).", rich_help_panel=_PANEL)
]
TokenOption = Annotated[
    str | None, typer.Option("--token", help="The caller's token (SEGUE_TOKEN).", rich_help_panel=_PANEL)
]


@dataclass
class Globals:
    """The global options; later ones on the command line win."""

    output: Format | None = None
    profile: str | None = None
    api_url: str | None = None
    token: str | None = field(default=None, repr=False)

    def update(self, later: "Globals") -> None:
        for one in fields(self):
            value = getattr(later, one.name)
            if value is not None:
                setattr(self, one.name, value)


class Invocation:
    """What a verb works with: the output, and a client when it needs one."""

    def __init__(self, given: Globals) -> None:
        self.given = given
        self.output = Output(given.output or Format.TEXT)

    def client(self) -> "ApiClient":
        """A client for the API that options, environment or profile name. Raises `InvalidInput`."""
        from cli.client import ApiClient

        return ApiClient(find(self.given.api_url, self.given.token, self.given.profile))


_OPTIONS = {"output": OutputOption, "profile": ProfileOption, "api_url": ApiUrlOption, "token": TokenOption}


def verb(group: typer.Typer, name: str) -> Callable[[Verb], Verb]:
    """Register a function as a verb of ``group``: it gets an `Invocation` first, then its own options."""

    def register(function: Verb) -> Verb:
        group.command(name)(_with_globals(function))
        return function

    return register


def _with_globals(function: Callable[..., None]) -> Callable[..., None]:
    signature = inspect.signature(function)
    own = list(signature.parameters.values())[1:]
    context = inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)
    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)
        for name, kind in _OPTIONS.items()
    ]

    @functools.wraps(function)
    def call(*, context: typer.Context, **values: Any) -> None:
        given: Globals = context.ensure_object(Globals)
        given.update(Globals(**{name: values.pop(name) for name in _OPTIONS}))
        function(Invocation(given), **values)

    parameters = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in own]
    call.__signature__ = signature.replace(parameters=[*parameters, context, *added])  # type: ignore[attr-defined]
    call.__annotations__ = {one.name: one.annotation for one in (*own, context, *added)}
    return call
