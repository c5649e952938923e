"""A run's plan as it was after some event, told from the log alone."""

from collections.abc import Iterator
from typing import Any
from uuid import UUID

from runs_app.projection import RunFold
from sessions_app.event_types import RUN_BEGINNINGS, RUN_BEGUN
from sessions_app.log import StoredEvent, read_log
from sessions_app.models import Session

BEGINNINGS_READ = 20
EVENTS_READ = 500
RUN_SHOWN = ("key", "agent", "state", "reason", "error", "plan_version")
STEP_SHOWN = (
    "id",
    "index",
    "name",
    "kind",
    "tool",
    "args",
    "depends_on",
    "effect",
    "state",
    "attempt",
    "failures",
    "lost",
    "previous",
    "worker",
    "result_seq",
    "error",
    "started_at",
    "ended_at",
)


def plan_at(session: Session, at_seq: int) -> dict[str, Any] | None:
    """Return the plan of the run that had begun last by event `at_seq`, as JSON.

    None before the first run. A fork tells of its parent's runs up to where it forked.
    Costs the events of that one run, not the length of the log.
    """
    run_id = _begun_last(session, at_seq)
    if run_id is None:
        return None
    events = _events_of(session, run_id, at_seq)
    fold = RunFold(str(run_id), next(events))
    for event in events:
        fold.take(event)
    return {
        "run": fold.id,
        **{name: fold.facts[name] for name in RUN_SHOWN},
        "steps": [_step_json(step) for step in fold.steps],
    }


def _begun_last(session: Session, at_seq: int) -> UUID | None:
    before, more = at_seq + 1, True
    while more:
        found, more = read_log(
            session,
            before_seq=before,
            types=RUN_BEGINNINGS,
            limit=BEGINNINGS_READ,
            newest_first=True,
        )
        for event in found:
            if event.type == RUN_BEGUN or event.payload["begins"]:
                return event.run_id
            before = event.seq
    return None


def _events_of(session: Session, run_id: UUID, at_seq: int) -> Iterator[StoredEvent]:
    after, more = 0, True
    while more:
        found, more = read_log(
            session,
            after_seq=after,
            before_seq=at_seq + 1,
            types=["run.*", "step.*"],
            run_id=run_id,
            limit=EVENTS_READ,
        )
        for event in found:
            after = event.seq
            yield event


def _step_json(step: dict[str, Any]) -> dict[str, Any]:
    shown = {name: step[name] for name in STEP_SHOWN}
    shown["wait"] = (
        {"for": step["wait_kind"], "until": step["wait_until"]}
        if step["wait_kind"]
        else None
    )
    return shown
