"""Limits by concurrency key, and actions on many runs."""

from typing import Any, ClassVar

from rest_framework.response import Response

from access_app.api.docs import documented, page
from access_app.api.views import ApiRequest
from access_app.errors import MissingScope
from access_app.scopes import RUNS_WRITE
from agentstate.api.pagination import page_response, paginate
from agentstate.api.params import PageParams, read_params
from agentstate.api.serializers import read_as
from agentstate.errors import FieldError
from runs_app.api.base import RunCallView
from runs_app.api.runs import filtered
from runs_app.api.serializers import BulkRunsIn, BulkRunsOut, LimitIn, LimitOut
from runs_app.bulk import act_on_runs
from runs_app.limits import (
    LimitSettings,
    get_limit,
    remove_limit,
    set_limit,
    slots_in_use,
)
from runs_app.models import Limit

EXAMPLE = {
    "key": "shop-api",
    "max_concurrent": 4,
    "rate": None,
    "per_s": None,
    "in_use": 2,
}


class LimitCallView(RunCallView):
    """Limits belong to the project, so keys bound to a part of it set none."""

    def check_unbound(self) -> None:
        if self.caller.is_bound:
            raise MissingScope(RUNS_WRITE, "This key is bound to less than a project.")


class LimitListView(LimitCallView):
    @documented(
        "list_limits",
        "List limits",
        params=PageParams,
        responses={200: page(LimitOut)},
        response_example={"items": [EXAMPLE], "next": None},
        tags=["limits"],
    )
    def get(self, request: ApiRequest) -> Response:
        self.check_unbound()
        params = read_params(request, PageParams)
        found = paginate(
            Limit.objects.filter(project_id=self.caller.project_id), params, ["key"]
        )
        in_use = slots_in_use(self.caller.project_id, [x.key for x in found.items])
        return page_response(found, lambda x: limit_json(x, in_use.get(x.key, 0)))


class LimitView(LimitCallView):
    @documented(
        "get_limit",
        "Read a limit",
        responses={200: LimitOut},
        response_example=EXAMPLE,
        errors=[404],
        tags=["limits"],
    )
    def get(self, request: ApiRequest, key: str) -> Response:
        read_params(request)
        self.check_unbound()
        return self.shown(get_limit(self.caller.project_id, key))

    @documented(
        "put_limit",
        "Limit how many steps of a concurrency key are under way",
        request=LimitIn,
        responses={200: LimitOut},
        request_example={"max_concurrent": 4},
        response_example=EXAMPLE,
        tags=["limits"],
    )
    def put(self, request: ApiRequest, key: str) -> Response:
        self.check_unbound()
        if len(key) > 200 or "\0" in key:
            raise FieldError("key", "invalid", "must be 1 to 200 characters")
        body = read_as(LimitIn, request)
        per_s = body.get("per_s")
        wanted = LimitSettings(
            body.get("max_concurrent"),
            body.get("rate"),
            None if per_s is None else float(per_s),
        )
        return self.shown(set_limit(self.caller.project_id, key, wanted))

    @documented(
        "delete_limit",
        "Remove a limit",
        responses={204: None},
        errors=[404],
        tags=["limits"],
    )
    def delete(self, request: ApiRequest, key: str) -> Response:
        self.check_unbound()
        remove_limit(self.caller.project_id, key)
        return Response(status=204)

    def shown(self, limit: Limit) -> Response:
        in_use = slots_in_use(limit.project_id, [limit.key])
        return Response(limit_json(limit, in_use.get(limit.key, 0)))


def limit_json(limit: Limit, in_use: int) -> dict[str, Any]:
    return {
        "key": limit.key,
        "max_concurrent": limit.max_concurrent,
        "rate": limit.rate,
        "per_s": limit.per_s,
        "in_use": in_use,
    }


class BulkView(RunCallView):
    scopes: ClassVar[dict[str, str]] = {"POST": RUNS_WRITE}

    @documented(
        "act_on_runs",
        "Cancel, pause, resume or retry all runs that a filter finds",
        request=BulkRunsIn,
        responses={200: BulkRunsOut},
        request_example={
            "action": "cancel",
            "filter": {"agent": "support"},
            "dry_run": True,
        },
        response_example={
            "action": "cancel",
            "dry_run": True,
            "matched": 12,
            "has_more": False,
            "done": 0,
            "refused": {},
        },
        description="With `dry_run` it only counts. Runs in a state that the action is "
        "not for are left out.",
        tags=["runs"],
    )
    def post(self, request: ApiRequest) -> Response:
        body = read_as(BulkRunsIn, request)
        result = act_on_runs(
            self.caller.project_id,
            filtered(self.runs(), body["filter"]),
            body["action"],
            limit=body["limit"],
            dry_run=body["dry_run"],
            reason=body["reason"],
            actor=self.caller.actor,
        )
        return Response(
            {"action": body["action"], "dry_run": body["dry_run"]} | vars(result)
        )
