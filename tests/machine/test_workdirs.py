"""The gate: which directory a run may use, and whether its session can work there."""

import json
import os
from pathlib import Path
from uuid import uuid4

import pytest

from domain.brief import Brief, DirectoryBrief
from domain.errors import LocalDirectoryRefused
from domain.statuses import ContinuityReason
from domain.steps import GateResult
from machine.workdirs import canonical_local_directory
from tests.machine.site import Site


async def made(site: Site) -> tuple[Brief, GateResult, Path]:
    brief = site.brief(issue_key="SEG-7", agent_name="Bäcker 🥨 & Söhne")
    gate = await site.supervisor.gate(brief)
    assert gate.work_dir
    return brief, gate, Path(gate.work_dir)


def again(brief: Brief, gate: GateResult, **fields: object) -> Brief:
    row = DirectoryBrief(id=brief.directory.id, path=gate.work_dir, device=gate.device, inode=gate.inode)
    return brief.model_copy(update={"attempt_id": uuid4(), "directory": row, **fields})


async def test_a_new_directory_is_made_with_its_marker(site: Site) -> None:
    """ASCII name under the root, private, marked before it can be seen, invisible to git."""
    brief, gate, path = await made(site)
    assert gate.ok
    assert path.parent == site.root.workdirs
    assert path.name.isascii()
    assert path.name.startswith("seg-7-b-cker-s-hne-")
    marker = json.loads((path / ".segue/marker.json").read_text())
    assert marker == {
        "workspace_id": str(brief.workspace_id),
        "agent_id": str(brief.agent_id),
        "lane_id": str(brief.lane_id),
        "directory_id": str(brief.directory.id),
    }
    assert (path / ".segue/.gitignore").read_text() == "*\n"
    assert path.stat().st_mode & 0o777 == 0o700
    found = path.stat()
    assert (gate.device, gate.inode) == (found.st_dev, found.st_ino)


async def test_making_it_twice_gives_the_same(site: Site) -> None:
    """An activity that is executed again finds its own directory."""
    brief, gate, path = await made(site)
    (path / "file").touch()
    assert await site.supervisor.gate(brief) == gate
    assert [p.name for p in site.root.workdirs.iterdir()] == [path.name]


async def test_two_directories_of_one_name_do_not_meet(site: Site) -> None:
    """Same issue, same agent's name: the random id keeps them apart."""
    assert (await made(site))[2] != (await made(site))[2]


async def test_the_same_lane_comes_back(site: Site) -> None:
    """The normal case passes: same workspace, agent and lane, same directory."""
    brief, gate, _ = await made(site)
    assert await site.supervisor.gate(again(brief, gate)) == gate


@pytest.mark.parametrize("field", ["workspace_id", "agent_id", "lane_id"])
async def test_a_foreign_marker_is_refused(site: Site, field: str) -> None:
    """Another workspace, agent or lane never enters."""
    brief, gate, _ = await made(site)
    refused = await site.supervisor.gate(again(brief, gate, **{field: uuid4()}))
    assert (refused.ok, refused.reason) == (False, ContinuityReason.WORKDIR_GONE)


async def test_a_continuation_enters_by_its_accepted_lane(site: Site) -> None:
    """A chat that continues a run may use the run's directory."""
    brief, gate, _ = await made(site)
    chat = again(brief, gate, lane_id=uuid4())
    chat.directory.accepted_lane_ids = [brief.lane_id]
    assert (await site.supervisor.gate(chat)).ok


async def test_a_directory_that_is_gone(site: Site) -> None:
    """Removed behind our back: refused before anything is launched."""
    brief, gate, path = await made(site)
    path.rename(path.with_name("moved"))
    assert (await site.supervisor.gate(again(brief, gate))).reason == ContinuityReason.WORKDIR_GONE


async def test_a_copy_is_another_directory(site: Site) -> None:
    """Same path and marker, other inode: refused."""
    brief, gate, path = await made(site)
    path.rename(path.with_name("moved"))
    path.mkdir()
    (path.with_name("moved") / ".segue").rename(path / ".segue")
    assert (await site.supervisor.gate(again(brief, gate))).reason == ContinuityReason.WORKDIR_GONE


async def test_a_symlink_in_its_place_is_refused(site: Site, tmp_path: Path) -> None:
    """Swapped for a link, even to a directory with the right marker."""
    brief, gate, path = await made(site)
    elsewhere = tmp_path / "elsewhere"
    path.rename(elsewhere)
    path.symlink_to(elsewhere)
    assert (await site.supervisor.gate(again(brief, gate))).reason == ContinuityReason.WORKDIR_GONE


@pytest.mark.parametrize("way", ["{root}/workdirs/../outside", "/tmp", "{root}/workdirs", "relative", "/"])
async def test_a_path_outside_is_refused(site: Site, way: str) -> None:
    """Nothing but a directory under the root's own workdirs is entered."""
    brief, _, _ = await made(site)
    (site.root.path / "outside").mkdir()
    row = DirectoryBrief(id=uuid4(), path=way.format(root=site.root.path))
    refused = await site.supervisor.gate(brief.model_copy(update={"directory": row}))
    assert (refused.ok, refused.reason) == (False, ContinuityReason.WORKDIR_GONE)


@pytest.mark.parametrize("damage", ["missing", "garbage", "link", "fifo"])
async def test_a_damaged_marker_is_refused(site: Site, tmp_path: Path, damage: str) -> None:
    """An agent can write there: no link is followed, no pipe is waited for, no text is trusted."""
    brief, gate, path = await made(site)
    marker = path / ".segue/marker.json"
    saved = tmp_path / "saved.json"
    marker.rename(saved)
    if damage == "garbage":
        marker.write_bytes(b"[" * 100_000)
    elif damage == "link":
        marker.symlink_to(saved)
    elif damage == "fifo":
        os.mkfifo(marker)
    assert (await site.supervisor.gate(again(brief, gate))).reason == ContinuityReason.WORKDIR_GONE


async def test_a_session_must_be_stored_on_this_machine(site: Site) -> None:
    """A known session passes, an unknown one is dropped and the directory kept."""
    brief, gate, _ = await made(site)
    outcome = await site.run(brief)
    assert await site.supervisor.gate(again(brief, gate, session_id=outcome.session_id)) == gate
    missing = await site.supervisor.gate(again(brief, gate, session_id=str(uuid4())))
    assert (missing.ok, missing.reason) == (True, ContinuityReason.SESSION_MISSING)


async def test_a_full_disk_is_said_before_the_start(site: Site) -> None:
    """Below the floor nothing runs, and nothing is made."""
    site.new_supervisor(disk_floor=2**62)
    refused = await site.supervisor.gate(site.brief())
    assert (refused.ok, refused.failure) == (False, "disk_full")
    assert list(site.root.workdirs.iterdir()) == []


async def test_a_missing_command_is_said_before_the_start(site: Site) -> None:
    """The gate names the executable that is not there."""
    site.new_supervisor(binaries={"script": "/nowhere/script"})
    refused = await site.supervisor.gate(site.brief())
    assert refused.failure == "runtime_missing_executable"
    assert "/nowhere/script" in (refused.failure_detail or "")


async def test_a_local_directory_is_used_as_it_is(site: Site, tmp_path: Path) -> None:
    """A project's own directory needs no marker and gets none; a replaced one is an error."""
    local = tmp_path / "project"
    local.mkdir()
    path, device, inode = canonical_local_directory(str(local), site.root)
    row = DirectoryBrief(id=uuid4(), kind="local", path=path, device=device, inode=inode)
    gate = await site.supervisor.gate(site.brief(directory=row))
    assert (gate.ok, gate.work_dir) == (True, str(local))
    assert list(local.iterdir()) == []
    local.rename(tmp_path / "moved")
    local.mkdir()
    assert (await site.supervisor.gate(site.brief(directory=row))).failure == "local_directory_error"


def test_a_local_directory_is_registered_by_its_real_path(site: Site, tmp_path: Path) -> None:
    """A link is resolved once, at the registration."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert canonical_local_directory(str(tmp_path / "link"), site.root)[0] == str(tmp_path / "real")


@pytest.mark.parametrize(
    "path, why",
    [
        ("relative", "not absolute"),
        ("~/project", "not absolute"),
        ("/nowhere/at/all", "No such file"),
        ("{root}", "contain each other"),
        ("{root}/workdirs", "contain each other"),
        ("{tmp}", "contain each other"),
        ("/", "contain each other"),
        ("/etc", "belongs to the system"),
        ("/usr/share", "belongs to the system"),
        ("{tmp}/etc", "belongs to the system"),
        ("{tmp}/home", "home directory"),
        ("{tmp}/file", "not a directory"),
        ("{tmp}/loop", "symbolic link"),
        ("{tmp}/managed", "Segue manages"),
    ],
)
async def test_unusable_local_directories_are_refused(
    site: Site, tmp_path: Path, path: str, why: str
) -> None:
    """Relative, missing, a file, the system's, somebody's home, entangled with our root, or managed."""
    (tmp_path / "file").touch()
    (tmp_path / "home").mkdir()
    (tmp_path / "etc").symlink_to("/etc")
    (tmp_path / "loop").symlink_to("loop")
    made_path = (await made(site))[2]
    (tmp_path / "managed").mkdir()
    (made_path / ".segue").rename(tmp_path / "managed" / ".segue")
    with pytest.raises(LocalDirectoryRefused, match=why):
        canonical_local_directory(path.format(root=site.root.path, tmp=tmp_path), site.root)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_local_directory_that_is_not_ours_to_write_is_refused(site: Site, tmp_path: Path) -> None:
    """An agent could do nothing in it."""
    (tmp_path / "readonly").mkdir(mode=0o500)
    with pytest.raises(LocalDirectoryRefused, match="read and write"):
        canonical_local_directory(str(tmp_path / "readonly"), site.root)
