"""What keeps a fact from being learnt again from the talk that it came from."""

from uuid import UUID

from agentstate.clock import db_now
from memory_app.errors import SubjectForgotten
from memory_app.models import Fact, ForgottenSource, Tombstone
from memory_app.services.told import NewFact
from memory_app.text import content_hash, secret_hash, signature

FORGOTTEN, REJECTED, CORRECTED = "forgotten", "rejected", "corrected"


def bury(fact: Fact, cause: str) -> None:
    """Leave what keeps the fact from being learnt again from the talk it came from."""
    bury_text(fact, cause)
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


def bury_text(fact: Fact, cause: str) -> None:
    Tombstone.objects.bulk_create(
        [
            Tombstone(
                project_id=fact.project_id,
                subject_hash=subject_hash(fact.project_id, fact.subject),
                content_hash=secret_hash(content_hash(fact.fact)),
                signature=secret_hash(signature(fact.fact)),
                memory_id=fact.id,
                cause=cause,
                created_at=db_now(),
            )
        ],
        # A text that the fact had before, and lost by a correction, counts from now.
        update_conflicts=True,
        unique_fields=["project", "memory_id", "content_hash"],
        update_fields=["cause", "signature", "created_at"],
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
