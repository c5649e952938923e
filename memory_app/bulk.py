"""Changes of many facts in one transaction, each with its revision and audit entry."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from django.db import transaction

from agentstate.errors import AppError
from memory_app import services
from memory_app.models import Fact
from memory_app.services import lock_subject


@dataclass(frozen=True)
class Change:
    """`op` is correct, approve or reject; `values` are what `correct` sets."""

    op: str
    fact_id: UUID
    expected_version: int | None = None
    reason: str = ""
    values: dict[str, Any] = field(default_factory=dict)
    any_version: bool = False


@transaction.atomic
def change_all(
    project_id: UUID,
    changes: Sequence[Change],
    *,
    actor: str,
    subject: str | None = None,
) -> list[Fact]:
    """Carry out all of `changes` or none; an error names the item it is about."""
    _lock_subjects(project_id, changes)
    facts = []
    for index, change in enumerate(changes):
        try:
            facts.append(_carry_out(project_id, change, actor, subject))
        except AppError as exc:
            exc.extra = exc.extra | {"index": index, "id": str(change.fact_id)}
            raise
    return facts


def _lock_subjects(project_id: UUID, changes: Sequence[Change]) -> None:
    # In one order, before any fact: two bulk calls over the same subjects take turns.
    subjects = Fact.objects.in_project(project_id).filter(
        id__in=[change.fact_id for change in changes]
    )
    for name in sorted(set(subjects.values_list("subject", flat=True))):
        lock_subject(project_id, name)


def _carry_out(
    project_id: UUID, change: Change, actor: str, subject: str | None
) -> Fact:
    options: dict[str, Any] = {
        "expected_version": change.expected_version,
        "actor": actor,
        "reason": change.reason,
        "subject": subject,
        "any_version": change.any_version,
    }
    match change.op:
        case "correct":
            return services.correct(
                project_id, change.fact_id, change.values, **options
            )
        case "approve":
            return services.approve(project_id, change.fact_id, **options)
        case "reject":
            return services.reject(project_id, change.fact_id, **options)
    raise ValueError(f"unknown change {change.op!r}")
