"""The only writes to facts. Each takes the subject's row first, so that the writes to
one subject follow one another, and leaves a revision and an audit entry.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from django.db import IntegrityError, connection, transaction

from access_app.services import record_audit
from agentstate.clock import Now, db_now
from agentstate.errors import FieldError
from agentstate.ids import new_id
from memory_app.embedding.vectors import embed_now, is_inline
from memory_app.errors import (
    BadMove,
    FactConflict,
    FactExists,
    FactNotFound,
    PreconditionRequired,
    SubjectForgotten,
)
from memory_app.models import (
    CURRENT,
    EmbeddingModel,
    Fact,
    FactEmbedding,
    FactRevision,
    FactSource,
    ForgottenSource,
    Kind,
    SourceKind,
    Status,
    Tombstone,
)
from memory_app.policy import OFF, REVIEW, Policy, policy_of
from memory_app.recall.tokens import fact_terms
from memory_app.text import (
    content_hash,
    derive_key,
    secret_hash,
    signature,
)
from sessions_app.log import iso

# What a revision tells of: all that says what a fact is, nothing that is derived.
TRACKED = (
    "fact",
    "key",
    "kind",
    "status",
    "source_kind",
    "confidence",
    "pinned",
    "metadata",
    "valid_from",
    "valid_to",
    "expires_at",
    "superseded_by",
    "conflicts_with",
    "note",
    "settled_by",
)
CORRECTABLE = (
    "fact",
    "key",
    "kind",
    "confidence",
    "pinned",
    "metadata",
    "valid_from",
    "valid_to",
    "expires_at",
    "note",
)
FORGOTTEN, REJECTED, CORRECTED = "forgotten", "rejected", "corrected"


@dataclass(frozen=True)
class NewFact:
    """A fact to remember. `session` and `seqs` say where it was said.

    `said_at` is when (the event's own time); `valid_from` since when it holds, if that
    is another time. `key` None: derived from the wording where that is certain.
    """

    subject: str
    fact: str
    key: str | None = None
    kind: str = Kind.OTHER
    source_kind: str = SourceKind.USER
    session: str = ""
    agent: str = ""  # that talked there
    seqs: tuple[int, ...] = ()
    confidence: float | None = None
    pinned: bool = False
    metadata: dict[str, Any] = field(default_factory=dict)
    said_at: datetime | None = None
    valid_from: datetime | None = None
    valid_to: datetime | None = None
    expires_at: datetime | None = None
    note: str = ""


class Remembered(NamedTuple):
    """The fact, and what became of it.

    `outcome`: created; seen (it was known); outdated (something newer is known);
    review (a person decides).
    """

    fact: Fact
    outcome: str
    superseded: UUID | None = None

    @property
    def is_new(self) -> bool:
        return self.outcome != "seen"


def lock_subject(project_id: UUID, subject: str, *, erasing: bool = False) -> int:
    """Take the subject's row and return its new version, in the caller's transaction.

    Versions come from one sequence, so that none is used twice even by a subject that
    was forgotten and began anew. `erasing` marks that rows are deleted.
    """
    with connection.cursor() as cursor:
        cursor.execute(
            """
            INSERT INTO agent_memory_subjects AS s
                (project_id, subject, version, erased_version)
            VALUES (%(project)s, %(subject)s, nextval('agent_memory_versions'), 0)
            ON CONFLICT (project_id, subject) DO UPDATE
            SET version = nextval('agent_memory_versions'),
                erased_version = CASE WHEN %(erasing)s
                    THEN currval('agent_memory_versions') ELSE s.erased_version END
            RETURNING version
            """,
            {"project": project_id, "subject": subject, "erasing": erasing},
        )
        version: int = cursor.fetchone()[0]
    return version


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
    _embed_new(project_id, results)
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
    _embed_new(project_id, [result])
    return result


def _embed_new(project_id: UUID, results: Iterable[Remembered]) -> None:
    created = [r.fact for r in results if r.is_new]
    if not created:
        return
    if is_inline():
        embed_now(project_id, created)
    else:
        from memory_app.jobs import defer_embedding

        # Whatever becomes of the job, the sweep sees that there is something to do.
        EmbeddingModel.objects.filter(project_id=project_id, is_complete=True).update(
            is_complete=False
        )
        defer_embedding(project_id)


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
    rivals = _rivals(fact)
    outcome, retired = _settle(
        fact, rivals, now if new.said_at is None else new.said_at
    )
    _insert(fact, new, now, actor)
    if retired is not None:
        _supersede(retired, fact, version, actor)
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


def _rivals(fact: Fact) -> list[Fact]:
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


def _insert(fact: Fact, new: NewFact, now: datetime, actor: str) -> None:
    fact.duplicate_of = _twin(fact)
    fact.save(force_insert=True)
    _add_source(fact, new, now, actor)
    changes = {
        name: [None, shown]
        for name, shown in tracked(fact).items()
        if shown not in (None, "", {}, False)
    }
    _add_revision(fact, "remembered", changes, actor, "")


def _twin(fact: Fact) -> UUID | None:
    """The current fact that says the same in other words, if there is one."""
    twin = (
        Fact.objects.in_project(fact.project_id)
        .about(fact.subject)
        .current()
        .filter(signature=fact.signature)
        .exclude(id=fact.id)
        .order_by("id")
        .first()
    )
    return (twin.duplicate_of or twin.id) if twin else None


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


def _supersede(old: Fact, by: Fact, version: int, actor: str) -> None:
    changes = {
        "status": Status.SUPERSEDED,
        "superseded_by": by.id,
        "valid_to": max(by.valid_from, old.valid_from),
    }
    change(old, changes, "superseded", actor, "", version)


def tracked(fact: Fact) -> dict[str, Any]:
    """Return the fact's tracked fields as JSON values."""
    return {name: _shown(getattr(fact, name)) for name in TRACKED}


def _shown(value: Any) -> Any:
    if isinstance(value, datetime):
        return iso(value)
    return str(value) if isinstance(value, UUID) else value


def change(
    fact: Fact,
    values: dict[str, Any],
    action: str,
    actor: str,
    reason: str,
    version: int,
) -> bool:
    """Set `values`, with a revision and an audit entry; False if nothing differs.

    In the caller's transaction, which holds the subject's row and has `version` of it.
    """
    before = tracked(fact)
    for name, value in values.items():
        setattr(fact, name, value)
    changes = {
        name: [before[name], shown]
        for name, shown in tracked(fact).items()
        if shown != before[name]
    }
    if not changes:
        return False
    fact.version += 1
    fact.subject_version = version
    fact.updated_at = db_now()
    if "fact" in changes:
        _reword(fact)
    try:
        with transaction.atomic():
            fact.save(force_update=True)
    except IntegrityError as exc:
        raise _exists(fact) from exc
    if "status" in changes:
        FactEmbedding.objects.filter(
            project_id=fact.project_id, memory_id=fact.id
        ).update(is_current=fact.status == Status.ACTIVE)
    _add_revision(fact, action, changes, actor, reason)
    return True


def _reword(fact: Fact) -> None:
    """Bring up to date what is derived from the text; its old vectors go."""
    fact.content_hash = content_hash(fact.fact)
    fact.signature = signature(fact.fact)
    fact.terms = fact_terms(fact.fact)
    fact.duplicate_of = _twin(fact)
    FactEmbedding.objects.filter(project_id=fact.project_id, memory_id=fact.id).delete()


def _exists(fact: Fact) -> FactExists:
    other = (
        Fact.objects.in_project(fact.project_id)
        .about(fact.subject)
        .current()
        .filter(content_hash=fact.content_hash)
        .exclude(id=fact.id)
        .first()
    )
    return FactExists(id=str(other.id) if other else None)


def _add_revision(
    fact: Fact, action: str, changes: dict[str, Any], actor: str, reason: str
) -> None:
    FactRevision.objects.create(
        project_id=fact.project_id,
        subject=fact.subject,
        memory=fact,
        version=fact.version,
        action=action,
        changes=changes,
        actor=actor,
        reason=reason,
    )
    record_audit(
        fact.project_id,
        actor,
        f"memory.{action}",
        f"memory:{fact.id}",
        before={name: old for name, (old, _) in changes.items() if old is not None}
        or None,
        after={name: now for name, (_, now) in changes.items()},
        reason=reason,
    )


def get_fact(project_id: UUID, fact_id: UUID, *, subject: str | None = None) -> Fact:
    """Return the fact. `subject` narrows to that subject's; raises FactNotFound."""
    found = (
        Fact.objects.in_project(project_id)
        .visible_to(subject)
        .filter(id=fact_id)
        .first()
    )
    if found is None:
        raise FactNotFound
    return found


class Locked(NamedTuple):
    """A fact whose subject is locked, and the subject's new version."""

    fact: Fact
    version: int


def lock_fact(
    project_id: UUID,
    fact_id: UUID,
    expected_version: int | None,
    *,
    subject: str | None = None,
    any_version: bool = False,
    erasing: bool = False,
) -> Locked:
    """Lock the fact's subject and return the fact as it is then.

    Raises FactNotFound, PreconditionRequired, FactConflict with what changed since.
    """
    found = get_fact(project_id, fact_id, subject=subject)
    if expected_version is None and not any_version:
        raise PreconditionRequired
    version = lock_subject(project_id, found.subject, erasing=erasing)
    fact = get_fact(project_id, fact_id, subject=subject)
    if expected_version is not None and fact.version != expected_version:
        raise FactConflict(
            expected_version=expected_version,
            current_version=fact.version,
            changed_fields=changed_since(fact, expected_version),
        )
    return Locked(fact, version)


def changed_since(fact: Fact, version: int) -> list[str]:
    revisions = FactRevision.objects.filter(
        project_id=fact.project_id, memory=fact, version__gt=version
    )
    names = {name for revision in revisions for name in revision.changes}
    return sorted(names)


@transaction.atomic
def correct(
    project_id: UUID,
    fact_id: UUID,
    values: dict[str, Any],
    *,
    expected_version: int | None,
    actor: str,
    reason: str = "",
    subject: str | None = None,
    any_version: bool = False,
) -> Fact:
    """Change fields of CORRECTABLE if the fact is at `expected_version`.

    A corrected text is settled: no promotion from older talk replaces it, and none
    brings the old text back. Raises FactConflict, FactExists, BadMove.
    """
    fact, version = lock_fact(
        project_id,
        fact_id,
        expected_version,
        subject=subject,
        any_version=any_version,
    )
    if not fact.is_current:
        raise BadMove(
            f"A fact that is {fact.status} is history. Approve it, or remember anew.",
            status=fact.status,
        )
    values = {name: value for name, value in values.items() if name in CORRECTABLE}
    old_text = fact.fact
    says_otherwise = "fact" in values and values["fact"] != old_text
    if says_otherwise or ("key" in values and values["key"] != fact.key):
        values |= {"settled_by": actor}
        fact.settled_at = db_now()
    if "valid_to" in values or "valid_from" in values:
        _check_validity(fact, values)
    if says_otherwise:
        _bury_text(fact, CORRECTED)
    if change(fact, values, "corrected", actor, reason, version) and says_otherwise:
        _embed_new(project_id, [Remembered(fact, "created")])
    return fact


def _check_validity(fact: Fact, values: dict[str, Any]) -> None:
    begins = values.get("valid_from", fact.valid_from)
    ends = values.get("valid_to", fact.valid_to)
    if ends is not None and ends < begins:
        raise FieldError("valid_to", "out_of_range", "this is before valid_from")


@transaction.atomic
def approve(
    project_id: UUID,
    fact_id: UUID,
    *,
    expected_version: int | None,
    actor: str,
    reason: str = "",
    subject: str | None = None,
    any_version: bool = False,
) -> Fact:
    """Make a proposed or rejected fact active. It supersedes what it contradicts."""
    fact, version = lock_fact(
        project_id,
        fact_id,
        expected_version,
        subject=subject,
        any_version=any_version,
    )
    if fact.status == Status.ACTIVE:
        return fact
    if fact.status not in (Status.PROPOSED, Status.REJECTED):
        raise BadMove(f"A fact that is {fact.status} cannot be approved.")
    rivals = _rivals(fact)
    Tombstone.objects.filter(project_id=project_id, memory_id=fact.id).delete()
    ForgottenSource.objects.filter(project_id=project_id, memory_id=fact.id).delete()
    fact.settled_at = db_now()
    values = {"status": Status.ACTIVE, "conflicts_with": None, "settled_by": actor}
    change(fact, values, "approved", actor, reason, version)
    for rival in rivals:
        _supersede(rival, fact, version, actor)
    return fact


@transaction.atomic
def reject(
    project_id: UUID,
    fact_id: UUID,
    *,
    expected_version: int | None,
    actor: str,
    reason: str = "",
    subject: str | None = None,
    any_version: bool = False,
) -> Fact:
    """Say that a fact is wrong. No promotion proposes it again."""
    fact, version = lock_fact(
        project_id,
        fact_id,
        expected_version,
        subject=subject,
        any_version=any_version,
    )
    if fact.status == Status.REJECTED:
        return fact
    if not fact.is_current:
        raise BadMove(f"A fact that is {fact.status} cannot be rejected.")
    change(fact, {"status": Status.REJECTED}, "rejected", actor, reason, version)
    bury(fact, REJECTED)
    return fact


def bury(fact: Fact, cause: str) -> None:
    """Leave what keeps the fact from being learnt again from the talk it came from."""
    _bury_text(fact, cause)
    ForgottenSource.objects.bulk_create(
        [
            ForgottenSource(
                project_id=fact.project_id,
                session=source.session,
                seq=seq,
                kind=fact.kind,
                memory_id=fact.id,
            )
            for source in fact.sources.exclude(session="")
            for seq in source.seqs
        ],
        ignore_conflicts=True,
    )


def _bury_text(fact: Fact, cause: str) -> None:
    Tombstone.objects.bulk_create(
        [
            Tombstone(
                project_id=fact.project_id,
                subject_hash=subject_hash(fact.project_id, fact.subject),
                content_hash=secret_hash(content_hash(fact.fact)),
                signature=secret_hash(signature(fact.fact)),
                memory_id=fact.id,
                cause=cause,
            )
        ],
        ignore_conflicts=True,
    )


def subject_hash(project_id: UUID, subject: str) -> bytes:
    return secret_hash(project_id.bytes, subject)


def check_not_forgotten(project_id: UUID, new: NewFact) -> None:
    """Raise SubjectForgotten if `new` repeats what was forgotten, rejected, corrected.

    What was corrected stays away only as far as the talk is older than the correction.
    """
    hashed = subject_hash(project_id, new.subject)
    stones = Tombstone.objects.filter(project_id=project_id, subject_hash=hashed)
    found = stones.filter(
        content_hash=secret_hash(content_hash(new.fact))
    ) | stones.filter(signature=secret_hash(signature(new.fact)))
    for stone in found:
        if stone.cause != CORRECTED or (
            new.said_at is not None and new.said_at <= stone.created_at
        ):
            raise SubjectForgotten(cause=stone.cause)
    events = ForgottenSource.objects.filter(
        project_id=project_id,
        session=new.session,
        seq__in=new.seqs,
        kind=new.kind,
    )
    if new.session and events.exists():
        raise SubjectForgotten(cause=FORGOTTEN)


def expire_facts(limit: int = 500) -> int:
    """Mark facts whose time has passed; return how many. Reads know it before."""
    expired = Fact.objects.filter(
        status=Status.ACTIVE, expires_at__lte=Now()
    ).values_list("project_id", "id")[:limit]
    for project_id, fact_id in list(expired):
        _expire(project_id, fact_id)
    return len(expired)


@transaction.atomic
def _expire(project_id: UUID, fact_id: UUID) -> None:
    try:
        fact, version = lock_fact(project_id, fact_id, None, any_version=True)
    except FactNotFound:  # forgotten in between
        return
    if fact.status == Status.ACTIVE and fact.expires_at is not None:
        change(fact, {"status": Status.EXPIRED}, "expired", "system", "", version)


__all__ = [
    "CURRENT",
    "FORGOTTEN",
    "NewFact",
    "Remembered",
    "approve",
    "bury",
    "change",
    "correct",
    "expire_facts",
    "get_fact",
    "lock_fact",
    "lock_subject",
    "promote_fact",
    "reject",
    "remember",
    "remember_all",
]
