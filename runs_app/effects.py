"""The ledger of effects inside steps: has this been sent already?"""

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.db import transaction

from agentstate import codec
from agentstate.clock import Now
from runs_app.errors import EffectLost, EffectNotFound, ResultDiffers, WrongState
from runs_app.models import EffectRecord, EffectState, Step
from runs_app.results import result_hash
from runs_app.services import locked_run
from runs_app.states import STEP_ENDED
from sessions_app.services import append_event

NEW, DONE, IN_DOUBT = "new", "done", "in_doubt"


@dataclass(frozen=True)
class Begun:
    """What beginning an effect answers. `outcome` is new, done or in_doubt."""

    outcome: str
    record: EffectRecord


@transaction.atomic
def begin_effect(
    project_id: UUID,
    key: str,
    step: Step,
    *,
    request: Any = None,
    repeat: bool = False,
    actor: str,
) -> Begun:
    """Say that an effect is about to be tried under `key`; write it down before.

    `new`: go ahead, and complete it with the record's token. `done`: it has happened,
    with the record's result. `in_doubt`: it was begun, and nobody has said how it went;
    with `repeat`, for a downstream that honours the key, it is new with a new token.
    """
    locked_run(project_id, step.run_id)
    record = find_effect(project_id, key)
    if record is None:
        if Step.objects.get(id=step.id).state in STEP_ENDED:
            raise WrongState("The step has ended.", state=step.state)
        record = EffectRecord.objects.create(
            project_id=project_id,
            session_id=step.session_id,
            run_id=step.run_id,
            step_id=step.id,
            key=key,
            request=request,
            actor=actor,
        )
    elif record.state == EffectState.DONE:
        return Begun(DONE, record)
    elif not repeat:
        return Begun(IN_DOUBT, record)
    else:
        record.token += 1
        record.actor = actor
        record.save(update_fields=["token", "actor"])
    _tell(record, step, "step.effect_begun", {"token": record.token}, actor)
    record.refresh_from_db()
    return Begun(NEW, record)


@transaction.atomic
def complete_effect(
    project_id: UUID, key: str, token: int, result: Any, *, actor: str
) -> EffectRecord:
    """Say that the effect has happened. The same result again is the same answer.

    Raises EffectNotFound, EffectLost if another has begun it since, ResultDiffers.
    """
    record = get_effect(project_id, key)
    locked_run(project_id, record.run_id)
    record.refresh_from_db()
    if record.state == EffectState.DONE:
        if result_hash(record.result) != result_hash(result):
            raise ResultDiffers
        return record
    if record.token != token:
        raise EffectLost(token=record.token)
    EffectRecord.objects.filter(id=record.id).update(
        state=EffectState.DONE, result=result, done_at=Now()
    )
    step = Step.objects.get(project_id=project_id, id=record.step_id)
    _tell(
        record,
        step,
        "step.effect_done",
        {"token": token, "result": codec.RawJSON(codec.dumps(result))},
        actor,
    )
    record.refresh_from_db()
    return record


def get_effect(project_id: UUID, key: str) -> EffectRecord:
    """Return the ledger's entry; raises EffectNotFound."""
    record = find_effect(project_id, key)
    if record is None:
        raise EffectNotFound
    return record


def find_effect(project_id: UUID, key: str) -> EffectRecord | None:
    return EffectRecord.objects.filter(project_id=project_id, key=key).first()


def _tell(
    record: EffectRecord, step: Step, event: str, facts: dict[str, Any], actor: str
) -> None:
    append_event(
        record.project_id,
        record.session_id,
        event,
        {"index": step.index, "key": record.key} | facts,
        actor=actor,
        run_id=record.run_id,
        step_id=record.step_id,
    )
