"""What can go wrong with a session, each with its stable code."""

from agentstate.errors import AppError, NotFound


class SessionNotFound(NotFound):
    """There is no such session in this project."""

    code = "session_not_found"


class SessionClosed(AppError):
    """The session is closed and takes no more events. Reopen it first."""

    code, status = "session_closed", 409


class SessionLocked(AppError):
    """Another client holds the session's lock. Try again when it is released."""

    code, status = "session_locked", 423


class LockLost(AppError):
    """This lock token is not the session's current one: the lease ended."""

    code, status = "lock_lost", 409


class SessionKeyTaken(AppError):
    """A session with this key exists and belongs to another subject or agent."""

    code, status = "session_key_taken", 409


class SeqConflict(AppError):
    """The session's log has moved past the number you expected."""

    code, status = "seq_conflict", 409


class EventIdReused(AppError):
    """An event with this id is in the session already, with another type or payload."""

    code, status = "event_id_reused", 422


class VersionConflict(AppError):
    """The state has changed since the version you have. Read it and try again."""

    code, status = "version_conflict", 409


class PreconditionRequired(AppError):
    """Say which version you change: If-Match, or `expected_version` in the body."""

    code, status = "precondition_required", 428


class StateTooLarge(AppError):
    """The state is larger than a session may hold. Keep large things as events."""

    code, status = "state_too_large", 413


class PayloadTooLarge(AppError):
    """An event's payload is larger than the limit."""

    code, status = "payload_too_large", 413


class SeqNotFound(NotFound):
    """The session's log has no such number yet."""

    code = "seq_not_found"
