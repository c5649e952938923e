"""What the server refused, as exceptions that carry its reasons."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import httpx

from agentstate_client import codec


class AgentStateError(Exception):
    """A call failed.

    `code` is the server's stable name for the reason, `status` the HTTP status (0 when
    there was no answer), `errors` a list of `{"path", "code", "detail"}` and `extra`
    whatever else the answer said. `idempotency_key` is the key a write carried:
    repeating the write with it cannot apply it twice.
    """

    def __init__(
        self,
        detail: str,
        *,
        status: int = 0,
        code: str = "error",
        errors: Sequence[Mapping[str, Any]] = (),
        extra: Mapping[str, Any] | None = None,
        idempotency_key: str | None = None,
    ) -> None:
        super().__init__(detail)
        self.detail = detail
        self.status = status
        self.code = code
        self.errors = list(errors)
        self.extra = dict(extra or {})
        self.idempotency_key = idempotency_key

    def __str__(self) -> str:
        told = {self.detail, *(str(error.get("detail")) for error in self.errors)}
        fields = [
            f"{error.get('path')}: {error.get('detail')}"
            for error in self.errors
            if f"{error.get('path')}: {error.get('detail')}" not in told
        ]
        return f"{self.code}: {'; '.join([self.detail, *fields])}"


class NotFound(AgentStateError):
    """There is no such thing in this project, or this key may not see it."""


class Unauthenticated(AgentStateError):
    """The key is missing, wrong, expired or revoked."""


class PermissionDenied(AgentStateError):
    """The key is good, but not for this."""


class MissingScope(PermissionDenied):
    """The key lacks the scope that this call needs."""


class ValidationError(AgentStateError):
    """The request holds values that are not allowed; `errors` names their paths."""


class Conflict(AgentStateError):
    """The call does not fit what the server holds now. Nothing was changed."""


class ConcurrentModificationError(Conflict):
    """Somebody else wrote first. Your value was not stored, theirs was not lost."""

    @property
    def current_version(self) -> int:
        return int(self.extra["current_version"])

    @property
    def changed_paths(self) -> list[str]:
        """What changed since the version that you expected, as JSON pointers."""
        return list(self.extra.get("changed_paths") or ())


class SeqConflict(Conflict):
    """The session's log has moved past the number that you expected."""

    @property
    def expected(self) -> int:
        return int(self.extra["expected"])

    @property
    def actual(self) -> int:
        return int(self.extra["actual"])


class SessionClosed(Conflict):
    """The session takes no more writes until it is reopened."""


class SessionLocked(Conflict):
    """Another holder has the session's lock; writes wait until it ends."""


class LockLost(Conflict):
    """Your lock has ended, and another holder may have had it since."""


class IdempotencyKeyReused(Conflict):
    """This idempotency key belongs to an earlier call with another body."""


class PatchFailed(Conflict):
    """A JSON patch does not fit the state; none of it was applied."""


class EventIdReused(ValidationError):
    """The session has another event with this id."""


class SessionKeyTaken(Conflict):
    """A session with this key exists and belongs to another subject or agent."""


class EntryExists(Conflict):
    """Working memory holds this key already."""


class EntryExpired(NotFound):
    """This key of working memory has expired."""


class RunActive(Conflict):
    """Another run of the session has not ended, and it takes one at a time."""


class RunKeyTaken(Conflict):
    """The session has a run of this key, made with another plan."""


class PlanConflict(Conflict):
    """The plan has changed since the version that you have."""


class LeaseLost(Conflict):
    """Another has the step, or it is over: drop it and carry on."""


class AlreadyFinished(Conflict):
    """The step has another result already: drop yours and carry on."""


class StepCancelled(Conflict):
    """The step was cancelled: drop it and carry on."""


class EffectInDoubt(Conflict):
    """The effect was begun before, and nobody has said whether it happened."""


class ToolNotAllowed(PermissionDenied):
    """The key may not call this tool: it came with a handoff that names others."""


class HandoffTaken(Conflict):
    """Another agent has accepted the handoff."""


class HandoffEnded(Conflict):
    """The handoff is over: nothing more is taken for it."""


class HandoffTooDeep(Conflict):
    """Work was handed on too often; do this part yourself."""


class HandoffFailed(AgentStateError):
    """The handoff ended without a result.

    `outcome` is declined, expired, failed or cancelled; `detail` says why.
    """

    def __init__(self, outcome: str, reason: str, handoff_id: str) -> None:
        super().__init__(
            reason or outcome, code=f"handoff_{outcome}", extra={"handoff": handoff_id}
        )
        self.outcome = outcome


class RateLimited(AgentStateError):
    """Too many calls with this key."""


class Unavailable(AgentStateError):
    """The server did not answer, or could not just now.

    A write may or may not have been applied; repeat it with `idempotency_key` to find
    out without applying it twice.
    """


BY_CODE: dict[str, type[AgentStateError]] = {
    "missing_scope": MissingScope,
    "version_conflict": ConcurrentModificationError,
    "seq_conflict": SeqConflict,
    "session_closed": SessionClosed,
    "session_locked": SessionLocked,
    "lock_lost": LockLost,
    "idempotency_key_reused": IdempotencyKeyReused,
    "patch_failed": PatchFailed,
    "event_id_reused": EventIdReused,
    "session_key_taken": SessionKeyTaken,
    "entry_exists": EntryExists,
    "entry_expired": EntryExpired,
    "run_active": RunActive,
    "run_key_taken": RunKeyTaken,
    "plan_conflict": PlanConflict,
    "lease_lost": LeaseLost,
    "already_finished": AlreadyFinished,
    "cancelled": StepCancelled,
    "tool_not_allowed": ToolNotAllowed,
    "handoff_taken": HandoffTaken,
    "handoff_ended": HandoffEnded,
    "handoff_too_deep": HandoffTooDeep,
}
BY_STATUS: dict[int, type[AgentStateError]] = {
    400: ValidationError,
    401: Unauthenticated,
    403: PermissionDenied,
    404: NotFound,
    409: Conflict,
    410: NotFound,
    412: Conflict,
    413: ValidationError,
    422: ValidationError,
    423: SessionLocked,
    428: ValidationError,
    429: RateLimited,
    502: Unavailable,
    503: Unavailable,
    504: Unavailable,
}
PROBLEM_MEMBERS = {"type", "title", "status", "code", "detail", "errors"}


def problem_of(response: httpx.Response) -> dict[str, Any]:
    """Return the answer's problem+json; empty for a page that some proxy made."""
    try:
        body = codec.decode(response.content)
    except ValueError:
        return {}
    return body if isinstance(body, dict) else {}


def error_from(
    response: httpx.Response, idempotency_key: str | None = None
) -> AgentStateError:
    problem = problem_of(response)
    status = response.status_code
    code = str(problem.get("code") or f"http_{status}")
    kind = BY_CODE.get(code) or BY_STATUS.get(status) or AgentStateError
    return kind(
        str(problem.get("detail") or f"HTTP {status} {response.reason_phrase}"),
        status=status,
        code=code,
        errors=problem.get("errors") or (),
        extra={k: v for k, v in problem.items() if k not in PROBLEM_MEMBERS},
        idempotency_key=idempotency_key,
    )
