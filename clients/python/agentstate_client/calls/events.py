"""A session's log: appending, reading, following."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Literal

from agentstate_client import codec
from agentstate_client.call import (
    LOCK_TOKEN,
    Call,
    filled,
    joined,
    listing,
    path_to,
    writing,
)
from agentstate_client.models import AppendResult, Event, NewEvent, Page
from agentstate_client.sse import Message
from agentstate_client.streams import StreamCall


def append(
    session_id: str,
    type: str,
    payload: Mapping[str, Any],
    *,
    id: str | None = None,
    occurred_at: datetime | str | None = None,
    run: str | None = None,
    step: str | None = None,
    expected_seq: int | None = None,
    lock_token: str | None = None,
    idempotency_key: str | None = None,
) -> Call[AppendResult]:
    """Append one event.

    `expected_seq` is the last number that you saw: if the log has moved on, the event
    is not appended and SeqConflict raised. `id`, a UUID of your own, makes the event
    unrepeatable for good, where the idempotency key of a call does so for a day.
    """
    event = filled(
        id=id, type=type, payload=payload, occurred_at=occurred_at, run=run, step=step
    )
    return append_many(
        session_id,
        [event],
        expected_seq=expected_seq,
        lock_token=lock_token,
        idempotency_key=idempotency_key,
    )


def append_many(
    session_id: str,
    events: Iterable[NewEvent | Mapping[str, Any]],
    *,
    expected_seq: int | None = None,
    lock_token: str | None = None,
    idempotency_key: str | None = None,
) -> Call[AppendResult]:
    """Append events in this order: all of them, with numbers in a row, or none."""
    body = filled(events=[_on_wire(e) for e in events], expected_seq=expected_seq)
    return writing(
        "POST",
        path_to("sessions", session_id, "events"),
        AppendResult.from_json,
        body,
        idempotency_key=idempotency_key,
        headers={LOCK_TOKEN: lock_token},
    )


def _on_wire(event: NewEvent | Mapping[str, Any]) -> dict[str, Any]:
    sent: dict[str, Any] = dict(event)
    if sent.get("occurred_at") is not None:
        sent["occurred_at"] = codec.to_wire(sent["occurred_at"])
    return sent


def list_page(
    session_id: str,
    *,
    after_seq: int | None = None,
    before_seq: int | None = None,
    last: int | None = None,
    types: Iterable[str] | None = None,
    q: str | None = None,
    order: Literal["asc", "desc"] | None = None,
    limit: int | None = None,
    cursor: str | None = None,
) -> Call[Page[Event]]:
    """List a session's events, oldest first unless `order` says otherwise.

    `last` gives the newest so many, oldest of them first. `message.*` in `types` names
    a whole family, `q` is searched for in the payloads. `after_seq` -1 includes the
    record of the session's creation, at seq 0.
    """
    params = {
        "after_seq": after_seq,
        "before_seq": before_seq,
        "last": last,
        "types": joined(types),
        "q": q,
        "order": order,
        "limit": limit,
        "cursor": cursor,
    }
    return listing(path_to("sessions", session_id, "events"), Event.from_json, params)


def stream(
    session_id: str,
    *,
    after_seq: int = 0,
    types: Iterable[str] | None = None,
) -> StreamCall[Event]:
    """Follow a session's log: what is there behind `after_seq`, then what comes.

    Goes on through cut connections and restarts of the server, without gap or repeat.
    It ends when you stop reading it.
    """
    return StreamCall(
        path_to("sessions", session_id, "events", "stream"),
        _read_streamed,
        filled(after_seq=after_seq, types=joined(types)),
    )


def _read_streamed(message: Message) -> Event:
    return Event.from_json(codec.decode(message.data.encode()))
