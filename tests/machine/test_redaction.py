"""No secret leaves the machine: by value, by pattern, and across the seams of a stream."""

import base64
import json
import time
from itertools import pairwise
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.events import Event, EventType
from machine.redaction import PLACEHOLDER, Redactor, Seam, secret_values

SECRET = "hunter2-very-secret-value/+"


def text(content: str) -> Event:
    return Event(type=EventType.TEXT, data={"text": content})


def test_all_of_an_agents_env_is_secret_but_plain_settings() -> None:
    """Names that configure are left readable, unless they carry credentials."""
    env = {
        "MY_KEY": "abcdef",
        "SHORT": "abc",
        "ANTHROPIC_BASE_URL": "http://127.0.0.1:9",
        "DB_ENDPOINT": "postgres://u:pw@h/d",
        "CODEX_HOME": "/srv/me/codex",
    }
    assert set(secret_values(env, "sgt_token-of-the-task")) == {
        "abcdef",
        "postgres://u:pw@h/d",
        "sgt_token-of-the-task",
    }


def test_each_line_of_a_multiline_secret_is_secret() -> None:
    """A key file's lines may be printed one by one."""
    assert "second-line" in secret_values({"KEY": "first-line\nsecond-line\n"})


@pytest.mark.parametrize(
    "form",
    [
        SECRET,
        json.dumps(SECRET)[1:-1],
        quote(SECRET, safe=""),
        base64.b64encode(SECRET.encode()).decode(),
        base64.urlsafe_b64encode(SECRET.encode()).decode(),
        base64.b64encode(f"user:{SECRET}".encode()).decode(),
    ],
)
def test_a_value_is_found_in_its_usual_forms(form: str) -> None:
    """Plain, as JSON, percent-encoded, in base64 alone and behind a user name."""
    redactor = Redactor([SECRET])
    redacted = redactor.text(f"before {form} after")
    assert PLACEHOLDER in redacted
    assert form not in redacted
    line = redactor.line(json.dumps({"type": "text", "text": form}).encode())
    assert PLACEHOLDER in json.loads(line)["text"]


@pytest.mark.parametrize(
    "secret",
    [
        "sk-ant-api03-" + "a1B2" * 8,
        "sk-proj-" + "a1B2" * 8,
        "ghp_" + "a1B2" * 9,
        "github_pat_" + "a1B2" * 9,
        "AKIA" + "A1B2" * 4,
        "xoxb-1234567890-abcdef",
        "AIza" + "a1B2" * 9,
        "sgt_" + "a1B2" * 8,
        "sgu_" + "a1B2" * 8,
        "sgr_" + "a1B2" * 8,
        "-----BEGIN RSA PRIVATE KEY-----\nMIIabc\n-----END RSA PRIVATE KEY-----",
        "-----BEGIN PRIVATE KEY-----\nMIIabc cut off",
    ],
)
def test_known_shapes_are_found_without_knowing_them(secret: str) -> None:
    """Keys and tokens of the usual services."""
    assert Redactor([]).text(f"x {secret}") == f"x {PLACEHOLDER}"


def test_credentials_in_headers_and_urls_keep_their_frame() -> None:
    """Only the secret part goes."""
    redactor = Redactor([])
    assert redactor.text("Authorization: Bearer abcdefghijklmnop") == f"Authorization: Bearer {PLACEHOLDER}"
    assert redactor.text("https://me:passw0rd@host/x") == f"https://me:{PLACEHOLDER}@host/x"


@pytest.mark.parametrize("harmless", ["sk-short", "the bearer of news", "http://host:80/a@b", "skating-rink"])
def test_ordinary_text_stays(harmless: str) -> None:
    """No alarm for words that only look alike."""
    assert Redactor([SECRET]).text(harmless) == harmless


@pytest.mark.parametrize("part", ["a.", "a://b:", "a-", "eyJ", "-----BEGIN PRIVATE KEY-----", "Bearer "])
def test_long_texts_cost_no_more_than_their_length(part: str) -> None:
    """A hostile output can't hold the worker, which also heartbeats for the other runs.

    Quadratic time would be minutes here, so the bound is wide enough for the slowest machine.
    """
    began = time.process_time()
    Redactor([]).text("x://y sk- eyJ PRIVATE KEY Bearer " + part * (400_000 // len(part)))
    assert time.process_time() - began < 10


def test_every_string_of_an_event_is_redacted() -> None:
    """Nested input, lists and keys; the event's own field names stay."""
    event = Event(type=EventType.TOOL_USE, data={"input": {"a": [SECRET, {SECRET: 1}]}, "n": 1})
    redacted = Redactor([SECRET, "input-"]).event(event)
    assert redacted.data == {"input": {"a": [PLACEHOLDER, {PLACEHOLDER: 1}]}, "n": 1}


def test_short_values_do_not_break_the_agents_json() -> None:
    """A raw line is changed for long secrets only."""
    line = b'{"type":"result","success":true}'
    assert Redactor(["result", "success"]).line(line) == line


@given(st.lists(st.integers(3, len(SECRET) - 1), min_size=1, max_size=5), st.text("ab hunter", max_size=20))
def test_a_secret_in_pieces_never_shows(cuts: list[int], around: str) -> None:
    """Streamed over several texts, no piece of three characters or more of it is left."""
    whole = f"{around}{SECRET}{around}"
    places = [0, *sorted(len(around) + cut for cut in set(cuts)), len(whole)]
    seam = Seam(Redactor([SECRET]))
    events = [text(whole[a:b]) for a, b in pairwise(places)]
    told = [e for event in events for e in seam.feed(event)] + seam.flush()
    assert len(told) == len(events)
    assert "".join(e.data["text"] for e in told) == f"{around}{PLACEHOLDER}{around}"


def test_a_held_text_is_let_go_unharmed() -> None:
    """What only looked like the beginning of a secret is told as it was, in order."""
    seam = Seam(Redactor([SECRET]))
    assert seam.feed(text("a hunt")) == []
    assert seam.feed(text("ing party")) == [text("a hunt"), text("ing party")]
    assert seam.feed(text("hun")) == []
    other = Event(type=EventType.TOOL_USE, data={"id": "t", "name": "n", "input": {}})
    assert seam.feed(other) == [text("hun"), other]


def test_a_stream_can_not_be_held_for_ever() -> None:
    """Memory is bounded, whatever the agent prints."""
    seam = Seam(Redactor(["aaaaaaaaaaaaaaab"]))
    told = sum(len(seam.feed(text("aaa"))) for _ in range(3000))
    assert told > 1000
