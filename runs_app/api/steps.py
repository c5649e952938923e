"""Steps: look at one, decide about it, and the inbox of what needs a person."""

from typing import Any
from uuid import UUID

from rest_framework.response import Response

from access_app.api.docs import documented, page
from access_app.api.views import ApiRequest
from agentstate.api.pagination import Page, page_response, paginate
from agentstate.api.params import read_params
from agentstate.api.serializers import read_as
from agentstate.errors import FieldError
from runs_app import services
from runs_app.api.base import STEP_ID, RunCallView
from runs_app.api.runs import STEP_EXAMPLE
from runs_app.api.serializers import (
    ApproveIn,
    AttemptsOut,
    InboxItemOut,
    InboxParams,
    ResolveIn,
    StepOut,
    WaitsOut,
)
from runs_app.models import Run, Step, StepWait
from runs_app.reads import attempts_json, step_json, steps_shown, why_steps_wait
from runs_app.results import result_text
from sessions_app.api.serializers import ReasonIn
from sessions_app.log import iso

PERSONAL = ("approval", "hold", "in_doubt")


class StepView(RunCallView):
    @documented(
        "get_step",
        "Read a step and its result",
        responses={200: StepOut},
        response_example=STEP_EXAMPLE,
        errors=[404],
        tags=["steps"],
    )
    def get(self, request: ApiRequest, step_id: UUID) -> Response:
        read_params(request)
        [shown] = steps_shown([self.load_step(step_id)])
        return Response(shown)


class AttemptsView(RunCallView):
    @documented(
        "list_attempts",
        "List a step's attempts that have ended, oldest first",
        responses={200: AttemptsOut},
        response_example={
            "items": [
                {
                    "attempt": 1,
                    "token": 1,
                    "worker": "w-1",
                    "outcome": "lost",
                    "error": {"code": "lost", "message": "not heard of again"},
                    "started_at": "2026-01-15T09:30:00.000000Z",
                    "ended_at": "2026-01-15T09:30:31.000000Z",
                }
            ],
            "next": None,
        },
        errors=[404],
        tags=["steps"],
    )
    def get(self, request: ApiRequest, step_id: UUID) -> Response:
        read_params(request)
        step = self.load_step(step_id)
        return Response(
            {"items": attempts_json(step.project_id, step.id), "next": None}
        )


class StepWhyView(RunCallView):
    @documented(
        "why_step_waits",
        "Say what a step waits for, and since when",
        responses={200: WaitsOut},
        response_example={
            "run": STEP_EXAMPLE["run"],
            "state": "pending",
            "waits": [
                {
                    "step": STEP_ID,
                    "index": 0,
                    "for": "claim",
                    "tool": "refund",
                    "since": "2026-01-15T09:30:00.000000Z",
                }
            ],
        },
        errors=[404],
        tags=["steps"],
    )
    def get(self, request: ApiRequest, step_id: UUID) -> Response:
        read_params(request)
        step = self.load_step(step_id)
        run = Run.objects.get(project_id=step.project_id, id=step.run_id)
        waits = [] if step.has_ended else why_steps_wait(run, [step])
        return Response({"run": str(step.run_id), "state": step.state, "waits": waits})


class DecisionView(RunCallView):
    """A decision about a step that answers the step."""

    def decide(self, step_id: UUID, move: str, reason: str, **value: Any) -> Response:
        step = self.load_step(step_id)
        services.move_step(
            step.project_id,
            step_id,
            move,
            actor=self.caller.actor,
            reason=reason,
            **value,
        )
        [shown] = steps_shown([Step.objects.get(id=step_id)])
        return Response(shown)


class ApproveView(DecisionView):
    @documented(
        "approve_step",
        "Approve a step, with other args if need be",
        request=ApproveIn,
        responses={200: StepOut},
        request_example={"reason": "checked", "args": {"order": 1042, "amount": 5}},
        response_example=STEP_EXAMPLE,
        errors=[404],
        tags=["steps"],
    )
    def post(self, request: ApiRequest, step_id: UUID) -> Response:
        body = read_as(ApproveIn, request)
        return self.decide(
            step_id,
            "approve",
            body["reason"],
            value=body.get("args"),
            has_value="args" in body,
        )


class RejectView(DecisionView):
    @documented(
        "reject_step",
        "Reject a step that waits for approval: it fails",
        request=ReasonIn,
        responses={200: StepOut},
        request_example={"reason": "too much"},
        response_example=STEP_EXAMPLE | {"state": "failed"},
        errors=[404],
        tags=["steps"],
    )
    def post(self, request: ApiRequest, step_id: UUID) -> Response:
        return self.decide(step_id, "reject", read_as(ReasonIn, request)["reason"])


class SkipView(DecisionView):
    @documented(
        "skip_step",
        "Skip a step: what depends on it goes on",
        request=ReasonIn,
        responses={200: StepOut},
        request_example={"reason": "done by hand"},
        response_example=STEP_EXAMPLE | {"state": "skipped"},
        errors=[404],
        tags=["steps"],
    )
    def post(self, request: ApiRequest, step_id: UUID) -> Response:
        return self.decide(step_id, "skip", read_as(ReasonIn, request)["reason"])


class CancelStepView(DecisionView):
    @documented(
        "cancel_step",
        "Cancel a step, and what depends on it",
        request=ReasonIn,
        responses={200: StepOut},
        request_example={"reason": "not needed"},
        response_example=STEP_EXAMPLE | {"state": "cancelled"},
        errors=[404],
        tags=["steps"],
    )
    def post(self, request: ApiRequest, step_id: UUID) -> Response:
        return self.decide(step_id, "cancel", read_as(ReasonIn, request)["reason"])


class RetryStepView(DecisionView):
    @documented(
        "retry_step",
        "Retry a step on hold, or at once one that waits for its next attempt",
        request=ReasonIn,
        responses={200: StepOut},
        request_example={"reason": "the shop is back"},
        response_example=STEP_EXAMPLE,
        errors=[404],
        tags=["steps"],
    )
    def post(self, request: ApiRequest, step_id: UUID) -> Response:
        return self.decide(step_id, "retry", read_as(ReasonIn, request)["reason"])


class ResolveView(DecisionView):
    @documented(
        "resolve_step",
        "Settle a step that is in doubt or on hold",
        request=ResolveIn,
        responses={200: StepOut},
        request_example={
            "outcome": "done",
            "result": {"refund": "r-7"},
            "reason": "the shop has it under this key",
        },
        response_example=STEP_EXAMPLE | {"state": "done"},
        errors=[404],
        description="`done`: it has happened, with this result. `not_done`: it has "
        "not, and is done now. `give_up`: the step fails.",
        tags=["steps"],
    )
    def post(self, request: ApiRequest, step_id: UUID) -> Response:
        body = read_as(ResolveIn, request)
        outcome = body["outcome"]
        if "result" in body and outcome != "done":
            raise FieldError("result", "conflict", "goes with outcome done")
        if "error" in body and outcome != "give_up":
            raise FieldError("error", "conflict", "goes with outcome give_up")
        result_text(("result",), body.get("result"))
        value = body.get("result" if outcome == "done" else "error")
        return self.decide(
            step_id, outcome, body["reason"], value=value, has_value="error" in body
        )


class InboxView(RunCallView):
    @documented(
        "list_approvals",
        "List the steps that wait for a person, oldest first",
        params=InboxParams,
        responses={200: page(InboxItemOut)},
        response_example={
            "items": [
                {
                    "kind": "approval",
                    "since": "2026-01-15T09:30:00.000000Z",
                    "step": STEP_EXAMPLE,
                }
            ],
            "next": None,
        },
        description="`approval` by default; `hold`: retries ran out; `in_doubt`: the "
        "effect may have happened.",
        tags=["steps"],
    )
    def get(self, request: ApiRequest) -> Response:
        params = read_params(request, InboxParams)
        waits = StepWait.objects.filter(
            project_id=self.caller.project_id, kind=params.get("kind", "approval")
        )
        if self.caller.session_id is not None:
            waits = waits.filter(session_id=self.caller.session_id)
        if self.caller.subject is not None:
            waits = waits.filter(session__subject=self.caller.subject)
        found = paginate(waits, params, ["step_id"])
        steps = {
            step.id: step
            for step in Step.objects.filter(
                project_id=self.caller.project_id,
                id__in=[wait.step_id for wait in found.items],
            )
        }
        shown = [
            {
                "kind": wait.kind,
                "since": iso(wait.since),
                "step": step_json(steps[wait.step_id]),
            }
            for wait in found.items
            if wait.step_id in steps
        ]
        items: Page[Any] = Page(shown, found.next)
        return page_response(items, lambda item: item)
