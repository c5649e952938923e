"""Steps: work on them, look at them, decide about them.

Claims, heartbeats and reports carry no idempotency key: the lease token fences them,
and the same report twice is the same answer.
"""

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
    posting,
    reading,
    writing,
)
from agentstate_client.models import (
    ClaimedSteps,
    InboxItem,
    ItemAnswer,
    Page,
    Step,
)


def claim(
    worker: str,
    *,
    max: int = 1,
    lease_s: float = 30.0,
    wait_s: float = 0.0,
    tools: Sequence[str] | None = None,
    agents: Sequence[str] | None = None,
    run: str | None = None,
) -> Call[ClaimedSteps]:
    """Claim the oldest steps that can be worked on; wait up to `wait_s` for one.

    If the answer is lost, so is the claim: the steps come back when the leases end.
    """
    body = {
        "worker": worker,
        "max": max,
        "lease_s": lease_s,
        "wait_s": wait_s,
        **filled(
            tools=None if tools is None else list(tools),
            agents=None if agents is None else list(agents),
            run=run,
        ),
    }
    return posting(path_to("steps", "claim"), _read_claimed, body)


def heartbeat(
    items: Sequence[Mapping[str, Any]],
) -> Call[list[ItemAnswer]]:
    """Extend leases: items are `{"step", "lease_token", "lease_s"?}`.

    Each is answered by itself: `lease_lost`, `cancelled` and `already_finished` mean to
    drop the step, `stop` to end it soon and report.
    """
    return _items("heartbeat", items)


def complete(
    items: Sequence[Mapping[str, Any]], *, worker: str | None = None
) -> Call[list[ItemAnswer]]:
    """Report results: items are `{"step", "lease_token", "result"?, "usage"?}`."""
    return _items("complete", items, worker)


def fail(
    items: Sequence[Mapping[str, Any]], *, worker: str | None = None
) -> Call[list[ItemAnswer]]:
    """Report failures: items are `{"step", "lease_token", "error", …}`."""
    return _items("fail", items, worker)


def release(
    items: Sequence[Mapping[str, Any]], *, worker: str | None = None
) -> Call[list[ItemAnswer]]:
    """Give steps back that were not begun: `{"step", "lease_token", "delay_s"?}`."""
    return _items("release", items, worker)


def get(step_id: str) -> Call[Step]:
    """Return a step with its result."""
    return reading(path_to("steps", step_id), Step.from_json)


def approve(
    step_id: str,
    *,
    args: Any | Unset = UNSET,
    reason: str | None = None,
    idempotency_key: str | None = None,
) -> Call[Step]:
    """Approve a step that waits for it, with other args if they are given."""
    body = filled(reason=reason)
    if args is not UNSET:
        body["args"] = args
    return _decide(step_id, "approve", body, idempotency_key)


def reject(
    step_id: str, *, reason: str | None = None, idempotency_key: str | None = None
) -> Call[Step]:
    """Reject a step that waits for approval: it fails."""
    return _decide(step_id, "reject", filled(reason=reason), idempotency_key)


def skip(
    step_id: str, *, reason: str | None = None, idempotency_key: str | None = None
) -> Call[Step]:
    """Skip a step: what depends on it goes on."""
    return _decide(step_id, "skip", filled(reason=reason), idempotency_key)


def cancel(
    step_id: str, *, reason: str | None = None, idempotency_key: str | None = None
) -> Call[Step]:
    """Cancel a step, and what depends on it."""
    return _decide(step_id, "cancel", filled(reason=reason), idempotency_key)


def retry(
    step_id: str, *, reason: str | None = None, idempotency_key: str | None = None
) -> Call[Step]:
    """Retry a step that is on hold, or whose next attempt has yet to come."""
    return _decide(step_id, "retry", filled(reason=reason), idempotency_key)


def resolve(
    step_id: str,
    outcome: str,
    *,
    result: Any | Unset = UNSET,
    error: Any | Unset = UNSET,
    reason: str | None = None,
    idempotency_key: str | None = None,
) -> Call[Step]:
    """Settle a step in doubt: `done` (with `result`), `not_done`, or `give_up`."""
    body: dict[str, Any] = {"outcome": outcome, **filled(reason=reason)}
    if result is not UNSET:
        body["result"] = result
    if error is not UNSET:
        body["error"] = error
    return _decide(step_id, "resolve", body, idempotency_key)


def inbox(
    *, kind: str | None = None, limit: int | None = None, cursor: str | None = None
) -> Call[Page[InboxItem]]:
    """Return one page of the steps that wait for a person, oldest first.

    `kind` is `approval`, `hold` (the retries ran out) or `in_doubt`.
    """
    return listing(
        path_to("approvals"),
        InboxItem.from_json,
        {"kind": kind, "limit": limit, "cursor": cursor},
    )


def _items(
    what: str, items: Sequence[Mapping[str, Any]], worker: str | None = None
) -> Call[list[ItemAnswer]]:
    body = {"items": [dict(item) for item in items], **filled(worker=worker)}
    return posting(path_to("steps", what), _read_items, body)


def _read_items(body: Mapping[str, Any]) -> list[ItemAnswer]:
    return [ItemAnswer.from_json(item) for item in body["items"]]


def _read_claimed(body: Mapping[str, Any]) -> ClaimedSteps:
    return ClaimedSteps.from_json(body)


def _decide(
    step_id: str, move: str, body: Mapping[str, Any], idempotency_key: str | None
) -> Call[Step]:
    return writing(
        "POST",
        path_to("steps", step_id, move),
        Step.from_json,
        body,
        idempotency_key=idempotency_key,
    )
