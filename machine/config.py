"""The numbers and paths that a runtime worker works by."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from machine.output import LINE_LIMIT
from providers.base import Limits

MIB = 1024 * 1024


@dataclass(frozen=True)
class MachineConfig:
    """Times in seconds, sizes in bytes."""

    #: Where agents reach the API (``SEGUE_API_URL`` in their environment).
    api_url: str
    #: Paths of agent CLIs by provider (``[providers.NAME] path``); otherwise PATH is searched.
    binaries: Mapping[str, str] = field(default_factory=dict)
    #: Watchdog limits by provider, instead of the provider's own.
    limits: Mapping[str, Limits] = field(default_factory=dict)
    #: Names that agents inherit from the worker beside the built-in allow-list.
    inherit: tuple[str, ...] = ()
    #: Below so many free bytes under the root no run starts.
    disk_floor: int = 512 * MIB
    line_limit: int = LINE_LIMIT
    #: How often a quiet output file is looked at, while it has just moved and after it has been still.
    poll_fastest: float = 0.01
    poll_slowest: float = 0.08
    batch_seconds: float = 0.1
    batch_events: int = 256
    batch_bytes: int = MIB
    #: Reading pauses while so much waits to be posted: the file is the buffer.
    unposted_events: int = 2048
    unposted_bytes: int = 8 * MIB
    #: Longest pause between two tries to reach the API.
    retry_cap: float = 5.0
