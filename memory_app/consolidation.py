"""Tidying up a subject: of facts that contradict each other, the older steps back.

A judge reads all facts and says which should go, however long it takes and with no lock
held. Each of its decisions then stands for itself: it names the version that was read,
and what has changed since is left alone.
"""

from collections.abc import Callable
from typing import NamedTuple
from uuid import UUID

from django.db import transaction

from memory_app.errors import FactConflict, FactNotFound
from memory_app.models import Fact, SourceKind, Status
from memory_app.services import change, get_fact, lock_fact, supersede


class Decision(NamedTuple):
    """Fact `id`, read at `version`, gives way to the fact `by`."""

    id: UUID
    version: int
    by: UUID


class Consolidated(NamedTuple):
    """What was superseded, what waits for a person, and what had changed meanwhile."""

    superseded: list[UUID]
    review: list[UUID]
    skipped: list[UUID]


type Judge = Callable[[list[Fact]], list[Decision]]


def older_of_a_key(facts: list[Fact]) -> list[Decision]:
    """Let the newest fact of each key stand, and the others give way to it.

    Only facts of one key contradict each other, however close their wording is; and
    not if one had ended when the other began.
    """
    newest: dict[str, Fact] = {}
    for fact in facts:
        if fact.key and (
            fact.key not in newest or fact.valid_from > newest[fact.key].valid_from
        ):
            newest[fact.key] = fact
    return [
        Decision(fact.id, fact.version, newest[fact.key].id)
        for fact in facts
        if fact.key
        and newest[fact.key].id != fact.id
        and (fact.valid_to is None or fact.valid_to > newest[fact.key].valid_from)
    ]


def consolidate(
    project_id: UUID,
    subject: str,
    *,
    actor: str,
    judge: Judge = older_of_a_key,
) -> Consolidated:
    """Carry out what `judge` decides about the subject's active facts."""
    facts = list(
        Fact.objects.in_project(project_id)
        .about(subject)
        .filter(status=Status.ACTIVE)
        .order_by("id")
    )
    outcome = Consolidated([], [], [])
    retired: set[UUID] = set()
    for decision in judge(facts):
        where = _carry_out(project_id, decision, actor, decision.by in retired)
        {"superseded": outcome.superseded, "review": outcome.review}.get(
            where, outcome.skipped
        ).append(decision.id)
        if where == "superseded":
            retired.add(decision.by)
    return outcome


@transaction.atomic
def _carry_out(
    project_id: UUID, decision: Decision, actor: str, has_retired: bool
) -> str:
    try:
        fact, version = lock_fact(project_id, decision.id, decision.version)
        by = get_fact(project_id, decision.by)
    except (FactConflict, FactNotFound):
        return "skipped"
    if by.status != Status.ACTIVE or by.subject != fact.subject:
        return "skipped"
    # One new fact retires one old one; more than that, or a person's, a person decides.
    is_for_people = has_retired or bool(fact.settled_by)
    if is_for_people and by.source_kind != SourceKind.STAFF:
        change(fact, {"conflicts_with": by.id}, "disputed", actor, "", version)
        return "review"
    supersede(fact, by, version, actor, "consolidation")
    return "superseded"
