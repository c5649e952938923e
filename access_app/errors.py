"""What access_app refuses, and how it says so."""

from agentstate.errors import AppError


class Unauthenticated(AppError):
    """Send a valid API key as `Authorization: Bearer KEY` or `X-API-Key: KEY`."""

    code, status = "unauthenticated", 401

    def __init__(self, detail: str | None = None) -> None:
        challenge = {"WWW-Authenticate": 'Bearer realm="agentstate"'}
        super().__init__(detail, headers=challenge)


class MissingScope(AppError):
    """This key does not have the scope that the call needs."""

    code, status = "missing_scope", 403

    def __init__(self, scope: str, detail: str | None = None) -> None:
        sentence = f"This key does not have the scope {scope!r} that the call needs."
        super().__init__(detail or sentence, scope=scope)


class ToolNotAllowed(AppError):
    """This key may not call this tool."""

    code, status = "tool_not_allowed", 403

    def __init__(self, tool: str, path: str) -> None:
        detail = f"the tool {tool[:200]!r} is not in this key's tool_allowlist"
        super().__init__(
            f"{path}: {detail}",
            errors=[{"path": path, "code": self.code, "detail": detail}],
        )


class RateLimited(AppError):
    """This key has used up its calls for the minute."""

    code, status = "rate_limited", 429

    def __init__(self, limit: int, retry_after: int) -> None:
        super().__init__(
            f"This key may make {limit} calls a minute. "
            f"Try again in {retry_after} seconds.",
            headers={"Retry-After": str(retry_after)},
            limit=limit,
            retry_after=retry_after,
        )


class IdempotencyInProgress(AppError):
    """A call with this Idempotency-Key is still running. Ask again in a second."""

    code, status = "idempotency_in_progress", 409

    def __init__(self) -> None:
        super().__init__(headers={"Retry-After": "1"})


class IdempotencyKeyReused(AppError):
    """This Idempotency-Key was used for a different body. Use a new key."""

    code, status = "idempotency_key_reused", 422

    def __init__(self) -> None:
        super().__init__(errors=[_key_error(self.code, "stands for another body")])


class BadIdempotencyKey(AppError):
    """An Idempotency-Key is 1 to 255 printable ASCII characters."""

    code, status = "bad_idempotency_key", 422

    def __init__(self) -> None:
        super().__init__(errors=[_key_error(self.code, "is not a usable key")])


def _key_error(code: str, detail: str) -> dict[str, str]:
    return {"path": "Idempotency-Key", "code": code, "detail": detail}


class NameTaken(AppError):
    """There is already one of this name."""

    code, status = "name_taken", 409


class ScopeTooWide(AppError):
    """A key cannot make a key that may do more than itself."""

    code, status = "scope_too_wide", 403


class AlreadyMember(AppError):
    """This user is a member of the project already."""

    code, status = "already_member", 409


class LastOwner(AppError):
    """A project keeps at least one owner: make another member owner first."""

    code, status = "last_owner", 409


class SavedViewNotFound(AppError):
    """There is no such view, or it is not yours to delete."""

    code, status = "not_found", 404


class TooManySavedViews(AppError):
    """A list keeps at most so many views. Delete one first."""

    code, status = "too_many_views", 409
