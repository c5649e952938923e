"""Handing work to another agent: a session and a run of its own, and one result back.

The giving run waits in a step of its plan, for the signal `handoff:<id>`; the taking
run ends when it gets the signal `handoff.result`. So all that runs promise, cancelling
the tree, deadlines and limits, holds for handoffs. What a handoff carries is gathered
above, by context_app, and given here as a value.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, Literal, NamedTuple
from uuid import UUID

from django.db import transaction

from access_app.models import Project
from access_app.services import create_key, revoke_key
from agentstate.clock import db_now
from agentstate.errors import FieldError
from agentstate.ids import new_id
from runs_app.constraints import Constraints, constraints_within, scopes_of
from runs_app.errors import (
    HandoffEnded,
    HandoffNotAccepted,
    HandoffNotFound,
    HandoffTaken,
    HandoffTooDeep,
    ResultDiffers,
    RunNotFound,
    WrongState,
)
from runs_app.models import Handoff, HandoffStatus, Run, Step
from runs_app.results import checked_text
from runs_app.services import (
    RunFields,
    cancel_run,
    change_plan,
    create_run,
    locked_run,
    move_step,
    send_signal,
)
from sessions_app.append import NewEvent, append_events
from sessions_app.artifacts.services import artifacts_named, copy_artifacts
from sessions_app.log import iso, read_log
from sessions_app.models import Event, Session
from sessions_app.payloads import kept_at_hand
from sessions_app.services import SessionFields, create_session, get_session

DEPTH_MAX = 8  # how often work is handed on; a ring of agents ends here
KEY_DAYS = 7  # that a key lives whose handoff has no time limit
GRACE = timedelta(hours=1)  # in which a result may be sent again after the time is up
RESULT = "handoff.result"

E = HandoffStatus


@dataclass(frozen=True)
class Offer:
    """What is handed over. `context` says what to carry; it is read at acceptance.

    `on_failure`: whether the giving run fails when nothing comes of it, or skips the
    step that waits and goes on.
    """

    agent: str
    task: str
    context: dict[str, Any] = field(default_factory=dict)
    constraints: Constraints = field(default_factory=Constraints)
    on_failure: Literal["fail", "skip"] = "fail"


class Offered(NamedTuple):
    """The handoff, and the text of its key: the one time it is shown."""

    handoff: Handoff
    token: str


@transaction.atomic
def offer_handoff(
    project_id: UUID,
    run_id: UUID,
    offer: Offer,
    *,
    actor: str,
    secret: str | None = None,
) -> Offered:
    """Hand a task to `offer.agent` and let the run wait for the result.

    `secret` is for a caller that can derive the key's again. Raises HandoffTooDeep,
    WrongState if the run has ended, FieldError for tools that it may not use itself
    and for artifacts that its session does not have, ResultTooLarge for what is given
    inline.
    """
    checked_text(("context", "inline"), offer.context.get("inline"))
    run = locked_run(project_id, run_id)
    session = Session.objects.get(project_id=project_id, id=run.session_id)
    depth = _depth_of(run) + 1
    if depth > DEPTH_MAX:
        raise HandoffTooDeep(depth=depth, limit=DEPTH_MAX)
    offer = replace(offer, constraints=constraints_within(run, offer.constraints))
    seconds = offer.constraints.timeout_s
    handoff = Handoff(id=new_id(), project_id=project_id, session_id=session.pk)
    step = _waiting_step(run, handoff.id, seconds, actor)
    deadline = _deadline(run, seconds)
    child = _child_run(session, run, step, offer, deadline, actor)
    files = _given_artifacts(session, child, offer, actor)
    made = create_key(
        Project.objects.get(id=project_id),
        scopes=scopes_of(offer.constraints),
        name=f"handoff to {offer.agent}"[:100],
        session_id=child.session_id,
        run_id=child.id,
        tool_allowlist=offer.constraints.tool_allowlist,
        expires_in=_key_life(deadline),
        actor=actor,
        secret=secret,
    )
    handoff.run_id, handoff.step_id = run.id, step.id
    handoff.child_session_id, handoff.child_run_id = child.session_id, child.id
    handoff.agent, handoff.depth = offer.agent, depth
    handoff.expires_at, handoff.key_id = deadline, made.key.id
    told = _offered(handoff, offer) | {"artifacts": files}
    handoff.offered_seq = _append(handoff, "offered", actor, told)
    handoff.save(force_insert=True)
    handoff.refresh_from_db()
    return Offered(handoff, made.text)


def _depth_of(run: Run) -> int:
    above = Handoff.objects.filter(
        project_id=run.project_id, child_session_id=run.session_id
    ).first()
    return above.depth if above else 0


def _deadline(run: Run, seconds: float | None) -> datetime | None:
    ends = [run.deadline_at] if run.deadline_at else []
    if seconds is not None:
        ends.append(db_now() + timedelta(seconds=seconds))
    return min(ends, default=None)


def _key_life(deadline: datetime | None) -> timedelta:
    if deadline is None:
        return timedelta(days=KEY_DAYS)
    return max(deadline - db_now(), timedelta()) + GRACE


def _waiting_step(
    run: Run, handoff_id: UUID, seconds: float | None, actor: str
) -> Step:
    """Add the step that waits for the result, beside whatever else the plan holds."""
    signal: dict[str, Any] = {"name": _signal_of(handoff_id)}
    if seconds is not None:
        signal["timeout_s"] = Decimal(str(seconds))
    changed = change_plan(
        run.project_id,
        run.id,
        [{"signal": signal, "depends_on": []}],
        plan_version=run.plan_version,
        replaces=False,
        actor=actor,
    )
    return Step.objects.get(
        project_id=run.project_id, run_id=run.id, index=changed.step_count - 1
    )


def _signal_of(handoff_id: UUID) -> str:
    return f"handoff:{handoff_id}"


def _child_run(
    session: Session,
    run: Run,
    step: Step,
    offer: Offer,
    deadline: datetime | None,
    actor: str,
) -> Run:
    child_session, _ = create_session(
        session.project_id,
        SessionFields(agent=offer.agent, subject=session.subject),
        actor=actor,
    )
    child, _ = create_run(
        session.project_id,
        child_session.pk,
        RunFields(
            agent=offer.agent,
            max_tool_calls=offer.constraints.max_tool_calls,
            max_tokens=offer.constraints.max_tokens,
            max_cost=offer.constraints.max_cost,
            tool_allowlist=offer.constraints.tool_allowlist,
            deadline_at=deadline,
            parent_run_id=run.id,
            parent_step_id=step.id,
        ),
        [{"signal": {"name": RESULT}}],
        actor=actor,
    )
    return child


def _given_artifacts(
    session: Session, child: Run, offer: Offer, actor: str
) -> list[str]:
    """Give the taking session the artifacts named, and no others; return their ids.

    Now, not at acceptance: nobody else knows that session yet, so that holding its row
    beside the giving one's cannot meet another that holds them in turn.
    """
    names = offer.context.get("artifacts", [])
    if not names:
        return []
    found = artifacts_named(session, names)
    for index, name in enumerate(names):
        if not any(name == a.name or name.lower() == str(a.pk) for a in found):
            raise FieldError(
                f"context.artifacts[{index}]",
                "artifact_not_found",
                "the session has no artifact of this id or name",
            )
    target = get_session(session.project_id, child.session_id, lock=True)
    return [str(a.pk) for a in copy_artifacts(session, names, target, actor=actor)]


def _offered(handoff: Handoff, offer: Offer) -> dict[str, Any]:
    """All that the row holds but its key, and what it does not hold: the words."""
    return {
        "run": str(handoff.run_id),
        "step": str(handoff.step_id),
        "child_session": str(handoff.child_session_id),
        "child_run": str(handoff.child_run_id),
        "agent": offer.agent,
        "depth": handoff.depth,
        "expires_at": iso(handoff.expires_at),
        "task": offer.task,
        "context": offer.context,
        "constraints": asdict(offer.constraints),
        "on_failure": offer.on_failure,
    }


def _append(handoff: Handoff, event: str, actor: str, told: dict[str, Any]) -> int:
    new = NewEvent(
        f"handoff.{event}",
        {"handoff": str(handoff.id), "at": iso(db_now()), **told},
        run_id=handoff.run_id,
    )
    result = append_events(
        handoff.project_id, handoff.session_id, [new], actor=actor, by_server=True
    )
    return result.last_seq


def get_handoff(project_id: UUID, handoff_id: UUID, *, lock: bool = False) -> Handoff:
    found = Handoff.objects.filter(project_id=project_id, id=handoff_id)
    if lock:
        found = found.select_for_update(no_key=True)
    handoff = found.first()
    if handoff is None:
        raise HandoffNotFound
    return handoff


def words_of(handoff: Handoff, seq: int | None) -> dict[str, Any]:
    """Return the payload of one of the handoff's events; empty before there is one."""
    if seq is None:
        return {}
    session = Session.objects.get(project_id=handoff.project_id, id=handoff.session_id)
    page = read_log(session, after_seq=seq - 1, before_seq=seq + 1, limit=1)
    return page.events[0].payload if page.events else {}


def _look_ahead(project_id: UUID, handoff_id: UUID) -> None:
    """Have at hand what was said, should it lie in the store, while no row is locked.

    To be called within `kept_at_hand`.
    """
    handoff = get_handoff(project_id, handoff_id)
    words_of(handoff, handoff.ended_seq or handoff.offered_seq)


def _on_failure(handoff: Handoff) -> str | None:
    """What the offer says of a failure. Its stub keeps it: a store may be away."""
    rows = Event.objects.filter(
        project_id=handoff.project_id,
        session_id=handoff.session_id,
        seq=handoff.offered_seq,
    )
    offered: Any = rows.values_list("payload", flat=True).first()
    return offered.get("on_failure") if offered else None


@kept_at_hand()
def accept_handoff(
    project_id: UUID,
    handoff_id: UUID,
    by: str,
    gather: Callable[[Session, dict[str, Any]], dict[str, Any]],
    *,
    actor: str,
) -> Handoff:
    """Take the handoff; what it carries is fixed now.

    `gather` makes the bundle of the giving session, whose row is locked, and of the
    offer as it was made. Taking it twice under one name changes nothing. Raises
    HandoffTaken, HandoffEnded.
    """
    _look_ahead(project_id, handoff_id)
    return _accept(project_id, handoff_id, by, gather, actor=actor)


@transaction.atomic
def _accept(
    project_id: UUID,
    handoff_id: UUID,
    by: str,
    gather: Callable[[Session, dict[str, Any]], dict[str, Any]],
    *,
    actor: str,
) -> Handoff:
    handoff = get_handoff(project_id, handoff_id, lock=True)
    if handoff.status == E.ACCEPTED:
        if handoff.accepted_by != by:
            raise HandoffTaken(accepted_by=handoff.accepted_by)
        return handoff
    _check_open(handoff)
    session = get_session(project_id, handoff.session_id, lock=True)
    bundle = gather(session, words_of(handoff, handoff.offered_seq))
    handoff.status, handoff.accepted_by = E.ACCEPTED, by
    told = {"by": by, "bundle": bundle}
    handoff.accepted_seq = _append(handoff, "accepted", actor, told)
    handoff.save(update_fields=["status", "accepted_by", "accepted_seq"])
    return handoff


def _check_open(handoff: Handoff) -> None:
    if not handoff.is_open:
        raise HandoffEnded(handoff_status=handoff.status)
    if handoff.expires_at is not None and handoff.expires_at <= db_now():
        raise HandoffEnded("The time for this handoff is up.", handoff_status=E.EXPIRED)


@kept_at_hand()
def complete_handoff(
    project_id: UUID, handoff_id: UUID, result: dict[str, Any], *, actor: str
) -> Handoff:
    """Give the result back: the step that waits for it is done with it.

    The same result again changes nothing. Raises HandoffEnded, HandoffNotAccepted,
    ResultDiffers, and ResultTooLarge as for any other step.
    """
    checked_text(("data",), result)
    if get_handoff(project_id, handoff_id).status == E.COMPLETED:
        _look_ahead(project_id, handoff_id)
    return _complete(project_id, handoff_id, result, actor=actor)


@transaction.atomic
def _complete(
    project_id: UUID, handoff_id: UUID, result: dict[str, Any], *, actor: str
) -> Handoff:
    handoff = get_handoff(project_id, handoff_id, lock=True)
    if handoff.status == E.COMPLETED:
        if words_of(handoff, handoff.ended_seq).get("result") != result:
            raise ResultDiffers
        return handoff
    _check_open(handoff)
    if handoff.status != E.ACCEPTED:
        raise HandoffNotAccepted
    try:
        send_signal(
            project_id,
            handoff.run_id,
            _signal_of(handoff.id),
            result,
            signal_id=str(handoff.id),
            actor=actor,
        )
    except WrongState as exc:
        raise HandoffEnded("The run that handed this over has ended.") from exc
    _end(handoff, E.COMPLETED, actor, {"result": result})
    child = handoff.child_run_id
    # In a transaction of its own: it locks another session.
    transaction.on_commit(lambda: _end_child(project_id, child, handoff.id, actor))
    return handoff


def _end_child(project_id: UUID, run_id: UUID, handoff_id: UUID, actor: str) -> None:
    with suppress(WrongState, RunNotFound):
        send_signal(
            project_id, run_id, RESULT, {}, signal_id=str(handoff_id), actor=actor
        )


@transaction.atomic
def decline_handoff(
    project_id: UUID, handoff_id: UUID, reason: str, *, actor: str
) -> Handoff:
    """Give it back undone: the step that waits fails, and says why."""
    handoff = get_handoff(project_id, handoff_id, lock=True)
    if handoff.status == E.DECLINED:
        return handoff
    _check_open(handoff)
    give_up(handoff, E.DECLINED, reason, actor)
    return handoff


def give_up(handoff: Handoff, status: HandoffStatus, reason: str, actor: str) -> None:
    """End it without a result, and stop the taking run.

    The step that waits fails, or is skipped if the offer says so.
    """
    error = {"code": f"handoff_{status.value}", "message": reason}
    skips = _on_failure(handoff) == "skip"
    with suppress(WrongState):
        move_step(
            handoff.project_id,
            handoff.step_id,
            "skip" if skips else "give_up",
            actor=actor,
            reason=error["code"] if skips else reason,
            value=error,
            has_value=not skips,
        )
    _end(handoff, status, actor, {"reason": reason})
    if handoff.key_id is not None:
        revoke_key(
            handoff.project_id, handoff.key_id, actor=actor, reason=error["code"]
        )
    project_id, child = handoff.project_id, handoff.child_run_id
    transaction.on_commit(lambda: _stop_child(project_id, child, error["code"]))


def _stop_child(project_id: UUID, run_id: UUID, reason: str) -> None:
    with suppress(WrongState, RunNotFound):
        cancel_run(project_id, run_id, reason=reason)


def _end(
    handoff: Handoff, status: HandoffStatus, actor: str, told: dict[str, Any]
) -> None:
    handoff.status = status
    handoff.ended_seq = _append(handoff, status.value, actor, told)
    handoff.save(update_fields=["status", "ended_seq"])
