"""Promotion over REST: what became of it, on demand, as a dry run, and again."""

from typing import Any
from uuid import UUID

from rest_framework import serializers
from rest_framework.response import Response

from access_app.api.docs import documented, page
from access_app.api.views import ApiRequest
from access_app.scopes import MEMORY_READ, MEMORY_WRITE
from agentstate.api.pagination import page_response, paginate
from agentstate.api.params import PageParams, read_params
from agentstate.api.serializers import JSONValueField, StrictSerializer, read_as
from memory_app.api.base import FACT_EXAMPLE, MemoryView
from memory_app.api.serializers import RememberedOut
from memory_app.errors import PromotionNotFound
from memory_app.models import Promotion, PromotionStatus
from memory_app.promotion import services
from memory_app.shown import remembered_json
from sessions_app.log import iso
from sessions_app.services import get_session

TAGS = ["promotions"]
PROMOTION_EXAMPLE = {
    "id": "0199b2a0-bb10-7d12-8f6e-5d1c0a9b7e42",
    "session": "0199b2a0-8a10-7d12-8f6e-5d1c0a9b7e42",
    "closed_seq": 14,
    "status": "done",
    "extractor": "rules",
    "attempts": 1,
    "error": "",
    "next_attempt_at": None,
    "result": {
        "counts": {"created": 1},
        "dropped": {},
        "facts": ["0199b2a0-7f31-7c02-9a4e-8d2b6c1f0e55"],
        "notes": [],
    },
    "created_at": "2026-01-15T09:40:00.000000Z",
    "finished_at": "2026-01-15T09:40:01.000000Z",
}


class PromoteIn(StrictSerializer):
    dry_run = serializers.BooleanField(
        required=False, default=False, help_text="Say what would be kept; keep nothing."
    )


class PromotionOut(serializers.Serializer[Any]):
    id = serializers.UUIDField()
    session = serializers.UUIDField()
    closed_seq = serializers.IntegerField()
    status = serializers.ChoiceField(choices=PromotionStatus.choices)
    extractor = serializers.CharField()
    attempts = serializers.IntegerField()
    error = serializers.CharField()
    next_attempt_at = serializers.DateTimeField(allow_null=True)
    result = JSONValueField()
    created_at = serializers.DateTimeField()
    finished_at = serializers.DateTimeField(allow_null=True)


class PreviewOut(serializers.Serializer[Any]):
    dry_run = serializers.BooleanField()
    items = RememberedOut(many=True)
    counts = serializers.DictField(child=serializers.IntegerField())
    dropped = serializers.DictField(child=serializers.IntegerField())
    notes = serializers.ListField(child=serializers.CharField())


class PromotionListParams(PageParams):
    status = serializers.ChoiceField(choices=PromotionStatus.choices, required=False)
    session = serializers.UUIDField(required=False)


def promotion_json(promotion: Promotion) -> dict[str, Any]:
    return {
        "id": str(promotion.id),
        "session": str(promotion.session_id),
        "closed_seq": promotion.closed_seq,
        "status": promotion.status,
        "extractor": promotion.extractor,
        "attempts": promotion.attempts,
        "error": promotion.error,
        "next_attempt_at": iso(promotion.next_attempt_at),
        "result": promotion.result,
        "created_at": iso(promotion.created_at),
        "finished_at": iso(promotion.finished_at),
    }


class PromoteView(MemoryView):
    scopes = {"POST": MEMORY_WRITE}

    @documented(
        "promote_session",
        "Take the facts worth keeping from a session, now",
        request=PromoteIn,
        responses={202: PromotionOut, 200: PreviewOut},
        request_example={"dry_run": True},
        response_example={
            "dry_run": True,
            "items": [FACT_EXAMPLE | {"outcome": "created", "superseded": None}],
            "counts": {"created": 1},
            "dropped": {},
            "notes": [],
        },
        errors=[404],
        description="A closing session is read by itself; this is for one that is "
        "open, or for a look before. The job is answered with 202.",
        tags=TAGS,
    )
    def post(self, request: ApiRequest, session_id: UUID) -> Response:
        body = read_as(PromoteIn, request)
        session = get_session(
            self.caller.project_id, session_id, subject=self.caller.subject
        )
        if body["dry_run"]:
            return Response(preview_json(services.preview(session)))
        promotion = services.request_promotion(session)
        return Response(promotion_json(promotion), status=202)


def preview_json(result: services.Result) -> dict[str, Any]:
    return {
        "dry_run": True,
        "items": [remembered_json(remembered) for remembered in result.facts],
        "counts": result.counts,
        "dropped": result.dropped,
        "notes": list(result.notes),
    }


class PromotionListView(MemoryView):
    scopes = {"GET": MEMORY_READ}

    @documented(
        "list_promotions",
        "List promotions, newest first",
        params=PromotionListParams,
        responses={200: page(PromotionOut)},
        response_example={"items": [PROMOTION_EXAMPLE], "next": None},
        tags=TAGS,
    )
    def get(self, request: ApiRequest) -> Response:
        params = read_params(request, PromotionListParams)
        found = Promotion.objects.in_project(self.caller.project_id)
        found = found.visible_to(self.caller.subject)
        if "status" in params:
            found = found.filter(status=params["status"])
        if "session" in params:
            found = found.filter(session_id=params["session"])
        return page_response(paginate(found, params, ["-id"]), promotion_json)


class PromotionView(MemoryView):
    scopes = {"GET": MEMORY_READ}

    @documented(
        "get_promotion",
        "Read what became of a promotion",
        responses={200: PromotionOut},
        response_example=PROMOTION_EXAMPLE,
        errors=[404],
        tags=TAGS,
    )
    def get(self, request: ApiRequest, promotion_id: UUID) -> Response:
        read_params(request)
        found = Promotion.objects.in_project(self.caller.project_id)
        promotion = (
            found.visible_to(self.caller.subject).filter(id=promotion_id).first()
        )
        if promotion is None:
            raise PromotionNotFound
        return Response(promotion_json(promotion))


class RetryPromotionView(MemoryView):
    scopes = {"POST": MEMORY_WRITE}

    @documented(
        "retry_promotion",
        "Do a promotion again",
        request=None,
        responses={202: PromotionOut},
        response_example=PROMOTION_EXAMPLE | {"status": "pending"},
        errors=[404],
        description="What is known from the same events is passed over.",
        tags=TAGS,
    )
    def post(self, request: ApiRequest, promotion_id: UUID) -> Response:
        project_id = self.caller.project_id
        found = Promotion.objects.in_project(project_id).filter(id=promotion_id)
        if not found.visible_to(self.caller.subject).exists():
            raise PromotionNotFound
        promotion = services.retry_promotion(project_id, promotion_id)
        return Response(promotion_json(promotion), status=202)
