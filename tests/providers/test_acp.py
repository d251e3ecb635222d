"""The ACP adapter: its command, its reading of the driver's lines, and its verdicts."""

import json
import sys
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from domain.events import Event, EventType
from domain.reasons import Reason
from providers.acp import AcpProvider
from providers.base import EndedRun, LaunchRequest, ParsedRun, Parser, Verdict

CAPTURES = Path(__file__).parent / "captures" / "acp"
ACP = AcpProvider()
SESSION = "sess-1"
UNKNOWN = "11111111-2222-4333-8444-555555555555"
NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)
_R = Reason

OPENED = {"type": "session", "session_id": SESSION, "loaded": False, "model": "large"}
ENDED = {"type": "result", "stop_reason": "end_turn", "usage": None}


def _feed(parser: Parser, *lines: dict[str, Any]) -> list[Event]:
    return [event for line in lines for event in parser.feed(json.dumps(line).encode())]


def _play(*lines: dict[str, Any], requested: str | None = None) -> tuple[list[Event], ParsedRun]:
    parser = ACP.parser(requested)
    return _feed(parser, *lines), parser.parsed()


def _judge(*lines: dict[str, Any], requested: str | None = None, stderr: str = "") -> Verdict:
    parsed = _play(*lines, requested=requested)[1]
    return ACP.classify(EndedRun(parsed, 1, None, stderr, requested, ended_at=NOW))


def _text(text: str, message_id: str | None = None) -> dict[str, Any]:
    return {"type": "text", "text": text, "message_id": message_id}


def _update(kind: str, /, **fields: Any) -> dict[str, Any]:
    return {"type": "update", "update": {"sessionUpdate": kind, **fields}}


def _call(tool_id: str = "t1", **fields: Any) -> dict[str, Any]:
    return _update("tool_call", toolCallId=tool_id, **fields)


def _more(tool_id: str = "t1", **fields: Any) -> dict[str, Any]:
    return _update("tool_call_update", toolCallId=tool_id, **fields)


def _error(kind: str, message: str, code: object = None, data: object = None) -> dict[str, Any]:
    return {"type": "error", "kind": kind, "message": message, "code": code, "data": data}


# The command


def test_the_command_is_the_driver_around_the_agents_own() -> None:
    """By absolute path and with the running interpreter; the agent's words stay as they are."""
    request = LaunchRequest(
        ACP.executable(), "/w", model="-m", args=("gemini", "--acp", "--model", "x"), session_id="-s"
    )
    argv = ACP.command(request).argv
    assert argv[:2] == (sys.executable, "-I")
    assert Path(argv[2]).is_absolute()
    assert argv[3:] == ("--load=-s", "--model=-m", "--", "gemini", "--acp", "--model", "x")


def test_an_agents_sessions_are_its_own_affair() -> None:
    """They are taken as existing, and never forked."""
    assert ACP.session_paths(SESSION, "/w", {}) is None
    assert not ACP.can_fork


# Recordings of real agents


@dataclass(frozen=True)
class Case:
    """A recording of the driver around a real agent, and what it must be taken for."""

    name: str
    reason: Reason
    #: The session that the run was to go on in.
    resumed: str | None = None
    #: The run's own session counts.
    session: bool = True
    events: str | None = None


CLAUDE_SESSION = "09d8d1ea-a75b-4d21-ad0c-641d0b97b27a"
CODEX_SESSION = "01a22e64-bda9-71d1-a614-4c5383c7c16c"
CASES = [
    Case("claude_fresh", _R.COMPLETED, events="session text tool_use raw tool_result text usage result"),
    Case("claude_resume", _R.COMPLETED, CLAUDE_SESSION, events="session text usage result"),
    Case("claude_model", _R.COMPLETED),
    Case("claude_unknown", _R.RESUME_REJECTED, UNKNOWN, session=False, events="result"),
    Case("claude_notuuid", _R.RESUME_REJECTED, "not-a-uuid", session=False),
    Case("claude_e400", _R.API_INVALID_REQUEST),
    Case("claude_e401", _R.PROVIDER_AUTH_OR_ACCESS),
    Case("claude_nologin", _R.PROVIDER_AUTH_OR_ACCESS, session=False),
    Case("claude_e404", _R.MODEL_UNAVAILABLE),
    Case("claude_model_unknown", _R.MODEL_UNAVAILABLE, session=False),
    Case("claude_e429", _R.PROVIDER_RATE_LIMIT),
    Case("claude_e500", _R.PROVIDER_SERVER_ERROR),
    Case("claude_drop", _R.PROVIDER_NETWORK),
    Case("claude_cancel", _R.PROCESS_FAILURE, events="session text tool_use usage"),
    Case("codex_fresh", _R.COMPLETED, events="session text text tool_use tool_result text usage result"),
    Case("codex_resume", _R.COMPLETED, CODEX_SESSION, events="session text text usage result"),
    Case("codex_unknown", _R.RESUME_REJECTED, UNKNOWN, session=False, events="result"),
    Case("codex_notuuid", _R.RESUME_REJECTED, "not-a-uuid", session=False),
    Case("codex_e400", _R.API_INVALID_REQUEST),
    Case("codex_e401", _R.PROVIDER_AUTH_OR_ACCESS),
    Case("codex_e404", _R.MODEL_UNAVAILABLE),
    Case("codex_model_unknown", _R.MODEL_UNAVAILABLE, session=False),
    Case("codex_e429", _R.PROVIDER_RATE_LIMIT),
    Case("codex_limit", _R.PROVIDER_QUOTA_LIMIT),
    Case("codex_context", _R.CONTEXT_OVERFLOW),
    Case("codex_e500", _R.PROVIDER_SERVER_ERROR),
    Case("codex_drop", _R.PROVIDER_NETWORK),
    Case("codex_cancel", _R.PROCESS_FAILURE, events="session text text tool_use usage"),
]


def _bytes(name: str, ending: str) -> bytes:
    path = CAPTURES / f"{name}.{ending}"
    return path.read_bytes() if path.exists() else b""  # empty ones are not kept


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_recording_is_judged(case: Case) -> None:
    """Reason, success, session, refusal and the events of each recorded run."""
    parser = ACP.parser(case.resumed)
    events = [event for line in _bytes(case.name, "out").split(b"\n") for event in parser.feed(line)]
    parsed = parser.parsed()
    completed = case.reason is _R.COMPLETED
    stderr = _bytes(case.name, "err").decode("utf-8", "replace")
    verdict = ACP.classify(EndedRun(parsed, 0 if completed else 1, None, stderr, case.resumed, ended_at=NOW))
    assert verdict.reason == case.reason
    assert parsed.success is completed
    assert verdict.resume_refused is (case.reason is _R.RESUME_REJECTED)
    assert (parsed.session_id is not None) is case.session
    if case.resumed and completed:
        assert parsed.session_id == case.resumed
    if not completed:
        assert verdict.message
        assert verdict.evidence
    if case.events is not None:
        assert " ".join(event.type for event in events) == case.events


def test_every_recording_is_in_the_table() -> None:
    """A recording that nobody judges proves nothing (transcripts are played by the driver's tests)."""
    recorded = {path.stem for path in CAPTURES.iterdir() if not path.name.endswith("_transcript.jsonl")}
    assert recorded == {case.name for case in CASES}


def test_a_limit_is_waited_for_until_its_stated_end() -> None:
    """codex-acp says it in words, of the machine's own time."""
    notice = "You've hit your usage limit. Try again in 2 hours 30 minutes."
    verdict = _judge(OPENED, _text(notice), ENDED)
    assert verdict.reason == _R.PROVIDER_QUOTA_LIMIT
    assert verdict.resets_at == NOW + timedelta(hours=2, minutes=30)


# The session


def test_a_session_counts_once_the_driver_announces_it() -> None:
    """With what is known of the agent."""
    agent = {"type": "agent", "name": "codex-acp", "version": "2.6.0"}
    assert _play(agent)[1].session_id is None
    events, parsed = _play(agent, OPENED)
    assert parsed.session_id == SESSION
    assert events[0].data == {"session_id": SESSION, "model": "large", "version": "2.6.0"}


# Tools


def test_a_tools_input_is_waited_for() -> None:
    """Later words replace earlier ones; a call without an input is told when anything else happens."""
    use = _play(_call(rawInput={}, title="Terminal"), _more(rawInput={"command": "ls"}, title="ls"))[0]
    assert [event.data for event in use] == [{"id": "t1", "name": "ls", "input": {"command": "ls"}}]
    kept, told = _play(_call(kind="execute"), _call("t2"), _text("x"))[0][:2]
    assert (kept.data["name"], kept.data["input"], told.data["name"]) == ("execute", {}, "tool")


@pytest.mark.parametrize(
    "fields, output",
    [
        ({"rawOutput": "text"}, "text"),
        ({"rawOutput": {"output": "text", "metadata": {}}}, "text"),
        ({"rawOutput": {"code": 1}}, '{"code": 1}'),
        ({"content": [{"type": "content", "content": {"type": "text", "text": "text"}}]}, "text"),
        ({"content": [{"type": "content", "content": {"type": "image", "data": "…"}}]}, "[image]"),
        ({"content": [{"type": "diff", "path": "/a", "newText": "b"}]}, "[diff of /a]"),
        ({"_meta": {"terminal_output_delta": {"data": "text"}}}, "text"),
        ({"rawOutput": None, "content": None}, ""),
    ],
)
def test_a_tools_output_is_found_wherever_it_is(fields: dict[str, Any], output: str) -> None:
    """As text, value, content or terminal; the most exact one is taken."""
    events, parsed = _play(_call(rawInput={"a": 1}), _more(status="failed", **fields))
    assert events[1].data == {"id": "t1", "is_error": True, "output": output}
    assert (parsed.tools_used, parsed.open_tools) == (1, 0)


def test_calls_are_counted_once_and_open_until_they_end() -> None:
    """An update without a call is a call; what comes after the end is nothing new."""
    lines = (_more(status="in_progress"), _call(status="in_progress"), _call("t2"), _more(status="completed"))
    parsed = _play(*lines, _more(status="completed", rawOutput="again"))[1]
    assert (parsed.tools_used, parsed.open_tools) == (2, 1)
    assert _play(*lines, ENDED)[1].open_tools == 0


def test_a_plan_is_told_as_thinking() -> None:
    """With a mark for what is done and what goes on."""
    entries = [{"content": "a", "status": "completed"}, {"content": "b", "status": "in_progress"}]
    event = _play(_update("plan", entries=[*entries, {"content": "c", "status": "pending"}]))[0][0]
    assert (event.type, event.data["text"]) == (EventType.THINKING, "Plan:\n[x] a\n[~] b\n[ ] c")


# The answer


def test_the_answer_is_the_last_message_after_the_last_tool() -> None:
    """An agent program's own notices, which belong to no message, are none of it."""
    tool = (_call(rawInput={"a": 1}), _more(status="completed"))
    assert (
        _play(_text("before"), *tool, _text("in two "), _text("parts"), ENDED)[1].result_text
        == "in two parts"
    )
    assert _play(_text("before"), *tool, ENDED)[1].result_text == ""
    told = (_text("Warning"), _text("first", "m1"), _text("se", "m2"), _text("cond", "m2"), _text("Notice"))
    assert _play(*told, ENDED)[1].result_text == "second"


@pytest.mark.parametrize(
    "answer, reason",
    [
        ('{"type":"error","error":{"type":"invalid_request_error","message":"x"}}', _R.API_INVALID_REQUEST),
        ('{"error": {"message": "x", "type": "rate_limit_error", "code": null}}', _R.PROVIDER_RATE_LIMIT),
        ("API Error: 400 messages: at least one is required", _R.API_INVALID_REQUEST),
        ("unexpected status 401 Unauthorized: bad key", _R.PROVIDER_AUTH_OR_ACCESS),
        ("stream disconnected before completion: error sending request", _R.PROVIDER_NETWORK),
        ("API call failed after 3 retries: HTTP 529", _R.PROVIDER_RATE_LIMIT),
        ("Prompt is too long", _R.CONTEXT_OVERFLOW),
        # Answers, not notices:
        ("The log says: API Error: 400", _R.COMPLETED),
        ("API Error: 400 is what you get when " + "a request is wrong. " * 20, _R.COMPLETED),
        ('{"error": "none"}', _R.COMPLETED),
        ('{"error": {"type": "invalid_request_error", "message": "x"}, "fixed": true}', _R.COMPLETED),
        ("Error handling is done.", _R.COMPLETED),
    ],
)
def test_an_answer_that_is_nothing_but_an_error_is_a_failure(answer: str, reason: Reason) -> None:
    """codex-acp and others show the API's error as text and end the turn as if nothing were wrong."""
    assert _judge(OPENED, _text(answer), ENDED).reason == reason


def test_a_turn_that_codex_calls_a_system_error_failed() -> None:
    """Whatever its text; not if the thread became active again."""
    status = {"type": "systemError"}
    failed = _update("session_info_update", _meta={"codex": {"threadStatus": status}})
    active = _update("session_info_update", _meta={"codex": {"threadStatus": {"type": "active"}}})
    assert _judge(OPENED, failed, _text("Something odd"), ENDED).reason == _R.PROVIDER_SERVER_ERROR
    assert _judge(OPENED, failed, active, _text("fine", "m"), ENDED).reason == _R.COMPLETED


def test_stderr_speaks_only_for_an_empty_turn() -> None:
    """An answer, or work done, is worth more than what an agent complains of in between."""
    complaint = "❌ HTTP 401 Unauthorized"
    assert _judge(OPENED, ENDED, stderr=complaint).reason == _R.PROVIDER_AUTH_OR_ACCESS
    assert _judge(OPENED, _text("done"), ENDED, stderr=complaint).reason == _R.COMPLETED
    worked = (_call(rawInput={"a": 1}), _more(status="completed"))
    assert _judge(OPENED, *worked, ENDED, stderr=complaint).reason == _R.COMPLETED


def test_a_question_counts_unless_the_agent_went_on_working() -> None:
    """Declined, it may find another way."""
    question = {"type": "question", "text": "Which?"}
    assert _judge(OPENED, question, _text("I need to know"), ENDED).message == "Which?"
    assert _judge(OPENED, question, _call(rawInput={"a": 1}), ENDED).reason == _R.COMPLETED


# Usage


def test_usage_is_the_turns_and_cost_only_a_new_sessions() -> None:
    """Agents state the cost of the whole session."""
    usage = {"inputTokens": 5, "outputTokens": 6, "cachedReadTokens": 7, "cachedWriteTokens": None}
    cost = _update("usage_update", used=1, size=2, cost={"amount": 0.5, "currency": "USD"})
    lines = (OPENED, cost, _text("x"), {**ENDED, "usage": usage})
    fresh = _play(*lines)[1].usage
    assert (fresh.input_tokens, fresh.output_tokens, fresh.cache_read_tokens) == (5, 6, 7)
    assert fresh.cost_usd == 0.5
    assert _play(*lines, requested=SESSION)[1].usage.cost_usd is None


# Failures


@pytest.mark.parametrize(
    "line, reason, refused",
    [
        (
            _error("prompt", "Internal error", -32603, {"details": "session not found: x"}),
            _R.RESUME_REJECTED,
            True,
        ),
        (_error("model", "unknown session", -32602), _R.RESUME_REJECTED, True),
        (_error("load", "OpenCode service failure", -32603), _R.RESUME_REJECTED, True),
        (_error("load", "API Error: 500", -32603), _R.PROVIDER_SERVER_ERROR, False),
        (
            _error("load", "Authentication required", -32603, "please log in"),
            _R.PROVIDER_AUTH_OR_ACCESS,
            False,
        ),
        (_error("prompt", "file not found", -32603), _R.UNKNOWN, False),
        (_error("prompt", "{}", 429), _R.PROVIDER_RATE_LIMIT, False),
        (_error("prompt", "quota exceeded", 429), _R.PROVIDER_QUOTA_LIMIT, False),
        (_error("prompt", "odd", [1], ["odd"]), _R.UNKNOWN, False),
        (_error("new", "Internal error", -32603, {"error": {"message": "ENOSPC"}}), _R.DISK_FULL, False),
        (_error("model", "no such thing", -32603), _R.MODEL_UNAVAILABLE, False),
    ],
)
def test_an_error_is_judged_by_its_stage_code_and_words(
    line: dict[str, Any],
    reason: Reason,
    refused: bool,  # noqa: FBT001 - a column of the table
) -> None:
    """While loading, what is about nothing else is the session's fault."""
    verdict = _judge(line, requested=SESSION)
    assert (verdict.reason, verdict.resume_refused) == (reason, refused)
    assert not _judge(line).resume_refused


def test_a_driver_that_died_without_a_last_line_is_judged_by_its_exit() -> None:
    """Nothing is taken for a success that does not say so."""
    parsed = _play(OPENED, _text("x"))[1]
    assert ACP.classify(EndedRun(parsed, None, 9)).reason == _R.PROCESS_FAILURE
    assert ACP.classify(EndedRun(parsed, 0, None)).reason == _R.EMPTY_OUTPUT


_WORDS = st.sampled_from(
    [
        "agent",
        "session",
        "text",
        "thinking",
        "update",
        "permission",
        "question",
        "noise",
        "result",
        "stopped",
        "error",
    ]
)
_KINDS = st.sampled_from(
    ["tool_call", "tool_call_update", "plan", "usage_update", "session_info_update", "odd", "", None]
)
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
_FIELDS = ("toolCallId", "status", "rawInput", "rawOutput", "content", "_meta", "entries", "cost", "title")
_UPDATES = st.builds(
    lambda kind, fields: {"sessionUpdate": kind, **fields},
    _KINDS,
    st.dictionaries(st.sampled_from(_FIELDS), _VALUES | st.sampled_from(["t1", "completed"]), max_size=5),
)
_LINE_FIELDS = (
    "text",
    "message_id",
    "stop_reason",
    "usage",
    "meta",
    "kind",
    "code",
    "data",
    "message",
    "tool_call",
)
_LINES = st.builds(
    lambda word, update, fields: json.dumps({"type": word, "update": update, **fields}).encode(),
    _WORDS,
    _UPDATES | _VALUES,
    st.dictionaries(st.sampled_from(_LINE_FIELDS), _VALUES | st.just("end_turn"), max_size=5),
)


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.lists(st.binary(max_size=60) | _LINES, max_size=8))
def test_the_parser_takes_anything_and_is_a_function_of_it(output: list[bytes]) -> None:
    """No bytes make it raise or give up, and the same bytes make the same events."""
    first, second = ACP.parser(), ACP.parser()
    events = [event for line in output for event in first.feed(line)]
    assert events == [event for line in output for event in second.feed(line)]
    assert first.parsed() == second.parsed()
    assert not [event for event in events if "not understood" in event.data.get("note", "")]
    ACP.classify(EndedRun(first.parsed(), 1, None))
    for event in events:
        event.model_dump_json()
