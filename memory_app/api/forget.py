"""Forgetting, and what is kept of it; and the export of a subject."""

from typing import Any
from uuid import UUID

from django.http import StreamingHttpResponse
from rest_framework import serializers
from rest_framework.response import Response

from access_app.api.docs import documented, page
from access_app.api.views import ApiRequest
from access_app.scopes import MEMORY_FORGET, MEMORY_READ, SESSIONS_READ
from access_app.services import record_audit
from agentstate.api.pagination import page_response, paginate
from agentstate.api.params import PageParams, Params, read_params
from agentstate.api.serializers import (
    JSONValueField,
    StrictSerializer,
    StringField,
    read_as,
)
from memory_app.api.base import FACT_EXAMPLE, MemoryView
from memory_app.api.serializers import FactOut
from memory_app.errors import FactNotFound
from memory_app.export import FORMAT, export_subject
from memory_app.forgetting.log import pseudonym
from memory_app.forgetting.services import (
    EVERYWHERE,
    FACT,
    forget_fact,
    forget_facts,
    forget_subject,
    receipt_json,
)
from memory_app.models import Receipt
from memory_app.services import FORGOTTEN

TAGS = ["memory"]
IDS_PER_CALL = 1000
RECEIPT_EXAMPLE = {
    "receipt": "0199b2a0-aa10-7d12-8f6e-5d1c0a9b7e42",
    "dry_run": False,
    "scope": "subject",
    "fact": None,
    "forgotten": 12,
    "counts": {"agent_memory": 12, "agent_events": 48, "agent_memory_embeddings": 12},
    "kept": [
        {
            "place": "agent_events",
            "why": "The events are redacted: number, type and time stay, what was said "
            "is gone.",
        }
    ],
    "actor": "user:maya",
    "reason": "the customer asked for it",
    "created_at": "2026-01-16T10:00:00.000000Z",
}


class ForgetIn(StrictSerializer):
    scope = serializers.ChoiceField(
        choices=[FACT, EVERYWHERE],
        required=False,
        default=FACT,
        help_text="everywhere: also the events it was taken from, and what identifies "
        "in it, in the subject's logs, states, notes and other facts.",
    )
    reason = StringField(max_length=1000, required=False, allow_blank=True, default="")


class ForgetManyIn(ForgetIn):
    ids = serializers.ListField(
        child=serializers.UUIDField(), min_length=1, max_length=IDS_PER_CALL
    )


class ForgetSubjectIn(StrictSerializer):
    dry_run = serializers.BooleanField(
        required=False, default=False, help_text="Count, and change nothing."
    )
    reason = StringField(max_length=1000, required=False, allow_blank=True, default="")


class ReceiptOut(serializers.Serializer[Any]):
    """What was forgotten, by place; without any personal text."""

    receipt = serializers.UUIDField(allow_null=True)
    dry_run = serializers.BooleanField()
    scope = serializers.CharField()
    fact = serializers.UUIDField(allow_null=True)
    forgotten = serializers.IntegerField(help_text="How many facts.")
    counts = serializers.DictField(child=serializers.IntegerField())
    kept = JSONValueField(help_text="What was kept or could not be reached, and why.")
    actor = serializers.CharField()
    reason = serializers.CharField()
    created_at = serializers.DateTimeField()


class OutcomeOut(serializers.Serializer[Any]):
    id = serializers.UUIDField()
    status = serializers.ChoiceField(choices=[FORGOTTEN, "not_found"])


class ForgottenListOut(serializers.Serializer[Any]):
    forgotten = serializers.IntegerField()
    items = OutcomeOut(many=True)


class ForgetView(MemoryView):
    scopes = {"POST": MEMORY_FORGET}

    @documented(
        "forget_fact",
        "Forget a fact for good",
        request=ForgetIn,
        responses={200: ReceiptOut},
        request_example={"scope": "everywhere", "reason": "the customer asked for it"},
        response_example=RECEIPT_EXAMPLE | {"scope": "everywhere", "forgotten": 1},
        errors=[404],
        description="What was forgotten before is 404, like what never was. No "
        "promotion brings it back.",
        tags=TAGS,
    )
    def post(self, request: ApiRequest, fact_id: UUID) -> Response:
        body = read_as(ForgetIn, request)
        receipt = forget_fact(
            self.caller.project_id,
            fact_id,
            scope=body["scope"],
            reason=body["reason"],
            actor=self.caller.actor,
            subject=self.caller.subject,
        )
        return Response(receipt_json(receipt))


class ForgetManyView(MemoryView):
    scopes = {"POST": MEMORY_FORGET}

    @documented(
        "forget_facts",
        "Forget many facts, each for itself",
        request=ForgetManyIn,
        responses={200: ForgottenListOut},
        request_example={"ids": ["0199b2a0-7f31-7c02-9a4e-8d2b6c1f0e55"]},
        response_example={
            "forgotten": 1,
            "items": [
                {"id": "0199b2a0-7f31-7c02-9a4e-8d2b6c1f0e55", "status": "forgotten"}
            ],
        },
        errors=[404],
        description="Answers for each id; 404 if none of them was there.",
        tags=TAGS,
    )
    def post(self, request: ApiRequest) -> Response:
        body = read_as(ForgetManyIn, request)
        outcomes = forget_facts(
            self.caller.project_id,
            body["ids"],
            scope=body["scope"],
            reason=body["reason"],
            actor=self.caller.actor,
            subject=self.caller.subject,
        )
        items = [{"id": str(o.id), "status": o.status} for o in outcomes]
        count = sum(o.status == FORGOTTEN for o in outcomes)
        if not count:
            raise FactNotFound("None of these facts is here.", items=items, forgotten=0)
        return Response({"forgotten": count, "items": items})


class ForgetSubjectView(MemoryView):
    scopes = {"POST": MEMORY_FORGET}

    @documented(
        "forget_subject",
        "Forget all about a subject",
        request=ForgetSubjectIn,
        responses={200: ReceiptOut},
        request_example={"dry_run": True},
        response_example=RECEIPT_EXAMPLE,
        description="Facts, and all that was said in the subject's sessions: payloads, "
        "state, snapshots, notes, stored answers, audit texts. A dry run counts and "
        "changes nothing.",
        tags=TAGS,
    )
    def post(self, request: ApiRequest, subject: str) -> Response:
        body = read_as(ForgetSubjectIn, request)
        receipt = forget_subject(
            self.caller.project_id,
            self.reach(subject),
            actor=self.caller.actor,
            reason=body["reason"],
            dry_run=body["dry_run"],
        )
        return Response(receipt_json(receipt, dry_run=body["dry_run"]))


class ReceiptListView(MemoryView):
    scopes = {"GET": MEMORY_FORGET}

    @documented(
        "list_receipts",
        "List what was forgotten, newest first",
        params=PageParams,
        responses={200: page(ReceiptOut)},
        response_example={"items": [RECEIPT_EXAMPLE], "next": None},
        tags=TAGS,
    )
    def get(self, request: ApiRequest) -> Response:
        params = read_params(request, PageParams)
        found = Receipt.objects.filter(project_id=self.caller.project_id)
        if self.caller.subject is not None:
            found = found.none()
        return page_response(paginate(found, params, ["-id"]), receipt_json)


class ExportParams(Params):
    sessions = serializers.BooleanField(
        required=False,
        default=False,
        help_text="With the logs of the subject's sessions; needs sessions:read.",
    )


class ExportOut(serializers.Serializer[Any]):
    """Each fact as FactOut, with `history` and `sources`."""

    format = serializers.CharField()
    subject = serializers.CharField()
    exported_at = serializers.DateTimeField()
    facts = serializers.ListField(child=FactOut())
    sessions = serializers.ListField(child=JSONValueField(), required=False)


class ExportSubjectView(MemoryView):
    scopes = {"GET": MEMORY_READ}

    @documented(
        "export_subject",
        "Export all that is known about a subject, as one JSON file",
        params=ExportParams,
        responses={(200, "application/json"): ExportOut},
        response_example={
            "format": FORMAT,
            "subject": "u-100",
            "exported_at": "2026-01-15T09:30:00Z",
            "facts": [FACT_EXAMPLE],
        },
        description="Streamed. POST /memory/import reads it again.",
        tags=TAGS,
    )
    def get(self, request: ApiRequest, subject: str) -> StreamingHttpResponse:
        params = read_params(request, ExportParams)
        subject = self.reach(subject)
        if params["sessions"]:
            self.caller.require_scope(SESSIONS_READ)
        project_id = self.caller.project_id
        record_audit(
            project_id,
            self.caller.actor,
            "subject.exported",
            pseudonym(project_id, subject),
            after={"subject": subject, "sessions": params["sessions"]},
        )
        pieces = export_subject(project_id, subject, with_sessions=params["sessions"])
        return StreamingHttpResponse(
            (piece.encode() for piece in pieces),
            content_type="application/json",
            headers={"Content-Disposition": 'attachment; filename="subject.json"'},
        )
