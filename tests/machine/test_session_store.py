"""What becomes of a run's session when its provider has not stored it."""

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from domain.outcomes import Outcome
from domain.reasons import Reason
from machine.supervisor import Supervisor
from providers.base import Limits, ParsedRun, Provider
from providers.script import ScriptParser
from tests.machine.site import Site
from tests.machine.toy_provider import SESSION, ToyProvider

SESSION_ID = "3f0e5c1a-0000-4000-8000-000000000001"
PROGRAM = f"sys.stdout.write({SESSION!r} + chr(10)); say('hi'); done()"


class StoringToy(ToyProvider):
    """A toy whose sessions lie in a folder."""

    verify_session_after_run = True

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def session_paths(self, session_id: str, work_dir: str, env: Mapping[str, str]) -> tuple[str, ...]:
        return (str(self._folder / f"*{session_id}.jsonl"),)


class StallingParser(ScriptParser):
    """Knows what its agent's silence means."""

    def parsed(self) -> ParsedRun:
        return ParsedRun(stall_reason=Reason.PROVIDER_NETWORK.value, error_text="waiting for network")


class StallingToy(ToyProvider):
    """A toy that is soon given up."""

    limits = Limits(startup=0.5)

    def parser(self, requested_session_id: str | None = None) -> StallingParser:
        return StallingParser(requested_session_id)


def _use(site: Site, made: Provider) -> None:
    choose: Callable[[str], Provider] = lambda _name: made  # noqa: E731 - a provider for every name
    site.supervisor = Supervisor(site.root, site.plane, choose, site.config)


async def _run(site: Site, made: Provider, program: str) -> Outcome:
    _use(site, made)
    return await site.run(site.python(program))


async def test_a_session_that_is_stored_counts(site: Site, tmp_path: Path) -> None:
    """Its file may come a moment after the run."""
    late = f"subprocess.Popen(['/bin/sh', '-c', 'sleep 0.3; echo x >{tmp_path}/r-{SESSION_ID}.jsonl'])"
    outcome = await _run(site, StoringToy(tmp_path), f"{late}.wait(); {PROGRAM}")
    assert (outcome.session_id, outcome.session_rollout_missing) == (SESSION_ID, False)


@pytest.mark.parametrize("content", [None, ""])
async def test_a_session_that_is_not_stored_is_reported_missing(
    site: Site, tmp_path: Path, content: str | None
) -> None:
    """The run stays what it was, and says that its session can't be gone on with."""
    if content is not None:
        (tmp_path / f"r-{SESSION_ID}.jsonl").write_text(content)
    outcome = await _run(site, StoringToy(tmp_path), PROGRAM)
    assert (outcome.reason, outcome.session_id) == (Reason.COMPLETED, SESSION_ID)
    assert outcome.session_rollout_missing


async def test_other_providers_are_taken_at_their_word(site: Site) -> None:
    """Only one that says so is looked after."""
    outcome = await _run(site, ToyProvider(), PROGRAM)
    assert (outcome.session_id, outcome.session_rollout_missing) == (SESSION_ID, False)


async def test_a_provider_may_know_what_silence_means(site: Site) -> None:
    """Then a watchdog's stop has its reason, with the words that speak for it."""
    _use(site, StallingToy())
    brief = site.python("time.sleep(600)")
    outcome = await site.run(brief)
    assert outcome.reason == Reason.PROVIDER_NETWORK
    assert site.events(brief)[-1]["data"]["evidence"] == "waiting for network"
