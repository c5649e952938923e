"""Limits: how many steps of one key at once, and how many in some time.

They are applied when a step becomes ready, never at a claim: what a limit holds back
lies in `agent_held_steps`, where no claim looks.
"""

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.db import transaction
from django.db.models import Count

from agentstate.clock import Now
from runs_app.calls import promote_limited
from runs_app.errors import LimitNotFound
from runs_app.models import Limit, Slot


@dataclass(frozen=True)
class LimitSettings:
    """`max_concurrent` at once; `rate` in each `per_s` seconds. None: no limit."""

    max_concurrent: int | None = None
    rate: int | None = None
    per_s: float | None = None


def set_limit(project_id: UUID, key: str, wanted: LimitSettings) -> Limit:
    """Set the limit of `key`; what there is room for then becomes ready.

    Steps that are ready or in progress beyond a lower limit go on.
    """
    limit, _ = Limit.objects.update_or_create(
        project_id=project_id,
        key=key,
        defaults={
            **vars(wanted),
            "tokens": wanted.rate or 0,
            "refilled_at": Now(),
        },
    )
    transaction.on_commit(lambda: promote_limited(project_id, key))
    limit.refresh_from_db()
    return limit


def remove_limit(project_id: UUID, key: str) -> None:
    """Remove the limit of `key`: what it held back becomes ready."""
    get_limit(project_id, key).delete()
    Slot.objects.filter(project_id=project_id, key=key).delete()
    transaction.on_commit(lambda: promote_limited(project_id, key))


def get_limit(project_id: UUID, key: str) -> Limit:
    limit = Limit.objects.filter(project_id=project_id, key=key).first()
    if limit is None:
        raise LimitNotFound
    return limit


def slots_in_use(project_id: UUID, keys: list[str]) -> dict[str, int]:
    """Return how many steps count against each key's limit now."""
    rows: Any = (
        Slot.objects.filter(project_id=project_id, key__in=keys)
        .values_list("key")
        .annotate(Count("step_id"))
    )
    return dict(rows)
