"""The writes to runs, their plans and what people decide about them.

One function a move; each is one call of an SQL function that makes the move, settles
the run and appends the events in one transaction. What workers call is in `work`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

from django.db import connection, transaction

from agentstate import codec
from agentstate.errors import FieldError
from agentstate.ids import new_id
from runs_app.calls import call_function, call_move
from runs_app.errors import (
    PlanConflict,
    RunActive,
    RunKeyTaken,
    RunNotFound,
    SignalIdReused,
    WrongState,
)
from runs_app.models import Run, RunPolicy, Step
from runs_app.plans import NewStep, read_steps, steps_json, told_of
from runs_app.reads import open_below
from runs_app.results import checked_text, result_hash
from runs_app.states import RunState, SecondRun, StepState
from sessions_app.errors import SessionClosed
from sessions_app.log import iso
from sessions_app.models import Session
from sessions_app.services import get_session


@dataclass(frozen=True)
class RunFields:
    """What a run is created with. `key` is the client's own name, in the session."""

    key: str | None = None
    agent: str | None = None
    labels: dict[str, str] = field(default_factory=dict)
    input: Any = None
    priority: int = 0
    window: int = 100
    second_run: str | None = None
    max_tool_calls: int | None = None
    max_tokens: int | None = None
    max_cost: Decimal | None = None
    tool_allowlist: list[str] | None = None
    deadline_at: datetime | None = None
    parent_run_id: UUID | None = None
    parent_step_id: UUID | None = None
    again_of: UUID | None = None
    again_from: int | None = None


@transaction.atomic
def create_run(
    project_id: UUID,
    session_id: UUID,
    fields: RunFields,
    steps: Any,
    *,
    actor: str,
    subject: str | None = None,
) -> tuple[Run, bool]:
    """Create a run with its plan, or return the one that has this key; is it new?

    `steps` is the plan as a client sends it. A run without steps stays queued until
    its plan is set. While another run of the session is active, `second_run` or the
    session's policy says what this one means. Raises RunActive, SessionClosed,
    RunKeyTaken, FieldError, PlanTooLarge.
    """
    planned = read_steps(steps, allowlist=fields.tool_allowlist)
    session = get_session(project_id, session_id, subject=subject, lock=True)
    if fields.key is not None:
        same = Run.objects.filter(
            project_id=project_id, session_id=session_id, key=fields.key
        ).first()
        if same is not None:
            return _same_run(same, planned), False
    if not session.is_open:
        raise SessionClosed(session_status=session.status)
    return place_run(session, fields, planned, actor=actor), True


def place_run(
    session: Session,
    fields: RunFields,
    planned: list[NewStep],
    *,
    actor: str,
    carried: Sequence[Step] = (),
) -> Run:
    """Insert a run into a session whose row is locked, and let it begin if it may.

    `carried` are steps of another run of the session whose outcome this one takes over.
    """
    project_id, session_id = session.project_id, session.id
    parent = _parent_of(project_id, fields)
    policy = fields.second_run or policy_of(project_id, session_id)
    begins = parent is not None or _may_begin(project_id, session_id, policy, actor)
    run = _new_run(session, fields, planned, policy, parent)
    run.save(force_insert=True)
    insert_steps(run, planned)
    for step in carried:
        Step.objects.of_run(project_id, run.id).filter(index=step.index).update(
            state=step.state,
            result_seq=step.result_seq,
            result_hash=step.result_hash,
            ended_at=step.ended_at,
        )
    created = _created(run, planned, begins, carried)
    move = call_move(
        project_id,
        "agentstate_start_run",
        "uuid uuid uuid text text boolean",
        [project_id, session_id, run.id, actor, created, begins],
    )
    assert move.outcome == "ok"
    run.refresh_from_db()
    return run


def _same_run(run: Run, planned: list[NewStep]) -> Run:
    """The run that has the key, if it was made with as many steps of the same tools."""
    tools = list(
        Step.objects.of_run(run.project_id, run.id)
        .order_by("index")
        .values_list("tool", flat=True)[: len(planned)]
    )
    if tools != [step.tool for step in planned]:
        raise RunKeyTaken(key=run.key, run=str(run.id))
    return run


def _parent_of(project_id: UUID, fields: RunFields) -> Run | None:
    if fields.parent_run_id is None:
        return None
    with connection.cursor() as cursor:
        # Who erases the parent, or charges it for good, waits until the new run is
        # there. Who updates it does not: that may wait for the session locked here.
        cursor.execute(
            "SELECT FROM agent_runs WHERE project_id = %s AND id = %s FOR KEY SHARE",
            [project_id, fields.parent_run_id],
        )
    parent = Run.objects.filter(project_id=project_id, id=fields.parent_run_id).first()
    if parent is None:
        raise FieldError("parent_run", "not_found", "there is no such run")
    if parent.has_ended or parent.state == RunState.CANCELLING:
        raise WrongState("The parent run has ended.", state=parent.state)
    return parent


def policy_of(project_id: UUID, session_id: UUID) -> str:
    """Return what a second run means in this session."""
    policy = RunPolicy.objects.filter(
        project_id=project_id, session_id=session_id
    ).first()
    return policy.second_run if policy else SecondRun.ENQUEUE.value


def set_policy(
    project_id: UUID, session_id: UUID, second_run: str, *, subject: str | None = None
) -> None:
    """Say what a second run means in this session."""
    get_session(project_id, session_id, subject=subject)
    RunPolicy.objects.update_or_create(
        project_id=project_id,
        session_id=session_id,
        defaults={"second_run": second_run},
    )


def _may_begin(project_id: UUID, session_id: UUID, policy: str, actor: str) -> bool:
    """Whether a new run begins at once. The session's row is locked."""
    active = Run.objects.filter(
        project_id=project_id, session_id=session_id, parent_run_id=None
    ).active()
    others = list(active.order_by("id").values_list("id", "has_begun"))
    if policy == SecondRun.PARALLEL or not others:
        return True
    if policy == SecondRun.REJECT:
        raise RunActive(active_run=str(others[0][0]))
    if policy == SecondRun.CANCEL_PREVIOUS:
        for run_id, _ in others:
            cancel_run(
                project_id, run_id, reason="replaced by a newer run", actor=actor
            )
        return not active.exists()
    return False


def _new_run(
    session: Session,
    fields: RunFields,
    planned: list[NewStep],
    policy: str,
    parent: Run | None,
) -> Run:
    root = (parent.root_run_id or parent.id) if parent else None
    return Run(
        id=new_id(),
        project_id=session.project_id,
        session_id=session.id,
        key=fields.key,
        agent=session.agent if fields.agent is None else fields.agent,
        labels=fields.labels,
        input=fields.input,
        rank=-fields.priority,
        window=fields.window,
        second_run=policy,
        step_count=len(planned),
        max_tool_calls=fields.max_tool_calls,
        max_tokens=fields.max_tokens,
        max_cost=fields.max_cost,
        tool_allowlist=fields.tool_allowlist,
        deadline_at=fields.deadline_at,
        parent_run_id=parent.id if parent else None,
        parent_step_id=fields.parent_step_id,
        root_run_id=root,
        again_of=fields.again_of,
        again_from=fields.again_from,
    )


def insert_steps(run: Run, planned: Sequence[NewStep]) -> None:
    rows, args = steps_json(planned, run.rank)
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT agentstate_insert_steps("
            "%s::uuid, %s::uuid, %s::uuid, %s::json, %s::text[])",
            [run.project_id, run.session_id, run.id, rows, args],
        )


def _created(
    run: Run, planned: list[NewStep], begins: bool, carried: Sequence[Step]
) -> str:
    """The payload of run.created: all that the run was born with."""
    told: dict[str, Any] = {
        "state": RunState.QUEUED.value,
        "begins": begins,
        "key": run.key,
        "agent": run.agent,
        "labels": run.labels,
        "input": run.input,
        "priority": run.priority,
        "window": run.window,
        "second_run": run.second_run,
        "max_tool_calls": run.max_tool_calls,
        "max_tokens": run.max_tokens,
        "max_cost": run.max_cost,
        "tool_allowlist": run.tool_allowlist,
        "deadline_at": iso(run.deadline_at),
        "parent_run": _text(run.parent_run_id),
        "parent_step": _text(run.parent_step_id),
        "root_run": _text(run.root_run_id),
        "again_of": _text(run.again_of),
        "again_from": run.again_from,
        "plan_version": 1,
        "steps": [told_of(step, run.rank) for step in planned],
        "carried": [
            {
                "index": step.index,
                "state": step.state,
                "result_seq": step.result_seq,
                "ended_at": iso(step.ended_at),
            }
            for step in carried
        ],
    }
    return codec.dumps(told)


def _text(value: UUID | None) -> str | None:
    return None if value is None else str(value)


@transaction.atomic
def change_plan(
    project_id: UUID,
    run_id: UUID,
    steps: Any,
    *,
    plan_version: int,
    replaces: bool,
    actor: str,
) -> Run:
    """Add steps to the plan; with `replaces`, in place of all that is not begun.

    What is taken out stays visible as skipped. Raises PlanConflict if the plan is no
    longer at `plan_version`, WrongState if the run has ended.
    """
    run = locked_run(project_id, run_id)
    if run.plan_version != plan_version:
        raise PlanConflict(
            expected_version=plan_version, current_version=run.plan_version
        )
    if run.has_ended or run.state == RunState.CANCELLING or run.error is not None:
        raise WrongState(state=run.state)
    existing = list(
        Step.objects.of_run(project_id, run_id)
        .order_by("index")
        .only("id", "index", "name", "state", "project_id", "run_id")
    )
    removed = [s for s in existing if replaces and s.state in _UNBEGUN]
    kept = [s for s in existing if s not in removed and s.state not in _GONE]
    planned = read_steps(
        steps,
        first=run.step_count,
        follows=[kept[-1].index] if kept else [],
        names={s.name: s.index for s in kept if s.name},
        allowlist=run.tool_allowlist,
    )
    _tie_to_existing(run, planned, {s.index: s for s in kept})
    insert_steps(run, planned)
    changed = {
        "plan_version": plan_version + 1,
        "removed": [s.index for s in removed],
        "steps": [told_of(step, run.rank) for step in planned],
    }
    call_move(
        project_id,
        "agentstate_change_plan",
        "uuid uuid uuid text text uuid[] integer",
        [
            project_id,
            run.session_id,
            run_id,
            actor,
            codec.dumps(changed),
            [s.id for s in removed],
            len(planned),
        ],
    )
    run.refresh_from_db()
    return run


_UNBEGUN = {StepState.PENDING, StepState.WAITING}
_GONE = {StepState.FAILED, StepState.CANCELLED}


def _tie_to_existing(run: Run, planned: list[NewStep], kept: dict[int, Step]) -> None:
    """Count what new steps wait for among the old, and tell the old of it."""
    followers: dict[int, list[int]] = {}
    for step in planned:
        step.deps_left = 0
        for index in step.depends_on:
            if index >= run.step_count:
                step.deps_left += 1
                continue
            old = kept.get(index)
            if old is None:
                raise FieldError(
                    f"steps[{step.index - run.step_count}].depends_on",
                    "unknown_step",
                    f"step {index} is not part of the plan any more",
                )
            if old.state not in (StepState.DONE, StepState.SKIPPED):
                step.deps_left += 1
            followers.setdefault(index, []).append(step.index)
    with connection.cursor() as cursor:
        cursor.executemany(
            "UPDATE agent_steps SET dependents = dependents || %s::integer[]"
            " WHERE project_id = %s AND run_id = %s AND ordinal = %s",
            [(new, run.project_id, run.id, old) for old, new in followers.items()],
        )


def locked_run(project_id: UUID, run_id: UUID) -> Run:
    """Return the run with its session's row locked, in the caller's transaction."""
    found = Run.objects.filter(project_id=project_id, id=run_id)
    session_id = found.values_list("session_id", flat=True).first()
    if session_id is None:
        raise RunNotFound
    get_session(project_id, session_id, lock=True)
    return found.get()


def cancel_run(
    project_id: UUID, run_id: UUID, *, reason: str = "", actor: str = "system"
) -> str:
    """Cancel the run: nothing of it is handed out from now on. Returns its state.

    It is `cancelling` until its steps in progress and its child runs have ended, who
    are told at once. Raises WrongState if it has ended otherwise.
    """
    state = move_run(project_id, run_id, "cancel", reason=reason, actor=actor)
    transaction.on_commit(lambda: cancel_children(project_id, run_id))
    return state


def cancel_children(
    project_id: UUID, run_id: UUID, *, reason: str = "its parent was cancelled"
) -> None:
    """Cancel the open runs below a run, each in a transaction of its own, and end its
    handoffs: their keys are revoked.

    Those are its children, and the children of such as have ended or were erased; each
    of them does the same with what is below it.
    """
    from runs_app.settling import settle_handoffs_of  # it stands on this module

    for child_id in open_below(project_id, run_id):
        try:
            cancel_run(project_id, child_id, reason=reason)
        except (WrongState, RunNotFound):
            continue  # it has ended meanwhile, or was erased
    settle_handoffs_of(project_id, run_id)


def pause_run(
    project_id: UUID, run_id: UUID, *, reason: str = "", actor: str = "system"
) -> str:
    """Hand out no more steps of the run until it is resumed."""
    return move_run(project_id, run_id, "pause", reason=reason, actor=actor)


def resume_run(
    project_id: UUID, run_id: UUID, *, reason: str = "", actor: str = "system"
) -> str:
    return move_run(project_id, run_id, "resume", reason=reason, actor=actor)


def move_run(
    project_id: UUID, run_id: UUID, move: str, *, reason: str, actor: str
) -> str:
    moved = call_move(
        project_id,
        "agentstate_move_run",
        "uuid uuid text text text",
        [project_id, run_id, move, actor, reason],
    )
    return str(moved.state)


def retry_run(
    project_id: UUID, run_id: UUID, *, reason: str = "", actor: str = "system"
) -> str:
    """Let a failed run go on: its failed and cancelled steps are pending again.

    Raises WrongState also if a run above it was erased: nobody would be charged.
    """
    with transaction.atomic():
        try:
            moved = call_move(
                project_id,
                "agentstate_retry_run",
                "uuid uuid text text",
                [project_id, run_id, actor, reason],
            )
        except WrongState as exc:
            if _are_all_above(project_id, run_id):
                raise
            raise WrongState("A run above it was erased.", **exc.extra) from exc
        call_function("agentstate_uncharge", "uuid uuid", [project_id, run_id])
    return str(moved.state)


def _are_all_above(project_id: UUID, run_id: UUID) -> bool:
    parent = Run.objects.filter(project_id=project_id, id=run_id)
    is_kept: bool = call_function(
        "agentstate_keep_above",
        "uuid uuid",
        [project_id, parent.values_list("parent_run_id", flat=True).first()],
    )[0]
    return is_kept


def move_step(
    project_id: UUID,
    step_id: UUID,
    move: str,
    *,
    actor: str,
    reason: str = "",
    value: Any = None,
    has_value: bool = False,
) -> str:
    """Decide about a step, and return its state.

    `move` is approve (`value`: edited args), reject, skip, cancel, retry, or for a step
    in doubt, on hold or handed off done (`value`: the result), not_done, give_up
    (`value`: the error). Raises WrongState if there is nothing to decide.
    """
    is_result = move == "done"
    text = codec.dumps(value) if has_value or is_result else None
    moved = call_move(
        project_id,
        "agentstate_move_step",
        "uuid uuid text text text text bytea",
        [
            project_id,
            step_id,
            move,
            actor,
            reason,
            text,
            result_hash(value) if is_result else None,
        ],
    )
    return str(moved.state)


def send_signal(
    project_id: UUID,
    run_id: UUID,
    name: str,
    payload: Any,
    *,
    signal_id: str | None = None,
    actor: str,
) -> bool:
    """Send a signal to a run; False if it was sent before, under the same id.

    It is kept until a step waits for its name, which is then done with `payload`.
    Raises WrongState if the run has ended, SignalIdReused, ResultTooLarge.
    """
    moved = call_move(
        project_id,
        "agentstate_send_signal",
        "uuid uuid text text text text",
        [
            project_id,
            run_id,
            name,
            signal_id or str(new_id()),
            checked_text(("payload",), payload),
            actor,
        ],
    )
    if moved.outcome == "reused":
        raise SignalIdReused
    return moved.outcome == "ok"
