"""Long-term memory: facts about a subject, remembered, recalled and forgotten."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from agentstate_client.call import Call, filled, listing, path_to, reading, writing
from agentstate_client.facts import (
    Fact,
    ForgetReceipt,
    RecalledFact,
    Remembered,
    Revision,
)
from agentstate_client.models import Page


def remember(
    subject: str,
    fact: str,
    *,
    key: str | None = None,
    kind: str | None = None,
    session: str | None = None,
    seqs: Sequence[int] | None = None,
    said_by: str | None = None,
    confidence: float | None = None,
    pinned: bool | None = None,
    metadata: Mapping[str, Any] | None = None,
    expires_at: datetime | None = None,
    idempotency_key: str | None = None,
) -> Call[Remembered]:
    """Remember a fact about `subject`; one that is known is counted once more.

    `session` and `seqs` say where it was said, `said_by` by whom: user, agent or staff.
    """
    source = filled(session=session, seqs=seqs, kind=said_by)
    body = filled(
        subject=subject,
        fact=fact,
        key=key,
        kind=kind,
        source=source or None,
        confidence=confidence,
        pinned=pinned,
        metadata=metadata,
        expires_at=expires_at.isoformat() if expires_at else None,
    )
    return writing(
        "POST",
        path_to("memory"),
        Remembered.from_json,
        body,
        idempotency_key=idempotency_key,
    )


def recall(
    subject: str,
    query: str | None = None,
    *,
    limit: int | None = None,
    mode: str | None = None,
    as_of: datetime | None = None,
) -> Call[Page[RecalledFact]]:
    """Return what is known about `subject` that fits `query`, best first.

    Without a query: what is pinned, then what is most recent.
    """
    return listing(
        path_to("memory", "recall"),
        RecalledFact.from_json,
        {
            "subject": subject,
            "q": query,
            "limit": limit,
            "mode": mode,
            "as_of": as_of.isoformat() if as_of else None,
        },
    )


def get(fact_id: str) -> Call[Fact]:
    """Return one fact."""
    return reading(path_to("memory", fact_id), Fact.from_json)


def list_page(
    *,
    subject: str | None = None,
    status: str | None = None,
    limit: int | None = None,
    cursor: str | None = None,
) -> Call[Page[Fact]]:
    """Return one page of facts, newest first; `status="proposed"` is the queue."""
    params = {"subject": subject, "status": status, "limit": limit, "cursor": cursor}
    return listing(path_to("memory"), Fact.from_json, params)


def correct(
    fact_id: str,
    fact: str,
    expected_version: int,
    *,
    reason: str = "",
    idempotency_key: str | None = None,
) -> Call[Fact]:
    """Give a fact another text, if it still has the version that you read.

    Otherwise ConcurrentModificationError says which version it has now.
    """
    body = {"fact": fact, "expected_version": expected_version, "reason": reason}
    return writing(
        "PATCH",
        path_to("memory", fact_id),
        Fact.from_json,
        body,
        idempotency_key=idempotency_key,
    )


def approve(
    fact_id: str,
    expected_version: int,
    *,
    reason: str = "",
    idempotency_key: str | None = None,
) -> Call[Fact]:
    """Make a proposed fact active. As `correct`."""
    return _move("approve", fact_id, expected_version, reason, idempotency_key)


def reject(
    fact_id: str,
    expected_version: int,
    *,
    reason: str = "",
    idempotency_key: str | None = None,
) -> Call[Fact]:
    """Say that a fact is wrong; no promotion proposes it again. As `correct`."""
    return _move("reject", fact_id, expected_version, reason, idempotency_key)


def _move(
    move: str, fact_id: str, version: int, reason: str, idempotency_key: str | None
) -> Call[Fact]:
    return writing(
        "POST",
        path_to("memory", fact_id, move),
        Fact.from_json,
        {"expected_version": version, "reason": reason},
        idempotency_key=idempotency_key,
    )


def forget(
    fact_id: str,
    *,
    everywhere: bool = False,
    reason: str = "",
    idempotency_key: str | None = None,
) -> Call[ForgetReceipt]:
    """Forget a fact for good; `everywhere`: also where it was said, and its traces."""
    scope = "everywhere" if everywhere else "fact"
    return writing(
        "POST",
        path_to("memory", fact_id, "forget"),
        ForgetReceipt.from_json,
        {"scope": scope, "reason": reason},
        idempotency_key=idempotency_key,
    )


def forget_subject(
    subject: str,
    *,
    dry_run: bool = False,
    reason: str = "",
    idempotency_key: str | None = None,
) -> Call[ForgetReceipt]:
    """Forget all about a subject, what was said in its sessions included."""
    return writing(
        "POST",
        path_to("subjects", subject, "forget"),
        ForgetReceipt.from_json,
        {"dry_run": dry_run, "reason": reason},
        idempotency_key=idempotency_key,
    )


def history(
    fact_id: str, *, limit: int | None = None, cursor: str | None = None
) -> Call[Page[Revision]]:
    """Return who changed a fact, when and why, newest first."""
    params = {"limit": limit, "cursor": cursor}
    return listing(path_to("memory", fact_id, "history"), Revision.from_json, params)
