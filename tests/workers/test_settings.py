"""Settings: environment before file, and messages that say what to mend."""

from pathlib import Path

import pytest

from domain.errors import InvalidInput
from workers.settings import Settings, temporal_connection


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A configuration file that the environment names."""
    file = tmp_path / "config.toml"
    monkeypatch.setenv("SEGUE_CONFIG", str(file))
    return file


def test_environment_wins_over_the_file(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A value of the environment is taken, and the file's where there is none."""
    config.write_text('slots = 3\nbeat_seconds = 7.5\n[providers.claude]\npath = "/opt/claude"\n')
    monkeypatch.setenv("SEGUE_SLOTS", "4")
    settings = Settings.load()
    assert (settings.slots, settings.beat_seconds) == (4, 7.5)
    assert settings.providers["claude"].path == "/opt/claude"


def test_command_line_wins_over_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the command line gives is taken; what it leaves out (None) is not."""
    monkeypatch.setenv("SEGUE_SLOTS", "4")
    monkeypatch.setenv("SEGUE_API_URL", "http://elsewhere")
    settings = Settings.load(slots=5, api_url=None)
    assert (settings.slots, settings.api_url) == (5, "http://elsewhere")


def test_unknown_key_is_refused_with_the_nearest_known_one(config: Path) -> None:
    """A misspelt key never goes unnoticed."""
    config.write_text('databse_url = "postgresql://x"\n')
    with pytest.raises(InvalidInput, match="Unknown key `databse_url`: did you mean `database_url`"):
        Settings.load()


def test_unknown_key_of_a_provider_is_refused(config: Path) -> None:
    """Tables are looked into as well."""
    config.write_text('[providers.claude]\npaht = "/opt/claude"\n')
    with pytest.raises(InvalidInput, match=r"`providers.claude.paht`: did you mean `path`"):
        Settings.load()


def test_unusable_value_is_named(config: Path) -> None:
    """The message names the key and what is wrong with it."""
    config.write_text("slots = 0\n")
    with pytest.raises(InvalidInput, match=r"`slots`: Input should be greater"):
        Settings.load()


def test_missing_or_broken_file_is_an_error(config: Path) -> None:
    """A configuration that was asked for must be there and be TOML."""
    with pytest.raises(InvalidInput, match="can't be read"):
        Settings.load()
    config.write_text("slots = = 3")
    with pytest.raises(InvalidInput, match="not valid TOML"):
        Settings.load()


def test_secrets_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    """A settings object that is printed or logged shows no secret."""
    monkeypatch.setenv("SEGUE_DATABASE_URL", "postgresql://user:hunter2@host/db")
    monkeypatch.setenv("SEGUE_RUNTIME_TOKEN", "sgr_hunter2")
    settings = Settings.load()
    assert "hunter2" not in repr(settings)
    assert settings.required_database_url() == "postgresql://user:hunter2@host/db"


def test_missing_setting_says_how_to_set_it() -> None:
    """What a process can't do without is asked for by name."""
    with pytest.raises(InvalidInput, match="SEGUE_DATABASE_URL is not set"):
        Settings.load().required_database_url()
    with pytest.raises(InvalidInput, match="--root"):
        Settings.load().required_root()


def test_temporals_own_settings_win(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a TEMPORAL_ variable set, Temporal's configuration says where the server is."""
    settings = Settings.load(temporal_address="ours:7233", temporal_namespace="ours")
    assert temporal_connection(settings) == {"target_host": "ours:7233", "namespace": "ours"}
    monkeypatch.setenv("TEMPORAL_ADDRESS", "theirs:7233")
    connection = temporal_connection(settings)
    assert connection["target_host"] == "theirs:7233"
