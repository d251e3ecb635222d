"""Configuration of the processes: environment (``SEGUE_…``) before the file that ``SEGUE_CONFIG`` names.

How to reach Temporal may also be said with Temporal's own settings (``TEMPORAL_ADDRESS``,
``TEMPORAL_PROFILE``, TLS, API key …), which win when one of them is set.
"""

import difflib
import os
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from domain.errors import InvalidInput

if TYPE_CHECKING:
    from temporalio.client import Client

PREFIX = "SEGUE_"
CONFIG_VARIABLE = "SEGUE_CONFIG"
MIB = 1024 * 1024
DAY = 86400


class ProviderSettings(BaseModel):
    """``[providers.NAME]``: where an agent CLI is, and its watchdog limits (seconds) where they differ."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    path: str | None = None
    startup_seconds: float | None = Field(default=None, gt=0)
    idle_seconds: float | None = Field(default=None, gt=0)
    tool_idle_seconds: float | None = Field(default=None, gt=0)


class Settings(BaseSettings):
    """Everything a process of ours can be told. Times are in seconds."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, env_nested_delimiter="__", extra="forbid", frozen=True
    )

    #: libpq address (``postgresql://…``); control worker, api and admin verbs need it, a runtime must not.
    database_url: SecretStr | None = None
    #: Encrypts agents' environments and signs task tokens (a Fernet key; `store.secretbox` makes one).
    secret_key: SecretStr | None = None

    temporal_address: str = "127.0.0.1:7233"
    temporal_namespace: str = "default"
    #: Where people find Temporal's Web UI, for links; null means no links.
    temporal_ui_url: str | None = None

    api_host: str = "127.0.0.1"
    api_port: int = Field(default=8080, ge=0, le=65535)
    #: Host names (without port) the API answers to, against DNS rebinding; a JSON list in the environment.
    allowed_hosts: list[str] = ["127.0.0.1", "localhost", "::1"]

    #: A runtime that was not heard of for this long counts as offline.
    offline_after: float = Field(default=30.0, gt=0)
    #: A task that never started because its runtime was offline ends after this.
    queue_expiry: float = Field(default=7200.0, gt=0)
    #: `run_agent`'s; must exceed the longest tolerated outage of the Temporal server.
    heartbeat_timeout: float = Field(default=30.0, gt=0)
    gate_timeout: float = Field(default=120.0, gt=0)
    reconcile_seconds: float = Field(default=3.0, gt=0)
    #: How many starts, wakes and cancels the waker has under way at once.
    waker_in_flight: int = Field(default=8, ge=1)
    max_attempts: int = Field(default=2, ge=1)
    #: Where the control worker serves its Prometheus metrics on 127.0.0.1; null means nowhere.
    control_metrics_port: int | None = Field(default=None, ge=1, le=65535)

    #: The runtime worker: the API's address, its token (``sgr_…``), and the folder it owns.
    api_url: str = "http://127.0.0.1:8080"
    runtime_token: SecretStr | None = None
    root: Path | None = None
    slots: int = Field(default=20, ge=1, le=1000)
    beat_seconds: float = Field(default=5.0, gt=0)
    #: With less free space than this, no run is started (``disk_full``).
    min_free_bytes: int = Field(default=512 * MIB, ge=0)
    #: How often the runtime worker looks for what may be deleted; 0: never.
    collect_seconds: float = Field(default=3600.0, ge=0)
    #: The files of an ended attempt are kept for this long.
    keep_attempts_seconds: int = Field(default=7 * DAY, ge=0)
    #: A directory is kept for this long (the api decides): after its issue or chat is over and untouched,
    #: after its last use in any case, and when nothing is known of it.
    keep_settled_seconds: int = Field(default=DAY, ge=0)
    keep_unused_seconds: int = Field(default=30 * DAY, ge=0)
    keep_orphans_seconds: int = Field(default=3 * DAY, ge=0)
    providers: dict[str, ProviderSettings] = Field(default_factory=dict)

    @classmethod
    def load(cls, **overrides: Any) -> "Settings":
        """Read the configuration; ``overrides`` (command line) win.

        Raises `InvalidInput`, which names the key and, for an unknown one, the nearest known key.
        """
        given = {name: value for name, value in overrides.items() if value is not None}
        _check_config_file()
        try:
            return cls(**given)
        except ValidationError as error:
            raise InvalidInput(_explain(error)) from error

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - a .env file is never read
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - nor a folder of secrets
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Command line, then environment, then the TOML file."""
        file = os.environ.get(CONFIG_VARIABLE)
        sources = (init_settings, env_settings)
        return (*sources, TomlConfigSettingsSource(settings_cls, Path(file))) if file else sources

    def required_database_url(self) -> str:
        """Raises `InvalidInput` when the address is missing."""
        return _required(self.database_url, "database_url", "for example postgresql://user@host/segue")

    def required_secret_key(self) -> str:
        """Raises `InvalidInput` when the key is missing."""
        return _required(self.secret_key, "secret_key", "a key made by `segue admin secret-key`")

    def required_runtime_token(self) -> str:
        """Raises `InvalidInput` when the token is missing."""
        return _required(
            self.runtime_token, "runtime_token", "the token printed by `segue runtime create NAME`"
        )

    def required_root(self) -> Path:
        """Raises `InvalidInput` when the folder is missing."""
        if self.root is None:
            raise InvalidInput(
                "A runtime worker needs a folder of its own: give --root DIR or set SEGUE_ROOT."
            )
        return self.root.expanduser().resolve()


async def connect_temporal(settings: Settings, *, lazy: bool = False) -> "Client":
    """A Temporal client with the pydantic converter.

    With ``lazy`` the connection is made at the first call. Raises what ``Client.connect`` raises.
    """
    from temporalio.client import Client
    from temporalio.contrib.pydantic import pydantic_data_converter

    options = temporal_connection(settings)
    return await Client.connect(**options, data_converter=pydantic_data_converter, lazy=lazy)


def temporal_connection(settings: Settings) -> dict[str, Any]:
    """Arguments of ``Client.connect``: Temporal's own settings when there are any, else ours."""
    from temporalio.envconfig import ClientConfig

    ours: dict[str, Any] = {
        "target_host": settings.temporal_address,
        "namespace": settings.temporal_namespace,
    }
    if not any(name.startswith("TEMPORAL_") for name in os.environ):
        return ours
    return ours | dict(ClientConfig.load_client_connect_config())


def _required(value: SecretStr | None, name: str, example: str) -> str:
    if value is None:
        raise InvalidInput(
            f"{PREFIX}{name.upper()} is not set (or `{name}` in {CONFIG_VARIABLE}'s file): {example}."
        )
    return value.get_secret_value()


def _check_config_file() -> None:
    file = os.environ.get(CONFIG_VARIABLE)
    if not file:
        return
    try:
        tomllib.loads(Path(file).read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidInput(
            f"{CONFIG_VARIABLE} names {file}, which can't be read: {error.strerror}."
        ) from error
    except ValueError as error:
        raise InvalidInput(f"{file} is not valid TOML: {error}.") from error


def _explain(error: ValidationError) -> str:
    return "The configuration is not usable. " + " ".join(_explain_one(dict(one)) for one in error.errors())


def _explain_one(one: dict[str, Any]) -> str:
    key = ".".join(map(str, one["loc"]))
    if one["type"] != "extra_forbidden":
        return f"`{key}`: {one['msg']}."
    near = difflib.get_close_matches(str(one["loc"][-1]), _known_keys(one["loc"]), n=1)
    return f"Unknown key `{key}`" + (f": did you mean `{near[0]}`?" if near else ".")


def _known_keys(location: tuple[Any, ...]) -> list[str]:
    return list(Settings.model_fields if len(location) == 1 else ProviderSettings.model_fields)
