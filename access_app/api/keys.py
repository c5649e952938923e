"""/api/v1/keys: make, list and revoke the keys of the project."""

import hashlib
import hmac
from typing import Any
from uuid import UUID

from django.conf import settings
from rest_framework import serializers
from rest_framework.response import Response

from access_app.api.docs import documented, page
from access_app.api.views import ApiRequest, ApiView
from access_app.idempotency import IdempotencyRequest
from access_app.keys import KeyText, hash_secret
from access_app.models import ApiKey, Project
from access_app.scopes import ADMIN, SCOPES
from access_app.services import create_key_as, revoke_key
from agentstate import codec
from agentstate.api.pagination import page_of
from agentstate.api.params import PageParams, read_params
from agentstate.api.serializers import StrictSerializer, read_as

KEY_EXAMPLE = {
    "id": "0199b2a0-6d0e-7c54-9f6b-0d7b8a3f2c11",
    "name": "travel agent",
    "prefix": "4f0c1a9be27d",
    "scopes": ["sessions:read", "sessions:write"],
    "subject": None,
    "session_id": None,
    "run_id": None,
    "tool_allowlist": None,
    "rate_limit_per_minute": None,
    "expires_at": None,
    "last_used_at": None,
    "revoked_at": None,
    "created_at": "2026-01-15T09:30:00Z",
    "created_by": "system",
}


class KeyIn(StrictSerializer):
    name = serializers.CharField(
        required=False, allow_blank=True, default="", max_length=200
    )
    scopes = serializers.ListField(child=serializers.ChoiceField(SCOPES), min_length=1)
    subject = serializers.CharField(
        required=False,
        trim_whitespace=False,
        allow_null=True,
        default=None,
        max_length=255,
        help_text="The key sees sessions of this subject only.",
    )
    session_id = serializers.UUIDField(
        required=False,
        allow_null=True,
        default=None,
        help_text="The key sees this session only.",
    )
    rate_limit_per_minute = serializers.IntegerField(
        required=False,
        allow_null=True,
        default=None,
        min_value=0,
        max_value=2**31 - 1,
        help_text="Null: the server's default. 0: no limit.",
    )
    expires_at = serializers.DateTimeField(
        required=False, allow_null=True, default=None
    )


class KeyOut(serializers.Serializer[Any]):
    id = serializers.UUIDField()
    name = serializers.CharField()
    prefix = serializers.CharField(help_text="The key begins with `as_PREFIX_`.")
    scopes = serializers.ListField(child=serializers.ChoiceField(SCOPES))
    subject = serializers.CharField(allow_null=True)
    session_id = serializers.UUIDField(allow_null=True)
    run_id = serializers.UUIDField(
        allow_null=True, help_text="Of a handoff: the key makes no other run."
    )
    tool_allowlist = serializers.ListField(
        child=serializers.CharField(),
        allow_null=True,
        help_text="Of a handoff: the key calls and claims no other tools.",
    )
    rate_limit_per_minute = serializers.IntegerField(allow_null=True)
    expires_at = serializers.DateTimeField(allow_null=True)
    last_used_at = serializers.DateTimeField(allow_null=True)
    revoked_at = serializers.DateTimeField(allow_null=True)
    created_at = serializers.DateTimeField()
    created_by = serializers.CharField()


class NewKeyOut(KeyOut):
    key = serializers.CharField(
        allow_null=True, help_text="The key itself. It is shown this once."
    )


class KeyListView(ApiView):
    scopes = {"GET": ADMIN, "POST": ADMIN}

    @documented(
        "list_keys",
        "List the project's keys, newest first",
        params=PageParams,
        responses={200: page(KeyOut)},
        response_example={"items": [KEY_EXAMPLE], "next": None},
    )
    def get(self, request: ApiRequest) -> Response:
        keys = ApiKey.objects.in_project(request.auth.project_id)
        return page_of(keys, KeyOut, request, order=("-created_at", "-id"))

    @documented(
        "create_key",
        "Make a key",
        description=(
            "A key cannot give scopes that it does not have itself, nor outlive itself."
        ),
        request=KeyIn,
        responses={201: NewKeyOut},
        request_example={"name": "travel agent", "scopes": KEY_EXAMPLE["scopes"]},
        response_example=KEY_EXAMPLE | {"key": f"as_4f0c1a9be27d_{'0' * 64}"},
    )
    def post(self, request: ApiRequest) -> Response:
        read_params(request)
        project = Project.objects.get(pk=request.auth.project_id)
        made = create_key_as(
            request.auth.key_id,
            project,
            actor=request.auth.actor,
            secret=derived_secret(request.idempotency),
            **read_as(KeyIn, request),
        )
        return Response({**KeyOut(made.key).data, "key": made.text}, status=201)

    # The answer holds the key, and no key may lie in the database, not even for the
    # day that answers are kept. So the stored answer leaves it out, and a replay makes
    # it again from the client's Idempotency-Key, which is nowhere stored either.

    def stored_body(self, body: str) -> str:
        answer: Any = codec.loads(body)
        return codec.dumps(answer | {"key": None})

    def restored_body(self, body: str) -> str:
        answer: Any = codec.loads(body)
        secret = derived_secret(self.api_request.idempotency)
        keys = ApiKey.objects.in_project(self.caller.project_id)
        key = keys.get(pk=answer["id"])
        if secret is not None and hash_secret(secret) == bytes(key.secret_hash):
            answer["key"] = str(KeyText(key.prefix, secret))
        return codec.dumps(answer)


class KeyView(ApiView):
    scopes = {"GET": ADMIN, "DELETE": ADMIN}

    @documented(
        "get_key",
        "Read one key",
        responses={200: KeyOut},
        errors=[404],
        response_example=KEY_EXAMPLE,
    )
    def get(self, request: ApiRequest, key_id: UUID) -> Response:
        read_params(request)
        keys = ApiKey.objects.in_project(request.auth.project_id)
        return Response(KeyOut(keys.get(pk=key_id)).data)

    @documented(
        "revoke_key",
        "Revoke a key",
        description="It stops working within a second, and stays in the list.",
        responses={200: KeyOut},
        errors=[404],
        response_example=KEY_EXAMPLE | {"revoked_at": "2026-01-16T12:00:00Z"},
    )
    def delete(self, request: ApiRequest, key_id: UUID) -> Response:
        read_params(request)
        caller = request.auth
        key = revoke_key(caller.project_id, key_id, actor=caller.actor)
        return Response(KeyOut(key).data)


def derived_secret(call: IdempotencyRequest | None) -> str | None:
    """The secret of a key made under an Idempotency-Key; None without one."""
    if call is None:
        return None
    message = b"".join(
        [
            b"api-key",
            call.caller_key_id.bytes,
            call.scope_hash,
            call.fingerprint,
            call.key.encode(),
        ]
    )
    return hmac.new(settings.SECRET_KEY.encode(), message, hashlib.sha256).hexdigest()
