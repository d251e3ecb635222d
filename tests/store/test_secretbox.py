"""Secrets at rest, and tokens."""

from uuid import uuid4

import pytest

from domain.errors import Unavailable
from store import tokens
from store.secretbox import SecretBox


def test_box_opens_what_it_sealed() -> None:
    """Sealed bytes don't show the secret, and open again with the same key."""
    key = SecretBox.new_key()
    sealed = SecretBox(key).seal({"TOKEN": "hunter2\u00e9"})
    assert b"hunter2" not in sealed
    assert SecretBox(key).open(sealed) == {"TOKEN": "hunter2\u00e9"}
    assert SecretBox(key).open(None) == {}


def test_wrong_key_says_so() -> None:
    """Another key, and a malformed one, are explained; no key ever shows in a repr."""
    sealed = SecretBox(SecretBox.new_key()).seal({"A": "b"})
    with pytest.raises(Unavailable, match="another secret key"):
        SecretBox(SecretBox.new_key()).open(sealed)
    with pytest.raises(Unavailable, match="SEGUE_SECRET_KEY"):
        SecretBox("short")
    key = SecretBox.new_key()
    assert key not in repr(SecretBox(key))


def test_task_tokens_are_derived() -> None:
    """The same attempt has the same token, another attempt or key another one."""
    attempt_id = uuid4()
    token = tokens.task_token(b"key", attempt_id)
    assert token.startswith("sgt_")
    assert token == tokens.task_token(b"key", attempt_id)
    assert token != tokens.task_token(b"key", uuid4())
    assert token != tokens.task_token(b"other", attempt_id)
    box = SecretBox(SecretBox.new_key())
    assert box.signing_key == box.signing_key


def test_minted_tokens_differ() -> None:
    """Every token is new, and its hash is 32 bytes."""
    minted = {tokens.mint("sgu_") for _ in range(100)}
    assert len(minted) == 100
    assert {len(tokens.hash_token(token)) for token in minted} == {32}
