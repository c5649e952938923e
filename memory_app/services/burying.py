"""What keeps a fact from being learnt again from the talk that it came from."""

from collections.abc import Iterable
from contextlib import suppress
from uuid import UUID

from agentstate.clock import db_now
from memory_app.errors import SubjectForgotten
from memory_app.models import Fact, ForgottenSource, Tombstone
from memory_app.services.told import NewFact
from memory_app.text import content_hash, secret_hash, signature
from sessions_app.log import segment_at
from sessions_app.models import Session

FORGOTTEN, REJECTED, CORRECTED = "forgotten", "rejected", "corrected"


def bury(fact: Fact, cause: str) -> None:
    """Leave what keeps the fact from being learnt again from the talk it came from."""
    bury_text(fact, cause)
    told: dict[str, set[int]] = {}
    for source in fact.sources.exclude(session=""):
        told.setdefault(source.session, set()).update(source.seqs)
    ForgottenSource.objects.bulk_create(
        [
            ForgottenSource(
                project_id=fact.project_id,
                session=session,
                seq=seq,
                kind=fact.kind,
                memory_id=fact.id,
            )
            for name, seqs in told.items()
            for session, seq in _events(fact.project_id, name, seqs)
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
    events = _events(project_id, new.session, new.seqs)
    gone = ForgottenSource.objects.filter(
        project_id=project_id,
        session__in={session for session, _ in events},
        seq__in=new.seqs,
        kind=new.kind,
    )
    if any(event in events for event in gone.values_list("session", "seq")):
        raise SubjectForgotten(cause=FORGOTTEN)


def _events(project_id: UUID, name: str, seqs: Iterable[int]) -> set[tuple[str, int]]:
    """Return the events of a session as those of whose log they are: a fork shows its
    parent's as its own."""
    session = None
    with suppress(ValueError):
        sessions = Session.objects.in_project(project_id)
        session = sessions.filter(id=UUID(name)).first()
    if session is None:
        return {(name, seq) for seq in seqs} if name else set()
    return {(str(segment_at(session, seq).session_id), seq) for seq in seqs}
