"""The embedded stack's folder: where everything in it lies, its lock, and its record (``segue.toml``)."""

import fcntl
import json
import os
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from domain.errors import Conflict, InvalidInput

DATA_VARIABLE = "SEGUE_DATA"
_HEADER = "# Written by `segue up` at each start. Holds secrets: keep it to yourself (mode 0600).\n"


def default_folder() -> Path:
    """``$SEGUE_DATA``, else ``$XDG_DATA_HOME/segue``, else ``~/.local/share/segue``.

    Raises `InvalidInput` when nothing says where ``~`` is.
    """
    given = os.environ.get(DATA_VARIABLE)
    if given:
        return Path(given).expanduser().resolve()
    base = os.environ.get("XDG_DATA_HOME")
    if base:
        return Path(base) / "segue"
    try:
        return Path.home() / ".local" / "share" / "segue"
    except RuntimeError as error:
        raise InvalidInput(f"{error} Set {DATA_VARIABLE} to the stack's folder, or HOME.") from error


@dataclass(frozen=True)
class Ports:
    """TCP ports of the stack on 127.0.0.1; 0 is not chosen yet."""

    api: int = 0
    ui: int = 0
    temporal: int = 0


@dataclass(frozen=True)
class StackRecord:
    """What ``segue.toml`` says: how to reach the stack, and the secrets of its first start."""

    api_url: str = ""
    ui_url: str = ""
    token: str = ""
    workspace_id: str = ""
    member_id: str = ""
    runtime_id: str = ""
    runtime_token: str = ""
    secret_key: str = ""
    database_url: str = ""
    temporal_address: str = ""
    temporal_namespace: str = ""
    ports: Ports = field(default_factory=Ports)

    def with_ports(self, ports: Ports) -> "StackRecord":
        """The same stack at other ports."""
        return replace(
            self,
            ports=ports,
            api_url=f"http://127.0.0.1:{ports.api}",
            ui_url=f"http://127.0.0.1:{ports.ui}",
            temporal_address=f"127.0.0.1:{ports.temporal}",
        )


@dataclass(frozen=True)
class StackFolder:
    """Paths below one folder; see `lock` for who may use it."""

    path: Path

    @property
    def record_file(self) -> Path:
        return self.path / "segue.toml"

    @property
    def postgres(self) -> Path:
        return self.path / "postgres"

    @property
    def temporal_file(self) -> Path:
        return self.path / "temporal.db"

    @property
    def runtime_root(self) -> Path:
        return self.path / "runtime"

    def log_file(self, part: str) -> Path:
        return self.path / "logs" / f"{part}.log"

    def part_file(self, part: str) -> Path:
        return self.path / "parts" / f"{part}.json"

    def make(self) -> None:
        """Make the folder and its subfolders, readable by their owner only."""
        self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        for sub in ("logs", "parts", "runtime"):
            (self.path / sub).mkdir(exist_ok=True, mode=0o700)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the folder; raises `Conflict` when another ``segue up`` has it. Ends with the process."""
        with (self.path / "lock").open("a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise Conflict(
                    f"Another `segue up` is using {self.path}: stop it, or give this one its own --data DIR."
                ) from None
            yield

    def read(self) -> StackRecord | None:
        """The record, or None before the first start. Raises `InvalidInput` when it is damaged."""
        try:
            content = tomllib.loads(self.record_file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise InvalidInput(f"{self.record_file} can't be read: {error}.") from error
        return _record(content)

    def write(self, record: StackRecord) -> None:
        """Replace the record in one step, so that a crash leaves the old one or the new one."""
        new = self.record_file.with_suffix(".new")
        with os.fdopen(
            os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8"
        ) as file:
            file.write(_toml(record))
            file.flush()
            os.fsync(file.fileno())
        new.replace(self.record_file)


def _record(content: dict[str, Any]) -> StackRecord:
    known = {one.name for one in fields(StackRecord)} - {"ports"}
    ports = content.get("ports", {})
    return StackRecord(
        **{name: str(value) for name, value in content.items() if name in known},
        ports=Ports(**{one.name: int(ports.get(one.name, 0)) for one in fields(Ports)}),
    )


def _toml(record: StackRecord) -> str:
    content = asdict(record)
    ports = content.pop("ports")
    # A JSON string with ASCII escapes is a valid TOML basic string.
    lines = [f"{name} = {json.dumps(value)}" for name, value in content.items()]
    return "\n".join(
        [_HEADER, *lines, "", "[ports]", *(f"{name} = {port}" for name, port in ports.items()), ""]
    )
