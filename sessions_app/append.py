"""Appending to a log: check a batch, then one round trip to the database.

Everything else is in agentstate_append_events (migration 0003): the number, the lock,
the client's own ids, the Idempotency-Key and the open tool calls.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from django.conf import settings
from django.db import connection
from django.db.models import TextField
from django.db.models.functions import Cast

from access_app.errors import IdempotencyInProgress, IdempotencyKeyReused
from access_app.idempotency import IdempotencyRequest
from agentstate import codec
from agentstate.errors import AppError
from agentstate.ids import new_id
from agentstate.json_patch import same_value
from agentstate.prepared import prepared_cursor
from sessions_app import event_types as types
from sessions_app.errors import (
    EventIdReused,
    LockLost,
    PayloadTooLarge,
    SeqConflict,
    SessionClosed,
    SessionLocked,
    SessionNotFound,
)
from sessions_app.log import iso, segments_of
from sessions_app.models import Session
from sessions_app.payloads import LargePayloads, is_large, is_stub_of, text_of


@dataclass(frozen=True)
class NewEvent:
    """An event to append. `id` is the client's own; without one the server makes it."""

    type: str
    payload: dict[str, Any]
    id: UUID | None = None
    run_id: UUID | None = None
    step_id: UUID | None = None
    occurred_at: datetime | None = None


class AppendResult(NamedTuple):
    """`seqs[i]` and `ids[i]` belong to the i-th event that was given.

    `last_seq` is the highest of them. `is_replay`: the Idempotency-Key's first answer.
    """

    ids: list[str]
    seqs: list[int]
    last_seq: int
    is_replay: bool = False


def append_events(
    project_id: UUID,
    session_id: UUID,
    events: Sequence[NewEvent],
    *,
    actor: str,
    expected_seq: int | None = None,
    lock_token: UUID | None = None,
    subject: str | None = None,
    idempotency: IdempotencyRequest | None = None,
    by_server: bool = False,
) -> AppendResult:
    """Append `events`, all or none, and return their numbers.

    Numbers run 1, 2, 3 without gaps. `expected_seq` is the last number the caller saw;
    None appends after whatever came since. An event whose client id is in the log with
    the same type and payload is not stored again: its number is returned. The caller
    has checked types and payloads with `check_event`, unless it is the server itself.

    Raises SeqConflict, SessionClosed, SessionLocked, LockLost, EventIdReused,
    PayloadTooLarge, SessionNotFound, IdempotencyInProgress, IdempotencyKeyReused, and
    StorageUnavailable when a payload is large.
    """
    payloads = [_payload_text(i, event) for i, event in enumerate(events)]
    ids = [event.id or new_id() for event in events]

    def append(rows: list[str]) -> AppendResult:
        return _append(
            project_id,
            session_id,
            events,
            ids,
            payloads,
            rows,
            actor=actor,
            expected_seq=expected_seq,
            lock_token=lock_token,
            subject=subject,
            idempotency=idempotency,
            by_server=by_server,
        )

    if by_server or connection.in_atomic_block or not any(map(is_large, payloads)):
        return append(payloads)
    with LargePayloads(project_id, session_id, payloads) as large:
        return large.append(lambda: append(large.stubs))


def _append(
    project_id: UUID,
    session_id: UUID,
    events: Sequence[NewEvent],
    ids: list[UUID],
    payloads: list[str],
    rows: list[str],
    *,
    actor: str,
    expected_seq: int | None,
    lock_token: UUID | None,
    subject: str | None,
    idempotency: IdempotencyRequest | None,
    by_server: bool,
) -> AppendResult:
    """Append `rows`, which are the payloads or what stands in their place."""
    rows = list(rows)
    arguments = [
        project_id,
        session_id,
        ids,
        _or_null([event.id is not None or None for event in events]),
        [event.type for event in events],
        rows,
        _or_null([event.run_id for event in events]),
        _or_null([event.step_id for event in events]),
        _or_null([event.occurred_at for event in events]),
        *_tool_columns(events),
        actor,
        by_server,
        expected_seq,
        lock_token,
        subject,
        *_idempotency_columns(idempotency),
        settings.IDEMPOTENCY_HOURS,
    ]
    outcome, last_seq, seqs, info = _call(arguments)
    while outcome == "event_id_reused":  # again, if a row has become a stub meanwhile
        stored = _stored_texts(project_id, session_id, events, payloads, ids, info)
        for index, text in stored.items():
            rows[index] = text  # in the arguments too
        outcome, last_seq, seqs, info = _call(arguments)
    if outcome == "replay":
        return AppendResult(
            [event["id"] for event in info["events"]],
            [event["seq"] for event in info["events"]],
            info["last_seq"],
            is_replay=True,
        )
    if outcome != "appended":
        raise refusal(outcome, last_seq, info, expected_seq)
    return AppendResult([str(i) for i in ids], seqs, max(seqs))


def first_record(session: Session, facts: dict[str, Any], actor: str) -> None:
    """Write session.created, the row at seq 0 of a session's own log."""
    text = codec.dumps(facts)
    with connection.cursor() as cursor:
        cursor.execute(
            """
            INSERT INTO agent_events (
                project_id, session_id, seq, event_id, type, payload, payload_bytes,
                actor, created_at, gen, xid
            ) VALUES (%s, %s, 0, %s, %s, %s::json, %s, %s, agentstate_now(),
                      agentstate_feed_generation(), pg_current_xact_id())
            """,
            [
                session.project_id,
                session.id,
                new_id(),
                types.SESSION_CREATED,
                text,
                len(text.encode()),
                actor,
            ],
        )


# The arguments of the function, in its order.
APPEND = """
SELECT outcome, last_seq, seqs, info FROM agentstate_append_events(
    %s::uuid, %s::uuid, %s::uuid[], %s::boolean[], %s::text[], %s::text[],
    %s::uuid[], %s::uuid[], %s::timestamptz[], %s::text[], %s::text[], %s::text[],
    %s::boolean[], %s, %s, %s::bigint, %s::uuid, %s, %s::uuid, %s::bytea, %s::bytea,
    %s::bigint, %s)
"""


def _call(arguments: list[Any]) -> tuple[str, int | None, list[int], Any]:
    with prepared_cursor() as cursor:
        cursor.execute(APPEND, arguments)
        row: tuple[str, int | None, list[int], Any] = cursor.fetchone()
    return row


def _or_null(values: list[Any]) -> list[Any] | None:
    """None for a column of nulls: unnest pads with them, and nothing is converted."""
    return values if any(value is not None for value in values) else None


def _idempotency_columns(call: IdempotencyRequest | None) -> list[Any]:
    if call is None:
        return [None] * 4
    return [call.caller_key_id, call.scope_hash, call.fingerprint, call.lock_number]


def _payload_text(index: int, event: NewEvent) -> str:
    text = codec.dumps(event.payload)
    size = len(text.encode())
    if size > settings.EVENT_PAYLOAD_MAX_BYTES:
        raise PayloadTooLarge(
            errors=[
                {
                    "path": f"events[{index}].payload",
                    "code": "payload_too_large",
                    "detail": f"{size} bytes; the limit is "
                    f"{settings.EVENT_PAYLOAD_MAX_BYTES}",
                }
            ],
            limit_bytes=settings.EVENT_PAYLOAD_MAX_BYTES,
        )
    return text


def _tool_columns(events: Sequence[NewEvent]) -> list[list[Any] | None]:
    """What the projection of tool calls needs; Nones when there is none."""
    is_tool = [event.type in (types.TOOL_CALL, types.TOOL_RESULT) for event in events]
    if not any(is_tool):
        return [None, None, None, None]
    payloads = [
        e.payload if tool else {} for e, tool in zip(events, is_tool, strict=True)
    ]
    return [
        [payload.get("tool_call_id") for payload in payloads],
        [payload.get("name") or "" for payload in payloads],
        [payload.get("awaiting") or "" for payload in payloads],
        [bool(payload.get("synthetic")) for payload in payloads],
    ]


def _stored_texts(
    project_id: UUID,
    session_id: UUID,
    events: Sequence[NewEvent],
    payloads: list[str],
    ids: list[UUID],
    reused: list[int],
) -> dict[int, str]:
    """Return what the rows hold of events that are there, the same but spelt otherwise.

    Raises EventIdReused where it is another value, or another type.
    """
    found = {}
    for index in reused:
        stored = _stored_event(project_id, session_id, ids[index])
        if (
            stored is None
            or stored.type != events[index].type
            or not _is_same(project_id, stored, payloads[index])
        ):
            path = f"events[{index}].id"
            raise EventIdReused(
                errors=[
                    {
                        "path": path,
                        "code": "event_id_reused",
                        "detail": "the session has another event with this id",
                    }
                ]
            )
        found[index] = stored.row
    return found


class _Stored(NamedTuple):
    type: str
    row: str
    blob_id: UUID | None


def _is_same(project_id: UUID, stored: _Stored, text: str) -> bool:
    if stored.blob_id is not None and is_stub_of(stored.row, text):
        return True  # without a look into the store
    whole = text_of(project_id, stored.row, stored.blob_id)
    return same_value(codec.loads(whole, max_depth=10_000), codec.loads(text))


def _stored_event(project_id: UUID, session_id: UUID, event_id: UUID) -> _Stored | None:
    session = Session.objects.get(project_id=project_id, id=session_id)
    for segment in segments_of(session):
        rows = segment.events(project_id).filter(event_id=event_id)
        found = rows.values_list("type", Cast("payload", TextField()), "blob_id")
        if row := found.first():
            return _Stored._make(row)
    return None


def refusal(
    outcome: str, last_seq: int | None, info: Any, expected_seq: int | None
) -> AppError:
    """Return the error for an outcome of the SQL functions that wrote nothing."""
    match outcome:
        case "not_found":
            return SessionNotFound()
        case "busy":
            return IdempotencyInProgress()
        case "reused":
            return IdempotencyKeyReused()
        case "session_closed":
            return SessionClosed(session_status=(info or {}).get("status", "closed"))
        case "session_locked":
            until = datetime.fromisoformat(info["lock_until"])
            return SessionLocked(lock_until=iso(until))
        case "lock_lost":
            return LockLost()
        case "seq_conflict":
            return SeqConflict(expected=expected_seq, actual=last_seq)
    raise ValueError(f"unknown outcome {outcome!r}")
