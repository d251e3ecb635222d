"""The provider-neutral rules, and their order."""

import pytest

from domain.reasons import Reason
from providers import classification
from providers.base import EndedRun, ParsedRun

_R = Reason


@pytest.mark.parametrize(
    "text,reason",
    [
        ("No conversation found with session ID: 1111", _R.RESUME_REJECTED),
        ("Error: thread/resume failed: no rollout found for thread id 1 (code -32600)", _R.RESUME_REJECTED),
        ('Error resuming session: Invalid session identifier "x"', _R.RESUME_REJECTED),
        ("Error: Session not found", _R.RESUME_REJECTED),
        ("Prompt is too long · the request is ~215000 tokens (limit 200000)", _R.CONTEXT_OVERFLOW),
        ("400 {'code': 'context_length_exceeded'}", _R.CONTEXT_OVERFLOW),
        ("Codex ran out of room in the model's context window", _R.CONTEXT_OVERFLOW),
        ("Missing environment variable: `OPENAI_API_KEY`", _R.MISSING_CONFIG),
        ("--dangerously-skip-permissions cannot be used with root/sudo privileges", _R.MISSING_CONFIG),
        ("OSError: [Errno 28] No space left on device", _R.DISK_FULL),
        ("Failed to authenticate. API Error: 401 fake error", _R.PROVIDER_AUTH_OR_ACCESS),
        ("unexpected status 403 Forbidden", _R.PROVIDER_AUTH_OR_ACCESS),
        ("Invalid API key · Please run /login", _R.PROVIDER_AUTH_OR_ACCESS),
        ("OAuth token has expired", _R.PROVIDER_AUTH_OR_ACCESS),
        ("Credit balance is too low", _R.PROVIDER_QUOTA_LIMIT),
        ("You've hit your limit · resets 2pm", _R.PROVIDER_QUOTA_LIMIT),
        ("You’ve hit your weekly limit", _R.PROVIDER_QUOTA_LIMIT),
        ("429 You exceeded your current quota", _R.PROVIDER_QUOTA_LIMIT),
        ("Claude AI usage limit reached|1760000000", _R.PROVIDER_QUOTA_LIMIT),
        ("API Error: Request rejected (429) · slow down", _R.PROVIDER_RATE_LIMIT),
        ("exceeded retry limit, last status: 429 Too Many Requests", _R.PROVIDER_RATE_LIMIT),
        ("rate limit of 400000 tokens per minute: limit reached", _R.PROVIDER_RATE_LIMIT),
        ("API Error: 529 overloaded", _R.PROVIDER_RATE_LIMIT),
        ("Selected model is at capacity. Please try a different model.", _R.PROVIDER_RATE_LIMIT),
        ("There's an issue with the selected model (x). It may not exist", _R.MODEL_UNAVAILABLE),
        ('400 invalid_request_error: model "x" not found', _R.MODEL_UNAVAILABLE),
        ("API Error: 400 messages: text content blocks must be non-empty", _R.API_INVALID_REQUEST),
        ("API Error: Connection dropped (ECONNRESET). Check the gateway", _R.PROVIDER_NETWORK),
        ("Request timed out. If the API is slow to answer, …", _R.PROVIDER_NETWORK),
        ("stream disconnected before completion", _R.PROVIDER_NETWORK),
        ("API Error: 500 This is a server-side issue", _R.PROVIDER_SERVER_ERROR),
        ("502 Bad Gateway", _R.PROVIDER_SERVER_ERROR),
        ("We're currently experiencing high demand", _R.PROVIDER_SERVER_ERROR),
        ("the command timed out after 600 seconds", _R.AGENT_TIMEOUT),
        ("exec format error", _R.RUNTIME_MISSING_EXECUTABLE),
        ("this feature requires a newer version of the CLI", _R.RUNTIME_VERSION_UNSUPPORTED),
    ],
)
def test_an_error_text_has_its_reason(text: str, reason: Reason) -> None:
    """The first rule that matches decides."""
    found = classification.by_text(text)
    assert found is not None
    assert found.reason is reason


@pytest.mark.parametrize(
    "text",
    [
        "",
        "something else happened",
        "used 1401 tokens",
        "line 429: unexpected indent",
        "listening on port 5000",
        "401 files changed",
        "Error: 400 tests failed",
        "HTTP 4011",
        "version 5.500.1",
        "at run (main.js:404:500)",
    ],
)
def test_a_number_alone_is_no_status(text: str) -> None:
    """Digits speak only when a word beside them makes them a status."""
    assert classification.by_text(text) is None


def test_the_telling_line_is_the_evidence() -> None:
    """The line that matched is named, not the whole text."""
    found = classification.by_text("starting\n  Error: 503 Service Unavailable  \nbye")
    assert found is not None
    assert found.line == "Error: 503 Service Unavailable"


def test_only_the_ends_of_a_text_are_searched() -> None:
    """The middle of a very long text does not count."""
    filler = "x\n" * 10_000
    assert classification.by_text(f"{filler}ECONNRESET\n{filler}") is None
    assert classification.by_text(f"{filler}ECONNRESET") is not None


@pytest.mark.parametrize(
    "status,reason",
    [
        (None, None),
        (200, None),
        (400, _R.API_INVALID_REQUEST),
        (401, _R.PROVIDER_AUTH_OR_ACCESS),
        (402, _R.PROVIDER_QUOTA_LIMIT),
        (403, _R.PROVIDER_AUTH_OR_ACCESS),
        (404, _R.MODEL_UNAVAILABLE),
        (429, _R.PROVIDER_RATE_LIMIT),
        (500, _R.PROVIDER_SERVER_ERROR),
        (529, _R.PROVIDER_RATE_LIMIT),
        (599, _R.PROVIDER_SERVER_ERROR),
        (600, None),
    ],
)
def test_a_status_has_its_reason(status: int | None, reason: Reason | None) -> None:
    """HTTP statuses speak for themselves."""
    assert classification.by_status(status) is reason


@pytest.mark.parametrize(
    "text,reason",
    [
        ("Prompt is too long", _R.CONTEXT_OVERFLOW),
        ("Reached maximum number of turns (30)", _R.ITERATION_LIMIT),
        ("Claude AI usage limit reached|1760000000", _R.PROVIDER_QUOTA_LIMIT),
        ("You’ve hit your limit · resets 2pm (Asia/Shanghai)", _R.PROVIDER_QUOTA_LIMIT),
        ("Invalid API key · Please run /login", _R.PROVIDER_AUTH_OR_ACCESS),
        ('The log says "Prompt is too long".', None),
        ("Prompt is too long" + " and so on" * 100, None),
        ("I fixed the rate limit bug: HTTP 429 is retried now.", None),
        ("ok", None),
    ],
)
def test_a_notice_is_an_answer_that_is_nothing_else(text: str, reason: Reason | None) -> None:
    """A canned notice in place of an answer is found; an answer that quotes one is not."""
    assert classification.by_notice(text) is reason


def _ended(exit_code: int | None, signal: int | None = None, stderr: str = "") -> EndedRun:
    return EndedRun(ParsedRun(), exit_code, signal, stderr, requested_session_id="s")


@pytest.mark.parametrize(
    "run,reason,evidence",
    [
        (_ended(0), _R.EMPTY_OUTPUT, ""),
        (_ended(0, stderr="Error: 401 Unauthorized"), _R.EMPTY_OUTPUT, "Error: 401 Unauthorized"),
        (_ended(3, stderr="one\ntwo\n\n"), _R.PROCESS_FAILURE, "two"),
        (_ended(143), _R.PROCESS_FAILURE, "143"),
        (_ended(None, 9, "ECONNRESET"), _R.PROCESS_FAILURE, "ECONNRESET"),
        (_ended(1, stderr="x\nconnect ECONNREFUSED 127.0.0.1:1\n"), _R.PROVIDER_NETWORK, "ECONNREFUSED"),
    ],
)
def test_an_ending_without_a_result(run: EndedRun, reason: Reason, evidence: str) -> None:
    """Signal first, then exit code 0, then what stderr says, then the exit code."""
    verdict = classification.without_result(run)
    assert verdict.reason == reason
    assert evidence in verdict.evidence
    assert not verdict.resume_refused


def test_a_refused_resume_on_stderr_retires_the_session() -> None:
    """The verdict says that the requested session can't be resumed."""
    run = _ended(1, stderr="Error: no rollout found for thread id s")
    assert classification.without_result(run).resume_refused
