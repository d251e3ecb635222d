"""Encryption at rest for what agents are given: their environment."""

import hashlib
import hmac
import json

from cryptography.fernet import Fernet, InvalidToken

from domain.errors import Unavailable


class SecretBox:
    """Seals small maps of secrets with one key of the installation.

    Raises `Unavailable` when the key is malformed, or isn't the one that something was sealed with.
    """

    def __init__(self, key: str) -> None:
        try:
            self._fernet = Fernet(key.encode())
        except ValueError as error:
            raise Unavailable(
                "The secret key is not valid: it must be 32 bytes in URL-safe base64 "
                "(44 characters), as `segue up` makes it. Check SEGUE_SECRET_KEY."
            ) from error
        self._key = key.encode()

    def __repr__(self) -> str:
        return "SecretBox(…)"

    @staticmethod
    def new_key() -> str:
        return Fernet.generate_key().decode()

    @property
    def signing_key(self) -> bytes:
        """The key that task tokens are derived with; knowing it doesn't open the box."""
        return hmac.digest(self._key, b"segue.signing-key", hashlib.sha256)

    def seal(self, secrets: dict[str, str]) -> bytes:
        return self._fernet.encrypt(json.dumps(secrets).encode())

    def open(self, sealed: bytes | None) -> dict[str, str]:
        """What was sealed; nothing sealed is an empty map."""
        if sealed is None:
            return {}
        try:
            opened: dict[str, str] = json.loads(self._fernet.decrypt(sealed))
        except InvalidToken as error:
            raise Unavailable(
                "An agent's environment was sealed with another secret key. "
                "Start Segue with the key it was written with (SEGUE_SECRET_KEY)."
            ) from error
        return opened
