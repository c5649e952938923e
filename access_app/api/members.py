"""/api/v1/members: the people of the project and their roles."""

from typing import Any

from django.contrib.auth.models import User
from rest_framework import serializers
from rest_framework.response import Response

from access_app.api.docs import documented, page
from access_app.api.views import ApiRequest, ApiView
from access_app.models import Member, Role
from access_app.scopes import ADMIN
from access_app.services import add_member, remove_member, set_role
from agentstate.api.pagination import page_of
from agentstate.api.params import PageParams, Params, read_params
from agentstate.api.serializers import StrictSerializer, read_as
from agentstate.errors import FieldError

MEMBER_EXAMPLE = {
    "id": "7",
    "username": "support-lead",
    "role": "reviewer",
    "created_at": "2026-01-15T09:30:00Z",
}


class MemberIn(StrictSerializer):
    username = serializers.CharField(max_length=150)
    role = serializers.ChoiceField(Role.values)
    reason = serializers.CharField(required=False, max_length=1000)


class RoleIn(StrictSerializer):
    role = serializers.ChoiceField(Role.values)
    reason = serializers.CharField(required=False, max_length=1000)


class ReasonParams(Params):
    reason = serializers.CharField(
        required=False, max_length=1000, help_text="Kept in the audit log."
    )


class MemberOut(serializers.Serializer[Any]):
    id = serializers.CharField()
    username = serializers.CharField(source="user.username")
    role = serializers.ChoiceField(Role.values)
    created_at = serializers.DateTimeField()


class MemberListView(ApiView):
    scopes = {"GET": ADMIN, "POST": ADMIN}

    @documented(
        "list_members",
        "List the project's members",
        params=PageParams,
        responses={200: page(MemberOut)},
        response_example={"items": [MEMBER_EXAMPLE], "next": None},
    )
    def get(self, request: ApiRequest) -> Response:
        members = Member.objects.in_project(request.auth.project_id)
        return page_of(members, MemberOut, request, order=("user_id",))

    @documented(
        "add_member",
        "Give a user a role in the project",
        description="The user exists already; accounts are made in the admin.",
        request=MemberIn,
        responses={201: MemberOut},
        request_example={"username": "support-lead", "role": "reviewer"},
        response_example=MEMBER_EXAMPLE,
    )
    def post(self, request: ApiRequest) -> Response:
        read_params(request)
        body = read_as(MemberIn, request)
        user = User.objects.filter(username=body.pop("username")).first()
        if user is None:
            raise FieldError("username", "unknown_user", "there is no such user")
        member = add_member(
            request.auth.project_id, user, actor=request.auth.actor, **body
        )
        return Response(MemberOut(member).data, status=201)


class MemberView(ApiView):
    scopes = {"GET": ADMIN, "PATCH": ADMIN, "DELETE": ADMIN}

    @documented(
        "get_member",
        "Read one member",
        responses={200: MemberOut},
        errors=[404],
        response_example=MEMBER_EXAMPLE,
    )
    def get(self, request: ApiRequest, member_id: int) -> Response:
        read_params(request)
        members = Member.objects.in_project(request.auth.project_id)
        return Response(MemberOut(members.get(pk=member_id)).data)

    @documented(
        "set_role",
        "Change a member's role",
        request=RoleIn,
        responses={200: MemberOut},
        errors=[404],
        request_example={"role": "operator", "reason": "on call this week"},
        response_example=MEMBER_EXAMPLE | {"role": "operator"},
    )
    def patch(self, request: ApiRequest, member_id: int) -> Response:
        read_params(request)
        member = set_role(
            request.auth.project_id,
            member_id,
            actor=request.auth.actor,
            **read_as(RoleIn, request),
        )
        return Response(MemberOut(member).data)

    @documented(
        "remove_member",
        "Take a member out of the project",
        params=ReasonParams,
        responses={204: None},
        errors=[404],
    )
    def delete(self, request: ApiRequest, member_id: int) -> Response:
        remove_member(
            request.auth.project_id,
            member_id,
            actor=request.auth.actor,
            **read_params(request, ReasonParams),
        )
        return Response(status=204)
