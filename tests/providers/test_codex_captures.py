"""The Codex adapter over recordings of the real CLI."""

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest

from domain.events import Event
from domain.reasons import Reason
from providers.base import EndedRun, ParsedRun
from providers.codex import CodexProvider

CAPTURES = Path(__file__).parent / "captures" / "codex"
CODEX = CodexProvider(zone=UTC)  # the recordings were made there
_R = Reason


@dataclass(frozen=True)
class Case:
    """A recording, how its process ended, and what it must be taken for."""

    name: str
    reason: Reason
    exit_code: int | None = 1
    signal: int | None = None
    #: The thread that the recorded command resumed (the same id in every successful one).
    resumed: str | None = None
    #: The run's own session counts.
    session: bool = False
    events: str | None = None

    @property
    def path(self) -> str:
        return f"0.171.0_{self.name}"


THREAD = "01a22d8f-9a3f-7871-8a4b-3deba14f4698"
UNKNOWN = "11111111-2222-4333-8444-555555555555"
EMPTY = "01a22d9e-e4d0-7610-85e1-2f1501c45eb7"
_RETRIES = "error " * 6

CASES = [
    Case("fresh", _R.COMPLETED, 0, session=True, events="error session text usage result"),
    Case("resume", _R.COMPLETED, 0, resumed=THREAD, session=True),
    Case("fork", _R.COMPLETED, 0, session=True),
    Case("resume_othercwd", _R.COMPLETED, 0, resumed=THREAD, session=True),
    Case("hang_idle", _R.COMPLETED, 0, session=True),
    Case("drop_once", _R.COMPLETED, 0, session=True, events="error error session text usage result"),
    Case("e429_once", _R.COMPLETED, 0, session=True),
    Case(
        "tool_bash",
        _R.COMPLETED,
        0,
        session=True,
        events="error session tool_use tool_result text usage result",
    ),
    Case("tool_fail", _R.COMPLETED, 0, session=True),
    Case("tool_write", _R.COMPLETED, 0, session=True),
    Case("tool_SIGINT", _R.PROCESS_FAILURE, session=True, events="error session tool_use"),
    Case("compound_SIGINT", _R.PROCESS_FAILURE, session=True),
    Case("tool_SIGTERM", _R.PROCESS_FAILURE, None, 15, session=True),
    Case("tool_SIGKILL", _R.PROCESS_FAILURE, None, 9, session=True),
    Case("tool_SIGINT_resume", _R.COMPLETED, 0, session=True),
    Case("tool_SIGTERM_resume", _R.COMPLETED, 0, session=True),
    Case("slow_SIGINT", _R.PROCESS_FAILURE, events="error"),
    Case("refused", _R.PROCESS_FAILURE, None, 9, events="error error"),
    Case("drop", _R.PROVIDER_NETWORK, events=f"error {_RETRIES}result"),
    Case("drop_noretry", _R.PROVIDER_NETWORK),
    Case("e400", _R.API_INVALID_REQUEST, events="error error result"),
    Case("e400img", _R.API_INVALID_REQUEST),
    Case("e401", _R.PROVIDER_AUTH_OR_ACCESS),
    Case("e403", _R.PROVIDER_AUTH_OR_ACCESS),
    Case("e404", _R.MODEL_UNAVAILABLE),
    Case("e429", _R.PROVIDER_RATE_LIMIT),
    Case("rate_limit", _R.PROVIDER_RATE_LIMIT),
    Case("capacity", _R.PROVIDER_RATE_LIMIT),
    Case("usage_limit", _R.PROVIDER_QUOTA_LIMIT),
    Case("usage_limit_today", _R.PROVIDER_QUOTA_LIMIT),
    Case("quota", _R.PROVIDER_QUOTA_LIMIT),
    Case("e500", _R.PROVIDER_SERVER_ERROR),
    Case("e500_noretry", _R.PROVIDER_SERVER_ERROR),
    Case("ectx", _R.CONTEXT_OVERFLOW),
    Case("invalid_prompt", _R.REFUSAL),
    Case("resume_unknown", _R.RESUME_REJECTED, resumed=UNKNOWN, events=""),
    Case("resume_deleted", _R.RESUME_REJECTED, resumed=THREAD),
    Case("resume_archived", _R.RESUME_REJECTED, resumed="01a22e50-5534-7b60-bb7d-c540551ce957"),
    Case("corrupt_empty", _R.RESUME_REJECTED, resumed=EMPTY),
    Case("fork_unknown", _R.RESUME_REJECTED, resumed=UNKNOWN),
    # The thread is in use, which is no fault of it.
    Case("conc1", _R.PROCESS_FAILURE, resumed="01a22d9f-09c3-73d2-a54a-2dbbd944a090"),
    Case("stdin3m", _R.PROCESS_FAILURE, events=""),
    Case("empty_prompt", _R.PROCESS_FAILURE),
    Case("nogit_refused", _R.PROCESS_FAILURE),
    Case("nojson", _R.EMPTY_OUTPUT, 0, events="raw"),
    Case("resume_notuuid", _R.COMPLETED, 0, session=True),
]


def _bytes(name: str, ending: str) -> bytes:
    path = CAPTURES / f"0.171.0_{name}.{ending}"
    return path.read_bytes() if path.exists() else b""  # empty ones are not kept


def _replay(name: str, resumed: str | None = None) -> tuple[list[Event], ParsedRun]:
    parser = CODEX.parser(resumed)
    output = _bytes(name, "out").split(b"\n")
    return [event for line in output for event in parser.feed(line)], parser.parsed()


def _ended(case: Case, parsed: ParsedRun) -> EndedRun:
    stderr = _bytes(case.name, "err").decode()
    at = datetime(2026, 11, 30, 21, 15, 30, tzinfo=UTC)
    return EndedRun(parsed, case.exit_code, case.signal, stderr, case.resumed, at)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_recording_is_judged(case: Case) -> None:
    """Reason, success, session, refusal and the events of each recorded run."""
    events, parsed = _replay(case.name, case.resumed)
    verdict = CODEX.classify(_ended(case, parsed))
    assert verdict.reason == case.reason
    assert parsed.success is (case.reason is _R.COMPLETED)
    assert verdict.resume_refused is (case.reason is _R.RESUME_REJECTED)
    assert (parsed.session_id is not None) is case.session
    if case.resumed and parsed.success:
        assert parsed.session_id == case.resumed
    if case.reason is not _R.COMPLETED:
        assert verdict.message
        assert verdict.evidence or verdict.reason in {_R.EMPTY_OUTPUT, _R.PROCESS_FAILURE}
    if case.events is not None:
        assert [event.type.value for event in events] == case.events.split()


def test_every_recording_is_in_the_table() -> None:
    """A recording that nobody judges proves nothing."""
    assert {path.stem for path in CAPTURES.iterdir()} == {case.path for case in CASES}


@pytest.mark.parametrize(
    "name,resets_at",
    [
        ("usage_limit", datetime(2026, 12, 5, 12, 23, tzinfo=UTC)),
        ("usage_limit_today", datetime(2026, 11, 30, 21, 17, tzinfo=UTC)),
        ("rate_limit", datetime(2026, 11, 30, 21, 15, 31, 500_000, tzinfo=UTC)),
        ("e429", None),
        ("quota", None),
    ],
)
def test_a_stated_reset_is_taken(name: str, resets_at: datetime | None) -> None:
    """A clock time or a span, as the recorded message says it; none when it says none."""
    case = next(case for case in CASES if case.name == name)
    assert CODEX.classify(_ended(case, _replay(name)[1])).resets_at == resets_at


def test_a_silently_new_thread_is_seen() -> None:
    """Asked for one thread, Codex may begin another and succeed: it says so itself."""
    events, parsed = _replay("resume_notuuid", THREAD)
    assert parsed.success
    assert parsed.session_id not in {None, THREAD}
    assert [event.data["session_id"] for event in events if event.type == "session"] == [parsed.session_id]
    assert parsed.usage.input_tokens == 20


@pytest.mark.parametrize("name", ["slow_SIGINT", "e400", "drop", "refused"])
def test_a_turn_without_an_answer_only_names_its_thread(name: str) -> None:
    """Its prompt may be stored, so the thread can be looked for."""
    parsed = _replay(name)[1]
    assert (parsed.session_id, parsed.revealed_session_id is None) == (None, False)


def test_a_thread_without_a_turn_does_not_even_that() -> None:
    """Such a thread is never stored."""
    assert _replay("stdin3m")[1].revealed_session_id is None


def test_waiting_for_the_network_is_told_to_the_watchdog() -> None:
    """Said again and again, it is one event: the silence after it is what a watchdog may end."""
    parsed = _replay("refused")[1]
    assert parsed.stall_reason == _R.PROVIDER_NETWORK
    assert "waiting for network" in parsed.error_text


def test_usage_is_that_of_the_run_where_it_can_be_known() -> None:
    """Of a resumed thread only the whole is stated, which is never taken for the run's own."""
    assert (_replay("fresh")[1].usage.input_tokens, _replay("fresh")[1].usage.output_tokens) == (20, 7)
    events, parsed = _replay("resume", THREAD)
    assert (parsed.usage.input_tokens, parsed.usage.output_tokens) == (0, 0)
    (usage,) = [event.data for event in events if event.type == "usage"]
    assert (usage["input_tokens"], usage["thread_total"]["input_tokens"]) == (0, 60)
