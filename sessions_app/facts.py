"""What session.* events say about a session's row, and whether a row can hold it.

Only an import asks the second: what the server itself wrote was checked before.
"""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from agentstate.errors import FieldError
from sessions_app import event_types as types
from sessions_app.models import SessionStatus

NAME_MAX = 255
TITLE_MAX = 500


def session_changes(event_type: str, payload: dict[str, Any]) -> dict[str, Any]:
    """Return what a session.* event does to the session's row, times as ISO text."""
    match event_type:
        case types.SESSION_UPDATED:
            return dict(payload.get("changes") or {})
        case types.SESSION_CLOSED:
            closed_at = payload.get("at")
            return {"status": SessionStatus.CLOSED.value, "closed_at": closed_at}
        case types.SESSION_ARCHIVED:
            return {"status": SessionStatus.ARCHIVED.value}
        case types.SESSION_REOPENED:
            return {"status": SessionStatus.OPEN.value, "closed_at": None}
    return {}


def checked_changes(event_type: str, payload: dict[str, Any]) -> dict[str, Any]:
    """Return `session_changes` as values of the row. Raises FieldError."""
    changes = session_changes(event_type, payload)
    where = "payload.changes" if event_type == types.SESSION_UPDATED else "payload"
    return checked_facts(changes, where)


def checked_facts(facts: dict[str, Any], where: str) -> dict[str, Any]:
    """Return `facts` as values of a session's row, times as datetime.

    Raises FieldError with the path below `where` for a name that a session does not
    have, or a value of another kind.
    """
    for name in facts:
        if name not in CHECKS:
            raise FieldError(f"{where}.{name}", "unknown_field", "is no field of ours")
    return {
        name: CHECKS[name](value, f"{where}.{name}") for name, value in facts.items()
    }


def _text(value: Any, path: str, longest: int = NAME_MAX) -> str:
    if not isinstance(value, str):
        raise FieldError(path, "invalid_type", "must be a string")
    if len(value) > longest:
        raise FieldError(path, "too_long", f"is longer than {longest} characters")
    if "\0" in value:
        raise FieldError(path, "null_character", "must not hold U+0000")
    return value


def _name_or_null(value: Any, path: str) -> str | None:
    return None if value is None else _text(value, path)


def _title(value: Any, path: str) -> str:
    return _text(value, path, TITLE_MAX)


def _status(value: Any, path: str) -> str:
    if value not in SessionStatus.values:
        raise FieldError(path, "invalid_choice", "is no status of a session")
    return str(value)


def _labels(value: Any, path: str) -> dict[str, str]:
    found = _object(value, path)
    return {
        _text(name, path): _text(label, f"{path}.{name}")
        for name, label in found.items()
    }


def _object(value: Any, path: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise FieldError(path, "invalid_type", "must be an object")
    return value


def instant_or_null(value: Any, path: str) -> datetime | None:
    """Return an ISO 8601 time with its offset as UTC. Raises FieldError."""
    if value is None:
        return None
    if isinstance(value, str):
        try:
            at = datetime.fromisoformat(value)
            if at.tzinfo is not None:
                return at.astimezone(UTC)
        except (ValueError, OverflowError):
            pass
    raise FieldError(path, "invalid", "must be a time such as 2026-01-15T09:30:00Z")


CHECKS: dict[str, Callable[[Any, str], Any]] = {
    "key": _name_or_null,
    "agent": _text,
    "subject": _text,
    "title": _title,
    "labels": _labels,
    "metadata": _object,
    "status": _status,
    "expires_at": instant_or_null,
    "closed_at": instant_or_null,
}
