"""Every error that Segue raises on purpose, as one tree.

::

    SegueError                     code                     HTTP
    ├── InvalidInput               invalid_input            400
    │   └── UnprocessableInput     unprocessable            422
    ├── Unauthenticated            unauthenticated          401
    ├── NotAllowed                 not_allowed              403
    │   └── InvocationNotAllowed   invocation_not_allowed   403
    ├── NotFound                   not_found                404
    ├── Conflict                   conflict                 409
    │   ├── TaskTerminal           task_terminal            409
    │   ├── TaskNotTerminal        task_not_terminal        409
    │   ├── TaskIsChat             task_is_chat             409
    │   ├── ChatArchived           chat_archived            409
    │   ├── AlreadyStarted         already_started          409
    │   ├── AttemptElsewhere       attempt_elsewhere        409
    │   └── IdempotencyInFlight    idempotency_in_flight    409
    ├── TooLarge                   too_large                413
    ├── HostNotAllowed             host_not_allowed         421
    ├── TooManyRequests            too_many_requests        429
    ├── Unavailable                unavailable              503
    └── MachineError               machine_error            (never sent over HTTP)
        ├── RootLocked             root_locked
        ├── ProviderMissing        provider_missing
        ├── LocalDirectoryRefused  local_directory_refused
        ├── PlaneUnavailable       plane_unavailable
        └── RunDetached            run_detached

``code`` is what programs compare; the message is what a person reads and says what to do next.
The API turns the tree into ``application/problem+json`` (RFC 9457) in one place.
"""

from typing import ClassVar


class SegueError(Exception):
    """Something Segue refuses or can't do; the message says what to do about it."""

    code: ClassVar[str] = "error"
    http_status: ClassVar[int] = 500
    title: ClassVar[str] = "Segue could not do this"


class InvalidInput(SegueError):
    """The request can't be understood or names something unusable."""

    code = "invalid_input"
    http_status = 400
    title = "Invalid input"


class UnprocessableInput(InvalidInput):
    """The request is well formed, but a field's value is not acceptable."""

    code = "unprocessable"
    http_status = 422
    title = "Unprocessable input"


class Unauthenticated(SegueError):
    """No token, or one that is unknown, expired or revoked."""

    code = "unauthenticated"
    http_status = 401
    title = "Authentication required"


class NotAllowed(SegueError):
    """The token is good, but its owner may not do this."""

    code = "not_allowed"
    http_status = 403
    title = "Not allowed"


class InvocationNotAllowed(NotAllowed):
    """The caller may not start runs of this agent."""

    code = "invocation_not_allowed"
    title = "Invocation not allowed"


class NotFound(SegueError):
    """Unknown, deleted, or in another workspace: the three are not told apart."""

    code = "not_found"
    http_status = 404
    title = "Not found"


class Conflict(SegueError):
    """The thing's present state does not allow this."""

    code = "conflict"
    http_status = 409
    title = "Conflict"


class TaskTerminal(Conflict):
    """The task has ended already."""

    code = "task_terminal"
    title = "Task has ended"


class TaskNotTerminal(Conflict):
    """The task has not ended yet."""

    code = "task_not_terminal"
    title = "Task has not ended"


class TaskIsChat(Conflict):
    """The task belongs to a chat already: go on there."""

    code = "task_is_chat"
    title = "Task belongs to a chat"


class ChatArchived(Conflict):
    """The chat is archived and can only be read."""

    code = "chat_archived"
    title = "Chat is archived"


class AlreadyStarted(Conflict):
    """The queued turn has started and can no longer be edited or removed."""

    code = "already_started"
    title = "Already started"


class AttemptElsewhere(Conflict):
    """The attempt was started by another machine, boot or attempt directory."""

    code = "attempt_elsewhere"
    title = "Attempt runs elsewhere"


class IdempotencyInFlight(Conflict):
    """The same Idempotency-Key is being served right now; ask again for its answer."""

    code = "idempotency_in_flight"
    title = "Same request in flight"


class TooLarge(SegueError):
    """The body is larger than this call takes."""

    code = "too_large"
    http_status = 413
    title = "Too large"


class HostNotAllowed(SegueError):
    """The Host header names a host that this API doesn't answer for."""

    code = "host_not_allowed"
    http_status = 421
    title = "Host not allowed"


class TooManyRequests(SegueError):
    """Too many failed attempts from this address; wait and try again."""

    code = "too_many_requests"
    http_status = 429
    title = "Too many requests"


class Unavailable(SegueError):
    """Something Segue needs is away for the moment; the same call may succeed later."""

    code = "unavailable"
    http_status = 503
    title = "Unavailable"


class MachineError(SegueError):
    """Something on the agent machine is in the way."""

    code = "machine_error"


class RootLocked(MachineError):
    """Another runtime worker holds this root directory."""

    code = "root_locked"


class ProviderMissing(MachineError):
    """The agent's executable is not on this machine."""

    code = "provider_missing"


class LocalDirectoryRefused(MachineError):
    """A project's local directory may not be used on this machine."""

    code = "local_directory_refused"


class PlaneUnavailable(MachineError):
    """The API did not answer, or failed; nothing is known about what was asked."""

    code = "plane_unavailable"


class RunDetached(MachineError):
    """This worker has let go of the run; its process goes on and will be adopted."""

    code = "run_detached"
