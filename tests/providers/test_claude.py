"""The Claude Code adapter beside its recordings: command, judgement, session files."""

import glob
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from domain.events import Event, EventType
from domain.reasons import Reason
from providers.base import EndedRun, LaunchRequest, Parser, Verdict
from providers.claude import ClaudeProvider

SESSION = "d9c310d2-2eea-4cab-8e6c-e630ade76607"
OTHER = "11111111-2222-4333-8444-555555555555"
CLAUDE = ClaudeProvider(as_root=False)

INIT = {"type": "system", "subtype": "init", "session_id": SESSION, "claude_code_version": "2.1.332"}
TEXT = {"type": "assistant", "message": {"id": "m1", "content": [{"type": "text", "text": "hi"}]}}
SUCCESS = {"type": "result", "subtype": "success", "is_error": False, "result": "hi", "session_id": SESSION}

#: The machine may be slow; a slow example is no failure.
AT_ANY_PACE = settings(deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow])


def _feed(parser: Parser, *messages: dict[str, Any]) -> list[Event]:
    return [event for message in messages for event in parser.feed(json.dumps(message).encode())]


def _types(events: list[Event]) -> list[str]:
    return [event.type.value for event in events]


def _judge(*messages: dict[str, Any], exit_code: int = 1, requested: str | None = None) -> Verdict:
    parser = CLAUDE.parser(requested)
    _feed(parser, *messages)
    return CLAUDE.classify(EndedRun(parser.parsed(), exit_code, None, requested_session_id=requested))


def _failure(**facts: Any) -> dict[str, Any]:
    return {"type": "result", "subtype": "success", "is_error": True, "terminal_reason": "api_error", **facts}


def _tool_use(tool_id: str, name: str = "Bash", **given: Any) -> dict[str, Any]:
    block = {"type": "tool_use", "id": tool_id, "name": name, "input": given}
    return {"type": "assistant", "message": {"id": f"m-{tool_id}", "content": [block]}}


def _tool_result(tool_id: str, content: Any) -> dict[str, Any]:
    block = {"type": "tool_result", "tool_use_id": tool_id, "content": content}
    return {"type": "user", "message": {"content": [block]}}


# The command


def test_a_fresh_command_takes_the_prompt_from_stdin() -> None:
    """Nothing of the prompt is on the command line, and permissions are bypassed."""
    launch = CLAUDE.command(LaunchRequest("/opt/claude", "/w"))
    assert launch.argv == (
        *("/opt/claude", "-p", "--output-format", "stream-json", "--verbose"),
        *("--permission-mode", "bypassPermissions"),
    )
    assert launch.env["DISABLE_AUTOUPDATER"] == "1"
    assert "IS_SANDBOX" not in launch.env


def test_a_resumed_command_names_its_session() -> None:
    """Resume and model come before the agent's own arguments."""
    request = LaunchRequest("claude", "/w", model="opus", args=("--max-turns", "3"), session_id=SESSION)
    tail = ("--model", "opus", "--resume", SESSION, "--max-turns", "3")
    assert CLAUDE.command(request).argv[-6:] == tail


def test_a_fork_leaves_its_source_as_it_is() -> None:
    """A fork is a resume with a new id."""
    request = LaunchRequest("claude", "/w", session_id=SESSION, fork=True)
    assert CLAUDE.command(request).argv[-3:] == ("--resume", SESSION, "--fork-session")


def test_own_arguments_cannot_change_the_protocol() -> None:
    """Output format, session and prompt stay ours; the rest of the arguments is kept."""
    args = ("--output-format=text", "-r", OTHER, "--continue", "--add-dir", "/x", "--", "do it")
    argv = CLAUDE.command(LaunchRequest("claude", "/w", args=args)).argv
    assert argv[-2:] == ("--add-dir", "/x")
    assert not {OTHER, "--continue", "do it", "--output-format=text"} & set(argv)


@pytest.mark.parametrize("args", [("--permission-mode", "plan"), ("--permission-mode=plan",)])
def test_an_own_permission_mode_replaces_ours(args: tuple[str, ...]) -> None:
    """An agent may be given fewer permissions than all."""
    argv = CLAUDE.command(LaunchRequest("claude", "/w", args=args)).argv
    assert "bypassPermissions" not in argv
    assert argv[-len(args) :] == args


def test_root_is_told_to_be_in_a_sandbox() -> None:
    """Claude refuses to bypass permissions as root otherwise."""
    launch = ClaudeProvider(as_root=True).command(LaunchRequest("claude", "/w"))
    assert launch.env["IS_SANDBOX"] == "1"


# The session


def test_the_session_is_announced_when_the_prompt_was_accepted() -> None:
    """``init`` names the session, the first message of the model makes it count."""
    parser = CLAUDE.parser()
    assert _feed(parser, INIT) == []
    assert parser.parsed().session_id is None
    assert parser.parsed().revealed_session_id == SESSION
    events = _feed(parser, TEXT, TEXT)
    assert _types(events) == ["session", "text", "text"]
    assert events[0].data == {"session_id": SESSION, "version": "2.1.332"}
    assert parser.parsed().session_id == SESSION
    assert parser.parsed().revealed_session_id is None


def test_a_retry_of_the_api_is_a_sign_of_acceptance() -> None:
    """Claude has stored the prompt before it asks the API."""
    retry = {"type": "system", "subtype": "api_retry", "attempt": 1, "max_retries": 10, "error_status": 529}
    events = _feed(CLAUDE.parser(), INIT, retry)
    assert _types(events) == ["session", "error"]
    assert events[1].data["transient"] is True


def test_a_new_id_of_a_failed_resume_is_never_adopted() -> None:
    """The requested session stays what it was when another id shows up and the run fails."""
    parser = CLAUDE.parser(OTHER)
    events = _feed(parser, INIT, TEXT, _failure(result="API Error: 500"))
    assert "session" not in _types(events)
    assert parser.parsed().session_id is None
    assert parser.parsed().revealed_session_id is None


def test_a_new_id_of_a_successful_resume_is_announced() -> None:
    """A silent new conversation is shown for what it is."""
    parser = CLAUDE.parser(OTHER)
    events = _feed(parser, INIT, TEXT, SUCCESS)
    assert _types(events) == ["text", "session", "usage", "result"]
    assert parser.parsed().session_id == SESSION


def test_a_refused_resume_after_init_is_refused() -> None:
    """Also when ``init`` had named a fresh id first."""
    refusal = {
        "type": "result",
        "subtype": "error_during_execution",
        "is_error": True,
        "session_id": SESSION,
        "errors": [f"No conversation found with session ID: {OTHER}"],
    }
    verdict = _judge(INIT, refusal, exit_code=0, requested=OTHER)
    assert verdict.reason == Reason.RESUME_REJECTED
    assert verdict.resume_refused


# The events


def test_tools_are_counted_and_open_until_their_result() -> None:
    """A result without its call does no harm."""
    parser = CLAUDE.parser()
    _feed(parser, INIT, _tool_use("a"), _tool_use("b"), _tool_result("a", "done"), _tool_result("z", "?"))
    assert (parser.parsed().tools_used, parser.parsed().open_tools) == (2, 1)
    _feed(parser, SUCCESS)
    assert (parser.parsed().tools_used, parser.parsed().open_tools) == (2, 0)


def test_a_tool_result_may_be_blocks() -> None:
    """Texts are joined, other blocks are named."""
    content = [{"type": "text", "text": "one"}, {"type": "image"}, {"type": "text", "text": "two"}]
    (event,) = _feed(CLAUDE.parser(), _tool_result("a", content))
    assert event.data == {"id": "a", "is_error": False, "output": "one\n[image]\ntwo"}


def test_a_subagent_is_marked() -> None:
    """What a subagent says names the tool call it belongs to."""
    (event,) = _feed(CLAUDE.parser(), {**TEXT, "parent_tool_use_id": "toolu_1"})
    assert event.data == {"text": "hi", "parent_id": "toolu_1"}


def test_thinking_is_its_own_event() -> None:
    """Thoughts are not taken for answers."""
    block = {"type": "thinking", "thinking": "hmm"}
    (event,) = _feed(CLAUDE.parser(), {"type": "assistant", "message": {"content": [block]}})
    assert (event.type, event.data) == (EventType.THINKING, {"text": "hmm"})


def test_an_unknown_message_is_kept() -> None:
    """A type that a later version brings is a raw event."""
    (event,) = _feed(CLAUDE.parser(), {"type": "novelty", "x": 1})
    assert event.type is EventType.RAW
    assert json.loads(event.data["line"]) == {"type": "novelty", "x": 1}


def test_a_long_answer_is_whole_in_its_text_events() -> None:
    """A megabyte in one line is several text events and a cut result."""
    text = "a b" * 400_000
    message = {"type": "assistant", "message": {"content": [{"type": "text", "text": text}]}}
    events = _feed(CLAUDE.parser(), INIT, message, {**SUCCESS, "result": text})
    assert "".join(event.data["text"] for event in events if event.type is EventType.TEXT) == text
    assert events[-1].data["truncated"] is True


# The money


def test_the_cost_is_that_of_the_run() -> None:
    """Newer versions state the whole session's cost, and beside it what was added."""
    row = {"inputTokens": 40, "outputTokens": 7, "cacheReadInputTokens": 5, "costUSD": 0.25}
    result = {**SUCCESS, "total_cost_usd": 9.5, "model_usage_since_last_result": {"a": row, "b": row}}
    parser = CLAUDE.parser(SESSION)
    _feed(parser, INIT, TEXT, result)
    usage = parser.parsed().usage
    assert (usage.input_tokens, usage.cache_read_tokens, usage.cost_usd) == (80, 10, 0.5)


@pytest.mark.parametrize(
    "version,requested,cost",
    [("2.1.197", SESSION, 9.5), ("2.1.250", SESSION, None), ("2.1.250", None, 9.5), ("?", SESSION, None)],
)
def test_a_cost_that_cannot_be_known_is_null(version: str, requested: str | None, cost: float | None) -> None:
    """A total may be the session's; it is ours when the version or a fresh session says so."""
    parser = CLAUDE.parser(requested)
    _feed(parser, {**INIT, "claude_code_version": version}, TEXT, {**SUCCESS, "total_cost_usd": 9.5})
    assert parser.parsed().usage.cost_usd == cost


def test_a_killed_run_has_the_usage_of_its_messages() -> None:
    """Without a result, each message of the API counts once."""
    usage = {"input_tokens": 20, "output_tokens": 1}
    message = {"type": "assistant", "message": {"id": "m1", "content": [], "usage": usage}}
    parser = CLAUDE.parser()
    _feed(parser, INIT, message, message)
    assert parser.parsed().usage.input_tokens == 20


# The judgement


def test_an_answer_that_quotes_an_error_is_an_answer() -> None:
    """Success is the result's own word."""
    result = "The server said: API Error: 400 invalid_request_error, prompt is too long (401)."
    assert _judge(INIT, TEXT, {**SUCCESS, "result": result}, exit_code=0).reason == Reason.COMPLETED


def test_a_success_stays_one_however_the_process_ends() -> None:
    """After its result a process may be killed."""
    parser = CLAUDE.parser()
    _feed(parser, INIT, TEXT, SUCCESS)
    assert CLAUDE.classify(EndedRun(parser.parsed(), None, 9)).reason == Reason.COMPLETED


def test_an_api_error_that_is_called_a_success_is_a_failure() -> None:
    """Older versions did not mark the result; its last message was marked."""
    error = {
        "type": "assistant",
        "isApiErrorMessage": True,
        "message": {"content": [{"type": "text", "text": "API Error: 400 bad"}]},
    }
    verdict = _judge(INIT, error, {**SUCCESS, "result": "API Error: 400 bad"}, exit_code=0)
    assert verdict.reason == Reason.API_INVALID_REQUEST


def test_a_notice_in_place_of_an_answer_is_a_failure() -> None:
    """With the reset time that older versions write behind it."""
    verdict = _judge(INIT, TEXT, {**SUCCESS, "result": "Claude AI usage limit reached|1760000000"})
    assert verdict.reason == Reason.PROVIDER_QUOTA_LIMIT
    assert verdict.resets_at == datetime(2025, 10, 9, 8, 53, 20, tzinfo=UTC)


def _rate_limit(status: str) -> dict[str, Any]:
    info = {"status": status, "resetsAt": 1784079000, "rateLimitType": "five_hour"}
    return {"type": "rate_limit_event", "rate_limit_info": info}


def test_a_rejected_window_is_a_quota_with_its_reset() -> None:
    """The event before the failure tells when to go on."""
    failure = _failure(api_error_status=429, result="You've hit your limit · resets 2pm")
    verdict = _judge(INIT, _rate_limit("rejected"), failure)
    assert verdict.reason == Reason.PROVIDER_QUOTA_LIMIT
    assert verdict.resets_at == datetime.fromtimestamp(1784079000, UTC)


def test_an_allowed_window_says_nothing_about_a_rate_limit() -> None:
    """The end of a window that is not used up is no reset time."""
    failure = _failure(api_error_status=429, result="API Error: Request rejected (429) · slow down")
    verdict = _judge(INIT, _rate_limit("rejected"), _rate_limit("allowed"), failure)
    assert (verdict.reason, verdict.resets_at) == (Reason.PROVIDER_RATE_LIMIT, None)


def test_a_rate_limit_event_shows_its_reset_time() -> None:
    """As RFC 3339."""
    (event,) = _feed(CLAUDE.parser(), _rate_limit("allowed_warning"))
    assert event.data["status"] == "allowed_warning"
    assert event.data["resets_at"] == "2026-07-15T01:30:00+00:00"


@pytest.mark.parametrize(
    "failure,reason",
    [
        (_failure(api_error_status=400, result="Credit balance is too low"), Reason.PROVIDER_QUOTA_LIMIT),
        (_failure(api_error_status=400, result="API Error: 400 bad"), Reason.API_INVALID_REQUEST),
        (_failure(api_error_status=413, terminal_reason="image_error"), Reason.API_INVALID_REQUEST),
        (_failure(terminal_reason="budget_exhausted"), Reason.ITERATION_LIMIT),
        (_failure(subtype="error_max_turns", terminal_reason=None), Reason.ITERATION_LIMIT),
        (_failure(stop_reason="refusal", result="I can't help with that"), Reason.REFUSAL),
        (_failure(result="API Error: 1401 tokens"), Reason.UNKNOWN),
        (_failure(result=""), Reason.UNKNOWN),
    ],
)
def test_a_failing_result_has_its_reason(failure: dict[str, Any], reason: Reason) -> None:
    """Structure first, bounded text second."""
    assert _judge(INIT, TEXT, failure).reason == reason


def test_a_refusal_is_no_success() -> None:
    """Also when Claude does not call it an error."""
    assert _judge(INIT, TEXT, {**SUCCESS, "stop_reason": "refusal"}).reason == Reason.REFUSAL


def test_a_question_to_nobody_needs_input() -> None:
    """A run that ends on a question ends as one, with the question."""
    asked = _tool_use("q", "AskUserQuestion", questions=[{"question": "Red or blue?"}])
    verdict = _judge(INIT, asked, _tool_result("q", "unanswered"), SUCCESS, exit_code=0)
    assert (verdict.reason, verdict.message) == (Reason.NEEDS_INPUT, "Red or blue?")


def test_a_question_that_was_worked_around_is_forgotten() -> None:
    """An agent that goes on with its work after a question has answered it itself."""
    asked = _tool_use("q", "AskUserQuestion", questions=[{"question": "Red or blue?"}])
    assert _judge(INIT, asked, _tool_use("a"), SUCCESS, exit_code=0).reason == Reason.COMPLETED


# The session's file


def test_a_session_is_looked_for_in_every_project(tmp_path: Path) -> None:
    """Below ``CLAUDE_CONFIG_DIR`` or the home directory, whatever characters are in their names."""
    root = tmp_path / "con[f]ig*"
    kept = root / "projects" / "-srv-w" / f"{SESSION}.jsonl"
    kept.parent.mkdir(parents=True)
    kept.write_text("{}")
    (pattern,) = CLAUDE.session_paths(SESSION, "/w", {"CLAUDE_CONFIG_DIR": str(root)}) or ()
    assert glob.glob(pattern) == [str(kept)]  # noqa: PTH207 - an absolute pattern
    assert CLAUDE.session_paths(SESSION, "/w", {"HOME": "/h"}) == (f"/h/.claude/projects/*/{SESSION}.jsonl",)


@pytest.mark.parametrize("session_id", ["", "*", "../../etc/passwd", "not-a-uuid", SESSION.replace("-", "")])
def test_what_is_no_uuid_is_no_session(session_id: str) -> None:
    """Such an id matches no file, and is never part of a path."""
    assert CLAUDE.session_paths(session_id, "/w", {"HOME": "/h"}) == ()


# Robustness

_KEYS = st.sampled_from(
    [
        *("type", "subtype", "message", "content", "text", "thinking", "id", "name", "input", "session_id"),
        *("is_error", "result", "errors", "usage", "rate_limit_info", "resetsAt", "status", "costUSD"),
        *("model_usage_since_last_result", "questions", "num_turns", "claude_code_version"),
    ]
)
_WORDS = st.sampled_from(
    [
        *("system", "assistant", "user", "result", "init", "api_retry", "rate_limit_event", "stream_event"),
        *("text", "thinking", "tool_use", "tool_result", "success", "rejected", "AskUserQuestion"),
    ]
)
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | _WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_KEYS, inner, max_size=5),
    max_leaves=10,
)
_MESSAGES = st.dictionaries(_KEYS, _VALUES, max_size=8).map(lambda message: json.dumps(message).encode())


@AT_ANY_PACE
@given(st.lists(st.binary(max_size=60) | _MESSAGES, max_size=8))
def test_the_parser_takes_anything_and_is_a_function_of_it(output: list[bytes]) -> None:
    """No bytes make it raise or give up, and the same bytes make the same events."""
    first, second = CLAUDE.parser(), CLAUDE.parser()
    events = [event for line in output for event in first.feed(line)]
    assert events == [event for line in output for event in second.feed(line)]
    assert first.parsed() == second.parsed()
    assert not [event for event in events if "not understood" in event.data.get("note", "")]
    CLAUDE.classify(EndedRun(first.parsed(), 1, None))
    for event in events:
        event.model_dump_json()
