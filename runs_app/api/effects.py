"""The ledger of effects, over the API."""

from typing import Any, ClassVar

from rest_framework.response import Response

from access_app.api.docs import documented
from access_app.api.views import ApiRequest
from access_app.scopes import RUNS_READ, RUNS_WORK
from agentstate.api.params import read_params
from agentstate.api.serializers import read_as
from agentstate.errors import FieldError
from runs_app.api.base import RUN_ID, STEP_ID, RunCallView
from runs_app.api.serializers import BeginEffectIn, CompleteEffectIn, EffectOut
from runs_app.effects import (
    DONE,
    IN_DOUBT,
    NEW,
    begin_effect,
    complete_effect,
    find_effect,
    get_effect,
)
from runs_app.errors import EffectNotFound
from runs_app.models import EffectRecord, EffectState
from runs_app.results import result_text
from sessions_app.log import iso

KEY_MAX = 500
EXAMPLE = {
    "key": f"{RUN_ID}:{STEP_ID}",
    "outcome": "new",
    "token": 1,
    "run": RUN_ID,
    "step": STEP_ID,
    "session": "0199b2a0-8a10-7d12-8f6e-5d1c0a9b7e42",
    "request": {"order": 1042},
    "result": None,
    "actor": "key:ab12",
    "begun_at": "2026-01-15T09:30:00.000000Z",
    "done_at": None,
}


class EffectCallView(RunCallView):
    scopes: ClassVar[dict[str, str]] = {"GET": RUNS_READ, "POST": RUNS_WORK}

    def check_key(self, key: str) -> None:
        if len(key) > KEY_MAX or "\0" in key:
            raise FieldError("key", "too_long", f"at most {KEY_MAX} characters")

    def check_seen(self, record: EffectRecord) -> None:
        if not self.may_see_session(record.session_id):
            raise EffectNotFound


class EffectView(EffectCallView):
    @documented(
        "get_effect",
        "Ask whether an effect has been sent already",
        responses={200: EffectOut},
        response_example=EXAMPLE | {"outcome": "in_doubt"},
        errors=[404],
        tags=["effects"],
    )
    def get(self, request: ApiRequest, key: str) -> Response:
        read_params(request)
        self.check_key(key)
        record = get_effect(self.caller.project_id, key)
        self.check_seen(record)
        outcome = DONE if record.state == EffectState.DONE else IN_DOUBT
        return Response(effect_json(record, outcome))


class BeginEffectView(EffectCallView):
    @documented(
        "begin_effect",
        "Write down that an effect is about to be tried",
        request=BeginEffectIn,
        responses={200: EffectOut},
        request_example={"step": STEP_ID, "request": {"order": 1042}},
        response_example=EXAMPLE,
        errors=[404],
        tags=["effects"],
    )
    def post(self, request: ApiRequest, key: str) -> Response:
        self.check_key(key)
        body = read_as(BeginEffectIn, request)
        result_text(("request",), body.get("request"))
        step = self.load_step(body["step"])
        if (known := find_effect(self.caller.project_id, key)) is not None:
            self.check_seen(known)
        begun = begin_effect(
            self.caller.project_id,
            key,
            step,
            request=body.get("request"),
            repeat=body["repeat"],
            actor=self.caller.actor,
        )
        self.check_seen(begun.record)
        return Response(effect_json(begun.record, begun.outcome))


class CompleteEffectView(EffectCallView):
    @documented(
        "complete_effect",
        "Say that an effect has happened",
        request=CompleteEffectIn,
        responses={200: EffectOut},
        request_example={"token": 1, "result": {"refund": "r-7"}},
        response_example=EXAMPLE | {"outcome": "done", "result": {"refund": "r-7"}},
        errors=[404],
        tags=["effects"],
    )
    def post(self, request: ApiRequest, key: str) -> Response:
        self.check_key(key)
        body = read_as(CompleteEffectIn, request)
        result_text(("result",), body.get("result"))
        self.check_seen(get_effect(self.caller.project_id, key))
        record = complete_effect(
            self.caller.project_id,
            key,
            body["token"],
            body.get("result"),
            actor=self.caller.actor,
        )
        return Response(effect_json(record, DONE))


def effect_json(record: EffectRecord, outcome: str) -> dict[str, Any]:
    return {
        "key": record.key,
        "outcome": outcome,
        "token": record.token if outcome == NEW else None,
        "run": str(record.run_id),
        "step": str(record.step_id),
        "session": str(record.session_id),
        "request": record.request,
        "result": record.result,
        "actor": record.actor,
        "begun_at": iso(record.begun_at),
        "done_at": iso(record.done_at),
    }
