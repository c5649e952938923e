"""What every write to a fact goes through: its subject's row first, a revision last."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from django.db import IntegrityError, connection, transaction

from access_app.services import record_audit
from agentstate.clock import db_now
from memory_app.embedding.vectors import embed_now, is_inline
from memory_app.errors import (
    FactConflict,
    FactExists,
    FactNotFound,
    PreconditionRequired,
)
from memory_app.models import (
    EmbeddingModel,
    Fact,
    FactEmbedding,
    FactRevision,
    Status,
)
from memory_app.recall.tokens import fact_terms
from memory_app.text import content_hash, signature
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


class Locked(NamedTuple):
    """A fact whose subject is locked, and the subject's new version."""

    fact: Fact
    version: int


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
    add_revision(fact, action, changes, actor, reason)
    return True


def _reword(fact: Fact) -> None:
    """Bring up to date what is derived from the text; its old vectors go."""
    fact.content_hash = content_hash(fact.fact)
    fact.signature = signature(fact.fact)
    fact.terms = fact_terms(fact.fact)
    fact.duplicate_of = twin_of(fact)
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


def twin_of(fact: Fact) -> UUID | None:
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


def add_revision(
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


def embed_new(project_id: UUID, facts: Sequence[Fact]) -> None:
    """Embed facts just written, or have it done once this commits."""
    if not facts:
        return
    if is_inline():
        embed_now(project_id, facts)
    else:
        from memory_app.jobs import defer_embedding

        # Whatever becomes of the job, the sweep sees that there is something to do.
        EmbeddingModel.objects.filter(project_id=project_id, is_complete=True).update(
            is_complete=False
        )
        defer_embedding(project_id)
