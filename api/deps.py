"""What the API is given by the process that serves it."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from domain.collection import CollectionRules
from store.database import Database
from store.secretbox import SecretBox
from store.taskviews import TemporalLinks

#: Before every path of the API, except health, metrics and the API's own description.
PREFIX = "/api/v1"


@dataclass(frozen=True, kw_only=True)
class ApiDeps:
    """``allowed_hosts`` are names without a port; ``*`` allows every one. Times are in seconds."""

    database: Database
    secret_box: SecretBox
    version: str
    temporal_namespace: str = "default"
    temporal_ui_url: str | None = None
    allowed_hosts: list[str]
    #: Raises when Temporal can't be reached; asked by ``/readyz`` only.
    temporal_check: Callable[[], Awaitable[None]] | None = None
    heartbeat_seconds: float = 5.0
    #: A runtime that was silent for longer is shown as offline.
    offline_after: float = 30.0
    #: How long what lies on agent machines is kept.
    collection: CollectionRules = field(default_factory=CollectionRules)

    @property
    def links(self) -> TemporalLinks:
        return TemporalLinks(ui=self.temporal_ui_url, namespace=self.temporal_namespace)
