"""The stack's folder: its record survives, and only one stack has it."""

import os
import socket
import stat
from pathlib import Path

import pytest

from domain.errors import Conflict, InvalidInput
from tests.services.ports import free_port
from workers import ports
from workers.folder import Ports, StackFolder, StackRecord, default_folder


@pytest.fixture
def folder(tmp_path: Path) -> StackFolder:
    """A folder that was made, and nothing more."""
    made = StackFolder(tmp_path / "data")
    made.make()
    return made


def test_record_comes_back_as_it_was_written(folder: StackFolder) -> None:
    """Also with characters that TOML must escape."""
    record = StackRecord(token='sgu_"\\ü\n', secret_key="k", ports=Ports(1, 2, 3)).with_ports(Ports(4, 5, 6))
    folder.write(record)
    assert folder.read() == record
    assert record.api_url == "http://127.0.0.1:4"


def test_record_is_private(folder: StackFolder) -> None:
    """The file with the tokens is readable by its owner only, whatever the umask."""
    before = os.umask(0)
    try:
        folder.write(StackRecord())
    finally:
        os.umask(before)
    assert stat.S_IMODE(folder.record_file.stat().st_mode) == 0o600


def test_no_record_before_the_first_start(folder: StackFolder) -> None:
    """There is none until a stack has written it."""
    assert folder.read() is None


def test_damaged_record_is_named(folder: StackFolder) -> None:
    """A file that is not TOML is an error with the file's name, not a fresh start."""
    folder.record_file.write_text("token = ")
    with pytest.raises(InvalidInput, match=r"segue\.toml"):
        folder.read()


def test_second_stack_is_refused(folder: StackFolder) -> None:
    """Two stacks on one folder would destroy the data."""
    with folder.lock(), pytest.raises(Conflict, match="Another `segue up`"), folder.lock():
        pass
    with folder.lock():
        pass


def test_default_folder_follows_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SEGUE_DATA, then the XDG data home, then the home directory."""
    monkeypatch.setenv("HOME", "/srv/ada")
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    assert default_folder() == Path("/srv/ada/.local/share/segue")
    monkeypatch.setenv("XDG_DATA_HOME", "/data")
    assert default_folder() == Path("/data/segue")
    monkeypatch.setenv("SEGUE_DATA", str(tmp_path))
    assert default_folder() == tmp_path


def test_remembered_ports_are_taken_again() -> None:
    """A restart answers where the last one did."""
    remembered = Ports(free_port(), free_port(), free_port())
    said: list[str] = []
    assert ports.choose(Ports(), remembered, said.append) == remembered
    assert said == []


def test_taken_port_is_replaced_with_a_notice() -> None:
    """A remembered port that somebody else has now is given up, and the person is told."""
    said: list[str] = []
    taken = _Listener()
    with taken.socket:
        chosen = ports.choose(Ports(), Ports(api=taken.port), said.append)
    assert chosen.api != taken.port
    assert len({chosen.api, chosen.ui, chosen.temporal}) == 3
    assert said == [f"port {taken.port} (api) is in use now, taking {chosen.api}"]


def test_asked_for_port_is_never_replaced() -> None:
    """Who names a port wants that one."""
    taken = _Listener()
    with taken.socket, pytest.raises(Conflict, match=f"Port {taken.port}"):
        ports.choose(Ports(ui=taken.port), Ports(), lambda _text: None)


class _Listener:
    """Somebody else's server."""

    def __init__(self) -> None:
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.socket.getsockname()[1]
