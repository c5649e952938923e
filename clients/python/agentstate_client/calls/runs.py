"""Runs: a plan of steps, and what can be done to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agentstate_client.call import (
    UNSET,
    Call,
    Unset,
    filled,
    listing,
    path_to,
    reading,
    writing,
)
from agentstate_client.models import Page, Run, Step


def create(
    steps: Sequence[Mapping[str, Any]] | None = None,
    *,
    session: str | None = None,
    session_key: str | None = None,
    key: str | None = None,
    agent: str | None = None,
    input: Any | Unset = UNSET,
    labels: Mapping[str, str] | None = None,
    priority: int | None = None,
    second_run: str | None = None,
    budget: Mapping[str, Any] | None = None,
    parent_run: str | None = None,
    parent_step: str | None = None,
    window: int | None = None,
    idempotency_key: str | None = None,
) -> Call[Run]:
    """Create a run in a session (`session_key` creates that too, if need be).

    A step is `{"tool", "args"?, "name"?, "depends_on"?, "effect"?, "retry"?, …}`; one
    without `depends_on` follows the one before. With the `key` of an earlier run of the
    session that run is returned.
    """
    body = filled(
        steps=None if steps is None else [dict(step) for step in steps],
        session=session,
        session_key=session_key,
        key=key,
        agent=agent,
        labels=labels,
        priority=priority,
        second_run=second_run,
        budget=budget,
        parent_run=parent_run,
        parent_step=parent_step,
        window=window,
    )
    if input is not UNSET:
        body["input"] = input
    return writing(
        "POST", path_to("runs"), Run.from_json, body, idempotency_key=idempotency_key
    )


def get(run_id: str) -> Call[Run]:
    """Return a run with its first 1,000 steps."""
    return reading(path_to("runs", run_id), Run.from_json)


def list_page(
    *,
    session: str | None = None,
    key: str | None = None,
    agent: str | None = None,
    state: Sequence[str] | None = None,
    label: Sequence[str] | None = None,
    parent: str | None = None,
    retrying: bool | None = None,
    limit: int | None = None,
    cursor: str | None = None,
) -> Call[Page[Run]]:
    """Return one page of runs, newest first, without their steps."""
    params = {
        "session": session,
        "key": key,
        "agent": agent,
        "state": state,
        "label": label,
        "parent": parent,
        "retrying": retrying,
        "limit": limit,
        "cursor": cursor,
    }
    return listing(path_to("runs"), Run.from_json, params)


def list_steps(
    run_id: str, *, limit: int | None = None, cursor: str | None = None
) -> Call[Page[Step]]:
    """Return one page of a run's steps, in the plan's order."""
    return listing(
        path_to("runs", run_id, "steps"),
        Step.from_json,
        {"limit": limit, "cursor": cursor},
    )


def append_steps(
    run_id: str,
    steps: Sequence[Mapping[str, Any]],
    plan_version: int,
    *,
    idempotency_key: str | None = None,
) -> Call[Run]:
    """Add steps at the end of the plan, if it still has the version that you read."""
    body = {"plan_version": plan_version, "append": [dict(step) for step in steps]}
    return _plan(run_id, body, idempotency_key)


def replace_steps(
    run_id: str,
    steps: Sequence[Mapping[str, Any]],
    plan_version: int,
    *,
    idempotency_key: str | None = None,
) -> Call[Run]:
    """Put steps in the place of all that have not begun. As `append_steps`."""
    body = {"plan_version": plan_version, "replace": [dict(step) for step in steps]}
    return _plan(run_id, body, idempotency_key)


def cancel(
    run_id: str, *, reason: str | None = None, idempotency_key: str | None = None
) -> Call[Run]:
    """Cancel a run; its workers hear of it at their next heartbeat."""
    return _move(run_id, "cancel", reason, idempotency_key)


def pause(
    run_id: str, *, reason: str | None = None, idempotency_key: str | None = None
) -> Call[Run]:
    """Hand out no more steps until the run is resumed."""
    return _move(run_id, "pause", reason, idempotency_key)


def resume(
    run_id: str, *, reason: str | None = None, idempotency_key: str | None = None
) -> Call[Run]:
    """Let a paused run go on."""
    return _move(run_id, "resume", reason, idempotency_key)


def retry(
    run_id: str, *, reason: str | None = None, idempotency_key: str | None = None
) -> Call[Run]:
    """Let a failed run go on from its failed steps."""
    return _move(run_id, "retry", reason, idempotency_key)


def again(
    run_id: str,
    *,
    from_step: int | None = None,
    confirm_repeat: bool | None = None,
    args: Mapping[str, Any] | None = None,
    second_run: str | None = None,
    idempotency_key: str | None = None,
) -> Call[Run]:
    """Run again from a step on, as a new run; `args` replaces those of steps by index.

    `confirm_repeat` says that effects which have happened may happen again.
    """
    body = filled(
        from_step=from_step,
        confirm_repeat=confirm_repeat,
        args=args,
        second_run=second_run,
    )
    return writing(
        "POST",
        path_to("runs", run_id, "again"),
        Run.from_json,
        body,
        idempotency_key=idempotency_key,
    )


def signal(
    run_id: str,
    name: str,
    payload: Any = None,
    *,
    id: str | None = None,
    idempotency_key: str | None = None,
) -> Call[dict[str, Any]]:
    """Send a signal: a step that waits for it, now or later, is done with `payload`."""
    return writing(
        "POST",
        path_to("runs", run_id, "signals", name),
        dict,
        {"payload": payload, **filled(id=id)},
        idempotency_key=idempotency_key,
    )


def why(run_id: str) -> Call[dict[str, Any]]:
    """Return what the run waits for, and since when."""
    return reading(path_to("runs", run_id, "why"), dict)


def _plan(
    run_id: str, body: Mapping[str, Any], idempotency_key: str | None
) -> Call[Run]:
    return writing(
        "POST",
        path_to("runs", run_id, "plan"),
        Run.from_json,
        body,
        idempotency_key=idempotency_key,
    )


def _move(
    run_id: str, move: str, reason: str | None, idempotency_key: str | None
) -> Call[Run]:
    return writing(
        "POST",
        path_to("runs", run_id, move),
        Run.from_json,
        filled(reason=reason),
        idempotency_key=idempotency_key,
    )
