"""GET /api/v1/whoami: what the key in hand is."""

from rest_framework import serializers
from rest_framework.response import Response

from access_app.api.docs import documented
from access_app.api.views import ANY_KEY, ApiRequest, ApiView
from agentstate.api.params import read_params


class WhoamiOut(serializers.Serializer[object]):
    key_id = serializers.UUIDField()
    project_id = serializers.UUIDField()
    actor = serializers.CharField()
    scopes = serializers.ListField(child=serializers.CharField())
    subject = serializers.CharField(allow_null=True)
    session_id = serializers.UUIDField(allow_null=True)
    run_id = serializers.UUIDField(allow_null=True)
    tool_allowlist = serializers.ListField(
        child=serializers.CharField(), allow_null=True
    )
    rate_limit_per_minute = serializers.IntegerField()


class WhoamiView(ApiView):
    scopes = {"GET": ANY_KEY}

    @documented(
        "whoami",
        "Read what the key in hand is and may do",
        responses={200: WhoamiOut},
        response_example={
            "key_id": "0199b2a0-6d0e-7c54-9f6b-0d7b8a3f2c11",
            "project_id": "0199b2a0-6d0e-7c54-9f6b-0d7b8a3f2c10",
            "actor": "key:4f0c1a9be27d",
            "scopes": ["sessions:read", "sessions:write"],
            "subject": None,
            "session_id": None,
            "run_id": None,
            "tool_allowlist": None,
            "rate_limit_per_minute": 600_000,
        },
    )
    def get(self, request: ApiRequest) -> Response:
        read_params(request)
        caller = request.auth
        return Response(
            {
                "key_id": str(caller.key_id),
                "project_id": str(caller.project_id),
                "actor": caller.actor,
                "scopes": sorted(caller.scopes),
                "subject": caller.subject,
                "session_id": str(caller.session_id) if caller.session_id else None,
                "run_id": str(caller.run_id) if caller.run_id else None,
                "tool_allowlist": None
                if caller.tool_allowlist is None
                else sorted(caller.tool_allowlist),
                "rate_limit_per_minute": caller.rate_limit_per_minute,
            }
        )
