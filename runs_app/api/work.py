"""The calls of workers: claim, heartbeat, complete, fail, release. In lists.

Read by hand, not by serializers: these are the hottest calls. An item that is wrong
fails alone; its answer says why, by `code`.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, ClassVar
from uuid import UUID

from django.conf import settings
from django.db import connection
from rest_framework import serializers
from rest_framework.response import Response

from access_app.api.docs import documented
from access_app.api.views import ApiRequest
from access_app.refusals import note_refusal
from access_app.scopes import RUNS_WORK
from agentstate import codec
from agentstate.api.serializers import JSONValueField, StrictSerializer
from agentstate.codec import RawJSON, json_path
from agentstate.errors import AppError
from runs_app.api.base import RUN_ID, SESSION_ID, STEP_ID, RunCallView
from runs_app.plans import Reader
from runs_app.results import result_text
from runs_app.work import (
    BeatItem,
    Ended,
    Ending,
    Wanted,
    claim_steps,
    end_and_claim,
    end_attempts,
    heartbeat,
)
from sessions_app.log import iso

CLAIM_MAX = 100
ITEMS_MAX = 1000
LEASE_MIN, LEASE_MAX = 0.1, 86_400.0
WAIT_MAX = 20.0
# Set by the part of our server that waits for claims on its event loop; it takes the
# header away again.
WAITER_ENVIRON = "agentstate.claims"
WAIT_HEADER = "X-Agentstate-Wait"
POLL_FIRST, POLL_LAST = 0.02, 0.25  # seconds between looks of a claim that waits
ERROR_MAX_BYTES = 64 * 1024
BIGINT_MAX = 2**63 - 1
DELAY_MAX = 366 * 86_400.0
# Of one attempt. What runs and all below them used is added up in columns that hold
# a hundred thousand times as much, and more.
TOKENS_MAX, COST_MAX = 10**12, 10**9

TOKEN = (1 << 20) | 0xC5E6F
CLAIM_EXAMPLE = {
    "steps": [
        {
            "step": STEP_ID,
            "run": RUN_ID,
            "session": SESSION_ID,
            "index": 0,
            "name": "refund",
            "agent": "support",
            "tool": "refund",
            "args": {"order": 1042},
            "effect": "once",
            "attempt": 1,
            "failures": 0,
            "lost": 0,
            "lease_token": TOKEN,
            "lease_s": 30,
            "lease_until": "2026-01-15T09:30:30.000000Z",
            "timeout_at": None,
            "idempotency_key": f"{RUN_ID}:{STEP_ID}",
            "previous": None,
        }
    ]
}
REFUSED = {
    "lease_lost": (409, "Another has the step, or it is over: drop it and carry on."),
    "already_finished": (409, "The step has another result already: drop it."),
    "cancelled": (409, "The step was cancelled: drop it and carry on."),
    "not_found": (404, "There is no such step in this project."),
}


class ClaimIn(StrictSerializer):
    worker = serializers.CharField(help_text="Your name, for people to read.")
    max = serializers.IntegerField(
        required=False, default=1, min_value=1, max_value=CLAIM_MAX
    )
    lease_s = serializers.FloatField(
        required=False, default=30, min_value=LEASE_MIN, max_value=LEASE_MAX
    )
    wait_s = serializers.FloatField(
        required=False, default=0, min_value=0, max_value=WAIT_MAX
    )
    run = serializers.UUIDField(required=False, allow_null=True)
    tools = serializers.ListField(child=serializers.CharField(), required=False)
    agents = serializers.ListField(child=serializers.CharField(), required=False)


class ClaimedStepOut(serializers.Serializer[Any]):
    step = serializers.UUIDField()
    run = serializers.UUIDField()
    session = serializers.UUIDField()
    index = serializers.IntegerField()
    name = serializers.CharField()
    agent = serializers.CharField()
    tool = serializers.CharField()
    args = JSONValueField()
    effect = serializers.CharField()
    attempt = serializers.IntegerField()
    failures = serializers.IntegerField()
    lost = serializers.IntegerField()
    lease_token = serializers.IntegerField(help_text="Grows with each claim.")
    lease_s = serializers.FloatField()
    lease_until = serializers.DateTimeField()
    timeout_at = serializers.DateTimeField(allow_null=True)
    idempotency_key = serializers.CharField(help_text="The same for every attempt.")
    previous = serializers.CharField(
        allow_null=True, help_text="`unknown`: an attempt ended without a word."
    )


class ClaimOut(serializers.Serializer[Any]):
    steps = ClaimedStepOut(many=True)
    retry_after_s = serializers.FloatField(
        required=False,
        help_text="This server has too many claims that wait: ask again after this.",
    )


class HeartbeatItemIn(StrictSerializer):
    step = serializers.UUIDField()
    lease_token = serializers.IntegerField()
    lease_s = serializers.FloatField(required=False)


class UsageIn(StrictSerializer):
    tokens = serializers.IntegerField(required=False)
    cost = serializers.DecimalField(20, 6, required=False)


class CompleteItemIn(StrictSerializer):
    step = serializers.UUIDField()
    lease_token = serializers.IntegerField()
    result = JSONValueField(required=False)
    usage = UsageIn(required=False)


class ErrorIn(StrictSerializer):
    code = serializers.CharField(required=False)
    message = serializers.CharField(required=False)
    details = JSONValueField(required=False)


class FailItemIn(StrictSerializer):
    step = serializers.UUIDField()
    lease_token = serializers.IntegerField()
    error = ErrorIn(help_text="An object, kept as sent; `code` decides about a retry.")
    retryable = serializers.BooleanField(
        required=False, help_text="Instead of what the step's retry policy says."
    )
    retry_after_s = serializers.FloatField(
        required=False, help_text="Instead of the policy's backoff."
    )
    outcome_unknown = serializers.BooleanField(
        required=False, help_text="The effect may have happened all the same."
    )
    usage = UsageIn(required=False)


class ReleaseItemIn(StrictSerializer):
    step = serializers.UUIDField()
    lease_token = serializers.IntegerField()
    delay_s = serializers.FloatField(
        required=False, help_text="Not to be claimed again before this."
    )


class HeartbeatIn(StrictSerializer):
    items = HeartbeatItemIn(many=True)


class CompleteIn(StrictSerializer):
    items = CompleteItemIn(many=True)
    worker = serializers.CharField(required=False)
    claim_next = ClaimIn(required=False)


class FailIn(StrictSerializer):
    items = FailItemIn(many=True)
    worker = serializers.CharField(required=False)


class ReleaseIn(StrictSerializer):
    items = ReleaseItemIn(many=True)
    worker = serializers.CharField(required=False)


class ItemOut(serializers.Serializer[Any]):
    step = JSONValueField(help_text="As it was sent; null if it was not.")
    ok = serializers.BooleanField()
    status = serializers.IntegerField(help_text="As an HTTP status of this item.")
    code = serializers.CharField(allow_null=True)
    detail = serializers.CharField(required=False)
    path = serializers.CharField(required=False)
    state = serializers.CharField(allow_null=True)
    run = serializers.UUIDField(allow_null=True)
    run_state = serializers.CharField(allow_null=True)


class BeatItemOut(ItemOut):
    lease_until = serializers.DateTimeField(allow_null=True, required=False)
    stop = serializers.BooleanField(
        required=False,
        help_text="The run is being cancelled, or failing: stop, and report.",
    )


class ItemsOut(serializers.Serializer[Any]):
    items = ItemOut(many=True)


class CompleteOut(ItemsOut):
    steps = ClaimedStepOut(many=True, required=False)


class BeatsOut(serializers.Serializer[Any]):
    items = BeatItemOut(many=True)


ITEM_EXAMPLE = {
    "step": STEP_ID,
    "ok": True,
    "status": 200,
    "code": None,
    "state": "done",
    "run": RUN_ID,
    "run_state": "running",
}
ITEM_IN = {"step": STEP_ID, "lease_token": TOKEN}


class Turnstile:
    """Lets so many claims of this process wait at a time.

    A claim that waits holds a thread of the web server, though no connection. Beyond
    half the threads others would be kept from being served.
    """

    def __init__(self) -> None:
        self.waiting = 0
        self.guard = threading.Lock()

    @contextmanager
    def enter(self) -> Iterator[bool]:
        with self.guard:
            is_in = self.waiting < max(1, settings.WEB_THREADS // 2)
            self.waiting += is_in
        try:
            yield is_in
        finally:
            with self.guard:
                self.waiting -= is_in


turnstile = Turnstile()


class WorkView(RunCallView):
    scopes: ClassVar[dict[str, str]] = {"POST": RUNS_WORK}

    def read_claim(
        self, body: Any, path: tuple[str | int, ...] = ()
    ) -> tuple[Wanted, float]:
        """As the function, within the tools of the key. Raises ToolNotAllowed."""
        wanted, wait_s = read_claim(body, path)
        allowed = self.caller.tool_allowlist
        if allowed is None:
            return wanted, wait_s
        for at, tool in enumerate(wanted.tools or ()):
            self.caller.check_tool(tool, json_path((*path, "tools", at)))
        return replace(wanted, tools=wanted.tools or sorted(allowed)), wait_s


class ClaimView(WorkView):
    @documented(
        "claim_steps",
        "Claim steps to work on",
        request=ClaimIn,
        responses={200: ClaimOut},
        request_example={"worker": "w-1", "tools": ["refund"], "wait_s": 10},
        response_example=CLAIM_EXAMPLE,
        description="The oldest claimable steps by priority; an empty list when there "
        "is none within `wait_s`. With an Idempotency-Key the call does not wait.",
        tags=["work"],
    )
    def post(self, request: ApiRequest) -> Response:
        wanted, wait_s = self.read_claim(request.data)
        if request.idempotency is not None:
            wait_s = 0.0
        if wait_s and request._request.META.get(WAITER_ENVIRON):
            return self.claim_or_wait_outside(wanted, wait_s)
        return Response(self.claim(wanted, wait_s))

    def claim_or_wait_outside(self, wanted: Wanted, wait_s: float) -> Response:
        """Claim once; the server's event loop waits, if there is nothing."""
        claimed = claim_steps(self.reach, wanted)
        told = {WAIT_HEADER: f"{self.caller.project_id} {wait_s}"}
        return Response({"steps": raw(claimed)}, headers={} if claimed else told)

    def claim(self, wanted: Wanted, wait_s: float) -> dict[str, Any]:
        claimed = claim_steps(self.reach, wanted)
        if claimed or not wait_s:
            return {"steps": raw(claimed)}
        with turnstile.enter() as is_in:
            if not is_in:
                return {"steps": [], "retry_after_s": 1}
            return {"steps": raw(self.wait(wanted, time.monotonic() + wait_s))}

    def wait(self, wanted: Wanted, until: float) -> list[str]:
        """Look again and again, the connection back in its pool in between."""
        pause = POLL_FIRST
        while (left := until - time.monotonic()) > 0:
            connection.close()
            time.sleep(min(pause, left))
            pause = min(pause * 1.5, POLL_LAST)
            if claimed := claim_steps(self.reach, wanted):
                return claimed
        return []


def raw(texts: list[str]) -> list[RawJSON]:
    return [RawJSON(text) for text in texts]


def read_claim(body: Any, path: tuple[str | int, ...] = ()) -> tuple[Wanted, float]:
    """Return what a claim asks for, and how long it waits; raises FieldError."""
    reader = Reader(body, path)
    reader.check_names({"worker", "max", "lease_s", "wait_s", "run", "tools", "agents"})
    worker = reader.text("worker")
    if not worker:
        raise reader.refuse("worker", "required", "say who works")
    wanted = Wanted(
        worker=worker,
        max=reader.whole("max", 1, low=1, high=CLAIM_MAX),
        lease_s=reader.number("lease_s", 30.0, low=LEASE_MIN, high=LEASE_MAX),
        run_id=read_uuid(reader, "run"),
        tools=reader.texts("tools"),
        agents=reader.texts("agents"),
    )
    return wanted, reader.number("wait_s", 0.0, low=0, high=WAIT_MAX)


def read_uuid(reader: Reader, name: str) -> UUID | None:
    value = reader.given.get(name)
    if value is None:
        return None
    try:
        return UUID(value)
    except (ValueError, AttributeError, TypeError):
        raise reader.refuse(name, "invalid_uuid", "must be a UUID") from None


class ItemsView(WorkView):
    """A call with a list of items, each answered by itself."""

    fields: ClassVar[set[str]] = {"items", "worker"}

    def read_items(
        self, body: Any, read: Callable[[Reader, UUID, int], Any]
    ) -> tuple[list[Any], dict[int, dict[str, Any]], Reader]:
        """Return what was read, in order, and the answers to items that are wrong."""
        reader = Reader(body, ())
        reader.check_names(self.fields)
        items = reader.given.get("items")
        if not isinstance(items, list) or not 1 <= len(items) <= ITEMS_MAX:
            raise reader.refuse(
                "items", "out_of_range", f"must be a list of 1 to {ITEMS_MAX} items"
            )
        good: list[Any] = []
        wrong: dict[int, dict[str, Any]] = {}
        seen: set[UUID] = set()
        for at, item in enumerate(items):
            try:
                good.append(_read_item(item, at, seen, read))
            except AppError as exc:
                wrong[at] = _wrong_item(item, exc)
        return good, wrong, reader

    def answers(
        self, wrong: dict[int, dict[str, Any]], answered: list[dict[str, Any]]
    ) -> list[dict[str, Any]]:
        """Put the answers to wrong items back in their places."""
        for item in answered:
            if item["status"] == 404:
                step = f"step:{item['step']}"
                note_refusal(self.caller, step, "POST", str(item["code"]))
        rest = iter(answered)
        total = len(wrong) + len(answered)
        return [wrong[at] if at in wrong else next(rest) for at in range(total)]


def _read_item(
    item: Any, at: int, seen: set[UUID], read: Callable[[Reader, UUID, int], Any]
) -> Any:
    reader = Reader(item, ("items", at))
    step_id = read_uuid(reader, "step")
    if step_id is None:
        raise reader.refuse("step", "required", "is required")
    token = reader.whole("lease_token", None, low=0, high=BIGINT_MAX)
    if token is None:
        raise reader.refuse("lease_token", "required", "is required")
    if step_id in seen:
        raise reader.refuse("step", "duplicate", "stands here twice")
    seen.add(step_id)
    return read(reader, step_id, token)


def _wrong_item(item: Any, exc: AppError) -> dict[str, Any]:
    [error] = exc.extra["errors"]
    step = item.get("step") if isinstance(item, dict) else None
    return {
        "step": step if isinstance(step, str) else None,
        "ok": False,
        "status": exc.status,
        "code": error["code"],
        "detail": error["detail"],
        "path": error["path"],
        "state": None,
        "run": None,
        "run_state": None,
    }


def item_json(step_id: UUID, ended: Ended, run_id: UUID | None) -> dict[str, Any]:
    refusal = REFUSED.get(ended.outcome)
    shown: dict[str, Any] = {
        "step": str(step_id),
        "ok": refusal is None,
        "status": 200 if refusal is None else refusal[0],
        "code": None if refusal is None else ended.outcome,
    }
    if refusal is not None:
        shown["detail"] = refusal[1]
    return shown | {
        "state": ended.state,
        "run": None if run_id is None else str(run_id),
        "run_state": ended.run_state,
    }


class HeartbeatView(ItemsView):
    fields: ClassVar[set[str]] = {"items"}

    @documented(
        "heartbeat_steps",
        "Keep leases",
        request=HeartbeatIn,
        responses={200: BeatsOut},
        request_example={"items": [ITEM_IN]},
        response_example={
            "items": [
                ITEM_EXAMPLE
                | {
                    "state": "in_progress",
                    "lease_until": "2026-01-15T09:31:00.000000Z",
                    "stop": False,
                }
            ]
        },
        tags=["work"],
    )
    def post(self, request: ApiRequest) -> Response:
        items, wrong, _ = self.read_items(request.data, read_beat)
        beats = heartbeat(self.reach, items) if items else []
        shown = []
        for item, beat in zip(items, beats, strict=True):
            state = "in_progress" if beat.outcome == "ok" else None
            ended = Ended(beat.outcome, state, beat.run_id, beat.run_state)
            shown.append(
                item_json(item.step_id, ended, beat.run_id)
                | {"lease_until": iso(beat.lease_until), "stop": beat.stop}
            )
        return Response({"items": self.answers(wrong, shown)})


def read_beat(reader: Reader, step_id: UUID, token: int) -> BeatItem:
    reader.check_names({"step", "lease_token", "lease_s"})
    lease_s = reader.number("lease_s", None, low=LEASE_MIN, high=LEASE_MAX)
    return BeatItem(step_id, token, lease_s)


class EndView(ItemsView):
    """A call that ends attempts."""

    call: ClassVar[str]

    def end(
        self,
        body: Any,
        read: Callable[[Reader, UUID, int], Ending],
        following: Wanted | None = None,
    ) -> dict[str, Any]:
        """End what the items say, and claim what follows; return the answer."""
        endings, wrong, reader = self.read_items(body, read)
        worker = reader.text("worker") or None
        claimed: list[str] = []
        ended: list[Ended] = []
        if endings and following is not None:
            ended, claimed = end_and_claim(
                self.reach, self.call, endings, following, worker
            )
        elif endings:
            ended = end_attempts(self.reach, self.call, endings, worker)
        elif following is not None:
            claimed = claim_steps(self.reach, following)
        shown = [
            item_json(ending.step_id, how, how.run_id)
            for ending, how in zip(endings, ended, strict=True)
        ]
        answer: dict[str, Any] = {"items": self.answers(wrong, shown)}
        return answer if following is None else answer | {"steps": raw(claimed)}


class CompleteView(EndView):
    call = "complete"
    fields: ClassVar[set[str]] = {"items", "worker", "claim_next"}

    @documented(
        "complete_steps",
        "Report results",
        request=CompleteIn,
        responses={200: CompleteOut},
        request_example={"items": [ITEM_IN | {"result": {"refund": "r-7"}}]},
        response_example={"items": [ITEM_EXAMPLE]},
        description="The same result again gets the same answer. `claim_next` takes "
        "what a claim takes, and its steps come back as `steps`; it does not wait.",
        tags=["work"],
    )
    def post(self, request: ApiRequest) -> Response:
        body, following = request.data, None
        if isinstance(body, dict) and (wanted := body.get("claim_next")):
            following, _ = self.read_claim(wanted, ("claim_next",))
        return Response(self.end(body, read_completion, following))


def read_completion(reader: Reader, step_id: UUID, token: int) -> Ending:
    reader.check_names({"step", "lease_token", "result", "usage"})
    text, digest = result_text((*reader.path, "result"), reader.given.get("result"))
    ending = Ending(step_id, token, payload=text, hash=digest)
    read_usage(reader, ending)
    return ending


def read_usage(reader: Reader, ending: Ending) -> None:
    given = reader.given.get("usage")
    if given is None:
        return
    usage = Reader(given, (*reader.path, "usage"))
    usage.check_names({"tokens", "cost"})
    ending.tokens = usage.whole("tokens", None, low=0, high=TOKENS_MAX)
    usage.number("cost", None, low=0, high=COST_MAX)
    ending.cost = usage.given.get("cost")


class FailView(EndView):
    call = "fail"

    @documented(
        "fail_steps",
        "Report that attempts failed",
        request=FailIn,
        responses={200: ItemsOut},
        request_example={
            "items": [ITEM_IN | {"error": {"code": "http_503", "message": "busy"}}]
        },
        response_example={"items": [ITEM_EXAMPLE | {"state": "waiting"}]},
        tags=["work"],
    )
    def post(self, request: ApiRequest) -> Response:
        return Response(self.end(request.data, read_failure))


def read_failure(reader: Reader, step_id: UUID, token: int) -> Ending:
    reader.check_names(
        {
            "step",
            "lease_token",
            "error",
            "retryable",
            "retry_after_s",
            "outcome_unknown",
            "usage",
        }
    )
    error = reader.given.get("error", {})
    inner = Reader(error, (*reader.path, "error"))
    code = inner.text("code", "error")
    text = codec.dumps({"code": code} | error)
    if len(text.encode()) > ERROR_MAX_BYTES:
        raise reader.refuse(
            "error", "too_large", f"is larger than {ERROR_MAX_BYTES} bytes"
        )
    ending = Ending(
        step_id,
        token,
        payload=text,
        code=code,
        retry=reader.flag("retryable") if "retryable" in reader.given else None,
        delay_s=reader.number("retry_after_s", None, low=0, high=DELAY_MAX),
        unknown=reader.flag("outcome_unknown") or None,
    )
    read_usage(reader, ending)
    return ending


class ReleaseView(EndView):
    call = "release"

    @documented(
        "release_steps",
        "Give steps back that were not done",
        request=ReleaseIn,
        responses={200: ItemsOut},
        request_example={"items": [ITEM_IN]},
        response_example={"items": [ITEM_EXAMPLE | {"state": "pending"}]},
        description="As if it had not been claimed: no failure is counted.",
        tags=["work"],
    )
    def post(self, request: ApiRequest) -> Response:
        return Response(self.end(request.data, read_release))


def read_release(reader: Reader, step_id: UUID, token: int) -> Ending:
    reader.check_names({"step", "lease_token", "delay_s"})
    return Ending(
        step_id,
        token,
        delay_s=reader.number("delay_s", None, low=0, high=DELAY_MAX),
    )
