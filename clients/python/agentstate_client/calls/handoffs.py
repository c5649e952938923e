"""Handoffs: give work to another agent, take it, and give the result back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentstate_client.call import Call, filled, listing, path_to, reading, writing
from agentstate_client.handed import Handoff, Offered, SuggestedFact
from agentstate_client.models import Page


def offer(
    run_id: str,
    agent: str,
    task: str,
    *,
    context: Mapping[str, Any] | None = None,
    constraints: Mapping[str, Any] | None = None,
    on_failure: str | None = None,
    idempotency_key: str | None = None,
) -> Call[Offered]:
    """Hand a task to another agent; a step of the run waits for the result.

    `context` says what to carry: `{"facts"?, "recall"?, "events"?, "last_events"?,
    "state_keys"?, "working_memory"?, "inline"?, "budget_tokens"?, …}`; `constraints`
    what the other may do. `on_failure` is `fail` or `skip`.
    """
    body = filled(
        agent=agent,
        task=task,
        context=None if context is None else dict(context),
        constraints=None if constraints is None else dict(constraints),
        on_failure=on_failure,
    )
    return writing(
        "POST",
        path_to("runs", run_id, "handoffs"),
        Offered.from_json,
        body,
        idempotency_key=idempotency_key,
    )


def get(handoff_id: str) -> Call[Handoff]:
    """Return a handoff: its task, what it carries, its result."""
    return reading(path_to("handoffs", handoff_id), Handoff.from_json)


def list_page(
    run_id: str, *, limit: int | None = None, cursor: str | None = None
) -> Call[Page[Handoff]]:
    """Return one page of what a run has handed on, newest first."""
    return listing(
        path_to("runs", run_id, "handoffs"),
        Handoff.from_json,
        {"limit": limit, "cursor": cursor},
    )


def accept(
    handoff_id: str, by: str, *, idempotency_key: str | None = None
) -> Call[Handoff]:
    """Take a handoff under a stable name; what it carries is fixed now."""
    return _move(handoff_id, "accept", {"by": by}, idempotency_key)


def decline(
    handoff_id: str, *, reason: str = "", idempotency_key: str | None = None
) -> Call[Handoff]:
    """Give a handoff back undone."""
    return _move(handoff_id, "decline", {"reason": reason}, idempotency_key)


def complete(
    handoff_id: str,
    summary: str,
    data: Any = None,
    *,
    idempotency_key: str | None = None,
) -> Call[Handoff]:
    """Give the result back; the step that waits is done with it."""
    body = {"summary": summary, "data": data}
    return _move(handoff_id, "result", body, idempotency_key)


def suggest(
    run_id: str,
    task: str,
    *,
    limit: int | None = None,
    idempotency_key: str | None = None,
) -> Call[list[SuggestedFact]]:
    """Return the facts that matter for a task, best first."""
    return writing(
        "POST",
        path_to("runs", run_id, "handoffs", "suggest"),
        lambda body: [SuggestedFact.from_json(item) for item in body["items"]],
        {"task": task, **filled(limit=limit)},
        idempotency_key=idempotency_key,
    )


def tree(run_id: str) -> Call[dict[str, Any]]:
    """Return a run with the runs below it, their states and budgets."""
    return reading(path_to("runs", run_id, "tree"), dict)


def _move(
    handoff_id: str, move: str, body: Mapping[str, Any], idempotency_key: str | None
) -> Call[Handoff]:
    return writing(
        "POST",
        path_to("handoffs", handoff_id, move),
        Handoff.from_json,
        body,
        idempotency_key=idempotency_key,
    )
