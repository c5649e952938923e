"""Running again from a step, as a new run that keeps what came before."""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from django.db import transaction

from agentstate.errors import FieldError
from runs_app.errors import EffectUnknown, WrongState
from runs_app.models import Run, Step
from runs_app.plans import NewStep
from runs_app.services import RunFields, locked_run, place_run
from runs_app.states import Effect, StepState
from sessions_app.models import Session

COPIED = (
    "index",
    "name",
    "kind",
    "tool",
    "args",
    "depends_on",
    "dependents",
    "effect",
    "requires_approval",
    "run_after",
    "sleep_s",
    "signal_name",
    "wait_timeout_s",
    "max_attempts",
    "max_lost",
    "backoff_s",
    "backoff_factor",
    "backoff_max_s",
    "jitter",
    "no_retry_on",
    "retry_on",
    "on_exhausted",
    "timeout_s",
    "start_timeout_s",
    "limit_key",
    "rank",
)


@transaction.atomic
def run_again(
    project_id: UUID,
    run_id: UUID,
    from_step: int,
    *,
    actor: str,
    confirm_repeat: bool = False,
    second_run: str | None = None,
    args: dict[int, Any] | None = None,
) -> Run:
    """Return a new run that does steps `from_step` and on of a run anew.

    The steps before are taken over as they ended. `args` replaces args by index. Raises
    WrongState unless those before are done or skipped; EffectUnknown if a `once` step
    among those to be repeated may have had its effect, unless `confirm_repeat`.
    """
    run = locked_run(project_id, run_id)
    steps = list(Step.objects.of_run(project_id, run_id).order_by("index"))
    if from_step >= len(steps):
        raise FieldError("from_step", "out_of_range", f"the run has {len(steps)} steps")
    carried, anew = steps[:from_step], steps[from_step:]
    for step in carried:
        if step.state not in (StepState.DONE, StepState.SKIPPED):
            raise WrongState(
                f"Step {step.index} before it is not done.", state=step.state
            )
    if not confirm_repeat:
        _check_effects(anew)
    session = Session.objects.get(project_id=project_id, id=run.session_id)
    return place_run(
        session,
        _fields_like(run, from_step, second_run),
        _copies(steps, from_step, args or {}),
        actor=actor,
        carried=carried,
    )


def _check_effects(anew: Sequence[Step]) -> None:
    """Raise EffectUnknown if repeating these could double an effect meant once."""
    unknown = [
        step.index
        for step in anew
        if step.effect == Effect.ONCE
        and (
            step.state in (StepState.DONE, StepState.IN_DOUBT, StepState.IN_PROGRESS)
            or step.previous == "unknown"
        )
    ]
    if unknown:
        raise EffectUnknown(
            "Steps that are to have their effect once may have had it: send "
            "confirm_repeat if they are meant to have it again.",
            indexes=unknown,
        )


def _fields_like(run: Run, from_step: int, second_run: str | None) -> RunFields:
    return RunFields(
        agent=run.agent,
        labels=run.labels,
        input=run.input,
        priority=run.priority,
        window=run.window,
        second_run=second_run,
        max_tool_calls=run.max_tool_calls,
        max_tokens=run.max_tokens,
        max_cost=run.max_cost,
        tool_allowlist=run.tool_allowlist,
        again_of=run.id,
        again_from=from_step,
    )


def _copies(
    steps: Sequence[Step], from_step: int, args: dict[int, Any]
) -> list[NewStep]:
    copies = []
    for step in steps:
        copy = NewStep(**{name: getattr(step, name) for name in COPIED})
        copy.args = args.get(step.index, step.args)
        copy.deps_left = sum(index >= from_step for index in step.depends_on)
        copies.append(copy)
    return copies
