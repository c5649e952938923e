"""What can go wrong with a session, each with its stable code."""

from agentstate.errors import AppError, NotFound, ServiceUnavailable


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


class WorkingMemoryUnavailable(ServiceUnavailable):
    """Working memory cannot be reached just now. Try again, with the same key."""

    code = "working_memory_unavailable"

    def __init__(self) -> None:
        super().__init__(headers={"Retry-After": "1"})


class EntryNotFound(NotFound):
    """This working memory holds no such key."""

    code = "entry_not_found"


class EntryExpired(NotFound):
    """This key has expired."""

    code = "entry_expired"


class EntryChanged(VersionConflict):
    """This key has changed since the version you have. Read it and try again."""

    status = 412


class EntryExists(AppError):
    """This working memory holds the key already."""

    code, status = "entry_exists", 412


class ValueTooLarge(AppError):
    """The value is larger than working memory takes. Keep it as an artifact."""

    code, status = "value_too_large", 413


class WorkingMemoryFull(AppError):
    """This working memory holds as many keys as it may."""

    code, status = "working_memory_full", 409


class NotAnInteger(AppError):
    """This key does not hold an integer, so nothing can be added to it."""

    code, status = "not_an_integer", 409


class NotAList(AppError):
    """This key does not hold a list, so nothing can be appended to it."""

    code, status = "not_a_list", 409


class CounterOverflow(AppError):
    """The sum would leave the 64 bits of a counter."""

    code, status = "counter_overflow", 409


class ArtifactNotFound(NotFound):
    """There is no such artifact in this project."""

    code = "artifact_not_found"


class ArtifactTooLarge(AppError):
    """The file is larger than an artifact may be."""

    code, status = "artifact_too_large", 413


class StorageQuotaExceeded(AppError):
    """The project may keep no more in the store. Delete some, or raise its limit."""

    code, status = "storage_quota_exceeded", 413


class DigestMismatch(AppError):
    """What arrived does not have the sha256 that you announced."""

    code, status = "sha256_mismatch", 422


class RangeNotSatisfiable(AppError):
    """The artifact has no bytes in this range."""

    code, status = "range_not_satisfiable", 416


class LinkInvalid(AppError):
    """This link is not one of ours, or its time is up. Ask for a new one."""

    code, status = "link_invalid", 403


class StorageUnavailable(ServiceUnavailable):
    """The store of artifacts cannot be reached, or is full. Nothing was changed."""

    code = "storage_unavailable"

    def __init__(self) -> None:
        super().__init__(headers={"Retry-After": "1"})


class ContentMissing(ServiceUnavailable):
    """The store does not have the bytes of this artifact. An operator must look."""

    code = "content_missing"
