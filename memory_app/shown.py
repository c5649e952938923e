"""Facts and their history as they are shown, over the API and in exports."""

from typing import Any

from memory_app.models import Fact, FactRevision, FactSource
from memory_app.services import Remembered
from sessions_app.log import iso


def fact_json(fact: Fact) -> dict[str, Any]:
    """Return a fact as FactOut describes it."""
    return {
        "id": str(fact.id),
        "subject": fact.subject,
        "fact": fact.fact,
        "key": fact.key,
        "kind": fact.kind,
        "status": fact.status,
        "version": fact.version,
        "source": {
            "kind": fact.source_kind,
            "session": fact.source_session or None,
            "agent": fact.source_agent,
            "seqs": fact.source_seqs,
        },
        "seen_count": fact.seen_count,
        "confidence": fact.confidence,
        "pinned": fact.pinned,
        "metadata": fact.metadata,
        "valid_from": iso(fact.valid_from),
        "valid_to": iso(fact.valid_to),
        "expires_at": iso(fact.expires_at),
        "superseded_by": _id(fact.superseded_by),
        "duplicate_of": _id(fact.duplicate_of),
        "conflicts_with": _id(fact.conflicts_with),
        "note": fact.note,
        "settled_by": fact.settled_by,
        "embedding": fact.embedding_error or "ok",
        "created_by": fact.created_by,
        "created_at": iso(fact.created_at),
        "updated_at": iso(fact.updated_at),
    }


def remembered_json(result: Remembered) -> dict[str, Any]:
    return fact_json(result.fact) | {
        "outcome": result.outcome,
        "superseded": str(result.superseded) if result.superseded else None,
    }


def _id(value: Any) -> str | None:
    return str(value) if value else None


def revision_json(revision: FactRevision) -> dict[str, Any]:
    return {
        "version": revision.version,
        "action": revision.action,
        "changes": revision.changes,
        "actor": revision.actor,
        "reason": revision.reason,
        "created_at": iso(revision.created_at),
    }


def source_json(source: FactSource) -> dict[str, Any]:
    return {
        "kind": source.kind,
        "session": source.session or None,
        "seqs": source.seqs,
        "said_at": iso(source.said_at),
        "actor": source.actor,
    }
