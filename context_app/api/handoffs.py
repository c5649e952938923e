"""Handoffs: offer work, take it, give the result back, and see the tree."""

from typing import Any
from uuid import UUID

from django.db import transaction
from rest_framework import serializers
from rest_framework.response import Response

from access_app.api.docs import documented, page
from access_app.api.keys import derived_secret
from access_app.api.views import ApiRequest
from access_app.idempotency import IdempotencyRequest
from access_app.keys import KeyText, hash_secret
from access_app.models import ApiKey
from access_app.scopes import (
    MEMORY_READ,
    MEMORY_WRITE,
    RUNS_READ,
    RUNS_WORK,
    SESSIONS_READ,
)
from agentstate import codec
from agentstate.api.pagination import page_response, paginate
from agentstate.api.params import PageParams, read_params
from agentstate.api.serializers import (
    JSONObjectField,
    JSONValueField,
    StrictSerializer,
    StringField,
    read_as,
)
from context_app.bundle import (
    check_task,
    gather_bundle,
    prompt_text,
    suggested_facts,
)
from context_app.tokens import configured_counter
from runs_app.api.base import RUN_ID, RunCallView
from runs_app.constraints import Constraints
from runs_app.errors import HandoffNotFound
from runs_app.handoffs import (
    Offer,
    accept_handoff,
    complete_handoff,
    decline_handoff,
    get_handoff,
    offer_handoff,
    words_of,
)
from runs_app.models import Handoff, HandoffStatus
from runs_app.settling import settle_handoff
from runs_app.tree import run_tree
from sessions_app import event_types as types
from sessions_app.api.serializers import BIGINT_MAX, NAME_MAX
from sessions_app.append import NewEvent, append_events
from sessions_app.log import iso
from sessions_app.models import Session

TASK_MAX = 100_000  # characters
LIST_MAX = 200
# What is carried of the giving session, to a key that may read it.
FROM_SESSION = {"events", "last_events", "state_keys", "working_memory", "artifacts"}


def seq_list(**options: Any) -> serializers.ListField:
    child = serializers.IntegerField(min_value=1, max_value=BIGINT_MAX)
    return serializers.ListField(child=child, max_length=LIST_MAX, **options)


def name_list(**options: Any) -> serializers.ListField:
    child = StringField(max_length=NAME_MAX)
    return serializers.ListField(child=child, max_length=LIST_MAX, **options)


class CarriedIn(StrictSerializer):
    """What the handoff carries. It is gathered when the handoff is accepted."""

    facts = serializers.ListField(
        child=serializers.UUIDField(), max_length=LIST_MAX, required=False
    )
    recall = StringField(
        max_length=2000, required=False, help_text="And facts that fit these words."
    )
    events = seq_list(required=False, help_text="Seqs of messages and calls.")
    last_events = serializers.IntegerField(
        min_value=0,
        max_value=100,
        required=False,
        help_text="And so many of the newest messages and calls.",
    )
    state_keys = name_list(required=False)
    working_memory = name_list(required=False)
    artifacts = name_list(
        required=False,
        help_text="Ids or names: the other agent may read these, and no others.",
    )
    inline = JSONValueField(required=False)
    budget_tokens = serializers.IntegerField(
        min_value=1, max_value=1_000_000, required=False, help_text="Default 4000."
    )


class ConstraintsIn(StrictSerializer):
    max_tool_calls = serializers.IntegerField(
        min_value=0, max_value=BIGINT_MAX, required=False
    )
    max_tokens = serializers.IntegerField(
        min_value=0, max_value=BIGINT_MAX, required=False
    )
    max_cost = serializers.DecimalField(
        max_digits=20, decimal_places=6, min_value=0, required=False
    )
    timeout_s = serializers.FloatField(
        min_value=0.001, max_value=31_536_000, required=False
    )
    tool_allowlist = name_list(
        required=False, help_text="The key may call and claim no other tools."
    )
    may_remember = serializers.BooleanField(
        required=False,
        help_text="The key may write facts about the session's subject; it reads none.",
    )


class HandoffIn(StrictSerializer):
    agent = StringField(max_length=NAME_MAX)
    task = StringField(max_length=TASK_MAX)
    context = CarriedIn(required=False)  # type: ignore[assignment]
    constraints = ConstraintsIn(required=False)
    on_failure = serializers.ChoiceField(
        choices=["fail", "skip"],
        required=False,
        default="fail",
        help_text="When nothing comes of it, the step that waits fails, and with it "
        "the run; or it is skipped, and the run goes on.",
    )


class HandoffOut(serializers.Serializer[Any]):
    id = serializers.UUIDField()
    status = serializers.ChoiceField(choices=HandoffStatus.choices)
    agent = serializers.CharField()
    task = serializers.CharField()
    depth = serializers.IntegerField()
    run = serializers.UUIDField()
    step = serializers.UUIDField(help_text="The giving run's step that waits for it.")
    session = serializers.UUIDField()
    child_session = serializers.UUIDField()
    child_run = serializers.UUIDField()
    constraints = JSONObjectField()
    on_failure = serializers.CharField()
    accepted_by = serializers.CharField(allow_null=True)
    expires_at = serializers.DateTimeField(allow_null=True)
    created_at = serializers.DateTimeField()
    bundle = JSONObjectField(
        allow_null=True, help_text="What it carries, fixed when it was accepted."
    )
    result = JSONObjectField(allow_null=True)
    reason = serializers.CharField(allow_null=True)


class OfferedOut(HandoffOut):
    token = serializers.CharField(
        help_text="A key that sees the child session alone; shown this once."
    )


class AcceptIn(StrictSerializer):
    by = StringField(max_length=NAME_MAX, help_text="Who takes it, by a stable name.")


class DeclineIn(StrictSerializer):
    reason = StringField(max_length=2000, required=False, allow_blank=True, default="")


class ResultIn(StrictSerializer):
    summary = StringField(max_length=TASK_MAX)
    data = JSONValueField(required=False)  # type: ignore[assignment]


class SuggestIn(StrictSerializer):
    task = StringField(max_length=2000)
    limit = serializers.IntegerField(min_value=1, max_value=100, default=10)


class SuggestedOut(serializers.Serializer[Any]):
    items = serializers.ListField(child=JSONObjectField())


class TreeOut(serializers.Serializer[Any]):
    run = serializers.UUIDField()
    session = serializers.UUIDField()
    agent = serializers.CharField()
    state = serializers.CharField()
    reason = serializers.CharField()
    budget = JSONObjectField()
    children = serializers.ListField(child=JSONObjectField())


EXAMPLE = {
    "id": "0199b2a0-9d01-7c66-8f5a-3b4c5d6e7f80",
    "status": "offered",
    "agent": "billing",
    "task": "Check invoice A-1",
    "depth": 1,
    "run": RUN_ID,
    "step": "0199b2a0-9d02-7d77-9a6b-4c5d6e7f8091",
    "session": "0199b2a0-8a10-7d12-8f6e-5d1c0a9b7e42",
    "child_session": "0199b2a0-9d03-7e88-8b7c-5d6e7f8091a2",
    "child_run": "0199b2a0-9d04-7f99-9c8d-6e7f8091a2b3",
    "constraints": {"max_tool_calls": 5},
    "on_failure": "fail",
    "accepted_by": None,
    "expires_at": None,
    "created_at": "2026-01-15T09:30:00.000000Z",
    "bundle": None,
    "result": None,
    "reason": None,
}


class RunHandoffsView(RunCallView):
    @documented(
        "list_handoffs",
        "List the handoffs of a run, newest first",
        params=PageParams,
        responses={200: page(HandoffOut)},
        response_example={"items": [EXAMPLE], "next": None},
        errors=[404],
        tags=["handoffs"],
    )
    def get(self, request: ApiRequest, run_id: UUID) -> Response:
        params = read_params(request, PageParams)
        run = self.load_run(run_id)
        found = Handoff.objects.filter(project_id=run.project_id, run_id=run.id)
        return page_response(paginate(found, params, ["-id"]), handoff_json)

    @documented(
        "offer_handoff",
        "Hand a task to another agent and wait for its result",
        request=HandoffIn,
        responses={201: OfferedOut},
        request_example={
            "agent": "billing",
            "task": "Check invoice A-1",
            "context": {"recall": "invoices", "last_events": 5, "budget_tokens": 3000},
            "constraints": {"max_tool_calls": 5, "timeout_s": 600},
        },
        response_example=EXAMPLE | {"token": "as_…"},
        errors=[404],
        description="Makes a session and a run for the other agent, a key that sees "
        "only these, and a step of this run that is done with the result. Handing on "
        "is refused beyond a depth of 8 (409 `handoff_too_deep`).",
        tags=["handoffs"],
    )
    def post(self, request: ApiRequest, run_id: UUID) -> Response:
        body = read_as(HandoffIn, request)
        run = self.load_run(run_id)
        context = plain(body.get("context", {}))
        if "facts" in context or "recall" in context:
            self.caller.require_scope(MEMORY_READ)
        if FROM_SESSION & context.keys():
            self.caller.require_scope(SESSIONS_READ)
        budget = context.get("budget_tokens")
        if budget is not None:
            check_task(body["task"], budget, configured_counter())
        offer = Offer(
            body["agent"],
            body["task"],
            context,
            Constraints(**body.get("constraints", {})),
            body["on_failure"],
        )
        if offer.constraints.may_remember:
            self.caller.require_scope(MEMORY_WRITE)
        offered = offer_handoff(
            run.project_id,
            run.id,
            offer,
            actor=self.caller.actor,
            secret=derived_secret(request.idempotency),
        )
        told = handoff_json(offered.handoff) | {"token": offered.token}
        return Response(told, status=201)

    # The answer holds a key, and no key may lie in the database: a replay makes it
    # again from the client's Idempotency-Key, as the calls on keys do.

    def stored_body(self, body: str) -> str:
        answer: Any = codec.loads(body)
        return codec.dumps({n: v for n, v in answer.items() if n != "token"})

    def restored_body(self, body: str) -> str:
        answer: Any = codec.loads(body)
        handoff = get_handoff(self.caller.project_id, UUID(answer["id"]))
        token = key_text_again(handoff.key_id, self.api_request.idempotency)
        return codec.dumps(answer | {"token": token})


class SuggestView(RunCallView):
    asked_in: UUID | None = None  # the session whose subject's facts these are

    @documented(
        "suggest_facts",
        "Suggest the facts that matter for a task",
        request=SuggestIn,
        responses={200: SuggestedOut},
        request_example={"task": "Check invoice A-1", "limit": 5},
        response_example={
            "items": [
                {
                    "id": "0199b2a0-7f31-7c02-9a4e-8d2b6c1f0e55",
                    "fact": "Prefers invoices as PDF",
                    "kind": "preference",
                    "why": "has invoic",
                }
            ]
        },
        errors=[404],
        tags=["handoffs"],
    )
    def post(self, request: ApiRequest, run_id: UUID) -> Response:
        body = read_as(SuggestIn, request)
        run = self.load_run(run_id)
        self.caller.require_scope(MEMORY_READ)
        session = Session.objects.get(project_id=run.project_id, id=run.session_id)
        found = suggested_facts(session, body["task"], body["limit"])
        self.asked_in = run.session_id
        return Response({"items": found})

    def answer_session_id(self, response: Response) -> UUID | None:
        return self.asked_in


class TreeView(RunCallView):
    @documented(
        "get_run_tree",
        "Read a run with the runs below it, their states and budgets",
        responses={200: TreeOut},
        response_example={
            "run": RUN_ID,
            "session": EXAMPLE["session"],
            "agent": "triage",
            "state": "waiting",
            "reason": "",
            "budget": {"max_tool_calls": 20, "tool_calls": 3},
            "children": [],
        },
        errors=[404],
        tags=["handoffs"],
    )
    def get(self, request: ApiRequest, run_id: UUID) -> Response:
        read_params(request)
        run = self.load_run(run_id)
        return Response(run_tree(run.project_id, run))


class HandoffCallView(RunCallView):
    """A call on one handoff: by who gave it, or by who has its key."""

    scopes = {"GET": RUNS_READ, "POST": RUNS_WORK}

    def load(self, handoff_id: UUID) -> Handoff:
        handoff = get_handoff(self.caller.project_id, handoff_id)
        if self.caller.session_id == handoff.child_session_id:
            return handoff
        if not self.may_see_session(handoff.session_id):
            raise HandoffNotFound
        return handoff


class HandoffView(HandoffCallView):
    @documented(
        "get_handoff",
        "Read a handoff: its task, what it carries, its result",
        responses={200: HandoffOut},
        response_example=EXAMPLE,
        errors=[404],
        tags=["handoffs"],
    )
    def get(self, request: ApiRequest, handoff_id: UUID) -> Response:
        read_params(request)
        handoff = self.load(handoff_id)
        if handoff.is_open:
            handoff = settle_handoff(handoff.project_id, handoff.id)
        return Response(handoff_json(handoff))


class AcceptView(HandoffCallView):
    @documented(
        "accept_handoff",
        "Take a handoff; what it carries is fixed now",
        request=AcceptIn,
        responses={200: HandoffOut},
        request_example={"by": "billing-2"},
        response_example=EXAMPLE | {"status": "accepted", "accepted_by": "billing-2"},
        errors=[404],
        description="What it carries also becomes the child session's first message. "
        "One agent gets it; others are refused with 409 `handoff_taken`.",
        tags=["handoffs"],
    )
    def post(self, request: ApiRequest, handoff_id: UUID) -> Response:
        body = read_as(AcceptIn, request)
        self.load(handoff_id)
        settle_handoff(self.caller.project_id, handoff_id)
        actor, count = self.caller.actor, configured_counter()

        def gather(session: Session, offered: dict[str, Any]) -> dict[str, Any]:
            bundle = gather_bundle(session, offered, count)
            tell_child(
                session.project_id, UUID(offered["child_session"]), bundle, actor
            )
            return bundle

        with transaction.atomic():
            handoff = accept_handoff(
                self.caller.project_id, handoff_id, body["by"], gather, actor=actor
            )
        return Response(handoff_json(handoff))


class DeclineView(HandoffCallView):
    @documented(
        "decline_handoff",
        "Give a handoff back undone",
        request=DeclineIn,
        responses={200: HandoffOut},
        request_example={"reason": "not about billing"},
        response_example=EXAMPLE | {"status": "declined"},
        errors=[404],
        description="The step that waits for it fails with `handoff_declined`.",
        tags=["handoffs"],
    )
    def post(self, request: ApiRequest, handoff_id: UUID) -> Response:
        body = read_as(DeclineIn, request)
        self.load(handoff_id)
        handoff = decline_handoff(
            self.caller.project_id,
            handoff_id,
            body["reason"],
            actor=self.caller.actor,
        )
        return Response(handoff_json(handoff))


class ResultView(HandoffCallView):
    @documented(
        "complete_handoff",
        "Give the result of a handoff back",
        request=ResultIn,
        responses={200: HandoffOut},
        request_example={"summary": "The invoice is right.", "data": {"ok": True}},
        response_example=EXAMPLE | {"status": "completed"},
        errors=[404],
        description="The waiting step is done with `{summary, data}`: that is all that "
        "flows back. The same result again is the same answer.",
        tags=["handoffs"],
    )
    def post(self, request: ApiRequest, handoff_id: UUID) -> Response:
        body = read_as(ResultIn, request)
        self.load(handoff_id)
        settle_handoff(self.caller.project_id, handoff_id)
        result = {"summary": body["summary"], "data": body.get("data")}
        handoff = complete_handoff(
            self.caller.project_id, handoff_id, result, actor=self.caller.actor
        )
        return Response(handoff_json(handoff))


def tell_child(
    project_id: UUID, session_id: UUID, bundle: dict[str, Any], actor: str
) -> None:
    payload = {"content": prompt_text(bundle)}
    append_events(
        project_id,
        session_id,
        [NewEvent(types.MESSAGE_USER, payload)],
        actor=actor,
        by_server=True,
    )


def key_text_again(key_id: UUID | None, call: IdempotencyRequest | None) -> str | None:
    """The text of a key that was made under this Idempotency-Key."""
    secret = derived_secret(call)
    if secret is None or key_id is None:
        return None
    key = ApiKey.objects.get(pk=key_id)
    is_its = hash_secret(secret) == bytes(key.secret_hash)
    return str(KeyText(key.prefix, secret)) if is_its else None


def plain(context: dict[str, Any]) -> dict[str, Any]:
    """The context as JSON: it goes into an event."""
    facts = [str(fact_id) for fact_id in context.get("facts", [])]
    return {**context, **({"facts": facts} if "facts" in context else {})}


def handoff_json(handoff: Handoff) -> dict[str, Any]:
    """The handoff as HandoffOut describes it; its words are read from the log."""
    offered = words_of(handoff, handoff.offered_seq)
    accepted = words_of(handoff, handoff.accepted_seq)
    ended = words_of(handoff, handoff.ended_seq)
    return {
        "id": str(handoff.id),
        "status": handoff.status,
        "agent": handoff.agent,
        "task": offered.get("task", ""),
        "depth": handoff.depth,
        "run": str(handoff.run_id),
        "step": str(handoff.step_id),
        "session": str(handoff.session_id),
        "child_session": str(handoff.child_session_id),
        "child_run": str(handoff.child_run_id),
        "constraints": {
            name: value
            for name, value in (offered.get("constraints") or {}).items()
            if value is not None and value is not False
        },
        "on_failure": offered.get("on_failure", "fail"),
        "accepted_by": handoff.accepted_by or None,
        "expires_at": iso(handoff.expires_at),
        "created_at": iso(handoff.created_at),
        "bundle": accepted.get("bundle"),
        "result": ended.get("result"),
        "reason": ended.get("reason"),
    }
