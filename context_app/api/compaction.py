"""Compaction: let a summary stand for what is old, see what does, and undo it."""

from typing import Any, get_args
from uuid import UUID

from django.db import transaction
from rest_framework import serializers
from rest_framework.response import Response

from access_app import idempotency
from access_app.api.docs import documented
from access_app.api.views import ApiRequest, replayed
from agentstate.api.params import read_params
from agentstate.api.serializers import (
    JSONObjectField,
    StrictSerializer,
    StringField,
    read_as,
)
from context_app.api.serializers import KEEP_MAX
from context_app.compaction.active import Summary, active_summaries
from context_app.compaction.services import (
    Compacted,
    CompactRequest,
    Method,
    Writer,
    compact_session,
    undo_compaction,
)
from sessions_app.api.base import LOCK_TOKEN, SessionCallView
from sessions_app.api.serializers import BIGINT_MAX
from sessions_app.api.sessions import has_body

METHODS = get_args(Method.__value__)
SUMMARY_MAX = 1_000_000  # characters
STATUSES = ["compacted", "fallback", "failed"]


def seq_field(**options: Any) -> serializers.IntegerField:
    return serializers.IntegerField(min_value=1, max_value=BIGINT_MAX, **options)


class CompactIn(StrictSerializer):
    """Without any field: the newest turns stay, a summary is made of the rest."""

    summary = StringField(
        required=False, max_length=SUMMARY_MAX, help_text="Your own summary."
    )
    up_to_seq = seq_field(
        required=False, help_text="How far the summary reaches, this event included."
    )
    method = serializers.ChoiceField(
        choices=METHODS,
        required=False,
        help_text="given: your own summary. llm: by the endpoint that is configured. "
        "extract: by rule. Default: the first of these that can be.",
    )
    keep = serializers.ListField(
        child=seq_field(),
        required=False,
        max_length=KEEP_MAX,
        help_text="Events that stay as they are; a call and its result stay together.",
    )
    keep_last = serializers.IntegerField(
        required=False,
        min_value=0,
        max_value=1000,
        help_text="Turns at the end that stay as they are. Default 4.",
    )
    preserve_tools = serializers.BooleanField(
        required=False, help_text="Tool calls and their results all stay."
    )
    summary_tokens = serializers.IntegerField(
        required=False, min_value=50, max_value=100_000
    )
    force = serializers.BooleanField(
        required=False, help_text="Accept a given summary in spite of what it loses."
    )
    fallback = serializers.BooleanField(
        required=False,
        help_text="false: if the endpoint gives no summary, change nothing.",
    )


class LostOut(serializers.Serializer[Any]):
    kind = serializers.ChoiceField(
        choices=[
            "email",
            "amount",
            "date",
            "number",
            "code",
            "pinned_fact",
            "open_call",
        ]
    )
    value = serializers.CharField()
    seqs = serializers.ListField(child=serializers.IntegerField())


class CompactOut(serializers.Serializer[Any]):
    seq = serializers.IntegerField(
        allow_null=True, help_text="Of the event context.compacted; null if it failed."
    )
    status = serializers.ChoiceField(choices=STATUSES)
    method = serializers.ChoiceField(choices=METHODS)
    from_seq = serializers.IntegerField()
    up_to_seq = serializers.IntegerField()
    summary = serializers.CharField()
    keep = serializers.ListField(child=serializers.IntegerField())
    lost = LostOut(many=True)
    active = serializers.ListField(
        child=serializers.IntegerField(), help_text="All compactions in force."
    )
    replaces = serializers.ListField(child=serializers.IntegerField())
    reason = serializers.CharField(allow_null=True)


class CompactionListOut(serializers.Serializer[Any]):
    items = serializers.ListField(child=JSONObjectField())


class UndoneOut(serializers.Serializer[Any]):
    undone = serializers.IntegerField()
    active = serializers.ListField(child=serializers.IntegerField())


COMPACTED_EXAMPLE = {
    "seq": 61,
    "status": "compacted",
    "method": "given",
    "from_seq": 1,
    "up_to_seq": 40,
    "summary": "Order #1042 was shipped on 2026-01-14; the customer has the number.",
    "keep": [],
    "lost": [],
    "active": [61],
    "replaces": [],
    "reason": None,
}


class CompactionView(SessionCallView):
    @property
    def compaction_writer(self) -> Writer:
        return Writer(**self.writer)


class CompactView(CompactionView):
    """Its own idempotency: a summary may take a minute, too long for a transaction."""

    idempotency = "service"

    @documented(
        "compact_session",
        "Let a summary stand for the older part of a session",
        request=CompactIn,
        responses={201: CompactOut, 200: CompactOut},
        request_example={
            "up_to_seq": 40,
            "summary": "Order #1042 was shipped on 2026-01-14; the customer has it.",
        },
        response_example=COMPACTED_EXAMPLE,
        headers=[LOCK_TOKEN],
        errors=[404, 423],
        description="The log stays as it is: one event is added. A given summary that "
        "does not tell an identifier, a pinned fact or an open call of its range is "
        "refused with 409 `summary_loses`, which lists them with their seqs. 200 with "
        "status `failed`: no summary was made, and nothing changed.",
        tags=["context"],
    )
    def post(self, request: ApiRequest, session_id: UUID) -> Response:
        wanted = read_compact(request)
        self.load(session_id)
        if (stored := self._stored_answer(request)) is not None:
            return stored
        response: list[Response] = []

        def keep_answer(compacted: Compacted) -> None:
            response.append(Response(compacted_json(compacted), status=201))
            if request.idempotency is not None:
                # Two calls with one key may both have thought; one of them writes.
                idempotency.begin(request.idempotency)
                self.keep_answer(request.idempotency, response[0])

        compacted = compact_session(
            self.caller.project_id,
            session_id,
            wanted,
            self.compaction_writer,
            in_transaction=keep_answer,
        )
        return response[0] if response else Response(compacted_json(compacted))

    def _stored_answer(self, request: ApiRequest) -> Response | None:
        if request.idempotency is None:
            return None
        with transaction.atomic():
            answer = idempotency.begin(request.idempotency)
        return None if answer is None else replayed(answer)


class CompactionListView(CompactionView):
    @documented(
        "list_compactions",
        "List the summaries in force, oldest first",
        responses={200: CompactionListOut},
        response_example={
            "items": [
                {"seq": 61, "from_seq": 1, "up_to_seq": 40, "summary": "…", "keep": []}
            ]
        },
        errors=[404],
        tags=["context"],
    )
    def get(self, request: ApiRequest, session_id: UUID) -> Response:
        read_params(request)
        session = self.load(session_id)
        active = active_summaries(session, session.last_seq)
        return Response({"items": [summary_json(s) for s in active.summaries]})


class CompactionDetailView(CompactionView):
    @documented(
        "undo_compaction",
        "Undo the newest compaction",
        responses={200: UndoneOut},
        response_example={"undone": 61, "active": []},
        headers=[LOCK_TOKEN],
        errors=[404, 423],
        description="An event `context.restored` is added. Models see the events "
        "themselves again; summaries that it had taken in are in force again.",
        tags=["context"],
    )
    def delete(self, request: ApiRequest, session_id: UUID, seq: int) -> Response:
        left = undo_compaction(
            self.caller.project_id, session_id, seq, self.compaction_writer
        )
        return Response({"undone": seq, "active": left})


def read_compact(request: ApiRequest) -> CompactRequest:
    body = read_as(CompactIn, request) if has_body(request) else {}
    body["keep"] = frozenset(body.get("keep", ()))
    return CompactRequest(**body)


def compacted_json(compacted: Compacted) -> dict[str, Any]:
    return {name: getattr(compacted, name) for name in COMPACTED_EXAMPLE}


def summary_json(summary: Summary) -> dict[str, Any]:
    payload = summary.payload
    names = ("from_seq", "up_to_seq", "summary", "keep", "method", "status", "replaces")
    return {"seq": summary.seq, **{name: payload.get(name) for name in names}}
