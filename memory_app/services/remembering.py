"""New facts: told once or again, and what they do to those that say otherwise."""

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from django.db import connection, transaction

from access_app.services import record_audit
from agentstate.clock import db_now
from agentstate.errors import FieldError
from agentstate.ids import new_id
from memory_app.models import Fact, FactSource, SourceKind, Status
from memory_app.policy import OFF, REVIEW, Policy, policy_of
from memory_app.recall.tokens import fact_terms
from memory_app.services.burying import check_not_forgotten
from memory_app.services.told import NewFact, Remembered
from memory_app.services.writing import (
    add_revision,
    change,
    embed_new,
    lock_subject,
    tracked,
    twin_of,
)
from memory_app.text import content_hash, derive_key, signature


def remember(
    project_id: UUID, new: NewFact, *, actor: str, policy: Policy | None = None
) -> Remembered:
    """Keep a fact, or count it once more if the subject has it already.

    A fact of the same key that says something else is superseded when the subject or
    staff said so later; an agent's contradiction waits for review. Raises FieldError.
    """
    [result] = remember_all(project_id, [new], actor=actor, policy=policy)
    return result


@transaction.atomic
def remember_all(
    project_id: UUID,
    facts: Sequence[NewFact],
    *,
    actor: str,
    policy: Policy | None = None,
) -> list[Remembered]:
    """Remember all of `facts` or none, in their order."""
    policy = policy or policy_of(project_id)
    # In one order for all callers: two batches over the same subjects take turns.
    versions = {
        subject: lock_subject(project_id, subject)
        for subject in sorted({new.subject for new in facts})
    }
    now = db_now()
    results = [
        _remember(project_id, new, versions[new.subject], now, actor, policy.remember)
        for new in facts
    ]
    embed_new(project_id, [result.fact for result in results if result.is_new])
    return results


@transaction.atomic
def promote_fact(
    project_id: UUID, new: NewFact, *, actor: str, policy: Policy
) -> Remembered | None:
    """Remember what a promotion found; None if it was known from there already.

    Raises SubjectForgotten for what was forgotten, rejected or corrected since.
    """
    version = lock_subject(project_id, new.subject)
    check_not_forgotten(project_id, new)
    if _is_known_from(project_id, new):
        return None
    result = _remember(project_id, new, version, db_now(), actor, policy.promote)
    if result.is_new:
        embed_new(project_id, [result.fact])
    return result


def _remember(
    project_id: UUID,
    new: NewFact,
    version: int,
    now: datetime,
    actor: str,
    live: dict[str, str],
) -> Remembered:
    known = _known(project_id, new)
    if known is not None:
        return Remembered(_see_again(known, new, version, now, actor), "seen")
    fact = _unsaved(project_id, new, version, now, actor)
    choice = live.get(new.source_kind, REVIEW)
    if choice == OFF:
        detail = f"this project keeps nothing from {new.source_kind} sources"
        raise FieldError("source_kind", "not_kept", detail)
    fact.status = Status.PROPOSED if choice == REVIEW else Status.ACTIVE
    rivals = rivals_of(fact)
    outcome, retired = _settle(
        fact, rivals, now if new.said_at is None else new.said_at
    )
    _insert(fact, new, now, actor)
    if retired is not None:
        supersede(retired, fact, version, actor)
    return Remembered(fact, outcome, retired.id if retired else None)


def _known(project_id: UUID, new: NewFact) -> Fact | None:
    return (
        Fact.objects.in_project(project_id)
        .about(new.subject)
        .current()
        .filter(content_hash=content_hash(new.fact))
        .first()
    )


def _is_known_from(project_id: UUID, new: NewFact) -> bool:
    """Whether a fact of any status was taken from these very events before."""
    hashed = content_hash(new.fact)
    return FactSource.objects.filter(
        project_id=project_id,
        session=new.session,
        seqs=list(new.seqs),
        memory__subject=new.subject,
        memory__content_hash=hashed,
    ).exists()


def _unsaved(
    project_id: UUID, new: NewFact, version: int, now: datetime, actor: str
) -> Fact:
    default_confidence = 0.6 if new.source_kind == SourceKind.AGENT else 1.0
    return Fact(
        id=new_id(),
        project_id=project_id,
        subject=new.subject,
        fact=new.fact,
        key=derive_key(new.fact) if new.key is None else new.key,
        kind=new.kind,
        source_kind=new.source_kind,
        source_session=new.session,
        source_agent=new.agent,
        source_seqs=list(new.seqs),
        last_seen_at=now,
        confidence=default_confidence if new.confidence is None else new.confidence,
        pinned=new.pinned,
        metadata=new.metadata,
        valid_from=new.valid_from or new.said_at or now,
        valid_to=new.valid_to,
        expires_at=new.expires_at,
        note=new.note,
        settled_by=actor if new.source_kind == SourceKind.STAFF else "",
        settled_at=now if new.source_kind == SourceKind.STAFF else None,
        content_hash=content_hash(new.fact),
        signature=signature(new.fact),
        terms=fact_terms(new.fact),
        subject_version=version,
        created_by=actor,
        created_at=now,
        updated_at=now,
    )


def _insert(fact: Fact, new: NewFact, now: datetime, actor: str) -> None:
    fact.duplicate_of = twin_of(fact)
    fact.save(force_insert=True)
    _add_source(fact, new, now, actor)
    changes = {
        name: [None, shown]
        for name, shown in tracked(fact).items()
        if shown not in (None, "", {}, False)
    }
    add_revision(fact, "remembered", changes, actor, "")


def _add_source(fact: Fact, new: NewFact, now: datetime, actor: str) -> bool:
    """Note that the fact was said here; False if that was known."""
    with connection.cursor() as cursor:
        cursor.execute(
            """
            INSERT INTO agent_memory_sources (
                project_id, subject, memory_id, kind, session, seqs, said_at, actor,
                created_at
            ) VALUES (%s, %s, %s, %s, %s, %s::bigint[], %s, %s, %s)
            ON CONFLICT DO NOTHING
            """,
            [
                fact.project_id,
                fact.subject,
                fact.id,
                new.source_kind,
                new.session,
                list(new.seqs),
                new.said_at or now,
                actor,
                now,
            ],
        )
        return bool(cursor.rowcount)


def _see_again(
    fact: Fact, new: NewFact, version: int, now: datetime, actor: str
) -> Fact:
    """Count one more source of a fact. What the fact says stays, so its version too."""
    if not _add_source(fact, new, now, actor):
        return fact
    fact.seen_count += 1
    fact.last_seen_at = now
    fact.subject_version = version
    fact.save(update_fields=["seen_count", "last_seen_at", "subject_version"])
    record_audit(
        fact.project_id,
        actor,
        "memory.seen",
        f"memory:{fact.id}",
        after={"seen_count": fact.seen_count},
    )
    return fact


def rivals_of(fact: Fact) -> list[Fact]:
    """Active facts of the same subject and key that say something else."""
    if not fact.key:
        return []
    return list(
        Fact.objects.in_project(fact.project_id)
        .about(fact.subject)
        .filter(key=fact.key, status=Status.ACTIVE)
        .exclude(id=fact.id)
        .order_by("-valid_from", "-id")
    )


def _settle(
    fact: Fact, rivals: list[Fact], said_at: datetime
) -> tuple[str, Fact | None]:
    """Decide between a new fact and what it contradicts; return the one it retires."""
    waiting = "review" if fact.status == Status.PROPOSED else "created"
    if not rivals:
        return waiting, None
    rival = rivals[0]
    fact.conflicts_with = rival.id
    if fact.valid_from < rival.valid_from or (
        rival.settled_at is not None and said_at < rival.settled_at
    ):
        _mark_outdated(fact, rival)
        return "outdated", None
    if fact.status == Status.PROPOSED or not _may_retire(fact, rivals):
        fact.status = Status.PROPOSED
        return "review", None
    fact.conflicts_with = None
    return "created", rival


def _mark_outdated(fact: Fact, rival: Fact) -> None:
    fact.status = Status.SUPERSEDED
    fact.superseded_by = rival.id
    fact.valid_to = max(rival.valid_from, fact.valid_from)
    fact.note = fact.note or "older than what is known"


def _may_retire(fact: Fact, rivals: list[Fact]) -> bool:
    """Whether a fact retires its rival without a person: one, and of no more weight."""
    if len(rivals) > 1:
        return False
    rival = rivals[0]
    if fact.source_kind == SourceKind.STAFF:
        return True
    if rival.settled_by:
        return False
    return fact.source_kind == SourceKind.USER or rival.source_kind == SourceKind.AGENT


def supersede(old: Fact, by: Fact, version: int, actor: str) -> None:
    changes = {
        "status": Status.SUPERSEDED,
        "superseded_by": by.id,
        "valid_to": max(by.valid_from, old.valid_from),
    }
    change(old, changes, "superseded", actor, "", version)
