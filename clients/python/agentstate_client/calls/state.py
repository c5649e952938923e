"""A session's state: every write names the version that it changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agentstate_client.call import LOCK_TOKEN, Call, path_to, reading, writing
from agentstate_client.models import StateVersion


def get(session_id: str, *, at_seq: int | None = None) -> Call[StateVersion]:
    """Return a session's state with its version: now, or as it was after an event."""
    return reading(_path(session_id), StateVersion.from_json, {"at_seq": at_seq})


def put(
    session_id: str,
    state: Mapping[str, Any],
    expected_version: int,
    *,
    lock_token: str | None = None,
    idempotency_key: str | None = None,
) -> Call[StateVersion]:
    """Replace the state, if it still has the version that you read.

    Otherwise ConcurrentModificationError says which version it has now and what has
    changed, and nothing is written.
    """
    body = {"state": state, "expected_version": expected_version}
    return _write("PUT", session_id, body, lock_token, idempotency_key)


def merge(
    session_id: str,
    changes: Mapping[str, Any],
    expected_version: int,
    *,
    lock_token: str | None = None,
    idempotency_key: str | None = None,
) -> Call[StateVersion]:
    """Merge `changes` into the state: None removes a key (RFC 7396). As `put`."""
    body = {"merge": changes, "expected_version": expected_version}
    return _write("PATCH", session_id, body, lock_token, idempotency_key)


def patch(
    session_id: str,
    operations: Sequence[Mapping[str, Any]],
    expected_version: int,
    *,
    lock_token: str | None = None,
    idempotency_key: str | None = None,
) -> Call[StateVersion]:
    """Apply JSON Patch operations (RFC 6902): all of them or none. As `put`."""
    body = {"patch": operations, "expected_version": expected_version}
    return _write("PATCH", session_id, body, lock_token, idempotency_key)


def _write(
    method: str,
    session_id: str,
    body: Mapping[str, Any],
    lock_token: str | None,
    idempotency_key: str | None,
) -> Call[StateVersion]:
    return writing(
        method,
        _path(session_id),
        StateVersion.from_json,
        body,
        idempotency_key=idempotency_key,
        headers={LOCK_TOKEN: lock_token},
    )


def _path(session_id: str) -> str:
    return path_to("sessions", session_id, "state")
