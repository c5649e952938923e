"""Ends handoffs that nobody else ends: time is up, or a run on either side is over."""

from contextlib import suppress
from uuid import UUID

from django.db import connection, transaction
from django.db.models import Exists, OuterRef, Q, QuerySet

from access_app.models import ApiKey
from access_app.services import revoke_key
from agentstate.clock import Now, db_now
from runs_app.errors import RunNotFound, WrongState
from runs_app.handoffs import get_handoff, give_up
from runs_app.models import Handoff, HandoffStatus, Run, Step
from runs_app.services import cancel_run
from runs_app.states import STEP_ENDED, RunState

SWEPT = 200  # handoffs that one sweep looks at

E, R = HandoffStatus, RunState
OVER = (R.FAILED, R.CANCELLED, R.CANCELLING, R.SUCCEEDED)
_same_project = Q(project_id=OuterRef("project_id"))


def settle_handoff(project_id: UUID, handoff_id: UUID) -> Handoff:
    """End a handoff whose time is up, or whose run has ended on either side."""
    with transaction.atomic():
        handoff = get_handoff(project_id, handoff_id, lock=True)
        if handoff.is_open and (end := _end_of(handoff)) is not None:
            give_up(handoff, *end, "system")
        return handoff


def _end_of(handoff: Handoff) -> tuple[HandoffStatus, str] | None:
    """How an open handoff is to end, and why; None while it may go on."""
    if handoff.expires_at is not None and handoff.expires_at <= db_now():
        return E.EXPIRED, "no result came in time"
    if not _waiting_step(handoff).exists():
        return E.CANCELLED, "the run that handed it over does not wait for it any more"
    child = Run.objects.filter(
        project_id=handoff.project_id, id=handoff.child_run_id
    ).first()
    if child is None:
        return E.CANCELLED, "its run was erased"
    if child.state in (R.CANCELLED, R.CANCELLING):
        return E.CANCELLED, "its run was cancelled"
    if child.has_ended:
        return E.FAILED, child.reason or "its run ended without a result"
    return None


def _waiting_step(handoff: Handoff) -> QuerySet[Step]:
    steps = Step.objects.filter(project_id=handoff.project_id, id=handoff.step_id)
    return steps.exclude(state__in=STEP_ENDED)


def settle_handoffs(project_id: UUID | None = None) -> int:
    """Settle all that is due; return how many. Any process may do so, at any time."""
    taking = Run.objects.filter(_same_project, id=OuterRef("child_run_id"))
    due = Handoff.objects.filter(
        Q(expires_at__lte=Now())
        | Exists(taking.filter(state__in=OVER))
        | ~Exists(taking)
        | Exists(
            Step.objects.filter(
                _same_project, id=OuterRef("step_id"), state__in=STEP_ENDED
            )
        ),
        status__in=(E.OFFERED, E.ACCEPTED),
    )
    if project_id is not None:
        due = due.filter(project_id=project_id)
    found = list(due.order_by("id").values_list("project_id", "id")[:SWEPT])
    return sum(not settle_handoff(*each).is_open for each in found)


def settle_handoffs_of(project_id: UUID, run_id: UUID) -> None:
    """Settle those that a run has given: it has failed, or its plan has changed."""
    given = Handoff.objects.filter(
        project_id=project_id, run_id=run_id, status__in=(E.OFFERED, E.ACCEPTED)
    )
    for handoff_id in list(given.values_list("id", flat=True)):
        settle_handoff(project_id, handoff_id)


# Each open child run, and what is above it up to the next that is open. Found are those
# that come to one that has failed, or to none: it was erased.
ORPHANS = """
WITH RECURSIVE up AS (
    SELECT c.project_id, c.session_id, c.id, c.parent_run_id AS above, '' AS met
      FROM agent_runs c
     WHERE c.parent_run_id IS NOT NULL
       AND c.state IN ('queued', 'running', 'waiting', 'paused')
       AND (%(project)s::uuid IS NULL OR c.project_id = %(project)s)
    UNION ALL
    SELECT up.project_id, up.session_id, up.id, r.parent_run_id,
           coalesce(r.state, 'erased')
      FROM up LEFT JOIN agent_runs r
        ON r.id = up.above AND r.project_id = up.project_id
     WHERE up.above IS NOT NULL AND up.met IN ('', 'succeeded', 'cancelled')
)
SELECT up.project_id, up.session_id, up.id, up.met FROM up
 WHERE up.met IN ('failed', 'erased') ORDER BY up.id LIMIT %(most)s
"""
WHY = {"failed": "its parent has ended", "erased": "a run above it was erased"}


def cancel_orphans(project_id: UUID | None = None) -> int:
    """Cancel what runs below a run that has failed or was erased; return how many."""
    with connection.cursor() as cursor:
        cursor.execute(ORPHANS, {"project": project_id, "most": SWEPT})
        orphans = cursor.fetchall()
    for project, session_id, run_id, met in orphans:
        _revoke_keys_without_handoff(project, session_id, run_id)
        with suppress(WrongState, RunNotFound):
            cancel_run(project, run_id, reason=WHY[met])
    return len(orphans)


@transaction.atomic
def _revoke_keys_without_handoff(
    project_id: UUID, session_id: UUID, run_id: UUID
) -> None:
    """Where there is a handoff, its end revokes the key."""
    taken = Handoff.objects.filter(project_id=project_id, child_session_id=session_id)
    if taken.exists():
        return
    keys = ApiKey.objects.in_project(project_id)
    for key in keys.filter(session_id=session_id, run_id=run_id):
        revoke_key(project_id, key.id, reason="handoff_erased")
