"""The ledger of effects: what was begun in the world outside, and how it went."""

from __future__ import annotations

from typing import Any

from agentstate_client.call import UNSET, Call, Unset, path_to, reading, writing
from agentstate_client.models import Effect


def begin(
    key: str,
    step: str,
    *,
    request: Any | Unset = UNSET,
    repeat: bool = False,
    idempotency_key: str | None = None,
) -> Call[Effect]:
    """Say that an effect is about to happen within a step.

    The `outcome` is `new` (go ahead), `done` (it has happened: see `result`) or
    `in_doubt` (it was begun, and nobody has said how it went). With `repeat` one in
    doubt is begun anew: right where the system downstream recognises the key.
    """
    body: dict[str, Any] = {"step": step}
    if repeat:
        body["repeat"] = True
    if request is not UNSET:
        body["request"] = request
    return writing(
        "POST",
        path_to("effects", key, "begin"),
        Effect.from_json,
        body,
        idempotency_key=idempotency_key,
    )


def complete(
    key: str, token: int, result: Any = None, *, idempotency_key: str | None = None
) -> Call[Effect]:
    """Say that an effect has happened, with what came of it."""
    return writing(
        "POST",
        path_to("effects", key, "complete"),
        Effect.from_json,
        {"token": token, "result": result},
        idempotency_key=idempotency_key,
    )


def get(key: str) -> Call[Effect]:
    """Return what is known of an effect; NotFound if it was never begun."""
    return reading(path_to("effects", key), Effect.from_json)
