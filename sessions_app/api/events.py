"""Events: append to a session's log, and read it."""

from datetime import datetime
from typing import Any
from uuid import UUID

from django.conf import settings
from rest_framework.response import Response
from rest_framework.serializers import ValidationError

from access_app.api.docs import documented, page
from access_app.api.views import ApiRequest
from access_app.callers import Caller
from agentstate.api.errors import flat_errors
from agentstate.api.pagination import decode_cursor, encode_cursor
from agentstate.api.params import read_params
from agentstate.api.serializers import UNKNOWN_FIELD, InstantField
from agentstate.codec import json_path
from agentstate.errors import FieldError
from sessions_app.api.base import LOCK_TOKEN, SessionCallView
from sessions_app.api.serializers import (
    BIGINT_MAX,
    AppendIn,
    AppendOut,
    EventListParams,
    EventOut,
)
from sessions_app.append import AppendResult, NewEvent, append_events
from sessions_app.event_types import TOOL_CALL, check_event
from sessions_app.log import LogPage, event_json, read_log
from sessions_app.models import Session

EVENT_EXAMPLE = {
    "id": "0199b2a0-9c3e-7a51-8a0e-2b6f4d1c9e77",
    "seq": 2,
    "type": "message.user",
    "payload": {"content": "Where is order 1042?"},
    "run": None,
    "step": None,
    "actor": "key:4f0c1a9be27d",
    "occurred_at": None,
    "created_at": "2026-01-15T09:30:00.000000Z",
}
EVENT_FIELDS = {"id", "type", "payload", "occurred_at", "run", "step"}
INSTANT = InstantField()


class EventListView(SessionCallView):
    idempotency = "service"

    @documented(
        "list_events",
        "Read a session's log",
        params=EventListParams,
        responses={200: page(EventOut)},
        response_example={"items": [EVENT_EXAMPLE], "next": None},
        errors=[404],
        description="Ascending by seq unless `order=desc`. A page may hold fewer than "
        "`limit` events, when they are large; `next` then goes on.",
        tags=["events"],
    )
    def get(self, request: ApiRequest, session_id: UUID) -> Response:
        params = read_params(request, EventListParams)
        session = self.load(session_id)
        if "last" in params:
            found = read_newest(session, params)
            return events_response(found.events, None)
        newest_first = params.get("order") == "desc"
        scope = f"events:{session_id}:{'desc' if newest_first else 'asc'}"
        after, before = params.get("after_seq", 0), params.get("before_seq")
        if "cursor" in params:
            [seq] = decode_cursor(scope, params["cursor"], 1)
            after, before = (after, seq) if newest_first else (seq, before)
        found = read_log(
            session,
            after_seq=after,
            before_seq=before,
            types=params.get("types", ()),
            contains=params.get("q", ""),
            limit=params["limit"],
            newest_first=newest_first,
        )
        following = None
        if found.has_more and found.events:
            following = encode_cursor(scope, [found.events[-1].seq])
        return events_response(found.events, following)

    @documented(
        "append_events",
        "Append events, all or none",
        request=AppendIn,
        responses={201: AppendOut},
        request_example={
            "events": [
                {
                    "type": "message.user",
                    "payload": {"content": "Where is order 1042?"},
                }
            ]
        },
        response_example={
            "events": [{"id": EVENT_EXAMPLE["id"], "seq": 2}],
            "last_seq": 2,
        },
        headers=[LOCK_TOKEN],
        errors=[404, 423],
        description="At most 1,000 events or 40 MB. An event whose id is in the log "
        "already, with the same type and payload, is not stored again.",
        tags=["events"],
    )
    def post(self, request: ApiRequest, session_id: UUID) -> Response:
        events, expected_seq = read_append(request.data)
        if self.caller.tool_allowlist is not None:
            check_tools(self.caller, events)
        result = append_events(
            self.caller.project_id,
            session_id,
            events,
            expected_seq=expected_seq,
            idempotency=request.idempotency,
            **self.writer,
        )
        headers = {"Idempotency-Replayed": "true"} if result.is_replay else None
        return Response(append_json(result), status=201, headers=headers)


def read_newest(session: Session, params: dict[str, Any]) -> LogPage:
    found = read_log(
        session,
        after_seq=-1,
        before_seq=params.get("before_seq"),
        types=params.get("types", ()),
        contains=params.get("q", ""),
        limit=params["last"],
        newest_first=True,
    )
    return LogPage(
        [event for event in found.events[::-1] if event.seq > 0], found.has_more
    )


def events_response(events: list[Any], following: str | None) -> Response:
    return Response({"items": [event_json(e) for e in events], "next": following})


def append_json(result: AppendResult) -> dict[str, Any]:
    return {
        "events": [
            {"id": id_, "seq": seq}
            for id_, seq in zip(result.ids, result.seqs, strict=True)
        ],
        "last_seq": result.last_seq,
    }


def read_append(body: Any) -> tuple[list[NewEvent], int | None]:
    """Return the events and expected_seq of an append's body; raises FieldError.

    By hand, not by a serializer: this is the hottest call, with up to a thousand items.
    """
    if not isinstance(body, dict):
        raise FieldError("$", "not_an_object", "the body must be an object")
    for name in body:
        if name not in ("events", "expected_seq"):
            raise FieldError(json_path((name,)), "unknown_field", UNKNOWN_FIELD)
    items = body.get("events")
    if not isinstance(items, list):
        raise FieldError("events", "required", "must be a list of events")
    if not 1 <= len(items) <= settings.EVENTS_PER_BATCH:
        raise FieldError(
            "events",
            "out_of_range",
            f"must hold 1 to {settings.EVENTS_PER_BATCH} events, not {len(items)}",
        )
    events = [_read_event(index, item) for index, item in enumerate(items)]
    _check_ids_differ(events)
    return events, _read_expected_seq(body.get("expected_seq"))


def _read_event(index: int, item: Any) -> NewEvent:
    if not isinstance(item, dict):
        raise _refused(index, None, "not_an_object", "must be an object")
    for name in item:
        if name not in EVENT_FIELDS:
            raise _refused(index, name, "unknown_field", UNKNOWN_FIELD)
    if "type" not in item:
        raise _refused(index, "type", "required", "is required")
    if "payload" not in item:
        raise _refused(index, "payload", "required", "is required")
    check_event(index, item["type"], item["payload"])
    return NewEvent(
        type=item["type"],
        payload=item["payload"],
        id=_read_uuid(index, "id", item.get("id")),
        run_id=_read_uuid(index, "run", item.get("run")),
        step_id=_read_uuid(index, "step", item.get("step")),
        occurred_at=_read_instant(index, item.get("occurred_at")),
    )


def _read_uuid(index: int, name: str, value: Any) -> UUID | None:
    if value is None:
        return None
    try:
        return UUID(value)
    except (ValueError, AttributeError, TypeError):
        raise _refused(index, name, "invalid_uuid", "must be a UUID") from None


def _read_instant(index: int, value: Any) -> datetime | None:
    if value is None:
        return None
    try:
        at: datetime = INSTANT.to_internal_value(value)
    except ValidationError as exc:
        [error] = flat_errors(exc.get_full_details())
        raise _refused(index, "occurred_at", error["code"], error["detail"]) from None
    return at


def _read_expected_seq(value: Any) -> int | None:
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool):
        raise FieldError("expected_seq", "invalid_type", "must be an integer")
    if not 0 <= value <= BIGINT_MAX:
        raise FieldError("expected_seq", "out_of_range", "must not be negative")
    return value


def check_tools(caller: Caller, events: list[NewEvent]) -> None:
    """Raise ToolNotAllowed for a call of a tool that the key may not use."""
    for index, event in enumerate(events):
        if event.type == TOOL_CALL:
            name = str(event.payload.get("name") or "")
            caller.check_tool(name, f"events[{index}].payload.name")


def _check_ids_differ(events: list[NewEvent]) -> None:
    seen: set[UUID] = set()
    for index, event in enumerate(events):
        if event.id is not None:
            if event.id in seen:
                raise _refused(index, "id", "duplicate_id", "stands here twice")
            seen.add(event.id)


def _refused(index: int, name: str | None, code: str, detail: str) -> FieldError:
    path: tuple[str | int, ...] = ("events", index)
    return FieldError(json_path(path if name is None else (*path, name)), code, detail)
