"""Runs: create, find, steer, and ask why they wait."""

from datetime import timedelta
from typing import Any
from uuid import UUID

from rest_framework.response import Response

from access_app.api.docs import documented, page
from access_app.api.views import ApiRequest
from access_app.errors import MissingScope
from access_app.scopes import RUNS_WRITE
from agentstate.api.etags import etag
from agentstate.api.pagination import Page, page_response, paginate
from agentstate.api.params import PageParams, read_params
from agentstate.api.serializers import read_as
from agentstate.clock import db_now
from agentstate.errors import FieldError
from runs_app import services
from runs_app.again import run_again
from runs_app.api.base import RUN_ID, SESSION_ID, STEP_ID, RunCallView
from runs_app.api.serializers import (
    AgainIn,
    CreateRunIn,
    PlanIn,
    PolicyIn,
    PolicyOut,
    RejectedOut,
    RunListParams,
    RunOut,
    RunWithStepsOut,
    SignalIn,
    SignalOut,
    StepOut,
    WaitsOut,
)
from runs_app.models import RejectedCompletion, Run, Step
from runs_app.querysets import RunQuerySet
from runs_app.reads import rejected_json, run_json, steps_shown, why_run_waits
from runs_app.services import RunFields
from sessions_app.api.serializers import ReasonIn
from sessions_app.errors import SessionNotFound
from sessions_app.services import SessionFields, create_session, get_session

STEPS_SHOWN = 1000
STEP_EXAMPLE = {
    "id": STEP_ID,
    "run": RUN_ID,
    "session": SESSION_ID,
    "index": 0,
    "name": "refund",
    "kind": "tool",
    "tool": "refund",
    "args": {"order": 1042},
    "depends_on": [],
    "effect": "once",
    "state": "pending",
    "wait": None,
    "requires_approval": False,
    "attempt": 0,
    "failures": 0,
    "lost": 0,
    "max_attempts": 5,
    "previous": None,
    "worker": "",
    "lease": None,
    "idempotency_key": f"{RUN_ID}:{STEP_ID}",
    "result": None,
    "error": None,
    "on_exhausted": "fail",
    "timeout_s": None,
    "run_after": None,
    "concurrency_key": None,
    "priority": 0,
    "created_at": "2026-01-15T09:30:00.000000Z",
    "started_at": None,
    "ended_at": None,
    "state_since": "2026-01-15T09:30:00.000000Z",
}
RUN_EXAMPLE = {
    "id": RUN_ID,
    "session": SESSION_ID,
    "key": None,
    "agent": "support",
    "state": "queued",
    "reason": "",
    "error": None,
    "labels": {},
    "input": None,
    "priority": 0,
    "second_run": "enqueue",
    "plan_version": 1,
    "step_count": 1,
    "steps_by_state": {
        "pending": 1,
        "in_progress": 0,
        "waiting": 0,
        "in_doubt": 0,
        "done": 0,
        "failed": 0,
        "skipped": 0,
        "cancelled": 0,
    },
    "retrying": 0,
    "budget": {
        "max_tool_calls": None,
        "tool_calls": 0,
        "max_tokens": None,
        "tokens": 0,
        "max_cost": None,
        "cost": 0,
        "below": {"tool_calls": 0, "tokens": 0, "cost": 0},
        "tool_allowlist": None,
        "deadline": None,
    },
    "parent_run": None,
    "parent_step": None,
    "root_run": None,
    "again_of": None,
    "again_from": None,
    "created_at": "2026-01-15T09:30:00.000000Z",
    "started_at": None,
    "ended_at": None,
    "state_since": "2026-01-15T09:30:00.000000Z",
}
FULL_EXAMPLE = RUN_EXAMPLE | {"steps": [STEP_EXAMPLE], "steps_next": None}
PLAN_STEP = {"tool": "refund", "args": {"order": 1042}, "effect": "once"}


class RunListView(RunCallView):
    @documented(
        "list_runs",
        "List runs, newest first",
        params=RunListParams,
        responses={200: page(RunOut)},
        response_example={"items": [RUN_EXAMPLE], "next": None},
        tags=["runs"],
    )
    def get(self, request: ApiRequest) -> Response:
        params = read_params(request, RunListParams)
        found = filtered(self.runs(), params)
        return page_response(paginate(found, params, ["-id"]), run_json)

    @documented(
        "create_run",
        "Create a run with its plan",
        request=CreateRunIn,
        responses={201: RunWithStepsOut, 200: RunWithStepsOut},
        request_example={"session": SESSION_ID, "steps": [PLAN_STEP]},
        response_example=FULL_EXAMPLE,
        errors=[404],
        tags=["runs"],
    )
    def post(self, request: ApiRequest) -> Response:
        body = read_as(CreateRunIn, request)
        self.caller.check_makes_runs()
        self.check_parent(body.get("parent_run"))
        run, is_new = services.create_run(
            self.caller.project_id,
            self.session_of(body),
            run_fields(body),
            steps_of(body),
            actor=self.caller.actor,
            subject=self.caller.subject,
        )
        return Response(
            full_json(run),
            status=201 if is_new else 200,
            headers={"ETag": etag(run.plan_version)},
        )

    def check_parent(self, run_id: UUID | None) -> None:
        """Raise FieldError for a parent run outside a bound key's reach."""
        if run_id is None or not self.caller.is_bound:
            return
        if not self.runs().filter(id=run_id).exists():
            raise FieldError("parent_run", "not_found", "there is no such run")

    def session_of(self, body: dict[str, Any]) -> UUID:
        """The session named in the body, made if it is named by its key."""
        if ("session" in body) == ("session_key" in body):
            raise FieldError("session", "required", "send session or session_key")
        if "session" in body:
            session_id: UUID = body["session"]
            if self.caller.session_id not in (None, session_id):
                raise MissingScope(RUNS_WRITE, "This key is bound to another session.")
            return session_id
        if self.caller.session_id is not None:
            raise MissingScope(RUNS_WRITE, "This key is bound to one session.")
        session, _ = create_session(
            self.caller.project_id,
            SessionFields(
                key=body["session_key"],
                agent=body.get("agent", ""),
                subject=self.caller.subject or "",
            ),
            actor=self.caller.actor,
            named=["subject"] if self.caller.subject else [],
        )
        return session.id


def run_fields(body: dict[str, Any]) -> RunFields:
    budget = body.get("budget", {})
    deadline = budget.get("deadline")
    if budget.get("deadline_s") is not None:
        if deadline is not None:
            raise FieldError("budget.deadline_s", "conflict", "send one deadline")
        deadline = db_now() + timedelta(seconds=float(budget["deadline_s"]))
    return RunFields(
        key=body.get("key"),
        agent=body.get("agent"),
        labels=body.get("labels", {}),
        input=body.get("input"),
        priority=body.get("priority", 0),
        window=body.get("window", 100),
        second_run=body.get("second_run"),
        max_tool_calls=budget.get("max_tool_calls"),
        max_tokens=budget.get("max_tokens"),
        max_cost=budget.get("max_cost"),
        tool_allowlist=budget.get("tool_allowlist"),
        deadline_at=deadline,
        parent_run_id=body.get("parent_run"),
        parent_step_id=body.get("parent_step"),
    )


def steps_of(body: dict[str, Any]) -> Any:
    plan = body.get("plan")
    if plan is None:
        return body.get("steps", [])
    if "steps" in body:
        raise FieldError("plan", "conflict", "send steps or plan, not both")
    return plan.get("steps", [])


def full_json(run: Run) -> dict[str, Any]:
    """The run with its first steps."""
    found = paginate(
        Step.objects.of_run(run.project_id, run.id), {"limit": STEPS_SHOWN}, ["index"]
    )
    return run_json(run) | {
        "steps": steps_shown(found.items),
        "steps_next": found.next,
    }


def filtered(found: RunQuerySet, params: dict[str, Any]) -> RunQuerySet:
    """Narrow a list of runs to what its query asks for."""
    if "key" in params:
        found = found.filter(key=params["key"])
    if "agent" in params:
        found = found.filter(agent=params["agent"])
    if "session" in params:
        found = found.filter(session_id=params["session"])
    if "state" in params:
        found = found.filter(state__in=params["state"])
    if "parent" in params:
        found = found.filter(parent_run_id=params["parent"])
    if params.get("retrying"):
        found = found.retrying()
    if labels := params.get("label") or params.get("labels"):
        found = found.with_labels(labels)
    return found


class RunView(RunCallView):
    @documented(
        "get_run",
        "Read a run and its steps",
        responses={200: RunWithStepsOut},
        response_example=FULL_EXAMPLE,
        errors=[404],
        tags=["runs"],
    )
    def get(self, request: ApiRequest, run_id: UUID) -> Response:
        read_params(request)
        run = self.load_run(run_id)
        return Response(full_json(run), headers={"ETag": etag(run.plan_version)})


class RunStepsView(RunCallView):
    @documented(
        "list_run_steps",
        "List a run's steps, in the plan's order",
        params=PageParams,
        responses={200: page(StepOut)},
        response_example={"items": [STEP_EXAMPLE], "next": None},
        errors=[404],
        tags=["runs"],
    )
    def get(self, request: ApiRequest, run_id: UUID) -> Response:
        params = read_params(request, PageParams)
        run = self.load_run(run_id)
        found = paginate(Step.objects.of_run(run.project_id, run.id), params, ["index"])
        shown: Page[Any] = Page(steps_shown(found.items), found.next)
        return page_response(shown, lambda item: item)


class RejectedView(RunCallView):
    @documented(
        "list_rejected_completions",
        "List what workers reported too late",
        params=PageParams,
        responses={200: page(RejectedOut)},
        response_example={"items": [], "next": None},
        errors=[404],
        tags=["runs"],
    )
    def get(self, request: ApiRequest, run_id: UUID) -> Response:
        params = read_params(request, PageParams)
        self.load_run(run_id)
        found = RejectedCompletion.objects.filter(
            project_id=self.caller.project_id, run_id=run_id
        )
        return page_response(paginate(found, params, ["-id"]), rejected_json)


class PlanView(RunCallView):
    @documented(
        "change_plan",
        "Add steps to a run's plan, or replace what is not begun",
        request=PlanIn,
        responses={200: RunWithStepsOut},
        request_example={"plan_version": 1, "append": [PLAN_STEP]},
        response_example=FULL_EXAMPLE,
        errors=[404],
        tags=["runs"],
    )
    def post(self, request: ApiRequest, run_id: UUID) -> Response:
        self.check_run(run_id)
        body = read_as(PlanIn, request)
        replaces = "replace" in body
        run = services.change_plan(
            self.caller.project_id,
            run_id,
            body["replace"] if replaces else body["append"],
            plan_version=body["plan_version"],
            replaces=replaces,
            actor=self.caller.actor,
        )
        return Response(full_json(run), headers={"ETag": etag(run.plan_version)})


class WhyView(RunCallView):
    @documented(
        "why_run_waits",
        "Say what a run waits for, and since when",
        responses={200: WaitsOut},
        response_example={
            "run": RUN_ID,
            "state": "waiting",
            "waits": [
                {
                    "step": STEP_ID,
                    "index": 0,
                    "for": "approval",
                    "signal": None,
                    "until": None,
                    "since": "2026-01-15T09:30:00.000000Z",
                }
            ],
        },
        errors=[404],
        tags=["runs"],
    )
    def get(self, request: ApiRequest, run_id: UUID) -> Response:
        read_params(request)
        run = self.load_run(run_id)
        return Response(
            {"run": str(run.id), "state": run.state, "waits": why_run_waits(run)}
        )


class RunMoveView(RunCallView):
    """A move of a run that takes a reason and answers the run."""

    def move(self, request: ApiRequest, run_id: UUID, service: Any) -> Response:
        self.check_run(run_id)
        body = read_as(ReasonIn, request)
        service(
            self.caller.project_id,
            run_id,
            reason=body["reason"],
            actor=self.caller.actor,
        )
        return Response(run_json(self.load_run(run_id)))


class CancelRunView(RunMoveView):
    @documented(
        "cancel_run",
        "Cancel a run",
        request=ReasonIn,
        responses={200: RunOut},
        request_example={"reason": "the customer called back"},
        response_example=RUN_EXAMPLE | {"state": "cancelling"},
        errors=[404],
        description="`cancelling` until its steps in progress and its child runs have "
        "ended; no step is handed out from now on.",
        tags=["runs"],
    )
    def post(self, request: ApiRequest, run_id: UUID) -> Response:
        return self.move(request, run_id, services.cancel_run)


class PauseRunView(RunMoveView):
    @documented(
        "pause_run",
        "Pause a run",
        request=ReasonIn,
        responses={200: RunOut},
        request_example={"reason": "the shop is closed"},
        response_example=RUN_EXAMPLE | {"state": "paused"},
        errors=[404],
        tags=["runs"],
    )
    def post(self, request: ApiRequest, run_id: UUID) -> Response:
        return self.move(request, run_id, services.pause_run)


class ResumeRunView(RunMoveView):
    @documented(
        "resume_run",
        "Resume a paused run",
        request=ReasonIn,
        responses={200: RunOut},
        request_example={"reason": ""},
        response_example=RUN_EXAMPLE | {"state": "running"},
        errors=[404],
        tags=["runs"],
    )
    def post(self, request: ApiRequest, run_id: UUID) -> Response:
        return self.move(request, run_id, services.resume_run)


class RetryRunView(RunMoveView):
    @documented(
        "retry_run",
        "Let a failed run go on from its failed steps",
        request=ReasonIn,
        responses={200: RunOut},
        request_example={"reason": "the shop is back"},
        response_example=RUN_EXAMPLE | {"state": "running"},
        errors=[404],
        tags=["runs"],
    )
    def post(self, request: ApiRequest, run_id: UUID) -> Response:
        return self.move(request, run_id, services.retry_run)


class AgainView(RunCallView):
    @documented(
        "run_again",
        "Run again from a step, as a new run",
        request=AgainIn,
        responses={201: RunWithStepsOut},
        request_example={"from_step": 2},
        response_example=FULL_EXAMPLE | {"again_of": RUN_ID, "again_from": 2},
        errors=[404],
        tags=["runs"],
    )
    def post(self, request: ApiRequest, run_id: UUID) -> Response:
        self.check_run(run_id)
        self.caller.check_makes_runs()
        body = read_as(AgainIn, request)
        run = run_again(
            self.caller.project_id,
            run_id,
            body["from_step"],
            actor=self.caller.actor,
            confirm_repeat=body["confirm_repeat"],
            second_run=body.get("second_run"),
            args=args_by_index(body.get("args", {})),
        )
        return Response(full_json(run), status=201)


def args_by_index(given: dict[str, Any]) -> dict[int, Any]:
    found = {}
    for name, value in given.items():
        if not name.isdecimal() or len(name) > 9:
            raise FieldError(f"args.{name}", "invalid", "this is not a step's index")
        found[int(name)] = value
    return found


class SignalView(RunCallView):
    @documented(
        "send_signal",
        "Send a signal to a run",
        request=SignalIn,
        responses={200: SignalOut},
        request_example={"payload": {"paid": True}, "id": "payment-77"},
        response_example={"run": RUN_ID, "name": "paid", "is_new": True},
        errors=[404],
        description="It is kept until a step of the run waits for this name.",
        tags=["runs"],
    )
    def post(self, request: ApiRequest, run_id: UUID, name: str) -> Response:
        self.check_run(run_id)
        if len(name) > 200 or "\0" in name:
            raise FieldError("name", "invalid", "must be 1 to 200 characters")
        body = read_as(SignalIn, request)
        is_new = services.send_signal(
            self.caller.project_id,
            run_id,
            name,
            body.get("payload"),
            signal_id=body.get("id"),
            actor=self.caller.actor,
        )
        return Response({"run": str(run_id), "name": name, "is_new": is_new})


class PolicyView(RunCallView):
    """What a second run means in a session."""

    @documented(
        "get_run_policy",
        "Read what a second run means in a session",
        responses={200: PolicyOut},
        response_example={"second_run": "enqueue"},
        errors=[404],
        tags=["runs"],
    )
    def get(self, request: ApiRequest, session_id: UUID) -> Response:
        read_params(request)
        self.check_session(session_id)
        return Response(
            {"second_run": services.policy_of(self.caller.project_id, session_id)}
        )

    @documented(
        "put_run_policy",
        "Say what a second run means in a session",
        request=PolicyIn,
        responses={200: PolicyOut},
        request_example={"second_run": "reject"},
        response_example={"second_run": "reject"},
        errors=[404],
        tags=["runs"],
    )
    def put(self, request: ApiRequest, session_id: UUID) -> Response:
        self.check_session(session_id)
        body = read_as(PolicyIn, request)
        services.set_policy(self.caller.project_id, session_id, body["second_run"])
        return Response({"second_run": body["second_run"]})

    def check_session(self, session_id: UUID) -> None:
        get_session(self.caller.project_id, session_id, subject=self.caller.subject)
        if self.caller.session_id not in (None, session_id):
            raise SessionNotFound
