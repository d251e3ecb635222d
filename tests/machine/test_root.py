"""The root directory: one owner, one identity."""

import subprocess
import sys
from pathlib import Path

import pytest

from domain.errors import RootLocked
from machine.records import create_record, read_record, write_record
from machine.root import RootDirectory

HOLDER = """
import sys
from machine.root import RootDirectory

RootDirectory(sys.argv[1]).lock()
print("held", flush=True)
input()
"""


def test_a_second_worker_is_refused_and_told_why(tmp_path: Path) -> None:
    """While another process holds the root; when it dies, however, the root is free."""
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout
        assert holder.stdout.readline() == b"held\n"
        root = RootDirectory(tmp_path)
        with pytest.raises(RootLocked, match=f"pid {holder.pid}"):
            root.lock()
        holder.kill()
        holder.wait()
    root.lock()
    root.lock()
    root.unlock()


def test_the_machine_keeps_its_id(tmp_path: Path) -> None:
    """One root is one machine, for good; another root is another."""
    assert RootDirectory(tmp_path / "a").machine_id == RootDirectory(tmp_path / "a").machine_id
    assert RootDirectory(tmp_path / "a").machine_id != RootDirectory(tmp_path / "b").machine_id


def test_the_root_is_real_and_private(tmp_path: Path) -> None:
    """Reached through a link it is known by its real path."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    root = RootDirectory(tmp_path / "link")
    assert root.path == tmp_path / "real"
    assert root.attempts.stat().st_mode & 0o777 == 0o700
    assert root.free_bytes() > 0


def test_records_are_replaced_whole_and_made_once(tmp_path: Path) -> None:
    """A reader sees the old or the new one; making is exclusive; garbage reads as none."""
    path = tmp_path / "record.json"
    assert read_record(path) is None
    assert create_record(path, {"n": 1})
    assert not create_record(path, {"n": 2})
    assert read_record(path) == {"n": 1}
    write_record(path, {"n": 3})
    assert read_record(path) == {"n": 3}
    path.write_bytes(b"{torn")
    assert read_record(path) is None
    assert [p.name for p in tmp_path.iterdir()] == ["record.json"]
