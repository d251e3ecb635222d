"""Collection on the machine: what is ours and may go, goes; everything else stays."""

import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from domain.brief import Brief
from machine.collection import Collector, Item, What
from machine.removal import Swapped, discard, empty_trash, size
from tests.machine.site import Site

DAY = 86400.0


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A person's directory, which nothing here may touch."""
    path = tmp_path / "precious"
    path.mkdir()
    (path / "thesis.txt").write_text("years of work")
    return path


def collector(site: Site, *, ahead: float = 0.0, keep_attempts: float = 7 * DAY) -> Collector:
    """A collector whose clock is ``ahead`` seconds in front of the real one."""
    return Collector(site.root, site.plane, keep_attempts=keep_attempts, clock=lambda: time.time() + ahead)


async def made(site: Site, *, collect: bool, reason: str = "settled") -> tuple[Brief, Path]:
    """A managed directory with a file in it, and what the API will say of it."""
    brief = site.brief(issue_key="SEG-7", workspace_id=site.server.workspace_id)
    gate = await site.supervisor.gate(brief)
    assert gate.work_dir
    path = Path(gate.work_dir)
    (path / "src").mkdir()
    (path / "src" / "file").write_bytes(b"x" * 100_000)
    site.server.collect[brief.directory.id] = (collect, reason)
    return brief, path


def of(items: list[Item], path: Path) -> Item:
    return next(item for item in items if item.path == path)


async def test_what_may_go_goes_and_the_rest_stays(site: Site) -> None:
    """One is removed with all that is in it, the other is kept, and both are reported."""
    _, gone = await made(site, collect=True)
    _, kept = await made(site, collect=False, reason="recent")
    items = await collector(site).round()
    removed = of(items, gone)
    assert (removed.removed, removed.reason, removed.error) == (True, "settled", None)
    assert removed.bytes is not None
    assert removed.bytes >= 100_000
    assert (of(items, kept).collect, of(items, kept).reason) == (False, "recent")
    assert (kept / "src" / "file").exists()
    assert list(site.root.workdirs.iterdir()) == [kept]
    assert list(site.root.trash.iterdir()) == []


async def test_a_dry_run_changes_nothing(site: Site) -> None:
    """It tells what would go and how big everything is; the API is told that it is a dry run."""
    _, gone = await made(site, collect=True)
    _, kept = await made(site, collect=False, reason="recent")
    before = sorted(site.root.path.rglob("*"))
    items = await collector(site).round(dry_run=True, measure=True)
    assert sorted(site.root.path.rglob("*")) == before
    assert (of(items, gone).collect, of(items, gone).removed) == (True, False)
    assert all((of(items, path).bytes or 0) >= 100_000 for path in (gone, kept))
    assert [asked["dry_run"] for asked in site.server.asked] == [True]


async def test_the_age_of_the_marker_is_told(site: Site) -> None:
    """The API judges a directory that it doesn't know by the age of its marker."""
    brief, _ = await made(site, collect=False)
    await collector(site, ahead=4 * DAY).round()
    (asked,) = site.server.asked[0]["directories"]
    assert asked["id"] == str(brief.directory.id)
    assert 4 * DAY <= asked["age_seconds"] < 5 * DAY


async def test_a_link_out_of_the_root_is_left_alone(site: Site, outside: Path) -> None:
    """A link among the directories is no directory, whatever it points to."""
    link = site.root.workdirs / f"seg-1-{uuid4().hex}"
    link.symlink_to(outside)
    (stranger,) = await collector(site).round()
    assert (stranger.what, stranger.reason) == (What.STRANGER, "not a directory")
    assert link.is_symlink()
    assert (outside / "thesis.txt").exists()


async def test_links_inside_are_removed_and_not_followed(site: Site, outside: Path) -> None:
    """What links point to is somebody else's, be it a file, a directory or the directory's parent."""
    _, path = await made(site, collect=True)
    (path / "to-directory").symlink_to(outside)
    (path / "to-file").symlink_to(outside / "thesis.txt")
    (path / "src" / "up").symlink_to("..")
    os.link(outside / "thesis.txt", path / "second-name")
    await collector(site).round()
    assert not path.exists()
    assert (outside / "thesis.txt").read_text() == "years of work"


def _foreign_workspace(path: Path) -> None:
    _change_marker(path, workspace_id=str(uuid4()))


def _other_directory(path: Path) -> None:
    _change_marker(path, directory_id=str(uuid4()))


def _no_marker(path: Path) -> None:
    (path / ".segue" / "marker.json").unlink()


def _linked_marker(path: Path) -> None:
    marker = path / ".segue" / "marker.json"
    marker.rename(path.parent.parent / "marker.json")
    marker.symlink_to(path.parent.parent / "marker.json")


def _half_a_marker(path: Path) -> None:
    marker = json.loads((path / ".segue" / "marker.json").read_text())
    del marker["workspace_id"]
    (path / ".segue" / "marker.json").write_text(json.dumps(marker))


def _change_marker(path: Path, **values: str) -> None:
    file = path / ".segue" / "marker.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


@pytest.mark.parametrize(
    "change, reason",
    [
        (_foreign_workspace, "of another workspace"),
        (_other_directory, "the marker names another directory"),
        (_no_marker, "no marker of ours"),
        (_linked_marker, "no marker of ours"),
        (_half_a_marker, "no marker of ours"),
    ],
)
async def test_what_is_not_ours_is_reported_and_left_alone(
    site: Site, change: Callable[[Path], None], reason: str
) -> None:
    """Without our marker, with a foreign one, or with another directory's: never touched."""
    _, path = await made(site, collect=True)
    change(path)
    (stranger,) = await collector(site).round()
    assert (stranger.what, stranger.reason, stranger.removed) == (What.STRANGER, reason, False)
    assert (path / "src" / "file").exists()


@pytest.mark.parametrize("swap", ["link", "directory"])
async def test_a_swap_between_question_and_answer_is_noticed(site: Site, outside: Path, swap: str) -> None:
    """Only the very directory that was asked about goes; what was put in its place stays."""
    _, path = await made(site, collect=True)

    def swapped() -> None:
        path.rename(path.with_name("moved"))
        if swap == "link":
            path.symlink_to(outside)
        else:
            path.mkdir()
            (path / "mine").touch()

    site.server.on_check = swapped
    item = of(await collector(site).round(), path)
    assert (item.removed, item.reason) == (False, "swapped")
    assert (outside / "thesis.txt").exists()
    assert path.is_symlink() if swap == "link" else (path / "mine").exists()


def test_a_swap_at_the_last_moment_is_undone(tmp_path: Path) -> None:
    """The identity counts, not the name."""
    (tmp_path / "trash").mkdir()
    (tmp_path / "thing").mkdir()
    found = (tmp_path / "thing").stat()
    with pytest.raises(Swapped):
        discard(tmp_path / "thing", tmp_path / "trash", device=found.st_dev, inode=found.st_ino + 1)
    assert (tmp_path / "thing").is_dir()


async def test_a_crash_between_the_two_steps_is_made_good(site: Site) -> None:
    """Given up in the API and still here: the next round hears ``gone``. In the trash: it is emptied."""
    _, path = await made(site, collect=True, reason="gone")
    left = site.root.trash / "seg-9.old"
    (left / "deep" / "er").mkdir(parents=True)
    items = await collector(site).round()
    assert not path.exists()
    assert not left.exists()
    assert any(item.what is What.TRASH and item.removed for item in items)


async def test_nothing_goes_while_the_api_is_away(site: Site) -> None:
    """No answer is no permission."""
    _, path = await made(site, collect=True)
    site.server.away = True
    with pytest.raises(Exception, match="503"):
        await collector(site).round()
    assert path.exists()


async def test_an_id_that_was_not_answered_is_kept(site: Site) -> None:
    """An answer about something else decides nothing."""
    brief, path = await made(site, collect=True)
    del site.server.collect[brief.directory.id]
    site.server.silent_about_unknown = True
    assert of(await collector(site).round(), path).reason == "not answered"
    assert path.exists()


async def ended(site: Site) -> Path:
    """The files of an attempt that ran to its end."""
    brief = site.brief("say hello", workspace_id=site.server.workspace_id)
    await site.run(brief)
    site.server.collect[brief.attempt_id] = (True, "ended")
    site.server.collect[brief.directory.id] = (False, "recent")
    return site.root.attempts / str(brief.attempt_id)


async def test_files_of_an_ended_attempt_are_kept_for_a_time(site: Site) -> None:
    """Before that nobody is even asked; after it they go."""
    path = await ended(site)
    items = await collector(site, ahead=6 * DAY).round()
    assert (of(items, path).reason, path.exists()) == ("recent", True)
    assert site.server.asked[-1]["attempts"] == []
    items = await collector(site, ahead=8 * DAY).round()
    assert (of(items, path).reason, path.exists()) == ("ended", False)


async def test_files_of_a_standing_attempt_are_kept(site: Site) -> None:
    """However old: a run may take as long as it needs."""
    path = await ended(site)
    site.server.collect[UUID(path.name)] = (False, "standing")
    await collector(site, ahead=90 * DAY).round()
    assert path.exists()


async def test_files_of_a_living_process_are_kept(site: Site) -> None:
    """The kernel's word counts more than the API's."""
    brief = site.python("say('up'); time.sleep(600)", workspace_id=site.server.workspace_id)
    site.server.collect[brief.attempt_id] = (True, "ended")
    run = await site.start(brief)
    await site.until_text(brief, "up")
    items = await collector(site, ahead=8 * DAY).round()
    path = site.root.attempts / str(brief.attempt_id)
    assert (of(items, path).reason, path.exists()) == ("alive", True)
    await run.cancel()
    await run.wait()


async def test_what_was_cut_short_goes_after_an_hour(site: Site) -> None:
    """A preparation under way is not disturbed."""
    paths = [site.root.workdirs / ".new-1", site.root.attempts / ".new-2"]
    for path in paths:
        (path / "inside").mkdir(parents=True)
    items = await collector(site).round()
    assert [of(items, path).reason for path in paths] == ["recent", "recent"]
    items = await collector(site, ahead=2 * 3600).round()
    assert all(of(items, path).removed for path in paths)
    assert not any(path.exists() for path in paths)


async def test_two_collectors_at_once(site: Site) -> None:
    """The worker's own and a person's: each thing is moved away by one of them."""
    _, path = await made(site, collect=True)
    other = collector(site)
    found = other._survey()
    await collector(site).round()
    assert not path.exists()
    item = other._remove(found[0])
    assert (item.removed, item.error) == (True, None)


async def test_a_stopped_collector_leaves_the_rest_for_later(site: Site) -> None:
    """A worker that is told to end is not held up by a large directory."""
    _, path = await made(site, collect=True)
    (site.root.trash / "left").mkdir()
    stopped = collector(site)
    stopped.stop()
    items = await stopped.round()
    assert not of(items, path).removed
    assert path.exists()
    assert (site.root.trash / "left").exists()
    await collector(site).round()
    assert not path.exists()


# --- removing -------------------------------------------------------------------------------------


@pytest.fixture
def trash(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "trash"
    path.mkdir()
    yield path
    empty_trash(path)


def test_a_very_deep_tree_is_removed(trash: Path) -> None:
    """Deeper than recursion, open files and path names allow."""
    depth = 3000
    here = os.open(trash, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("d", dir_fd=here)
        below = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
    removed = empty_trash(trash)
    assert (removed.errors, list(trash.iterdir())) == ([], [])


def test_directories_that_forbid_changes_are_removed(trash: Path) -> None:
    """Module caches are read-only on purpose."""
    tree = trash / "cache" / "module"
    tree.mkdir(parents=True)
    (tree / "source.go").write_text("package x")
    tree.chmod(0o500)
    tree.parent.chmod(0o000)
    assert empty_trash(trash).errors == []
    assert list(trash.iterdir()) == []


def test_odd_files_are_removed(trash: Path) -> None:
    """Pipes, sockets' names and names that are no text."""
    os.mkfifo(trash / "pipe")
    (trash / os.fsdecode(b"\xff\xfe")).mkdir()
    (trash / "dangling").symlink_to("/nowhere")
    assert empty_trash(trash).errors == []
    assert list(trash.iterdir()) == []


def test_size_counts_hard_links_once_and_follows_nothing(tmp_path: Path, outside: Path) -> None:
    """Like `du`."""
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "a").write_bytes(b"x" * 200_000)
    single = size(tree)
    os.link(tree / "a", tree / "b")
    (tree / "link").symlink_to(outside)
    assert size(tree) - single < 100_000
    assert size(tree / "link") == 0
