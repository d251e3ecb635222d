"""When a session id that an agent prints counts as the run's session.

Agents print an id before they know whether the prompt will be accepted, and some print a new id when they
refuse to resume (field notes R1, R2, R7). An id is therefore announced only when the prompt was accepted;
an id other than the requested one only when the run succeeded.
"""

from typing import Any

from domain.events import Event, EventType

#: `ParsedRun.error_kind` of a run whose session to resume is not there.
NO_CONVERSATION = "no_conversation"


class SessionGate:
    """Holds back a revealed session id until it may be trusted."""

    def __init__(self, requested: str | None) -> None:
        self._requested = requested
        self._revealed: dict[str, Any] = {}
        self.session_id: str | None = None

    @property
    def revealed(self) -> bool:
        return bool(self._revealed)

    @property
    def waiting_id(self) -> str | None:
        """The id that was named and not announced, unless it is another than the requested one."""
        session_id = self._revealed.get("session_id")
        if session_id == self.session_id or self._requested not in (None, session_id):
            return None
        return session_id

    def reveal(self, session_id: str, **facts: str) -> None:
        """The agent named its session. Facts without a value are left out of the event."""
        if session_id:
            known = {key: value for key, value in facts.items() if value}
            self._revealed = {"session_id": session_id, **known}

    def accept(self) -> list[Event]:
        """The agent works on the prompt: announces the session, if it is the one asked for."""
        session_id = self._revealed.get("session_id")
        if self._requested is not None and session_id != self._requested:
            return []
        return self._announce()

    def succeed(self) -> list[Event]:
        """The run succeeded: announces the session, whichever it is."""
        return self._announce()

    def _announce(self) -> list[Event]:
        session_id = self._revealed.get("session_id")
        if session_id is None or session_id == self.session_id:
            return []
        self.session_id = session_id
        return [Event(type=EventType.SESSION, data=dict(self._revealed))]
