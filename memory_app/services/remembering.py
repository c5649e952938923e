"""New facts: told once or again, and what they do to those that say otherwise."""

from collections.abc import Sequence
from copy import copy
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db import connection, transaction
from django.db.models import Max, Q

from access_app.services import record_audit
from agentstate.clock import db_now
from agentstate.errors import FieldError
from agentstate.ids import new_id
from memory_app.models import Fact, FactSource, SourceKind, Status
from memory_app.policy import ACTIVE, OFF, REVIEW, Policy, policy_of
from memory_app.recall.tokens import fact_terms
from memory_app.services.burying import check_not_forgotten
from memory_app.services.told import NewFact, Remembered
from memory_app.services.writing import (
    TRACKED,
    add_revision,
    change,
    embed_new,
    lock_subject,
    tracked,
    twin_of,
)
from memory_app.text import content_hash, derive_key, signature

# Whose word counts for more.
WEIGHTS = {SourceKind.AGENT: 0, SourceKind.USER: 1, SourceKind.STAFF: 2}
# What a fact takes from who says it again with more weight.
CONFIRMED = tuple(name for name in TRACKED if name not in ("conflicts_with", "note"))


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
    results = []
    for at, new in enumerate(facts):
        version = versions[new.subject]
        try:
            result = _remember(project_id, new, version, now, actor, policy.remember)
        except FieldError as exc:
            if len(facts) == 1:
                raise
            path = f"facts[{at}].{exc.path}"
            raise FieldError(path, exc.field_code, exc.field_detail) from exc
        results.append(result)
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
    choice = live.get(new.source_kind, REVIEW)
    if new.wants_review and choice != OFF:
        choice = REVIEW
    known = _known(project_id, new)
    if known is not None and _is_over(known, new, now):
        change(known, {"status": Status.EXPIRED}, "expired", actor, "", version)
        known = None
    if known is not None:
        _see_again(known, new, version, now, actor)
        retired = None
        if choice == ACTIVE and _weight(new.source_kind) > _weight(known.source_kind):
            retired = _confirm(known, new, version, now, actor)
        return Remembered(known, "seen", retired.id if retired else None)
    fact = _unsaved(project_id, new, version, now, actor)
    if choice == OFF:
        detail = f"this project keeps nothing from {new.source_kind} sources"
        raise FieldError("source.kind", "not_kept", detail)
    fact.status = Status.PROPOSED if choice == REVIEW else Status.ACTIVE
    outcome, retired = _settle(fact, new, now)
    _insert(fact, new, now, actor)
    if retired is not None:
        supersede(retired, fact, version, actor)
    return Remembered(fact, outcome, retired.id if retired else None)


def _is_over(known: Fact, new: NewFact, now: datetime) -> bool:
    """Whether a known fact has ended, and is said to hold now."""

    def has_passed(*times: datetime | None) -> bool:
        return any(time is not None and time <= now for time in times)

    return has_passed(known.valid_to, known.expires_at) and not has_passed(
        new.valid_to, new.expires_at
    )


def _weight(source_kind: str) -> int:
    return WEIGHTS[SourceKind(source_kind)]


def _confirm(
    known: Fact, new: NewFact, version: int, now: datetime, actor: str
) -> Fact | None:
    """Let who counts for more say what was known; return the fact that it retires.

    What waited for a person goes live, unless it contradicts what this may not retire.
    """
    wanted = copy(known)
    wanted.source_kind = new.source_kind
    given = 1.0 if new.confidence is None else new.confidence
    wanted.confidence = max(known.confidence, given)
    if new.source_kind == SourceKind.STAFF:
        wanted.settled_by = actor
        known.settled_at = wanted.settled_at = now
    retired = None
    if known.status == Status.PROPOSED:
        waiting = copy(wanted)
        wanted.status = Status.ACTIVE
        wanted.valid_from = new.valid_from or new.said_at or now
        outcome, retired = _settle(wanted, new, now)
        if outcome != "created":
            wanted = waiting
    values = {name: getattr(wanted, name) for name in CONFIRMED}
    if wanted.status == Status.ACTIVE:
        values["conflicts_with"] = None
    change(known, values, "confirmed", actor, "", version)
    if retired is not None:
        supersede(retired, known, version, actor)
    return retired


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
    is_settled = new.settled or new.source_kind == SourceKind.STAFF
    begins = new.valid_from or new.said_at or now
    if new.valid_to is not None and new.valid_to < begins:
        detail = "this is before valid_from, which is now if it is not given"
        raise FieldError("valid_to", "out_of_range", detail)
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
        valid_from=begins,
        valid_to=new.valid_to,
        expires_at=new.expires_at,
        note=new.note,
        settled_by=actor if is_settled else "",
        settled_at=now if is_settled else None,
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
) -> None:
    """Count one more source of a fact. What the fact says stays, so its version too."""
    if not _add_source(fact, new, now, actor):
        return
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


def rivals_of(fact: Fact) -> list[Fact]:
    """Active facts of the same subject and key that say something else of a time at
    which this one holds too."""
    if not fact.key:
        return []
    begins, ends = fact.valid_from, fact.valid_to
    rivals = (
        Fact.objects.in_project(fact.project_id)
        .about(fact.subject)
        .filter(
            Q(valid_to=None) | Q(valid_to__gt=begins),
            Q(expires_at=None) | Q(expires_at__gt=begins),
            key=fact.key,
            status=Status.ACTIVE,
        )
        .exclude(id=fact.id)
    )
    if ends is not None:
        rivals = rivals.filter(valid_from__lt=ends)
    return list(rivals.order_by("-valid_from", "-id"))


def _settle(fact: Fact, new: NewFact, now: datetime) -> tuple[str, Fact | None]:
    """Decide between a new fact and what it contradicts; return the one it retires."""
    waiting = "review" if fact.status == Status.PROPOSED else "created"
    rivals = _before_planned(fact, rivals_of(fact), now)
    if not rivals:
        return waiting, None
    rival = rivals[0]
    fact.conflicts_with = rival.id
    if fact.valid_from < rival.valid_from or _was_settled_since(rival, new, now):
        _mark_outdated(fact, rival)
        return "outdated", None
    if fact.status == Status.PROPOSED or not _may_retire(fact, rivals):
        fact.status = Status.PROPOSED
        return "review", None
    fact.conflicts_with = None
    return "created", rival


def _before_planned(fact: Fact, rivals: list[Fact], now: datetime) -> list[Fact]:
    """Let the fact end where one begins that is yet to come; return the others."""
    planned = [r for r in rivals if r.valid_from > max(now, fact.valid_from)]
    if planned:
        fact.valid_to = planned[-1].valid_from
    return [rival for rival in rivals if rival not in planned]


def _was_settled_since(rival: Fact, new: NewFact, now: datetime) -> bool:
    """Whether the rival was corrected, or said again, after the new one was said."""
    said_at = now if new.said_at is None else new.said_at
    if rival.settled_at is not None and said_at < rival.settled_at:
        return True
    if new.valid_from is not None or rival.seen_count == 1:
        return False
    no_less = [k for k, weight in WEIGHTS.items() if weight >= _weight(new.source_kind)]
    last = FactSource.objects.filter(
        project_id=rival.project_id, memory_id=rival.id, kind__in=no_less
    ).aggregate(last=Max("said_at"))["last"]
    return last is not None and said_at < last


def _mark_outdated(fact: Fact, rival: Fact) -> None:
    fact.status = Status.SUPERSEDED
    fact.superseded_by = rival.id
    fact.valid_to = end_of(fact, rival)
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


def end_of(old: Fact, by: Fact) -> datetime:
    """When a fact ends that gives way to another: no later than it does anyway."""
    ends = max(by.valid_from, old.valid_from)
    return ends if old.valid_to is None else min(ends, old.valid_to)


def supersede(old: Fact, by: Fact, version: int, actor: str, reason: str = "") -> None:
    """Let `old` give way to `by`: at once, or when that begins, if it is yet to."""
    values: dict[str, Any] = {"valid_to": end_of(old, by)}
    if by.valid_from <= db_now():
        values |= {"status": Status.SUPERSEDED, "superseded_by": by.id}
    change(old, values, "superseded", actor, reason, version)
