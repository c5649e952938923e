"""All that is known about a subject, as one JSON document, written as it is read.

Facts carry their history and their sources; `sessions` adds the logs. What this writes,
`memory_app.imports` reads again.
"""

from collections.abc import Iterator
from typing import Any
from uuid import UUID

from agentstate import codec
from agentstate.clock import db_now
from memory_app.models import Fact, FactRevision, FactSource
from memory_app.shown import fact_json, revision_json, source_json
from sessions_app.log import event_json, iso, read_all
from sessions_app.models import Session

FORMAT = "agentstate.subject/1"
BATCH = 200


def export_subject(
    project_id: UUID, subject: str, *, with_sessions: bool = False
) -> Iterator[str]:
    """Yield the document in pieces of JSON text."""
    head = {"format": FORMAT, "subject": subject, "exported_at": iso(db_now())}
    yield codec.dumps(head)[:-1]
    yield ',"facts":['
    yield from _listed(
        codec.dumps(fact) for fact in exported_facts(project_id, subject)
    )
    yield "]"
    if with_sessions:
        yield ',"sessions":['
        yield from _listed_parts(_sessions(project_id, subject))
        yield "]"
    yield "}\n"


def _listed(items: Iterator[str]) -> Iterator[str]:
    for index, item in enumerate(items):
        yield f",{item}" if index else item


def _listed_parts(items: Iterator[Iterator[str]]) -> Iterator[str]:
    for index, parts in enumerate(items):
        if index:
            yield ","
        yield from parts


def exported_facts(project_id: UUID, subject: str) -> Iterator[dict[str, Any]]:
    """Yield the subject's facts with history and sources, oldest first."""
    after: UUID | None = None
    while facts := _next_facts(project_id, subject, after):
        after = facts[-1].id
        ids = [fact.id for fact in facts]
        revisions: dict[UUID, list[Any]] = {id_: [] for id_ in ids}
        for revision in FactRevision.objects.filter(
            project_id=project_id, memory_id__in=ids
        ).order_by("version"):
            revisions[revision.memory_id].append(revision_json(revision))
        sources: dict[UUID, list[Any]] = {id_: [] for id_ in ids}
        for source in FactSource.objects.filter(
            project_id=project_id, memory_id__in=ids
        ).order_by("id"):
            sources[source.memory_id].append(source_json(source))
        for fact in facts:
            yield fact_json(fact) | {
                "history": revisions[fact.id],
                "sources": sources[fact.id],
            }


def _next_facts(project_id: UUID, subject: str, after: UUID | None) -> list[Fact]:
    facts = Fact.objects.in_project(project_id).about(subject).defer("terms")
    if after is not None:
        facts = facts.filter(id__gt=after)
    return list(facts.order_by("id")[:BATCH])


def _sessions(project_id: UUID, subject: str) -> Iterator[Iterator[str]]:
    sessions = Session.objects.in_project(project_id).filter(subject=subject)
    for session in sessions.order_by("id"):
        yield _session(session)


def _session(session: Session) -> Iterator[str]:
    head = {
        "id": str(session.pk),
        "key": session.key,
        "title": session.title,
        "status": session.status,
        "labels": session.labels,
        "metadata": session.metadata,
        "state": session.state,
        "created_at": iso(session.created_at),
        "closed_at": iso(session.closed_at),
    }
    yield codec.dumps(head)[:-1] + ',"events":['
    yield from _listed(codec.dumps(event_json(event)) for event in read_all(session))
    yield "]}"
