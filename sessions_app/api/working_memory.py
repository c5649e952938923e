"""Working memory over HTTP: the same calls under a session and under a run.

`working_memory_paths` makes the views of one owner, so that both offer the same.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any, cast
from uuid import UUID

from django.http import HttpRequest, HttpResponseBase
from django.urls import URLPattern, path
from drf_spectacular.utils import OpenApiParameter
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from access_app.api.docs import documented
from access_app.api.views import ApiRequest, ApiView
from access_app.idempotency import REPLAYED
from agentstate import codec
from agentstate.api.etags import ANY, etag, read_if_match, read_if_none_match
from agentstate.api.pagination import decode_cursor, encode_cursor
from agentstate.api.params import PageParams, read_params
from agentstate.api.paths import ANY_TEXT
from agentstate.api.serializers import JSONValueField, StrictSerializer, read_as
from agentstate.errors import FieldError
from sessions_app import working_memory as memory
from sessions_app.api.base import SessionCallView
from sessions_app.api.sessions import has_body
from sessions_app.errors import EntryNotFound, SessionClosed, SessionNotFound
from sessions_app.models import Session, SessionStatus
from sessions_app.working_memory import (
    Condition,
    Entry,
    Expired,
    Policy,
    Scope,
    Written,
    instant_text,
)

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
IF_MATCH = OpenApiParameter(
    "If-Match",
    str,
    OpenApiParameter.HEADER,
    description="The version you change; `*` for any, but there must be one.",
)
IF_NONE_MATCH = OpenApiParameter(
    "If-None-Match",
    str,
    OpenApiParameter.HEADER,
    description="`*`: write only if there is no such key.",
)
KEY = OpenApiParameter(
    "key",
    {"type": "string", "minLength": 1, "maxLength": memory.KEY_MAX},
    OpenApiParameter.PATH,
    description="Any text, percent-encoded; a slash as %2F.",
)
ENTRY_EXAMPLE = {
    "key": "plan",
    "expired": False,
    "value": {"next": "refund"},
    "version": 1768469400000000,
    "policy": "fixed",
    "ttl_s": 3600,
    "seconds_left": 3600.0,
    "expires_at": "2026-01-15T10:30:00.000Z",
    "length": None,
}
CURSOR = "working-memory"


class LifeIn(StrictSerializer):
    ttl_s = serializers.IntegerField(
        required=False,
        min_value=1,
        max_value=memory.MAX_TTL,
        help_text="Seconds the key lives; 3600 if not given.",
    )
    policy = serializers.ChoiceField(
        choices=["fixed", "sliding"],
        required=False,
        help_text="With sliding, reading the key begins its life anew.",
    )

    @staticmethod
    def life(body: Mapping[str, Any]) -> dict[str, Any]:
        given: dict[str, Any] = {}
        if "ttl_s" in body:
            given["ttl"] = body["ttl_s"]
        if "policy" in body:
            given["policy"] = cast(Policy, body["policy"])
        return given


class PutEntryIn(LifeIn):
    value = JSONValueField(help_text="At most 256 KB as JSON.")


class IncrementIn(LifeIn):
    by = serializers.IntegerField(
        required=False, default=1, min_value=INT64_MIN, max_value=INT64_MAX
    )


class AppendItemIn(LifeIn):
    item = JSONValueField()


class TouchIn(StrictSerializer):
    ttl_s = serializers.IntegerField(
        required=False, min_value=1, max_value=memory.MAX_TTL
    )


class EntryOut(serializers.Serializer[Any]):
    key = serializers.CharField()
    expired = serializers.BooleanField()
    value = JSONValueField(required=False)
    version = serializers.IntegerField(required=False)
    policy = serializers.ChoiceField(choices=["fixed", "sliding"], required=False)
    ttl_s = serializers.IntegerField(required=False)
    seconds_left = serializers.FloatField(required=False)
    expires_at = serializers.DateTimeField(required=False)
    length = serializers.IntegerField(
        required=False, allow_null=True, help_text="The items of a list."
    )
    expired_at = serializers.DateTimeField(required=False)


class EntryPage(serializers.Serializer[Any]):
    items = EntryOut(many=True)
    next = serializers.CharField(allow_null=True)


class SessionMemoryView(SessionCallView):
    idempotency = "service"

    @property
    def owned_scope(self) -> Scope | None:
        """The memory that the path names; None, for a reader, if it has ended."""
        session_id: UUID = self.kwargs["session_id"]
        found = (
            Session.objects.filter(id=session_id)
            .filter(**self.caller.session_filter())
            .values_list("status", "last_seq")
            .first()
        )
        if found is None:
            raise SessionNotFound
        status, last_seq = found
        if status != SessionStatus.OPEN:
            if self.request.method == "GET":
                return None
            raise SessionClosed(session_status=status)
        return Scope(self.caller.project_id, session_id, last_seq)


# No docstrings on the mixins: the API's document would show them with every call.
class EntryListMixin:
    def page(self: Any, request: ApiRequest) -> Response:
        params = read_params(request, PageParams)
        after = ""
        if cursor := params.get("cursor"):
            [after] = decode_cursor(CURSOR, cursor, 1)
        scope = self.owned_scope
        if scope is None:
            return Response({"items": [], "next": None})
        items, has_more = memory.list_entries(scope, after=after, limit=params["limit"])
        following = encode_cursor(CURSOR, [items[-1].key]) if has_more else None
        return Response({"items": [shown(item) for item in items], "next": following})


class EntryMixin:
    def initial(self: Any, request: ApiRequest, *args: Any, **kwargs: Any) -> None:
        super().initial(request, *args, **kwargs)  # type: ignore[misc]
        memory.check_key(kwargs["key"])

    def conditions(self: Any) -> dict[str, Any]:
        return {
            "condition": read_condition(self.request),
            "call": self.api_request.idempotency,
        }

    def read(self: Any, key: str) -> Response:
        read_params(self.request)
        scope = self.owned_scope
        if scope is None:
            raise EntryNotFound
        entry = memory.get_entry(scope, key)
        return Response(shown(entry), headers={"ETag": etag(entry.version)})

    def put_value(self: Any, key: str) -> Response:
        body = read_as(PutEntryIn, self.request)
        written = memory.put_entry(
            self.owned_scope,
            key,
            body["value"],
            **LifeIn.life(body),
            **self.conditions(),
        )
        return written_response(written)

    def remove(self: Any, key: str) -> Response:
        is_replay = memory.delete_entry(self.owned_scope, key, **self.conditions())
        return Response(status=204, headers=replay_header(is_replay))


class IncrementMixin(EntryMixin):
    def increment(self: Any, key: str) -> Response:
        body = read_as(IncrementIn, self.request) if has_body(self.request) else {}
        written = memory.increment_entry(
            self.owned_scope,
            key,
            body.get("by", 1),
            **LifeIn.life(body),
            **self.conditions(),
        )
        return written_response(written)


class AppendMixin(EntryMixin):
    def append(self: Any, key: str) -> Response:
        body = read_as(AppendItemIn, self.request)
        written = memory.append_entry(
            self.owned_scope,
            key,
            body["item"],
            **LifeIn.life(body),
            **self.conditions(),
        )
        return written_response(written)


class TouchMixin(EntryMixin):
    def touch(self: Any, key: str) -> Response:
        body = read_as(TouchIn, self.request) if has_body(self.request) else {}
        written = memory.touch_entry(
            self.owned_scope, key, ttl=body.get("ttl_s"), **self.conditions()
        )
        return written_response(written)


def working_memory_paths(
    prefix: str, owner: str, base: type[ApiView]
) -> list[URLPattern]:
    """Return the routes below `prefix` for the memory of an `owner` (session, run).

    `base` is a view that has `owned_scope`, with the scopes of keys that it needs.
    """

    class ListView(EntryListMixin, base):  # type: ignore[misc, valid-type]
        @documented(
            f"list_{owner}_working_memory",
            f"List a {owner}'s working memory, by key",
            params=PageParams,
            responses={200: EntryPage},
            response_example={
                "items": [
                    {"key": "a", "expired": True, "expired_at": "2026-01-15T09:30:00Z"},
                    ENTRY_EXAMPLE,
                ],
                "next": None,
            },
            errors=[404],
            description="A key that expired within the last hour is told of, without "
            "its value. Listing prolongs no key's life.",
            tags=["working memory"],
        )
        def get(self, request: ApiRequest, **owner_id: UUID) -> Response:
            return self.page(request)

    class EntryView(EntryMixin, base):  # type: ignore[misc, valid-type]
        @documented(
            f"get_{owner}_working_memory",
            "Read one key",
            responses={200: EntryOut},
            response_example=ENTRY_EXAMPLE,
            headers=[KEY],
            errors=[404],
            tags=["working memory"],
        )
        def get(self, request: ApiRequest, key: str, **owner_id: UUID) -> Response:
            return self.read(key)

        @documented(
            f"put_{owner}_working_memory",
            "Set one key, value and expiry together",
            request=PutEntryIn,
            responses={200: EntryOut, 201: EntryOut},
            request_example={"value": {"next": "refund"}, "ttl_s": 3600},
            response_example=ENTRY_EXAMPLE,
            headers=[KEY, IF_MATCH, IF_NONE_MATCH],
            errors=[404, 412],
            tags=["working memory"],
        )
        def put(self, request: ApiRequest, key: str, **owner_id: UUID) -> Response:
            return self.put_value(key)

        @documented(
            f"delete_{owner}_working_memory",
            "Delete one key",
            responses={204: None},
            headers=[KEY, IF_MATCH],
            errors=[404, 412],
            tags=["working memory"],
        )
        def delete(self, request: ApiRequest, key: str, **owner_id: UUID) -> Response:
            return self.remove(key)

    class IncrementView(IncrementMixin, base):  # type: ignore[misc, valid-type]
        @documented(
            f"increment_{owner}_working_memory",
            "Add to a counter; a new one begins at 0",
            request=IncrementIn,
            responses={200: EntryOut, 201: EntryOut},
            request_example={"by": 1},
            response_example=ENTRY_EXAMPLE | {"value": 2},
            headers=[KEY, IF_MATCH, IF_NONE_MATCH],
            errors=[404, 412],
            description="ttl_s and policy are those of a new counter: one that exists "
            "keeps its own.",
            tags=["working memory"],
        )
        def post(self, request: ApiRequest, key: str, **owner_id: UUID) -> Response:
            return self.increment(key)

    class AppendView(AppendMixin, base):  # type: ignore[misc, valid-type]
        @documented(
            f"append_{owner}_working_memory",
            "Add an item to a list; a new one begins empty",
            request=AppendItemIn,
            responses={200: EntryOut, 201: EntryOut},
            request_example={"item": {"found": 3}},
            response_example={k: v for k, v in ENTRY_EXAMPLE.items() if k != "value"}
            | {"length": 4},
            headers=[KEY, IF_MATCH, IF_NONE_MATCH],
            errors=[404, 412],
            description="The answer says how long the list is now, not what is in it.",
            tags=["working memory"],
        )
        def post(self, request: ApiRequest, key: str, **owner_id: UUID) -> Response:
            return self.append(key)

    class TouchView(TouchMixin, base):  # type: ignore[misc, valid-type]
        @documented(
            f"touch_{owner}_working_memory",
            "Begin a key's life anew",
            request=TouchIn,
            responses={200: EntryOut},
            request_example={"ttl_s": 600},
            response_example={k: v for k, v in ENTRY_EXAMPLE.items() if k != "value"},
            headers=[KEY, IF_MATCH],
            errors=[404, 412],
            tags=["working memory"],
        )
        def post(self, request: ApiRequest, key: str, **owner_id: UUID) -> Response:
            return self.touch(key)

    below = f"{prefix}/working-memory"
    one = f"{below}/<{ANY_TEXT}:key>"
    return [
        path(below, ListView.as_view()),
        path(f"{one}/increment", by_method("increment", IncrementView, EntryView)),
        path(f"{one}/append", by_method("append", AppendView, EntryView)),
        path(f"{one}/touch", by_method("touch", TouchView, EntryView)),
        path(one, EntryView.as_view()),
    ]


def by_method(
    operation: str, posted: type[ApiView], entry: type[ApiView]
) -> Callable[..., HttpResponseBase]:
    """Give a POST to `posted`; anything else means a key that ends like the operation.

    Entries take no POST, so no key is out of reach.
    """
    post, other = posted.as_view(), entry.as_view()

    @functools.wraps(post)
    def dispatch(request: HttpRequest, key: str, **owner_id: UUID) -> HttpResponseBase:
        if request.method == "POST":
            return post(request, key=key, **owner_id)
        return other(request, key=f"{key}/{operation}", **owner_id)

    return dispatch


def shown(item: Entry | Expired) -> dict[str, Any]:
    if isinstance(item, Expired):
        at = instant_text(item.expired_at)
        return {"key": item.key, "expired": True, "expired_at": at}
    body: dict[str, Any] = {"key": item.key, "expired": False}
    if item.value_text:
        body["value"] = codec.RawJSON(item.value_text)
    return body | {
        "version": item.version,
        "policy": item.policy,
        "ttl_s": int(item.ttl),
        "seconds_left": item.seconds_left,
        "expires_at": instant_text(item.expires_at),
        "length": item.length,
    }


def written_response(written: Written) -> Response:
    return Response(
        shown(written.entry),
        status=201 if written.is_new else 200,
        headers={"ETag": etag(written.entry.version)}
        | replay_header(written.is_replay),
    )


def replay_header(is_replay: bool) -> dict[str, str]:
    return {REPLAYED: "true"} if is_replay else {}


def read_condition(request: Request) -> Condition:
    none_match = read_if_none_match(request)
    if none_match not in (None, ANY):
        raise FieldError("If-None-Match", "bad_etag", "this is * or not given")
    version = read_if_match(request)
    if version is not None and none_match is not None:
        raise FieldError(
            "If-None-Match", "conflict", "a key cannot be there and not be there"
        )
    return Condition(version, is_new=none_match == ANY)
