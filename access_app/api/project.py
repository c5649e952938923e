"""/api/v1/project: the project that the key belongs to."""

from typing import Any

from rest_framework import serializers
from rest_framework.response import Response

from access_app.api.docs import documented
from access_app.api.views import ApiRequest, ApiView
from access_app.models import Project
from access_app.scopes import ADMIN
from access_app.services import update_project
from agentstate.api.params import read_params
from agentstate.api.serializers import JSONObjectField, StrictSerializer, read_as

SETTINGS_MAX_BYTES = 64 * 1024
PROJECT_EXAMPLE = {
    "id": "0199b2a0-6d0e-7c54-9f6b-0d7b8a3f2c10",
    "name": "Travel desk",
    "slug": "travel-desk",
    "settings": {},
    "created_at": "2026-01-15T09:30:00Z",
}


class ProjectIn(StrictSerializer):
    name = serializers.CharField(required=False, max_length=200)
    settings = JSONObjectField(
        required=False,
        max_bytes=SETTINGS_MAX_BYTES,
        help_text="Replaces the settings as a whole.",
    )
    reason = serializers.CharField(required=False, max_length=1000)


class ProjectOut(serializers.Serializer[Any]):
    id = serializers.UUIDField()
    name = serializers.CharField()
    slug = serializers.CharField()
    settings = JSONObjectField()
    created_at = serializers.DateTimeField()


class ProjectView(ApiView):
    scopes = {"GET": ADMIN, "PATCH": ADMIN}

    @documented(
        "get_project",
        "Read the project",
        responses={200: ProjectOut},
        response_example=PROJECT_EXAMPLE,
    )
    def get(self, request: ApiRequest) -> Response:
        read_params(request)
        project = Project.objects.get(pk=request.auth.project_id)
        return Response(ProjectOut(project).data)

    @documented(
        "update_project",
        "Rename the project or replace its settings",
        request=ProjectIn,
        responses={200: ProjectOut},
        request_example={"name": "Travel desk"},
        response_example=PROJECT_EXAMPLE,
    )
    def patch(self, request: ApiRequest) -> Response:
        read_params(request)
        project = update_project(
            request.auth.project_id,
            actor=request.auth.actor,
            **read_as(ProjectIn, request),
        )
        return Response(ProjectOut(project).data)
