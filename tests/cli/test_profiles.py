"""Which API the command line talks to, and as whom."""

from pathlib import Path

import pytest

from cli import profiles
from cli.profiles import Connection, find
from domain.errors import InvalidInput
from workers.folder import StackFolder, StackRecord


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home directory without anything of ours."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("XDG_CONFIG_HOME", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.fixture
def stack(home: Path) -> Connection:
    """The local stack's record in the default folder."""
    folder = StackFolder(home / ".local" / "share" / "segue")
    folder.make()
    folder.write(StackRecord(api_url="http://127.0.0.1:1", token="sgu_local"))
    return Connection("http://127.0.0.1:1", "sgu_local")


def _write_profiles(text: str) -> None:
    file = profiles.config_file()
    file.parent.mkdir(parents=True)
    file.write_text(text)


def test_nothing_known_says_what_to_do() -> None:
    """Without an API the message names the two ways to get one."""
    with pytest.raises(InvalidInput, match="segue up"):
        find(None, None, None)


def test_local_stack_is_found(stack: Connection) -> None:
    """After `segue up` nothing has to be configured."""
    assert find(None, None, None) == stack


def test_order_of_places(stack: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    """Command line before environment before profile before the local stack."""
    _write_profiles('[default]\napi_url = "http://profile"\ntoken = "p"\n')
    assert find(None, None, None) == Connection("http://profile", "p")
    monkeypatch.setenv("SEGUE_API_URL", "http://environment/")
    monkeypatch.setenv("SEGUE_TOKEN", "e")
    assert find(None, None, None) == Connection("http://environment", "e")
    assert find("http://line", "l", None) == Connection("http://line", "l")


def test_named_profile_wins_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Naming a profile is deliberate; the environment may be a leftover."""
    _write_profiles('[work]\napi_url = "http://work"\ntoken = "w"\n')
    monkeypatch.setenv("SEGUE_API_URL", "http://environment")
    monkeypatch.setenv("SEGUE_TOKEN", "e")
    assert find(None, None, "work") == Connection("http://work", "w")


def test_unknown_profile_is_an_error() -> None:
    """A profile that was named must exist."""
    _write_profiles('[work]\napi_url = "http://work"\ntoken = "w"\n')
    with pytest.raises(InvalidInput, match=r"no profile \[wrok\].*known: work"):
        find(None, None, "wrok")


def test_local_token_is_not_sent_elsewhere(stack: Connection) -> None:
    """The local stack's token stays on this machine when another API is asked for."""
    assert find(stack.api_url, None, None) == stack
    with pytest.raises(InvalidInput, match="No token for http://elsewhere"):
        find("http://elsewhere", None, None)


def test_environments_token_is_not_overridden(stack: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a token but no address, it is a token for the local stack."""
    monkeypatch.setenv("SEGUE_TOKEN", "sgu_other")
    assert find(None, None, None) == Connection(stack.api_url, "sgu_other")


def _without_home(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a container that runs us as a user without a name or a home."""
    monkeypatch.delenv("HOME")
    monkeypatch.delenv("SEGUE_DATA", raising=False)

    def unknown(uid: int) -> None:
        raise KeyError(uid)

    monkeypatch.setattr("pwd.getpwuid", unknown)


def test_environment_is_enough_without_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    """Address and token from the environment need no home directory."""
    _without_home(monkeypatch)
    monkeypatch.setenv("SEGUE_API_URL", "http://environment")
    monkeypatch.setenv("SEGUE_TOKEN", "e")
    assert find(None, None, None) == Connection("http://environment", "e")
    with pytest.raises(InvalidInput, match="XDG_CONFIG_HOME"):
        find(None, None, "work")


def test_without_a_home_the_message_says_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing given and no home to look in is a mistake that one variable mends."""
    _without_home(monkeypatch)
    with pytest.raises(InvalidInput, match="SEGUE_DATA"):
        find(None, None, None)
