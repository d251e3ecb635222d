"""The Codex adapter beside its recordings: command, session, items, judgement, session files."""

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
from providers.base import EndedRun, LaunchRequest, Parser, Verdict, parser_for, verifies_session
from providers.codex import CodexProvider

THREAD = "01a22d8f-9a3f-7871-8a4b-3deba14f4698"
OTHER = "11111111-2222-4333-8444-555555555555"
CODEX = CodexProvider(zone=UTC)

STARTED = {"type": "thread.started", "thread_id": THREAD}
TURN = {"type": "turn.started"}
BYPASS = "--dangerously-bypass-approvals-and-sandbox"

#: The machine may be slow; a slow example is no failure.
AT_ANY_PACE = settings(deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow])


def _item(kind: str, phase: str = "completed", item_id: str = "item_1", **fields: Any) -> dict[str, Any]:
    return {"type": f"item.{phase}", "item": {"id": item_id, "type": kind, **fields}}


def _done(**usage: int) -> dict[str, Any]:
    return {"type": "turn.completed", "usage": usage}


def _failed(message: str) -> dict[str, Any]:
    return {"type": "turn.failed", "error": {"message": message}}


def _error(message: str) -> dict[str, Any]:
    return {"type": "error", "message": message}


TEXT = _item("agent_message", text="hi")


def _feed(parser: Parser, *messages: dict[str, Any]) -> list[Event]:
    return [event for message in messages for event in parser.feed(json.dumps(message).encode())]


def _types(events: list[Event]) -> list[str]:
    return [event.type.value for event in events]


def _judge(*messages: dict[str, Any], stderr: str = "", requested: str | None = None) -> Verdict:
    parser = CODEX.parser(requested)
    _feed(parser, *messages)
    now = datetime(2026, 11, 30, 21, 0, tzinfo=UTC)
    return CODEX.classify(EndedRun(parser.parsed(), 1, None, stderr, requested, now))


# The command


def test_a_fresh_command_takes_the_prompt_from_stdin() -> None:
    """Nothing of the prompt is on the command line, permissions are bypassed, other hosts left alone."""
    argv = CODEX.command(LaunchRequest("/opt/codex", "/w")).argv
    assert argv[:2] == ("/opt/codex", "exec")
    assert argv[-4:] == ("--json", "--skip-git-repo-check", BYPASS, "-")
    assert {"features.plugins=false", "analytics.enabled=false", "check_for_update_on_startup=false"} < {
        *argv
    }


def test_a_resumed_command_names_its_thread() -> None:
    """All flags stand before the subcommand, which takes fewer of them."""
    request = LaunchRequest("codex", "/w", model="gpt-6", args=("-p", "night"), session_id=THREAD)
    assert CODEX.command(request).argv[-10:] == (
        *("-p", "night", "-m", "gpt-6", "--json", "--skip-git-repo-check", BYPASS),
        *("resume", THREAD, "-"),
    )


def test_a_fork_leaves_its_source_as_it_is() -> None:
    """Codex has a subcommand for it."""
    request = LaunchRequest("codex", "/w", session_id=THREAD, fork=True)
    assert CODEX.command(request).argv[-3:] == ("fork", THREAD, "-")


def test_own_arguments_cannot_change_the_protocol() -> None:
    """Output, thread, directory and prompt stay ours; the rest of the arguments is kept."""
    args = ("--json", "-C", "/x", "--last", "--ephemeral", "--worktree", "-c", "a=1", "--", "do it")
    argv = CODEX.command(LaunchRequest("codex", "/w", args=args)).argv
    assert argv.count("--json") == 1
    assert not {"/x", "--last", "--ephemeral", "--worktree", "do it"} & {*argv}
    assert argv[argv.index("a=1") - 1] == "-c"


def test_the_model_is_named_once() -> None:
    """Codex refuses a second ``-m``; without a model of the agent, one among its arguments counts."""
    args = ("-m", "theirs")
    assert "theirs" not in CODEX.command(LaunchRequest("codex", "/w", model="ours", args=args)).argv
    assert "theirs" in CODEX.command(LaunchRequest("codex", "/w", args=args)).argv


@pytest.mark.parametrize(
    "args",
    [
        ("-s", "read-only"),
        ("--sandbox=workspace-write",),
        ("--approve-for-me",),
        ("-c", 'sandbox_mode="read-only"'),
        ("--config=approval_policy=never",),
    ],
)
def test_an_own_permission_replaces_ours(args: tuple[str, ...]) -> None:
    """An agent may be given fewer permissions than all."""
    assert BYPASS not in CODEX.command(LaunchRequest("codex", "/w", args=args)).argv


def test_the_bypass_is_not_given_twice() -> None:
    """Codex refuses that, too."""
    assert CODEX.command(LaunchRequest("codex", "/w", args=(BYPASS,))).argv.count(BYPASS) == 1


# The session


def test_the_thread_is_announced_when_the_model_has_answered() -> None:
    """Neither its name nor the turn's beginning nor a warning is a sign of acceptance."""
    parser = CODEX.parser()
    assert _feed(parser, STARTED) == []
    assert parser.parsed().revealed_session_id is None
    assert (
        _types(_feed(parser, _item("error", message="w"), TURN, _item("error", message="w"))) == ["error"] * 2
    )
    assert (parser.parsed().session_id, parser.parsed().revealed_session_id) == (None, THREAD)
    assert _types(_feed(parser, TEXT, TEXT)) == ["session", "text", "text"]
    assert (parser.parsed().session_id, parser.parsed().revealed_session_id) == (THREAD, None)


def test_a_new_thread_of_a_failed_resume_is_never_adopted() -> None:
    """The requested thread stays what it was when another shows up and the run fails."""
    parser = CODEX.parser(OTHER)
    events = _feed(parser, STARTED, TURN, TEXT, _failed("unexpected status 500 Internal Server Error: x"))
    assert "session" not in _types(events)
    assert (parser.parsed().session_id, parser.parsed().revealed_session_id) == (None, None)


def test_a_thread_must_be_found_after_the_run() -> None:
    """Codex names threads that it does not always store."""
    assert verifies_session(CODEX)


# The items


def test_tools_are_counted_and_open_until_they_are_completed() -> None:
    """A tool that is only printed when it is done counts as well."""
    parser = CODEX.parser()
    command: dict[str, Any] = {
        "command": "ls",
        "aggregated_output": "",
        "exit_code": None,
        "status": "in_progress",
    }
    events = _feed(
        parser,
        TURN,
        _item("command_execution", "started", "a", **command),
        _item("file_change", item_id="b", changes=[{"path": "/x", "kind": "add"}], status="completed"),
    )
    assert _types(events) == ["tool_use", "tool_use", "tool_result"]
    assert events[2].data == {"id": "b", "is_error": False, "output": "add /x"}
    assert (parser.parsed().tools_used, parser.parsed().open_tools) == (2, 1)
    assert parser.parsed().stall_reason is None
    ended = {**command, "aggregated_output": "no", "exit_code": 3, "status": "failed"}
    (result,) = _feed(parser, _item("command_execution", item_id="a", **ended))
    assert result.data == {"id": "a", "is_error": True, "exit_code": 3, "output": "no"}
    assert parser.parsed().open_tools == 0
    assert parser.parsed().stall_reason == Reason.CODEX_SEMANTIC_INACTIVITY


@pytest.mark.parametrize(
    "fields,output",
    [
        ({"result": {"content": [{"type": "text", "text": "1"}, {"type": "image"}]}}, "1\n[image]"),
        ({"result": {"content": [], "structured_content": {"a": 1}}}, '{"a": 1}'),
        ({"error": {"message": "no server"}, "status": "failed"}, "no server"),
    ],
)
def test_a_tool_of_a_server_is_named_after_both(fields: dict[str, Any], output: str) -> None:
    """Its result is text, structured content or an error."""
    item = _item("mcp_tool_call", server="files", tool="list", arguments={"x": 1}, **fields)
    call, result = _feed(CODEX.parser(), item)
    assert (call.data["name"], call.data["input"]) == ("mcp__files__list", {"x": 1})
    assert (result.data["output"], result.data["is_error"]) == (output, "error" in fields)


def test_a_search_and_a_helper_are_tools() -> None:
    """With what they were asked."""
    search, found = _feed(CODEX.parser(), _item("web_search", query="segue"))
    assert (search.data["name"], search.data["input"]) == ("web_search", {"query": "segue"})
    assert found.data["output"] == "segue"
    helper, _ = _feed(
        CODEX.parser(), _item("collab_tool_call", tool="spawn_agent", prompt="go", status="errored")
    )
    assert (helper.data["name"], helper.data["input"]) == ("spawn_agent", {"prompt": "go"})


def test_a_plan_is_shown_when_it_changes() -> None:
    """As a thought, not as a tool that would stay open."""
    parser = CODEX.parser()
    todo = [{"text": "read", "completed": True}, {"text": "write", "completed": False}]
    events = _feed(parser, *(_item("todo_list", phase, items=todo) for phase in ("started", "completed")))
    assert [event.data for event in events] == [{"text": "[x] read\n[ ] write"}]
    assert events[0].type is EventType.THINKING
    assert parser.parsed().tools_used == 0


def test_thinking_is_its_own_event() -> None:
    """Thoughts are not taken for answers."""
    (event,) = _feed(CODEX.parser(), _item("reasoning", text="hmm"))
    assert (event.type, event.data) == (EventType.THINKING, {"text": "hmm"})


def test_unknown_messages_and_items_are_kept() -> None:
    """What a later version brings is a raw event, once."""
    novelty = [{"type": "novelty"}, _item("novelty", "started"), _item("novelty", x=1)]
    assert _types(_feed(CODEX.parser(), *novelty)) == ["raw", "raw"]


def test_the_answer_is_what_was_said_last() -> None:
    """What stands before a tool's use is no answer, even when nothing follows."""
    parser = CODEX.parser()
    _feed(parser, TURN, TEXT, _item("web_search", item_id="w"), _done())
    assert parser.parsed().result_text == ""
    _feed(parser, TURN, TEXT, _item("agent_message", text="bye"), _done())
    assert parser.parsed().result_text == "bye"


def test_usage_is_counted_beside_the_cache() -> None:
    """As other providers do it. A fork's first turn can't be told from what was before it."""
    spent = _done(input_tokens=100, cached_input_tokens=60, cache_write_input_tokens=10, output_tokens=5)
    fresh, fork = CODEX.parser(), parser_for(CODEX, THREAD, fork=True)
    _feed(fresh, STARTED, TURN, spent)
    usage = fresh.parsed().usage
    assert (usage.input_tokens, usage.cache_read_tokens, usage.cache_write_tokens) == (30, 60, 10)
    (event,) = [event for event in _feed(fork, STARTED, TURN, spent) if event.type is EventType.USAGE]
    assert (fork.parsed().usage.output_tokens, event.data["thread_total"]["output_tokens"]) == (0, 5)
    _feed(fork, TURN, _done(input_tokens=130, cached_input_tokens=60, output_tokens=8))
    assert fork.parsed().usage.output_tokens == 3


def test_waiting_for_the_network_is_said_once() -> None:
    """Until there was an answer again; counted retries are all shown, for there are few."""
    parser = CODEX.parser()
    waiting = _error("Reconnecting... waiting for network (Connection failed: x)")
    events = _feed(parser, TURN, waiting, waiting, TEXT, waiting, _error("Reconnecting... 1/5 (x)"))
    assert _types(events) == ["error", "text", "error", "error"]
    assert all(event.data["transient"] for event in events if event.type is EventType.ERROR)
    assert parser.parsed().stall_reason == Reason.PROVIDER_NETWORK


# The judgement


@pytest.mark.parametrize(
    "message,reason",
    [
        ("You've hit your usage limit for m. Switch to another model now, or …", Reason.PROVIDER_QUOTA_LIMIT),
        ("You hit your spend cap set in your workspace.", Reason.PROVIDER_QUOTA_LIMIT),
        ("Your workspace is out of credits. Add credits to continue.", Reason.PROVIDER_QUOTA_LIMIT),
        ("To use Codex with your ChatGPT plan, upgrade to Plus: …", Reason.PROVIDER_AUTH_OR_ACCESS),
        ("Access blocked by Cloudflare. This usually …", Reason.PROVIDER_AUTH_OR_ACCESS),
        (
            "Your access token could not be refreshed because your refresh token was expired.",
            Reason.PROVIDER_AUTH_OR_ACCESS,
        ),
        ("This request has been flagged for possible cybersecurity risk.", Reason.REFUSAL),
        ("Image poisoning", Reason.API_INVALID_REQUEST),
        ("Connection failed: error sending request", Reason.PROVIDER_NETWORK),
        ("Error while reading the server response: x", Reason.PROVIDER_NETWORK),
        ("request timed out", Reason.PROVIDER_NETWORK),
        ("Missing environment variable: `OPENAI_API_KEY`.", Reason.MISSING_CONFIG),
        ("unexpected status 503 Service Unavailable: later, url: http://x", Reason.PROVIDER_SERVER_ERROR),
        ("unexpected status 401 Unauthorized: no such model found", Reason.PROVIDER_AUTH_OR_ACCESS),
        ('{"error": {"message": "long", "code": "context_length_exceeded"}}', Reason.CONTEXT_OVERFLOW),
        ('{"error": {"message": "m", "code": "model_not_found"}, "status": 404}', Reason.MODEL_UNAVAILABLE),
        ('{"error": {"message": "?", "type": "invalid_request_error"}}', Reason.API_INVALID_REQUEST),
        ('{"detail": "?"}', Reason.UNKNOWN),
        ("{broken", Reason.UNKNOWN),
        ("something new", Reason.UNKNOWN),
    ],
)
def test_a_failed_turn_has_its_reason(message: str, reason: Reason) -> None:
    """Codes first, then Codex's own sentences, statuses, and other words last."""
    verdict = _judge(STARTED, TURN, _error(message), _failed(message))
    assert verdict.reason == reason
    assert verdict.message


def test_a_body_states_its_reset() -> None:
    """Where an HTTP answer is printed as it came."""
    body = {"error": {"type": "usage_limit_reached", "message": "limit", "resets_at": 1796076000}}
    verdict = _judge(STARTED, TURN, _failed(json.dumps({**body, "status_code": 429})))
    assert (verdict.reason, verdict.message) == (Reason.PROVIDER_QUOTA_LIMIT, "limit")
    assert verdict.resets_at == datetime.fromtimestamp(1796076000, UTC)


def test_a_failure_without_a_word_is_a_failure() -> None:
    """The last error counts, or else that there was one."""
    assert _judge(TURN, _error("Quota exceeded."), _failed("")).reason == Reason.PROVIDER_QUOTA_LIMIT
    verdict = _judge(TURN, {"type": "turn.failed"})
    assert (verdict.reason, bool(verdict.message)) == (Reason.UNKNOWN, True)


def test_an_error_counts_when_the_turn_has_no_end() -> None:
    """A final one; a try to reconnect says nothing about why the process ended."""
    assert _judge(TURN, _error("Quota exceeded.")).reason == Reason.PROVIDER_QUOTA_LIMIT
    assert _judge(TURN, _error("Reconnecting... 1/5 (x)")).reason == Reason.PROCESS_FAILURE


@pytest.mark.parametrize(
    "words,reason",
    [
        ("something that no version has said before (code -32600)", Reason.RESUME_REJECTED),
        ("thread x already has an active writer (code -32600)", Reason.PROCESS_FAILURE),
        ("No space left on device (os error 28) (code -32603)", Reason.DISK_FULL),
    ],
)
def test_a_refused_resume_is_refused_whatever_the_words(words: str, reason: Reason) -> None:
    """Unless they say that the thread is not to blame."""
    verdict = _judge(stderr=f"Error: thread/resume: thread/resume failed: {words}", requested=THREAD)
    assert verdict.reason == reason
    assert verdict.resume_refused is (reason is Reason.RESUME_REJECTED)


def test_a_notice_instead_of_an_answer_is_a_failure() -> None:
    """As with every provider."""
    assert (
        _judge(TURN, _item("agent_message", text="Prompt is too long"), _done()).reason
        == Reason.CONTEXT_OVERFLOW
    )


# The session's file


def test_a_thread_is_looked_for_under_every_date(tmp_path: Path) -> None:
    """Below ``CODEX_HOME`` or the home directory; archived threads can't be resumed and don't count."""
    root = tmp_path / "con[f]ig*"
    kept = root / "sessions" / "2026" / "11" / "30" / f"rollout-2026-11-30T18-01-57-{THREAD}.jsonl"
    kept.parent.mkdir(parents=True)
    kept.write_text("{}")
    (pattern,) = CODEX.session_paths(THREAD.upper(), "/w", {"CODEX_HOME": str(root)}) or ()
    assert glob.glob(pattern) == [str(kept)]  # noqa: PTH207 - an absolute pattern
    assert CODEX.session_paths(THREAD, "/w", {"HOME": "/h"}) == (
        f"/h/.codex/sessions/*/*/*/rollout-*-{THREAD}.jsonl",
    )


@pytest.mark.parametrize("session_id", ["", "*", "../../etc/passwd", "not-a-uuid", THREAD.replace("-", "")])
def test_what_is_no_uuid_is_no_session(session_id: str) -> None:
    """Codex would take it for a name and begin a new thread without a word."""
    assert CODEX.session_paths(session_id, "/w", {"HOME": "/h"}) == ()


# Robustness

_KEYS = st.sampled_from(
    [
        *(
            "type",
            "thread_id",
            "item",
            "id",
            "text",
            "message",
            "error",
            "usage",
            "code",
            "status",
            "command",
        ),
        *(
            "aggregated_output",
            "exit_code",
            "changes",
            "path",
            "kind",
            "server",
            "tool",
            "arguments",
            "result",
        ),
        *("content", "structured_content", "items", "completed", "query", "input_tokens", "resets_at"),
    ]
)
_WORDS = st.sampled_from(
    [
        *("thread.started", "turn.started", "turn.completed", "turn.failed", "error"),
        *("item.started", "item.updated", "item.completed", "agent_message", "reasoning", "todo_list"),
        *("command_execution", "file_change", "mcp_tool_call", "collab_tool_call", "web_search", "failed"),
        *("Reconnecting... waiting for network", '{"error": {"code": 1, "resets_at": 1e300}}', "{", "{}"),
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
    first, second = CODEX.parser(), CODEX.parser()
    events = [event for line in output for event in first.feed(line)]
    assert events == [event for line in output for event in second.feed(line)]
    assert first.parsed() == second.parsed()
    assert not [event for event in events if "not understood" in event.data.get("note", "")]
    CODEX.classify(EndedRun(first.parsed(), 1, None))
    for event in events:
        event.model_dump_json()
