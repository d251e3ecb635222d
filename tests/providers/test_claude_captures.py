"""The Claude Code adapter over recordings of the real CLI, two versions of it."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from domain.events import Event
from domain.reasons import Reason
from providers.base import EndedRun, ParsedRun
from providers.claude import ClaudeProvider

CAPTURES = Path(__file__).parent / "captures" / "claude"
CLAUDE = ClaudeProvider()
_R = Reason


@dataclass(frozen=True)
class Case:
    """A recording, how its process ended, and what it must be taken for."""

    name: str
    reason: Reason
    exit_code: int | None = 1
    signal: int | None = None
    #: The session that the recorded command resumed (the same id in every successful one).
    resumed: str | None = None
    #: The run's own session counts.
    session: bool = True
    events: str | None = None


SESSION = "d9c310d2-2eea-4cab-8e6c-e630ade76607"
UNKNOWN = "11111111-2222-4333-8444-555555555555"

CASES = [
    Case("2.1.332_fresh", _R.COMPLETED, 0, events="session text usage result"),
    Case("2.1.332_resume", _R.COMPLETED, 0, resumed=SESSION),
    Case("2.1.332_fork", _R.COMPLETED, 0),
    Case("2.1.332_continue", _R.COMPLETED, 0),
    Case("2.1.332_resume_othercwd", _R.COMPLETED, 0),
    Case("2.1.332_corrupt_trunc", _R.COMPLETED, 0),
    Case("2.1.332_poison2", _R.COMPLETED, 0),
    Case("2.1.332_tool_bash", _R.COMPLETED, 0, events="session text tool_use tool_result text usage result"),
    Case("2.1.332_tool_write", _R.COMPLETED, 0),
    Case("2.1.332_tool_noperm", _R.COMPLETED, 0),
    Case("2.1.332_partial", _R.COMPLETED, 0, events="session text usage result"),
    Case("2.1.332_streamjson_in", _R.COMPLETED, 0),
    Case("2.1.332_drop_once", _R.COMPLETED, 0, events="session error text usage result"),
    Case("2.1.332_e429_once", _R.COMPLETED, 0),
    Case("2.1.332_tool_SIGKILL_resume2", _R.COMPLETED, 0),
    Case("2.1.332_tool_SIGHUP_resume", _R.COMPLETED, 0),
    Case("2.1.332_slow_SIGTERM_resume", _R.COMPLETED, 0),
    Case("2.1.332_tool_SIGINT", _R.PROCESS_FAILURE, 0),
    Case("2.1.332_slow_SIGINT", _R.PROCESS_FAILURE, 0),
    Case("2.1.332_tool_SIGTERM", _R.PROCESS_FAILURE, 143, events="session text tool_use tool_result"),
    Case("2.1.332_slow_SIGTERM", _R.PROCESS_FAILURE, 143, session=False, events=""),
    Case("2.1.332_tool_SIGKILL", _R.PROCESS_FAILURE, None, 9, events="session text tool_use"),
    Case("2.1.332_drop", _R.PROVIDER_NETWORK),
    Case("2.1.332_drop_max2", _R.PROVIDER_NETWORK),
    Case("2.1.332_drop_max2_nofb", _R.PROVIDER_NETWORK),
    Case("2.1.332_refused", _R.PROVIDER_NETWORK),
    Case("2.1.332_refused_max1", _R.PROVIDER_NETWORK),
    Case("2.1.332_hang_timeout5", _R.PROVIDER_NETWORK),
    Case("2.1.332_e400", _R.API_INVALID_REQUEST, events="session error usage result"),
    Case("2.1.332_e400img", _R.API_INVALID_REQUEST),
    Case("2.1.332_poison1", _R.API_INVALID_REQUEST),
    Case("2.1.332_e401", _R.PROVIDER_AUTH_OR_ACCESS),
    Case("2.1.332_e403", _R.PROVIDER_AUTH_OR_ACCESS),
    Case("2.1.332_e404", _R.MODEL_UNAVAILABLE),
    Case("2.1.332_e429", _R.PROVIDER_RATE_LIMIT),
    Case("2.1.332_e429_ra300", _R.PROVIDER_RATE_LIMIT),
    Case("2.1.332_e500", _R.PROVIDER_SERVER_ERROR),
    Case("2.1.332_e500_max0", _R.PROVIDER_SERVER_ERROR),
    Case("2.1.332_e529", _R.PROVIDER_RATE_LIMIT),
    Case("2.1.332_e529_max2", _R.PROVIDER_RATE_LIMIT),
    Case("2.1.332_ectx", _R.CONTEXT_OVERFLOW),
    Case("2.1.332_stdin3m", _R.CONTEXT_OVERFLOW),
    Case("2.1.332_max_turns1", _R.ITERATION_LIMIT),
    Case("2.1.332_resume_unknown", _R.RESUME_REJECTED, resumed=UNKNOWN, session=False),
    Case(
        "2.1.332_resume_deleted",
        _R.RESUME_REJECTED,
        resumed="f3a53017-74e0-44f3-b908-764a5f496cf7",
        session=False,
    ),
    Case("2.1.332_resume_notuuid", _R.RESUME_REJECTED, resumed="not-a-uuid", session=False),
    Case(
        "2.1.332_corrupt_empty",
        _R.RESUME_REJECTED,
        resumed="e4e208ef-7d11-4d09-9fe2-0b7ffbe1e2a7",
        session=False,
    ),
    Case("2.1.332_root_nosandbox", _R.MISSING_CONFIG, session=False),
    Case("2.1.332_empty_prompt", _R.PROCESS_FAILURE, session=False),
    Case("2.1.332_noverbose", _R.PROCESS_FAILURE, session=False),
    Case("2.1.332_session_id_reuse", _R.PROCESS_FAILURE, session=False),
    Case("2.1.332_text", _R.EMPTY_OUTPUT, 0, session=False, events="raw"),
    Case("2.1.332_ex_cmd_noroot", _R.COMPLETED, 0, events="session usage result"),
    Case("2.1.197_fresh", _R.COMPLETED, 0),
    Case("2.1.197_resume", _R.COMPLETED, 0, resumed="e2b5f41e-e074-468a-ae0e-ba08dc6c630f"),
    Case("2.1.197_resume_unknown", _R.RESUME_REJECTED, resumed=UNKNOWN, session=False),
    Case(
        "2.1.197_resume_othercwd",
        _R.RESUME_REJECTED,
        resumed="e2b5f41e-e074-468a-ae0e-ba08dc6c630f",
        session=False,
    ),
]


def _bytes(name: str, ending: str) -> bytes:
    path = CAPTURES / f"{name}.{ending}"
    return path.read_bytes() if path.exists() else b""  # empty ones are not kept


def _replay(name: str, resumed: str | None = None) -> tuple[list[Event], ParsedRun]:
    parser = CLAUDE.parser(resumed)
    output = _bytes(name, "out").split(b"\n")
    return [event for line in output for event in parser.feed(line)], parser.parsed()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_recording_is_judged(case: Case) -> None:
    """Reason, success, session, refusal and the events of each recorded run."""
    events, parsed = _replay(case.name, case.resumed)
    stderr = _bytes(case.name, "err").decode()
    run = EndedRun(parsed, case.exit_code, case.signal, stderr, requested_session_id=case.resumed)
    verdict = CLAUDE.classify(run)
    assert verdict.reason == case.reason
    assert parsed.success is (case.reason is _R.COMPLETED)
    assert verdict.resume_refused is (case.reason is _R.RESUME_REJECTED)
    assert (parsed.session_id is not None) is case.session
    if case.resumed and parsed.success:
        assert parsed.session_id == case.resumed
    if case.reason is not _R.COMPLETED:
        assert verdict.message
        assert verdict.evidence or case.reason is _R.EMPTY_OUTPUT
    if case.events is not None:
        assert [event.type.value for event in events] == case.events.split()


def test_every_recording_is_in_the_table() -> None:
    """A recording that nobody judges proves nothing."""
    assert {path.stem for path in CAPTURES.iterdir()} == {case.name for case in CASES}


@pytest.mark.parametrize(
    "name,resumed,tokens,cost",
    [
        ("2.1.332_fresh", None, (20, 7), 0.00022),
        ("2.1.332_resume", SESSION, (40, 7), 0.0003),
        ("2.1.332_tool_bash", None, (60, 14), 0.00052),
        ("2.1.332_streamjson_in", None, (60, 14), 0.00052),
        ("2.1.332_slow_SIGINT", None, (20, 1), 0.0001),
        ("2.1.197_fresh", None, (20, 7), 0.000275),
        ("2.1.197_resume", "e2b5f41e-e074-468a-ae0e-ba08dc6c630f", (40, 7), 0.000375),
    ],
)
def test_usage_is_that_of_the_run(
    name: str, resumed: str | None, tokens: tuple[int, int], cost: float
) -> None:
    """Never that of the whole resumed session, whichever way the version counts."""
    usage = _replay(name, resumed)[1].usage
    assert (usage.input_tokens, usage.output_tokens) == tokens
    assert usage.cost_usd == pytest.approx(cost)


def test_a_run_killed_before_its_first_answer_still_names_its_session() -> None:
    """Its prompt may be stored already, so the session can be looked for."""
    assert _replay("2.1.332_slow_SIGTERM")[1].revealed_session_id is not None
    assert _replay("2.1.332_resume_unknown", UNKNOWN)[1].revealed_session_id is None
