"""The project's feed over REST, and the addresses of the live streams."""

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from drf_spectacular.utils import OpenApiParameter
from rest_framework import serializers
from rest_framework.response import Response

from access_app.api.docs import documented
from access_app.api.views import ApiRequest
from access_app.scopes import SESSIONS_READ
from agentstate import codec
from agentstate.api.params import CommaListField, Params, read_params
from agentstate.errors import FieldError, ServiceUnavailable
from sessions_app import feed
from sessions_app.api.base import SessionCallView
from sessions_app.api.events import EVENT_EXAMPLE
from sessions_app.api.serializers import (
    BIGINT_MAX,
    FeedEventOut,
    FeedParams,
    name_field,
)
from sessions_app.errors import SessionNotFound
from sessions_app.feed import FeedEvent, FeedFilter, Position
from sessions_app.log import event_json

LATEST = "latest"
FEED_EXAMPLE = EVENT_EXAMPLE | {
    "session": "0199b2a0-8a10-7d12-8f6e-5d1c0a9b7e42",
    "agent": "support",
}
LAST_EVENT_ID = OpenApiParameter(
    "Last-Event-ID",
    str,
    OpenApiParameter.HEADER,
    description="Where to resume: the id of the last event you have.",
)


class SessionStreamParams(Params):
    after_seq = serializers.IntegerField(
        required=False, min_value=-1, max_value=BIGINT_MAX
    )
    types = CommaListField(required=False)


class FeedStreamParams(Params):
    after = serializers.CharField(required=False)
    types = CommaListField(required=False)
    agent = name_field(required=False)


class FeedOut(serializers.Serializer[Any]):
    items = FeedEventOut(many=True)
    next = serializers.CharField(
        allow_null=True, help_text="Where to go on at once; null at the feed's end."
    )
    cursor = serializers.CharField(
        help_text="Where to go on later, as `after`; also at the feed's end."
    )


class StreamOnly(ServiceUnavailable):
    """This address streams, and is served by the live process."""

    code = "stream_only"


class FeedView(SessionCallView):
    scopes = {"GET": SESSIONS_READ}

    @documented(
        "list_feed",
        "Follow all events of the project",
        params=FeedParams,
        responses={200: FeedOut},
        response_example={"items": [FEED_EXAMPLE], "next": None, "cursor": "…"},
        description="Every committed event once, in one order; none that commits late "
        "is missed. Keep `cursor` and pass it as `after` next time.",
        tags=["events"],
    )
    def get(self, request: ApiRequest) -> Response:
        params = read_params(request, FeedParams)
        wanted = feed_filter(self.caller, params)
        found = feed.read_feed(
            self.caller.project_id,
            start_position(self.caller.project_id, params),
            wanted,
            params["limit"],
        )
        cursor = feed.encode_position(found.position)
        return Response(
            {
                "items": [feed_json(event) for event in found.events],
                "next": cursor if found.has_more else None,
                "cursor": cursor,
            }
        )


def feed_filter(caller: Any, params: dict[str, Any]) -> FeedFilter:
    """What of the feed the caller wants, within what its key is bound to."""
    session_id = params.get("session")
    if caller.session_id is not None:
        if session_id not in (None, caller.session_id):
            raise SessionNotFound
        session_id = caller.session_id
    return FeedFilter(
        types=params.get("types", ()),
        agent=params.get("agent"),
        session_id=session_id,
        subject=caller.subject,
    )


def start_position(project_id: UUID, params: dict[str, Any]) -> Position:
    if "after" in params and "cursor" in params:
        raise FieldError("cursor", "conflict", "is the same as after: send one")
    after = params.get("after", params.get("cursor"))
    if after == LATEST:
        return feed.end_of_feed(project_id)
    return feed.START if after is None else feed.decode_position(after)


def feed_json(found: FeedEvent) -> dict[str, Any]:
    return event_json(found.event) | {
        "session": str(found.session_id),
        "agent": found.agent,
    }


# Set in the WSGI environment by the live process, which streams what the view allows.
LIVE_ENVIRON = "agentstate.live"


@dataclass(frozen=True)
class StreamStart:
    """What a view has allowed to be streamed: one session, or the project's feed."""

    project_id: UUID
    session_id: UUID | None
    place: Any  # a seq, or the three numbers of a feed position
    types: tuple[str, ...]
    agent: str | None = None
    subject: str | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "project_id": str(self.project_id),
            "session_id": str(self.session_id) if self.session_id else None,
            "place": self.place,
            "types": list(self.types),
            "agent": self.agent,
            "subject": self.subject,
        }

    @classmethod
    def from_json(cls, data: Any) -> "StreamStart":
        session_id = data["session_id"]
        return cls(
            project_id=UUID(data["project_id"]),
            session_id=UUID(session_id) if session_id else None,
            place=data["place"],
            types=tuple(data["types"]),
            agent=data["agent"],
            subject=data["subject"],
        )


def start_stream(request: ApiRequest, start: StreamStart) -> Response:
    """Tell the live process that it may stream; anybody else, that this is none."""
    if not request._request.META.get(LIVE_ENVIRON):
        raise StreamOnly
    return Response(start.to_json())


class StreamView(SessionCallView):
    """A stream has no HEAD: what it would answer is known only once it is open."""

    scopes = {"GET": SESSIONS_READ}
    http_method_names = ["get"]


class SessionStreamView(StreamView):
    @documented(
        "stream_events",
        "Follow a session's log (Server-Sent Events)",
        params=SessionStreamParams,
        responses={(200, "text/event-stream"): str},
        response_example=f"id: 1\ndata: {codec.dumps(EVENT_EXAMPLE)}\n\n",
        headers=[LAST_EVENT_ID],
        errors=[404],
        description="Each message's `id` is the event's seq, its `data` the event. "
        "Goes on behind Last-Event-ID, or else behind `after_seq`.",
        tags=["events"],
    )
    def get(self, request: ApiRequest, session_id: UUID) -> Response:
        params = read_params(request, SessionStreamParams)
        session = self.load(session_id)
        after = params.get("after_seq", 0)
        if last := request.headers.get("Last-Event-ID"):
            after = read_last_seq(last)
        start = StreamStart(
            session.project_id, session.pk, after, tuple(params.get("types", ()))
        )
        return start_stream(request, start)


def read_last_seq(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise FieldError("Last-Event-ID", "invalid", "must be the seq of an event")
    return int(text)


class FeedStreamView(StreamView):
    @documented(
        "stream_feed",
        "Follow all events of the project (Server-Sent Events)",
        params=FeedStreamParams,
        responses={(200, "text/event-stream"): str},
        response_example=f"id: …\ndata: {codec.dumps(FEED_EXAMPLE)}\n\n",
        headers=[LAST_EVENT_ID],
        description="Each message's `id` is the cursor behind the event, its `data` "
        "the event. Goes on behind Last-Event-ID, or else behind `after`.",
        tags=["events"],
    )
    def get(self, request: ApiRequest) -> Response:
        params = read_params(request, FeedStreamParams)
        if last := request.headers.get("Last-Event-ID"):
            params = {**params, "after": last}
            params.pop("cursor", None)
        caller = self.caller
        wanted = feed_filter(caller, params)
        position = start_position(caller.project_id, params)
        start = StreamStart(
            caller.project_id,
            None,
            list(position),
            tuple(wanted.types),
            wanted.agent,
            wanted.subject,
        )
        if wanted.session_id is not None:
            raise FieldError(
                "session", "conflict", "follow one session by its own stream"
            )
        return start_stream(request, start)
