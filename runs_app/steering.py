"""What people do to runs and steps: the moves of services, each in the audit log."""

from typing import Any
from uuid import UUID

from django.db import transaction

from access_app.services import record_audit
from agentstate.errors import FieldError
from runs_app.again import run_again
from runs_app.bulk import ACTIONS, BulkResult, act_on_runs
from runs_app.models import Run, Step
from runs_app.querysets import RunQuerySet
from runs_app.results import result_text
from runs_app.services import move_step

BULK_MOST = 1000
PAST = {"cancel": "cancelled", "pause": "paused", "resume": "resumed"}
DECISIONS = {
    "approve": "approved",
    "reject": "rejected",
    "skip": "skipped",
    "cancel": "cancelled",
    "retry": "retried",
    "done": "resolved_done",
    "not_done": "resolved_not_done",
    "give_up": "given_up",
}


@transaction.atomic
def steer_run(
    project_id: UUID, run_id: UUID, action: str, *, actor: str, reason: str
) -> str:
    """Cancel, pause, resume or retry a run, and return its state. Raises WrongState."""
    if action not in ACTIONS:
        raise FieldError("", "unknown_action", "A run can be cancelled, paused, …")
    before = Run.objects.filter(project_id=project_id, id=run_id)
    old = before.values_list("state", flat=True).first()
    service, _ = ACTIONS[action]
    state = service(project_id, run_id, reason=reason, actor=actor)
    record_audit(
        project_id,
        actor,
        f"run.{PAST.get(action, 'retried')}",
        f"run:{run_id}",
        before={"state": old},
        after={"state": state},
        reason=reason,
    )
    return state


@transaction.atomic
def decide_step(
    project_id: UUID,
    step_id: UUID,
    decision: str,
    *,
    actor: str,
    reason: str,
    value: Any = None,
    has_value: bool = False,
) -> str:
    """Decide about a step (see services.move_step) and return its state."""
    if decision not in DECISIONS:
        raise FieldError("", "unknown_decision", "There is no such decision.")
    if decision == "done":
        result_text(("result",), value)
    old = Step.objects.filter(project_id=project_id, id=step_id)
    before = old.values_list("state", flat=True).first()
    state = move_step(
        project_id,
        step_id,
        decision,
        actor=actor,
        reason=reason,
        value=value,
        has_value=has_value and decision in ("approve", "give_up"),
    )
    record_audit(
        project_id,
        actor,
        f"step.{DECISIONS[decision]}",
        f"step:{step_id}",
        before={"state": before},
        after={"state": state},
        reason=reason,
    )
    return state


@transaction.atomic
def repeat_run(
    project_id: UUID,
    run_id: UUID,
    from_step: int,
    *,
    actor: str,
    reason: str,
    confirm_repeat: bool,
) -> Run:
    """Run again from a step on, as a new run."""
    made = run_again(
        project_id, run_id, from_step, actor=actor, confirm_repeat=confirm_repeat
    )
    record_audit(
        project_id,
        actor,
        "run.repeated",
        f"run:{run_id}",
        after={"run": str(made.id), "from_step": from_step},
        reason=reason,
    )
    return made


def steer_runs(
    project_id: UUID,
    found: RunQuerySet,
    action: str,
    *,
    dry_run: bool,
    actor: str,
    reason: str,
) -> BulkResult:
    """Do `action` to all runs of a filter; with `dry_run`, only count them."""
    if action not in ACTIONS:
        raise FieldError("", "unknown_action", "There is no such action.")
    result = act_on_runs(
        project_id,
        found,
        action,
        limit=BULK_MOST,
        dry_run=dry_run,
        reason=reason,
        actor=actor,
    )
    if not dry_run:
        record_audit(
            project_id,
            actor,
            f"runs.{PAST.get(action, 'retried')}",
            f"project:{project_id}",
            after={"done": result.done, "refused": result.refused},
            reason=reason,
        )
    return result
