"""Calling the SQL functions of the migrations, and what has to follow a commit."""

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple
from uuid import UUID

from django.db import transaction

from agentstate.prepared import prepared_cursor
from runs_app.errors import RunNotFound, StepNotFound, WrongState


class Moved(NamedTuple):
    """What a move answered. `parents` and `limits` are seen to by `follow_up`."""

    outcome: str
    state: str | None
    parents: list[UUID]
    limits: list[str]


def call_function(name: str, types: str, arguments: Sequence[Any]) -> tuple[Any, ...]:
    """Return the one row that the SQL function `name` answers."""
    # What is not given is written out: to adapt a value costs more than the rest.
    placeholders, given = [], []
    for kind, value in zip(types.split(), arguments, strict=True):
        if value is None:
            placeholders.append(f"NULL::{kind}")
        elif type(value) is list and len(value) == 1:
            placeholders.append(f"ARRAY[%s]::{kind}")
            given.append(value[0])
        else:
            placeholders.append(f"%s::{kind}")
            given.append(_adapted(value, kind))
    with prepared_cursor() as cursor:
        cursor.execute(f"SELECT * FROM {name}({', '.join(placeholders)})", given)
        row: tuple[Any, ...] = cursor.fetchone()
    return row


def _adapted(value: Any, kind: str) -> Any:
    """Lists of ids and whole numbers as Postgres writes arrays.

    psycopg looks at each item to find their common type, which the call names anyway.
    """
    if kind not in {"uuid[]", "bigint[]"}:
        return value
    items = ("NULL" if item is None else str(item) for item in value)
    return f"{{{','.join(items)}}}"


def call_move(
    project_id: UUID, name: str, types: str, arguments: Sequence[Any]
) -> Moved:
    """Make a move and arrange what follows from it. Raises what its outcome means."""
    moved = Moved(*call_function(name, types, arguments))
    if moved.outcome == "not_found":
        raise StepNotFound if name == "agentstate_move_step" else RunNotFound
    if moved.outcome == "wrong_state":
        raise WrongState(state=moved.state)
    follow_up(project_id, moved.parents, moved.limits)
    return moved


def follow_up(
    project_id: UUID, parents: Collection[UUID], limits: Collection[str]
) -> None:
    """After the commit, settle parents of ended runs and fill limits that have room.

    In transactions of their own: they lock other sessions, and the order of locks is
    by session. Should the process die before, the sweep does the same.
    """
    if not parents and not limits:
        return

    def work() -> None:
        for run_id in set(parents):
            settle_run(project_id, run_id)
        for key in set(limits):
            promote_limited(project_id, key)

    transaction.on_commit(work)


def settle_run(project_id: UUID, run_id: UUID) -> None:
    """Let a run end whose children have, or go on with a cancel that was cut short."""
    moved = Moved(
        *call_function(
            "agentstate_move_run",
            "uuid uuid text text text",
            [project_id, run_id, "settle", "system", ""],
        )
    )
    follow_up(project_id, moved.parents, moved.limits)


def promote_limited(project_id: UUID, key: str) -> int:
    """Make ready what the limit of `key` has room for; return how many."""
    promoted: int = call_function(
        "agentstate_promote_limited", "uuid text", [project_id, key]
    )[0]
    return promoted
