"""/api/v1/audit: what was changed, by whom and why."""

from typing import Any

from rest_framework import serializers
from rest_framework.response import Response

from access_app.api.docs import documented, page
from access_app.api.views import ApiRequest, ApiView
from access_app.models import AuditEntry
from access_app.scopes import ADMIN
from agentstate.api.pagination import page_response, paginate
from agentstate.api.params import PageParams, read_params
from agentstate.api.serializers import JSONValueField

FILTERS = ("actor", "action", "object")
ENTRY_EXAMPLE = {
    "id": "0199b2a0-6d0e-7c54-9f6b-0d7b8a3f2c12",
    "actor": "key:4f0c1a9be27d",
    "action": "member.role_set",
    "object": "member:7",
    "before": {"user": "support-lead", "role": "reviewer"},
    "after": {"user": "support-lead", "role": "operator"},
    "reason": "on call this week",
    "created_at": "2026-01-15T09:30:00Z",
}


class AuditParams(PageParams):
    actor = serializers.CharField(required=False, max_length=200)
    action = serializers.CharField(required=False, max_length=100)
    object = serializers.CharField(required=False, max_length=300)


class AuditOut(serializers.Serializer[Any]):
    id = serializers.UUIDField()
    actor = serializers.CharField()
    action = serializers.CharField()
    object = serializers.CharField()
    before = JSONValueField()
    after = JSONValueField()
    reason = serializers.CharField()
    created_at = serializers.DateTimeField()


class AuditListView(ApiView):
    scopes = {"GET": ADMIN}

    @documented(
        "list_audit",
        "Read the audit log, newest first",
        params=AuditParams,
        responses={200: page(AuditOut)},
        response_example={"items": [ENTRY_EXAMPLE], "next": None},
    )
    def get(self, request: ApiRequest) -> Response:
        params = read_params(request, AuditParams)
        wanted = {name: params[name] for name in FILTERS if name in params}
        entries = AuditEntry.objects.in_project(request.auth.project_id)
        found = paginate(entries.filter(**wanted), params, ("-created_at", "-id"))
        return page_response(found, AuditOut)
