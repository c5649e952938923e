"""Forgetting: one fact, a fact and all that it was taken from, or a whole subject.

What remains is a receipt: counts by place, by whom, when and why, without personal
text. A place that could not be reached is named in it, never passed over.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from uuid import UUID

from django.db import connection, transaction

from access_app.saved_views import forget_views
from access_app.services import record_audit
from agentstate.ids import new_id
from memory_app.errors import FactNotFound
from memory_app.forgetting import elsewhere, runs
from memory_app.forgetting.artifacts import (
    artifact_ids,
    forget_all,
    forget_holding,
)
from memory_app.forgetting.log import (
    blank_sessions,
    clean_sessions,
    pseudonym,
    redact_events,
    sessions_about,
    sessions_named,
)
from memory_app.forgetting.scrub import Needles
from memory_app.models import Fact, FactRevision, Receipt, Subject
from memory_app.recall.cache import forget_index
from memory_app.services import (
    FORGOTTEN,
    bury,
    get_fact,
    lock_subject,
    subject_hash,
)

FACT, EVERYWHERE, SUBJECT = "fact", "everywhere", "subject"
# Beside the facts themselves: their rows go with them.
FACT_TABLES = (
    "agent_memory_embeddings",
    "agent_memory_sources",
    "agent_memory_revisions",
)
OTHER_WORDS = {
    "place": "agent_events",
    "why": "The same said in other words elsewhere in the log is not looked for; "
    "forget the subject to be sure of that.",
}
LOG_KEPT = {
    "place": "agent_events",
    "why": "The events are redacted: number, type and time stay, the content is gone.",
}
KEYS_KEPT = {
    "place": "access_api_keys",
    "why": "API keys bound to the subject name it; revoke and replace them.",
}


EFFECTS_KEPT = {
    "place": "agent_effects",
    "why": "The keys of effects stay as the client named them, so that nothing is done "
    "twice.",
}


def files_unread(count: int) -> dict[str, str]:
    why = (
        f"{count} files are not plain text, too large or out of reach, and were not "
        "looked into; delete them, or forget the subject."
    )
    return {"place": "agent_artifacts", "why": why}


@dataclass
class Tally:
    """What was forgotten, by place, and what was kept and why."""

    counts: dict[str, int] = field(default_factory=dict)
    kept: list[dict[str, str]] = field(default_factory=list)

    def add(self, place: str, count: int) -> None:
        self.counts[place] = self.counts.get(place, 0) + count

    def add_all(self, counts: dict[str, int]) -> None:
        for place, count in counts.items():
            self.add(place, count)


class Undone(Exception):
    """Rolls a dry run back."""


class Outcome(NamedTuple):
    """What became of one id of a batch."""

    id: UUID
    status: str  # forgotten or not_found


@transaction.atomic
def forget_fact(
    project_id: UUID,
    fact_id: UUID,
    *,
    actor: str,
    scope: str = FACT,
    reason: str = "",
    subject: str | None = None,
) -> Receipt:
    """Forget a fact; with EVERYWHERE also the events it was taken from and its traces.

    Raises FactNotFound, also for what was forgotten before.
    """
    found = get_fact(project_id, fact_id, subject=subject)
    lock_subject(project_id, found.subject, erasing=True)
    fact = get_fact(project_id, fact_id, subject=subject)
    tally = Tally()
    if scope == EVERYWHERE:
        needles = Needles(_texts_of(fact))
        _forget_traces(fact, needles, tally, actor)
        reason = needles.clean(reason)
    else:
        reason = Needles([fact.fact]).clean(reason)
        tally.kept.append(
            {"place": "agent_events", "why": "The scope is the fact, not the log."}
        )
        _forget_facts([fact], tally)
    return _receipt(fact, scope, tally, actor, reason)


def forget_facts(
    project_id: UUID,
    fact_ids: Sequence[UUID],
    *,
    actor: str,
    scope: str = FACT,
    reason: str = "",
    subject: str | None = None,
) -> list[Outcome]:
    """Forget each of the ids for itself, and say of each whether it was there."""
    outcomes = []
    for fact_id in dict.fromkeys(fact_ids):
        try:
            forget_fact(
                project_id,
                fact_id,
                actor=actor,
                scope=scope,
                reason=reason,
                subject=subject,
            )
            outcomes.append(Outcome(fact_id, FORGOTTEN))
        except FactNotFound:
            outcomes.append(Outcome(fact_id, "not_found"))
    return outcomes


def _texts_of(fact: Fact) -> set[str]:
    """The fact's text, and the texts it had before."""
    texts = {fact.fact}
    for revision in FactRevision.objects.filter(
        project_id=fact.project_id, memory_id=fact.id
    ):
        texts |= {t for t in revision.changes.get("fact", ()) if isinstance(t, str)}
    return texts


def _forget_traces(fact: Fact, needles: Needles, tally: Tally, actor: str) -> None:
    project_id = fact.project_id
    alike = [
        other
        for other in Fact.objects.in_project(project_id).about(fact.subject)
        if other.id == fact.id or needles.are_in(other.fact)
    ]
    sources = _sources_of(project_id, [each.id for each in alike])
    named = sessions_named(project_id, sources)
    for session in named:
        tally.add("agent_events", redact_events(session, sources[str(session.pk)]))
    own = sessions_about(project_id, fact.subject)
    sessions = {s.pk: s for s in [*own, *named]}
    for session in sessions.values():
        session.refresh_from_db()
    ids = list(sessions)
    held = forget_holding(project_id, ids, needles, actor=actor)
    tally.add("agent_artifacts", held.forgotten)
    tally.kept += [files_unread(held.unread)] if held.unread else []
    tally.add_all(_named_counts(clean_sessions(sessions.values(), needles)))
    tally.add_all(elsewhere.clean_tables(project_id, ids, needles))
    runs.rehash_results(project_id, ids)
    marks = [*ids, elsewhere.answers_about(project_id, fact.subject)]
    tally.add(
        "access_idempotency", elsewhere.redact_answers(project_id, marks, needles)
    )
    tally.add("access_audit", elsewhere.redact_audit(project_id, (), needles))
    tally.add("access_saved_views", forget_views(project_id, needles.are_in))
    _forget_working_memory(project_id, ids, tally, needles)
    _forget_facts(alike, tally)
    tally.kept += [LOG_KEPT, OTHER_WORDS]


def _named_counts(counts: dict[str, int]) -> dict[str, int]:
    tables = {
        "events": "agent_events",
        "states": "agent_sessions.state",
        "snapshots": "agent_snapshots",
        "sessions": "agent_sessions",
    }
    return {tables[name]: count for name, count in counts.items()}


def _sources_of(project_id: UUID, fact_ids: list[UUID]) -> dict[str, set[int]]:
    """The events that facts were taken from, by session."""
    found: dict[str, set[int]] = {}
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT session, seqs FROM agent_memory_sources"
            " WHERE project_id = %s AND memory_id = ANY(%s) AND session <> ''",
            [project_id, fact_ids],
        )
        for session, seqs in cursor.fetchall():
            found.setdefault(session, set()).update(seqs)
    return found


def _forget_working_memory(
    project_id: UUID,
    session_ids: list[UUID],
    tally: Tally,
    needles: Needles | None = None,
) -> None:
    ids = [*session_ids, *runs.run_ids(project_id, session_ids)]
    try:
        tally.add("working_memory", elsewhere.forget_in_redis(ids, needles))
    except elsewhere.RedisAway as exc:
        why = f"Redis could not be asked ({exc}); its keys expire, or forget again."
        tally.kept.append({"place": "working_memory", "why": why})


def _forget_facts(facts: Sequence[Fact], tally: Tally) -> None:
    """Delete facts of one project and all that hangs on them; leave tombstones."""
    if not facts:
        return
    project_id = facts[0].project_id
    ids = [fact.id for fact in facts]
    for fact in facts:
        bury(fact, FORGOTTEN)
    needles = Needles(fact.fact for fact in facts)
    subjects = {fact.subject for fact in facts}
    marks = {elsewhere.answers_about(project_id, subject) for subject in subjects}
    tally.add(
        "access_idempotency",
        elsewhere.redact_answers(project_id, marks, needles)
        + elsewhere.redact_shared_answers(project_id, subjects, needles),
    )
    objects = [f"memory:{id_}" for id_ in ids]
    tally.add("access_audit", elsewhere.redact_audit(project_id, objects))
    with connection.cursor() as cursor:
        for table in FACT_TABLES:
            cursor.execute(
                f"DELETE FROM {table} WHERE project_id = %s AND memory_id = ANY(%s)",
                [project_id, ids],
            )
            tally.add(table, cursor.rowcount)
        cursor.execute(
            "DELETE FROM agent_memory WHERE project_id = %s AND id = ANY(%s)",
            [project_id, ids],
        )
        tally.add("agent_memory", cursor.rowcount)
    for fact in facts:
        forget_index(project_id, fact.subject)


def _receipt(fact: Fact, scope: str, tally: Tally, actor: str, reason: str) -> Receipt:
    return _keep_receipt(
        fact.project_id, fact.subject, scope, tally, actor, reason, fact.id
    )


def _keep_receipt(
    project_id: UUID,
    subject: str,
    scope: str,
    tally: Tally,
    actor: str,
    reason: str,
    fact_id: UUID | None = None,
) -> Receipt:
    counts = {place: n for place, n in sorted(tally.counts.items()) if n}
    receipt = Receipt.objects.create(
        id=new_id(),
        project_id=project_id,
        scope=scope,
        subject_hash=subject_hash(project_id, subject),
        memory_id=fact_id,
        actor=actor,
        reason=reason,
        counts=counts,
        kept=tally.kept,
    )
    receipt.refresh_from_db(fields=["created_at"])
    about = f"memory:{fact_id}" if fact_id else pseudonym(project_id, subject)
    record_audit(
        project_id,
        actor,
        "memory.forgotten" if fact_id else "subject.forgotten",
        about,
        after={"receipt": str(receipt.id), "counts": counts},
        reason=reason,
    )
    return receipt


def forget_subject(
    project_id: UUID,
    subject: str,
    *,
    actor: str,
    reason: str = "",
    dry_run: bool = False,
) -> Receipt:
    """Forget all that is known about a subject, its sessions' content included.

    A dry run does everything and rolls it back: its counts are those of the real run.
    """
    kept: list[Receipt] = []
    try:
        with transaction.atomic():
            kept.append(_forget_subject(project_id, subject, actor, reason, dry_run))
            if dry_run:
                raise Undone
    except Undone:
        pass
    return kept[0]


def _forget_subject(
    project_id: UUID, subject: str, actor: str, reason: str, dry_run: bool
) -> Receipt:
    lock_subject(project_id, subject, erasing=True)
    tally = Tally()
    facts = list(Fact.objects.in_project(project_id).about(subject))
    sources = _sources_of(project_id, [fact.id for fact in facts])
    sessions = sessions_about(project_id, subject)
    ids = [session.pk for session in sessions]
    for session in sessions_named(project_id, sources):
        if session.pk not in ids:
            tally.add("agent_events", redact_events(session, sources[str(session.pk)]))
    tally.add("agent_artifacts", forget_all(project_id, ids, actor=actor))
    tally.add_all(_named_counts(blank_sessions(sessions, subject)))
    tally.add_all(elsewhere.blank_tables(project_id, ids))
    tally.add("names of runs and steps", runs.blank_names(project_id, ids))
    runs.rehash_results(project_id, ids)
    if not dry_run:  # Redis does not roll back
        _forget_working_memory(project_id, ids, tally)
    objects = [f"memory:{fact.id}" for fact in facts]
    objects += [f"session:{id_}" for id_ in ids]
    objects += [f"artifact:{id_}" for id_ in artifact_ids(project_id, ids)]
    objects += [f"run:{id_}" for id_ in runs.run_ids(project_id, ids)]
    needles = Needles([*(fact.fact for fact in facts), subject])
    tally.add(
        "access_audit",
        elsewhere.redact_audit(project_id, objects, needles, name=subject),
    )
    tally.add(
        "access_saved_views",
        forget_views(project_id, lambda s: s == subject or needles.are_in(s)),
    )
    _forget_facts(facts, tally)
    marks = [*ids, elsewhere.answers_about(project_id, subject)]
    tally.add(
        "access_idempotency",
        elsewhere.redact_answers(project_id, marks)
        + elsewhere.redact_shared_answers(project_id, {subject}),
    )
    Subject.objects.filter(project_id=project_id, subject=subject).delete()
    forget_index(project_id, subject)
    tally.kept.append(LOG_KEPT)
    tally.kept += [EFFECTS_KEPT] if runs.has_effects(project_id, ids) else []
    tally.kept += [KEYS_KEPT] if _has_keys(project_id, subject) else []
    return _keep_receipt(
        project_id, subject, SUBJECT, tally, actor, needles.clean(reason)
    )


def _has_keys(project_id: UUID, subject: str) -> bool:
    from access_app.models import ApiKey

    return ApiKey.objects.filter(project_id=project_id, subject=subject).exists()


def receipt_json(receipt: Receipt, *, dry_run: bool = False) -> dict[str, Any]:
    """Return a receipt as ReceiptOut describes it."""
    from sessions_app.log import iso

    return {
        "receipt": None if dry_run else str(receipt.id),
        "dry_run": dry_run,
        "scope": receipt.scope,
        "fact": str(receipt.memory_id) if receipt.memory_id else None,
        "forgotten": receipt.counts.get("agent_memory", 0),
        "counts": receipt.counts,
        "kept": receipt.kept,
        "actor": receipt.actor,
        "reason": receipt.reason,
        "created_at": iso(receipt.created_at),
    }
