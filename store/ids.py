"""New row ids: UUIDv7 (RFC 9562), so that primary keys grow with time and inserts stay local."""

import secrets
import time
from uuid import UUID

_VERSION_7 = 0x7 << 76
_VARIANT = 0b10 << 62


def new_id() -> UUID:
    milliseconds = time.time_ns() // 1_000_000
    random = secrets.randbits(74)
    high, low = random >> 62, random & ((1 << 62) - 1)
    return UUID(int=milliseconds << 80 | _VERSION_7 | high << 64 | _VARIANT | low)
