"""The one family of errors that services raise and the API answers with."""

from typing import Any


class AppError(Exception):
    """The request could not be carried out.

    A subclass states `code` (the contract with clients), `status` (HTTP) and, as its
    docstring, the sentence a person reads. What is passed by name is added to the
    problem+json body: `raise SeqConflict(expected=4, actual=6)`. `detail` replaces the
    sentence; `headers` become response headers.
    """

    code = "error"
    status = 400

    def __init__(
        self,
        detail: str | None = None,
        *,
        headers: dict[str, str] | None = None,
        **extra: Any,
    ) -> None:
        self.detail = detail or (type(self).__doc__ or "").strip().split("\n\n")[0]
        self.headers = headers or {}
        self.extra = extra
        super().__init__(self.detail)


class NotFound(AppError):
    """There is no such thing in this project, or this key may not see it."""

    code, status = "not_found", 404


class FieldError(AppError):
    """The request holds a value that is not allowed."""

    code, status = "invalid", 422

    def __init__(self, path: str, code: str, detail: str) -> None:
        """`path` is a JSON path such as `events[1].payload.content`."""
        self.path, self.field_code, self.field_detail = path, code, detail
        super().__init__(
            f"{path}: {detail}" if path else detail,
            errors=[{"path": path, "code": code, "detail": detail}],
        )


class ServiceUnavailable(AppError):
    """A service that this call needs is not reachable. Try again shortly."""

    code, status = "unavailable", 503
