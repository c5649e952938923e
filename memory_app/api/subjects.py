"""Subjects: who there is, tidying one up, and taking facts in from elsewhere."""

from typing import Any

from rest_framework import serializers
from rest_framework.response import Response

from access_app.api.docs import documented, page
from access_app.api.views import ApiRequest
from access_app.errors import MissingScope
from access_app.scopes import MEMORY_READ, MEMORY_WRITE
from agentstate.api.pagination import page_response, paginate
from agentstate.api.params import PageParams, read_params
from agentstate.api.serializers import (
    JSONValueField,
    StrictSerializer,
    StringField,
    read_as,
)
from agentstate.errors import FieldError
from memory_app import services
from memory_app.api.base import FACT_EXAMPLE, MemoryView
from memory_app.api.serializers import (
    RememberedListOut,
    subject_field,
)
from memory_app.consolidation import consolidate
from memory_app.imports import FORMATS, read_facts
from memory_app.models import Fact, Subject
from memory_app.services.told import NAME_MAX
from memory_app.shown import remembered_json

IMPORT_MAX = 5_000  # facts in one call
TAGS = ["memory"]


class SubjectParams(PageParams):
    q = StringField(max_length=NAME_MAX, required=False, help_text="Part of the name.")


class SubjectOut(serializers.Serializer[Any]):
    subject = serializers.CharField()
    facts = serializers.IntegerField(help_text="Active ones; counted up to 1,000.")


class SubjectListView(MemoryView):
    scopes = {"GET": MEMORY_READ}

    @documented(
        "list_subjects",
        "List whom something is known about",
        params=SubjectParams,
        responses={200: page(SubjectOut)},
        response_example={"items": [{"subject": "u-100", "facts": 12}], "next": None},
        tags=TAGS,
    )
    def get(self, request: ApiRequest) -> Response:
        params = read_params(request, SubjectParams)
        found = Subject.objects.filter(project_id=self.caller.project_id)
        if self.caller.subject is not None:
            found = found.filter(subject=self.caller.subject)
        if "q" in params:
            found = found.filter(subject__icontains=params["q"])
        listed = paginate(found, params, ["subject"])
        counts = Fact.objects.count_by_subject(
            self.caller.project_id, [each.subject for each in listed.items]
        )
        return page_response(
            listed,
            lambda each: {
                "subject": each.subject,
                "facts": counts.get(each.subject, 0),
            },
        )


class ConsolidatedOut(serializers.Serializer[Any]):
    superseded = serializers.ListField(child=serializers.UUIDField())
    review = serializers.ListField(child=serializers.UUIDField())
    skipped = serializers.ListField(child=serializers.UUIDField())


class ConsolidateView(MemoryView):
    scopes = {"POST": MEMORY_WRITE}

    @documented(
        "consolidate_subject",
        "Settle facts of one key that contradict each other",
        request=None,
        responses={200: ConsolidatedOut},
        response_example={"superseded": [], "review": [], "skipped": []},
        description="The newest stands. A person's correction is never retired by it.",
        tags=TAGS,
    )
    def post(self, request: ApiRequest, subject: str) -> Response:
        done = consolidate(
            self.caller.project_id, self.reach(subject), actor=self.caller.actor
        )
        return Response({k: [str(i) for i in v] for k, v in done._asdict().items()})


class ImportIn(StrictSerializer):
    subject = subject_field(required=False)
    format = serializers.ChoiceField(choices=FORMATS, required=False, default="auto")
    data = JSONValueField(  # type: ignore[assignment]
        help_text="The export: a JSON value, or JSON lines as text."
    )


class ImportView(MemoryView):
    scopes = {"POST": MEMORY_WRITE}

    @documented(
        "import_facts",
        "Take facts in from JSON lines or another system's export",
        request=ImportIn,
        responses={200: RememberedListOut},
        request_example={
            "format": "mem0",
            "data": {"results": [{"memory": "Likes tea", "user_id": "u-100"}]},
        },
        response_example={
            "items": [FACT_EXAMPLE | {"outcome": "created", "superseded": None}]
        },
        description="All or none; what is known already is counted once more.",
        tags=TAGS,
    )
    def post(self, request: ApiRequest) -> Response:
        body = read_as(ImportIn, request)
        subject = body.get("subject", self.caller.subject)
        facts = read_facts(body["data"], subject=subject, format=body["format"])
        if not 1 <= len(facts) <= IMPORT_MAX:
            detail = f"must hold 1 to {IMPORT_MAX} facts, not {len(facts)}"
            raise FieldError("data", "out_of_range", detail)
        bound_to = self.caller.subject
        if bound_to is not None and any(f.subject != bound_to for f in facts):
            raise MissingScope(MEMORY_WRITE, "This key is bound to another subject.")
        done = services.remember_all(
            self.caller.project_id, facts, actor=self.caller.actor
        )
        return Response({"items": [remembered_json(result) for result in done]})
