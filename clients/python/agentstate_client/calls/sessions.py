"""Sessions: from creating one to erasing it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from agentstate_client import codec
from agentstate_client.call import (
    LOCK_TOKEN,
    UNSET,
    Call,
    Unset,
    filled,
    listing,
    nothing,
    path_to,
    reading,
    writing,
)
from agentstate_client.models import Lock, Page, Replay, Session


def create(
    *,
    key: str | None = None,
    agent: str | None = None,
    subject: str | None = None,
    title: str | None = None,
    labels: Mapping[str, str] | None = None,
    metadata: Mapping[str, Any] | None = None,
    state: Mapping[str, Any] | None = None,
    expires_at: datetime | str | None = None,
    idempotency_key: str | None = None,
) -> Call[Session]:
    """Create a session; with a `key` in use already, return the session that has it.

    `key` is your own name for it, unique in the project.
    """
    body = filled(
        key=key,
        agent=agent,
        subject=subject,
        title=title,
        labels=labels,
        metadata=metadata,
        state=state,
        expires_at=None if expires_at is None else codec.to_wire(expires_at),
    )
    return writing(
        "POST",
        path_to("sessions"),
        Session.from_json,
        body,
        idempotency_key=idempotency_key,
    )


def get(session_id: str) -> Call[Session]:
    """Return one session, its state included."""
    return reading(path_to("sessions", session_id), Session.from_json)


def list_page(
    *,
    key: str | None = None,
    agent: str | None = None,
    subject: str | None = None,
    status: str | None = None,
    labels: Mapping[str, str] | None = None,
    q: str | None = None,
    updated_since: datetime | str | None = None,
    parent: str | None = None,
    limit: int | None = None,
    cursor: str | None = None,
) -> Call[Page[Session]]:
    """List sessions, newest first, without their state.

    All of `labels` must hold; `q` is searched for in titles and keys; `parent` gives
    the forks of a session.
    """
    params = {
        "key": key,
        "agent": agent,
        "subject": subject,
        "status": status,
        "label": [f"{name}:{value}" for name, value in (labels or {}).items()],
        "q": q,
        "updated_since": codec.to_wire(updated_since) if updated_since else None,
        "parent": parent,
        "limit": limit,
        "cursor": cursor,
    }
    return listing(path_to("sessions"), Session.from_json, params)


def update(
    session_id: str,
    *,
    title: str | None = None,
    agent: str | None = None,
    labels: Mapping[str, str] | None = None,
    metadata: Mapping[str, Any] | None = None,
    expires_at: datetime | str | None | Unset = UNSET,
    lock_token: str | None = None,
    idempotency_key: str | None = None,
) -> Call[Session]:
    """Change what a session is called and filed under; what is not given stays.

    `expires_at` None takes the expiry away.
    """
    body = filled(title=title, agent=agent, labels=labels, metadata=metadata)
    if expires_at is not UNSET:
        body["expires_at"] = None if expires_at is None else codec.to_wire(expires_at)
    return writing(
        "PATCH",
        path_to("sessions", session_id),
        Session.from_json,
        body,
        idempotency_key=idempotency_key,
        headers={LOCK_TOKEN: lock_token},
    )


def close(
    session_id: str,
    *,
    reason: str | None = None,
    lock_token: str | None = None,
    idempotency_key: str | None = None,
) -> Call[Session]:
    """Close a session: it takes no more writes until it is reopened."""
    return _move(session_id, "close", reason, lock_token, idempotency_key)


def reopen(
    session_id: str,
    *,
    reason: str | None = None,
    lock_token: str | None = None,
    idempotency_key: str | None = None,
) -> Call[Session]:
    """Let a closed session take writes again."""
    return _move(session_id, "reopen", reason, lock_token, idempotency_key)


def _move(
    session_id: str,
    move: str,
    reason: str | None,
    lock_token: str | None,
    idempotency_key: str | None,
) -> Call[Session]:
    return writing(
        "POST",
        path_to("sessions", session_id, move),
        Session.from_json,
        filled(reason=reason),
        idempotency_key=idempotency_key,
        headers={LOCK_TOKEN: lock_token},
    )


def erase(
    session_id: str,
    *,
    lock_token: str | None = None,
    idempotency_key: str | None = None,
) -> Call[None]:
    """Erase a session, its log and all that was made of it, for good."""
    return writing(
        "DELETE",
        path_to("sessions", session_id),
        nothing,
        idempotency_key=idempotency_key,
        headers={LOCK_TOKEN: lock_token},
    )


def fork(
    session_id: str,
    at_seq: int,
    *,
    key: str | None = None,
    agent: str | None = None,
    title: str | None = None,
    labels: Mapping[str, str] | None = None,
    metadata: Mapping[str, Any] | None = None,
    expires_at: datetime | str | None = None,
    idempotency_key: str | None = None,
) -> Call[Session]:
    """Return a new session that begins with this one's log up to `at_seq`."""
    body = filled(
        at_seq=at_seq,
        key=key,
        agent=agent,
        title=title,
        labels=labels,
        metadata=metadata,
        expires_at=None if expires_at is None else codec.to_wire(expires_at),
    )
    return writing(
        "POST",
        path_to("sessions", session_id, "fork"),
        Session.from_json,
        body,
        idempotency_key=idempotency_key,
    )


def lock(
    session_id: str,
    *,
    ttl_s: int | None = None,
    holder: str | None = None,
    lock_token: str | None = None,
    idempotency_key: str | None = None,
) -> Call[Lock]:
    """Take the session's lock for `ttl_s` seconds; with its `lock_token`, extend it.

    While it is held, writes without its token raise SessionLocked.
    """
    return writing(
        "POST",
        path_to("sessions", session_id, "lock"),
        Lock.from_json,
        filled(ttl_s=ttl_s, holder=holder),
        idempotency_key=idempotency_key,
        headers={LOCK_TOKEN: lock_token},
    )


def unlock(
    session_id: str, lock_token: str, *, idempotency_key: str | None = None
) -> Call[None]:
    """Give the session's lock back."""
    return writing(
        "DELETE",
        path_to("sessions", session_id, "lock"),
        nothing,
        idempotency_key=idempotency_key,
        headers={LOCK_TOKEN: lock_token},
    )


def replay(
    session_id: str,
    at_seq: int,
    *,
    before_seq: int | None = None,
    limit: int | None = None,
) -> Call[Replay]:
    """Return the session as it was after event `at_seq`.

    The conversation is its newest `limit` records up to there; `before_seq` pages back.
    """
    params = {"at_seq": at_seq, "before_seq": before_seq, "limit": limit}
    return reading(path_to("sessions", session_id, "replay"), Replay.from_json, params)
