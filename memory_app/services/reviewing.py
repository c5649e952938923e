"""What people and time do to facts: correct, approve, reject, expire."""

from typing import Any
from uuid import UUID

from django.db import transaction

from agentstate.clock import Now, db_now
from agentstate.errors import FieldError
from memory_app.errors import BadMove, FactNotFound
from memory_app.models import Fact, ForgottenSource, Status, Tombstone
from memory_app.services.burying import CORRECTED, REJECTED, bury, bury_text
from memory_app.services.remembering import rivals_of, supersede
from memory_app.services.writing import change, embed_new, lock_fact

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
        bury_text(fact, CORRECTED)
    if change(fact, values, "corrected", actor, reason, version) and says_otherwise:
        embed_new(project_id, [fact])
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
    rivals = rivals_of(fact)
    # What was corrected stays corrected.
    stones = Tombstone.objects.filter(project_id=project_id, memory_id=fact.id)
    stones.filter(cause=REJECTED).delete()
    ForgottenSource.objects.filter(project_id=project_id, memory_id=fact.id).delete()
    fact.settled_at = db_now()
    values = {"status": Status.ACTIVE, "conflicts_with": None, "settled_by": actor}
    change(fact, values, "approved", actor, reason, version)
    for rival in rivals:
        supersede(rival, fact, version, actor)
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
