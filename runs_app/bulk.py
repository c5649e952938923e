"""One action on all runs that a filter finds; first without doing it, to count."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from agentstate.errors import AppError
from runs_app.querysets import RunQuerySet
from runs_app.services import cancel_run, pause_run, resume_run, retry_run

ACTIONS: dict[str, tuple[Callable[..., str], tuple[str, ...]]] = {
    "cancel": (cancel_run, ("queued", "running", "waiting", "paused")),
    "pause": (pause_run, ("queued", "running", "waiting")),
    "resume": (resume_run, ("paused",)),
    "retry": (retry_run, ("failed",)),
}


@dataclass
class BulkResult:
    """`refused` counts by code those whose state had changed by then."""

    matched: int
    has_more: bool
    done: int = 0
    refused: dict[str, int] = field(default_factory=dict)


def act_on_runs(
    project_id: UUID,
    found: RunQuerySet,
    action: str,
    *,
    limit: int,
    dry_run: bool,
    reason: str,
    actor: str,
) -> BulkResult:
    """Do `action` to the runs in `found` that are in a state for it, oldest first.

    At most `limit`; `has_more` says that there are others. Each run is a transaction
    of its own (unless the caller has one open), so that what is done stays done.
    """
    service, states = ACTIONS[action]
    rows = list(
        found.filter(state__in=states)
        .order_by("id")
        .values_list("session_id", "id")[: limit + 1]
    )
    result = BulkResult(matched=min(len(rows), limit), has_more=len(rows) > limit)
    if dry_run:
        return result
    refused: Counter[str] = Counter()
    # By session, the order in which all lock: a caller may have one transaction open.
    for _, run_id in sorted(rows[:limit]):
        code = _act(service, project_id, run_id, reason=reason, actor=actor)
        if code is None:
            result.done += 1
        else:
            refused[code] += 1
    result.refused = dict(refused)
    return result


def _act(
    service: Callable[..., str], project_id: UUID, run_id: UUID, **how: Any
) -> str | None:
    """Return None, or the code of the refusal."""
    try:
        service(project_id, run_id, **how)
    except AppError as exc:
        return exc.code
    return None
