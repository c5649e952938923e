"""What workers call: claim, heartbeat, complete, fail, release. One round trip each."""

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Any, NamedTuple
from uuid import UUID

from django.db import connection, transaction

from agentstate.prepared import prepared_cursor
from runs_app.calls import call_function, follow_up
from runs_app.services import cancel_children
from runs_app.states import RunState, StepState
from runs_app.sweeps import free_work

BUSY_TRIES = 5
BUSY_PAUSE = 0.01  # seconds; how long a session is locked by one call
FENCE_BITS = 20


@dataclass(frozen=True)
class Wanted:
    """Which steps a worker asks for."""

    worker: str
    max: int = 1
    lease_s: float = 30.0
    run_id: UUID | None = None
    tools: list[str] | None = None
    agents: list[str] | None = None


@dataclass(frozen=True)
class Reach:
    """Who calls, and what a bound key is bound to."""

    project_id: UUID
    actor: str
    session_id: UUID | None = None
    subject: str | None = None


def claim_steps(reach: Reach, wanted: Wanted) -> list[str]:
    """Claim up to `wanted.max` steps; each as JSON text. Empty if there is none.

    A step whose session another call holds at this moment is passed over; when nothing
    else was to be had, that is tried again for some hundredths of a second.
    """
    for attempt in range(BUSY_TRIES):
        claimed, skipped = _claim(reach, wanted)
        if claimed:
            return claimed
        if not skipped and (attempt or not free_work(reach.project_id)):
            return []
        if not connection.in_atomic_block:
            time.sleep(BUSY_PAUSE * attempt)
    return []


def _claim(reach: Reach, wanted: Wanted) -> tuple[list[str], int]:
    turn = _take_turn(reach, wanted)
    return turn.claimed or [], turn.skipped or 0


@dataclass
class Ending:
    """What a worker says about one attempt."""

    step_id: UUID
    token: int
    payload: str | None = None  # the result's or the error's JSON text
    hash: bytes | None = None
    code: str | None = None
    retry: bool | None = None
    delay_s: float | None = None
    unknown: bool | None = None
    tokens: int | None = None
    cost: Decimal | None = None


class Ended(NamedTuple):
    """How an item went: `outcome` ok, repeated, or the code of a refusal."""

    outcome: str
    state: str | None
    run_id: UUID | None
    run_state: str | None


class Turn(NamedTuple):
    """What agentstate_take_turn answers. No outcomes: each item is done."""

    outcomes: list[str] | None
    states: list[str | None] | None
    runs: list[UUID | None] | None
    run_states: list[str | None] | None
    claimed: list[str] | None
    skipped: int | None
    parents: list[UUID] | None
    limits: list[str] | None


CLAIM_TYPES = "uuid text uuid text text integer float8 uuid text[] text[]"
TURN_TYPES = (
    f"{CLAIM_TYPES} text uuid[] bigint[] text[] bytea[] text[] boolean[] float8[] "
    "boolean[] bigint[] numeric[] text"
)
NOTHING = Wanted(worker="", max=0)
TOLD = ("payload", "hash", "code", "retry", "delay_s", "unknown", "tokens", "cost")


def _column(endings: Sequence[Ending], name: str) -> list[Any] | None:
    """What the endings say of one thing; None, which SQL takes too, if all say none."""
    values = [getattr(ending, name) for ending in endings]
    return values if any(value is not None for value in values) else None


def _take_turn(
    reach: Reach,
    wanted: Wanted,
    call: str | None = None,
    endings: Sequence[Ending] = (),
    reporter: str | None = None,
) -> Turn:
    """End attempts and claim steps, in one transaction and one round trip."""
    types, arguments = (
        CLAIM_TYPES,
        [
            reach.project_id,
            reach.actor,
            reach.session_id,
            reach.subject,
            wanted.worker,
            wanted.max,
            wanted.lease_s,
            wanted.run_id,
            wanted.tools,
            wanted.agents,
        ],
    )
    if endings:
        types = TURN_TYPES
        arguments += [call, [e.step_id for e in endings], [e.token for e in endings]]
        arguments += [_column(endings, name) for name in TOLD]
        arguments.append(reporter)
    turn = Turn(*call_function("agentstate_take_turn", types, arguments))
    follow_up(reach.project_id, turn.parents or (), turn.limits or ())
    return turn


def end_attempts(
    reach: Reach, call: str, endings: Sequence[Ending], worker: str | None = None
) -> list[Ended]:
    """End attempts; `call` is complete, fail or release. One answer an item.

    A refused item changes nothing; what it brought is kept as a rejected completion.
    """
    return _ended(reach, _take_turn(reach, NOTHING, call, endings, worker))


def end_and_claim(
    reach: Reach,
    call: str,
    endings: Sequence[Ending],
    wanted: Wanted,
    worker: str | None = None,
) -> tuple[list[Ended], list[str]]:
    """End attempts, and claim what to do next: as the two calls, at the price of one.

    While others are at what is oldest, the worker mostly goes on with the run that it
    was at.
    """
    turn = _take_turn(reach, wanted, call, endings, worker)
    ended = _ended(reach, turn)
    # None to be had, or not before what has ended is followed up.
    return ended, turn.claimed or claim_steps(reach, wanted)


def _ended(reach: Reach, turn: Turn) -> list[Ended]:
    runs, run_states = turn.runs or [], turn.run_states or []
    outcomes = turn.outcomes or ["ok"] * len(runs)
    states = turn.states or [StepState.DONE.value] * len(runs)
    ended = [
        Ended(*item) for item in zip(outcomes, states, runs, run_states, strict=True)
    ]
    failed = {e.run_id for e in ended if e.run_state == RunState.FAILED and e.run_id}
    if failed:
        transaction.on_commit(lambda: _end_below(reach.project_id, failed))
    return ended


def _end_below(project_id: UUID, run_ids: Collection[UUID]) -> None:
    """Stop what runs below runs that have failed; the sweep does the same."""
    for run_id in run_ids:
        cancel_children(project_id, run_id, reason="its parent has failed")


class Beat(NamedTuple):
    """A lease after a heartbeat. `stop`: the run is being cancelled, or failing."""

    outcome: str
    lease_until: datetime | None
    run_id: UUID | None
    run_state: str | None
    stop: bool


@dataclass(frozen=True)
class BeatItem:
    step_id: UUID
    token: int
    lease_s: float | None = None


def heartbeat(reach: Reach, items: Sequence[BeatItem]) -> list[Beat]:
    """Extend leases; one answer an item."""
    with prepared_cursor() as cursor:
        cursor.execute(
            "SELECT outcome, lease_until, run_id, run_state, stop"
            " FROM agentstate_heartbeat(%s::uuid, %s::uuid[], %s::bigint[],"
            " %s::float8[], %s::uuid, %s::text)",
            [
                reach.project_id,
                [item.step_id for item in items],
                [item.token for item in items],
                [item.lease_s for item in items],
                reach.session_id,
                reach.subject,
            ],
        )
        return [Beat(*row) for row in cursor.fetchall()]


@dataclass
class Counted:
    """A place for what a bulk call did."""

    done: int = 0
    refused: dict[str, int] = field(default_factory=dict)
