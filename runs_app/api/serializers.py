"""What the calls on runs and steps take and give. No writes here."""

from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from agentstate.api.params import PageParams
from agentstate.api.serializers import (
    InstantField,
    JSONValueField,
    StrictSerializer,
    StringField,
)
from runs_app.states import Effect, RunState, SecondRun, StepState
from sessions_app.api.serializers import LabelsField, ReasonIn, name_field

LABEL_HELP = "`name:value`; repeat it for several, all of which must hold."


class RetryIn(StrictSerializer):
    max_attempts = serializers.IntegerField(
        required=False, default=5, min_value=1, max_value=1000
    )
    max_lost = serializers.IntegerField(
        required=False,
        default=5,
        min_value=1,
        max_value=1000,
        help_text="Workers that may be lost over it before the step is given up.",
    )
    backoff_s = serializers.FloatField(
        required=False, default=1, min_value=0, max_value=86_400
    )
    factor = serializers.FloatField(
        required=False, default=2, min_value=1, max_value=100
    )
    max_backoff_s = serializers.FloatField(
        required=False, default=300, min_value=0.001, max_value=86_400
    )
    jitter = serializers.FloatField(
        required=False,
        default=1,
        min_value=0,
        max_value=1,
        help_text="The share of the delay that is random.",
    )
    retry_on = serializers.ListField(child=StringField(), required=False)
    no_retry_on = serializers.ListField(child=StringField(), required=False)


class SignalWaitIn(StrictSerializer):
    name = name_field()
    timeout_s = serializers.FloatField(required=False, min_value=0)


class NewStepIn(StrictSerializer):
    """A step calls a `tool`, or sleeps (`sleep_s`), or waits for a `signal`."""

    name = name_field(required=False)
    tool = name_field(required=False)
    args = JSONValueField(required=False)
    depends_on = serializers.ListField(
        child=JSONValueField(),
        required=False,
        help_text="Indexes or names of steps. Without it the step follows the one "
        "before; an empty list depends on nothing.",
    )
    effect = serializers.ChoiceField(
        choices=Effect.choices, required=False, default="idempotent"
    )
    retry = RetryIn(required=False)
    on_exhausted = serializers.ChoiceField(
        choices=["fail", "hold"], required=False, default="fail"
    )
    timeout_s = serializers.FloatField(
        required=False, help_text="How long one attempt may take."
    )
    start_timeout_s = serializers.FloatField(
        required=False, help_text="How long it may wait for a worker."
    )
    requires_approval = serializers.BooleanField(required=False, default=False)
    approval_timeout_s = serializers.FloatField(required=False)
    run_after = InstantField(required=False)
    sleep_s = serializers.FloatField(required=False)
    signal = SignalWaitIn(required=False)
    priority = serializers.IntegerField(
        required=False, help_text="Instead of the run's."
    )
    concurrency_key = name_field(required=False)


@extend_schema_field(NewStepIn(many=True))
class StepsField(JSONValueField):
    """A plan's list of steps, read by `plans`: a million would take long here."""


class PlanStepsIn(StrictSerializer):
    steps = StepsField(required=False)


class BudgetIn(StrictSerializer):
    max_tool_calls = serializers.IntegerField(
        required=False, allow_null=True, min_value=0, max_value=2**53
    )
    max_tokens = serializers.IntegerField(
        required=False, allow_null=True, min_value=0, max_value=2**53
    )
    max_cost = serializers.DecimalField(
        20, 6, required=False, allow_null=True, min_value=0
    )
    tool_allowlist = serializers.ListField(
        child=StringField(max_length=200), required=False, allow_null=True
    )
    deadline = InstantField(required=False, allow_null=True)
    deadline_s = serializers.FloatField(
        required=False,
        allow_null=True,
        min_value=0.001,
        max_value=366 * 86_400,
        help_text="The deadline, in seconds from now.",
    )


class CreateRunIn(StrictSerializer):
    session = serializers.UUIDField(required=False)
    session_key = name_field(
        required=False, help_text="Instead of session; it is created if need be."
    )
    key = name_field(
        required=False,
        allow_null=True,
        help_text="Your own name for the run, unique in the session. Creating it "
        "again returns the same run with 200.",
    )
    agent = name_field(required=False, allow_blank=True)
    steps = StepsField(required=False, help_text="The plan.")
    plan = PlanStepsIn(required=False, help_text="`{steps: […]}`, the same as steps.")
    input = JSONValueField(required=False)
    labels = LabelsField(required=False)
    priority = serializers.IntegerField(
        required=False, default=0, min_value=-1_000_000, max_value=1_000_000
    )
    window = serializers.IntegerField(
        required=False,
        default=100,
        min_value=1,
        max_value=1000,
        help_text="How many of its steps may be claimable at a time.",
    )
    second_run = serializers.ChoiceField(
        choices=SecondRun.choices,
        required=False,
        help_text="What it means that another run of the session is active; without "
        "it the session's policy says.",
    )
    budget = BudgetIn(required=False)
    parent_run = serializers.UUIDField(required=False, allow_null=True)
    parent_step = serializers.UUIDField(required=False, allow_null=True)


class WaitOut(serializers.Serializer[Any]):
    signal = serializers.CharField(allow_null=True)
    until = serializers.DateTimeField(allow_null=True)
    since = serializers.DateTimeField()

    def get_fields(self) -> dict[str, Any]:
        # `for` is a word of Python's.
        return {"for": serializers.CharField()} | super().get_fields()


class LeaseOut(serializers.Serializer[Any]):
    worker = serializers.CharField()
    claimed_at = serializers.DateTimeField()
    lease_until = serializers.DateTimeField()
    timeout_at = serializers.DateTimeField(allow_null=True)


class StepOut(serializers.Serializer[Any]):
    id = serializers.UUIDField()
    run = serializers.UUIDField()
    session = serializers.UUIDField()
    index = serializers.IntegerField()
    name = serializers.CharField()
    kind = serializers.CharField()
    tool = serializers.CharField()
    args = JSONValueField()
    depends_on = serializers.ListField(child=serializers.IntegerField())
    effect = serializers.ChoiceField(choices=Effect.choices)
    state = serializers.ChoiceField(choices=StepState.choices)
    wait = WaitOut(allow_null=True)
    requires_approval = serializers.BooleanField()
    attempt = serializers.IntegerField()
    failures = serializers.IntegerField()
    lost = serializers.IntegerField()
    max_attempts = serializers.IntegerField()
    previous = serializers.CharField(allow_null=True)
    worker = serializers.CharField()
    lease = LeaseOut(allow_null=True)
    idempotency_key = serializers.CharField()
    result = JSONValueField()
    error = JSONValueField()
    on_exhausted = serializers.CharField()
    timeout_s = serializers.FloatField(allow_null=True)
    run_after = serializers.DateTimeField(allow_null=True)
    concurrency_key = serializers.CharField(allow_null=True)
    priority = serializers.IntegerField()
    created_at = serializers.DateTimeField()
    started_at = serializers.DateTimeField(allow_null=True)
    ended_at = serializers.DateTimeField(allow_null=True)
    state_since = serializers.DateTimeField()


class UsedOut(serializers.Serializer[Any]):
    tool_calls = serializers.IntegerField()
    tokens = serializers.IntegerField()
    cost = serializers.FloatField()


class BudgetOut(serializers.Serializer[Any]):
    max_tool_calls = serializers.IntegerField(allow_null=True)
    tool_calls = serializers.IntegerField()
    max_tokens = serializers.IntegerField(allow_null=True)
    tokens = serializers.IntegerField()
    max_cost = serializers.FloatField(allow_null=True)
    cost = serializers.FloatField()
    below = UsedOut(
        help_text="What runs below it used that have ended or were erased; it counts "
        "as well."
    )
    tool_allowlist = serializers.ListField(
        child=serializers.CharField(), allow_null=True
    )
    deadline = serializers.DateTimeField(allow_null=True)


class RunOut(serializers.Serializer[Any]):
    id = serializers.UUIDField()
    session = serializers.UUIDField()
    key = serializers.CharField(allow_null=True)
    agent = serializers.CharField()
    state = serializers.ChoiceField(choices=RunState.choices)
    reason = serializers.CharField()
    error = JSONValueField()
    labels = serializers.DictField(child=serializers.CharField())
    input = JSONValueField()
    priority = serializers.IntegerField()
    second_run = serializers.ChoiceField(choices=SecondRun.choices)
    plan_version = serializers.IntegerField()
    step_count = serializers.IntegerField()
    steps_by_state = serializers.DictField(child=serializers.IntegerField())
    retrying = serializers.IntegerField()
    budget = BudgetOut()
    parent_run = serializers.UUIDField(allow_null=True)
    parent_step = serializers.UUIDField(allow_null=True)
    root_run = serializers.UUIDField(allow_null=True)
    again_of = serializers.UUIDField(allow_null=True)
    again_from = serializers.IntegerField(allow_null=True)
    created_at = serializers.DateTimeField()
    started_at = serializers.DateTimeField(allow_null=True)
    ended_at = serializers.DateTimeField(allow_null=True)
    state_since = serializers.DateTimeField()


class RunWithStepsOut(RunOut):
    steps = StepOut(many=True, help_text="The first 1,000.")
    steps_next = serializers.CharField(
        allow_null=True, help_text="As `cursor` of the run's steps, the rest."
    )


class RunListParams(PageParams):
    key = name_field(required=False)
    agent = name_field(required=False)
    session = serializers.UUIDField(required=False)
    state = serializers.ListField(
        child=serializers.ChoiceField(choices=RunState.choices),
        required=False,
        help_text="Repeat it for several.",
    )
    label = serializers.ListField(  # type: ignore[assignment]
        child=StringField(max_length=301), required=False, help_text=LABEL_HELP
    )
    parent = serializers.UUIDField(  # type: ignore[assignment]
        required=False, help_text="The children of a run."
    )
    retrying = serializers.BooleanField(
        required=False, help_text="Runs with a step that is being retried."
    )

    def validate_label(self, values: list[str]) -> dict[str, str]:
        labels = {}
        for value in values:
            name, colon, wanted = value.partition(":")
            if not colon or not name:
                raise serializers.ValidationError(
                    "a label filter is name:value", code="invalid"
                )
            labels[name] = wanted
        return labels


class PlanIn(StrictSerializer):
    plan_version = serializers.IntegerField(min_value=1, max_value=2**53)
    append = StepsField(required=False)
    replace = StepsField(
        required=False,
        help_text="In place of all steps that are pending or waiting.",
    )

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if ("append" in attrs) == ("replace" in attrs):
            raise serializers.ValidationError(
                "send either append or replace", code="required"
            )
        return attrs


class AgainIn(StrictSerializer):
    from_step = serializers.IntegerField(required=False, default=0, min_value=0)
    confirm_repeat = serializers.BooleanField(required=False, default=False)
    second_run = serializers.ChoiceField(choices=SecondRun.choices, required=False)
    args = serializers.DictField(
        child=JSONValueField(),
        required=False,
        help_text="Other args by the step's index.",
    )


class SignalIn(StrictSerializer):
    payload = JSONValueField(required=False)
    id = name_field(required=False, help_text="Sent twice under one id it is one.")


class SignalOut(serializers.Serializer[Any]):
    run = serializers.UUIDField()
    name = serializers.CharField()
    is_new = serializers.BooleanField()


class ApproveIn(ReasonIn):
    args = JSONValueField(
        required=False, help_text="Instead of the step's own, if given."
    )


class ResolveIn(ReasonIn):
    outcome = serializers.ChoiceField(choices=["done", "not_done", "give_up"])
    result = JSONValueField(required=False, help_text="With `done`.")
    error = JSONValueField(required=False, help_text="With `give_up`.")


class WaitsOut(serializers.Serializer[Any]):
    run = serializers.UUIDField()
    state = serializers.CharField()
    waits = serializers.ListField(child=JSONValueField())


class AttemptOut(serializers.Serializer[Any]):
    attempt = serializers.IntegerField()
    token = serializers.IntegerField()
    worker = serializers.CharField()
    outcome = serializers.CharField()
    error = JSONValueField()
    started_at = serializers.DateTimeField()
    ended_at = serializers.DateTimeField()


class AttemptsOut(serializers.Serializer[Any]):
    items = AttemptOut(many=True)
    next = serializers.CharField(allow_null=True)


class RejectedOut(serializers.Serializer[Any]):
    id = serializers.UUIDField()
    step = serializers.UUIDField()
    run = serializers.UUIDField()
    lease_token = serializers.IntegerField()
    worker = serializers.CharField()
    call = serializers.CharField()
    code = serializers.CharField()
    body = JSONValueField()
    actor = serializers.CharField()
    created_at = serializers.DateTimeField()


class InboxParams(PageParams):
    kind = serializers.ChoiceField(
        choices=["approval", "hold", "in_doubt"], required=False
    )


class InboxItemOut(serializers.Serializer[Any]):
    kind = serializers.CharField()
    since = serializers.DateTimeField()
    step = StepOut()


class PolicyIn(StrictSerializer):
    second_run = serializers.ChoiceField(choices=SecondRun.choices)


class PolicyOut(serializers.Serializer[Any]):
    second_run = serializers.ChoiceField(choices=SecondRun.choices)


class LimitIn(StrictSerializer):
    max_concurrent = serializers.IntegerField(
        required=False, allow_null=True, min_value=0, max_value=1_000_000
    )
    rate = serializers.IntegerField(
        required=False, allow_null=True, min_value=1, max_value=1_000_000
    )
    per_s = serializers.FloatField(
        required=False, allow_null=True, min_value=0.001, max_value=86_400
    )

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if (attrs.get("rate") is None) != (attrs.get("per_s") is None):
            raise serializers.ValidationError(
                {"per_s": "rate and per_s go together"}, code="required"
            )
        return attrs


class LimitOut(serializers.Serializer[Any]):
    key = serializers.CharField()
    max_concurrent = serializers.IntegerField(allow_null=True)
    rate = serializers.IntegerField(allow_null=True)
    per_s = serializers.FloatField(allow_null=True)
    in_use = serializers.IntegerField()


class RunFilterIn(StrictSerializer):
    agent = name_field(required=False)
    session = serializers.UUIDField(required=False)
    state = serializers.ListField(
        child=serializers.ChoiceField(choices=RunState.choices), required=False
    )
    labels = LabelsField(required=False)
    retrying = serializers.BooleanField(required=False)


class BulkRunsIn(ReasonIn):
    action = serializers.ChoiceField(choices=["cancel", "pause", "resume", "retry"])
    filter = RunFilterIn()
    dry_run = serializers.BooleanField(required=False, default=False)
    limit = serializers.IntegerField(
        required=False, default=1000, min_value=1, max_value=1000
    )


class BulkRunsOut(serializers.Serializer[Any]):
    action = serializers.CharField()
    dry_run = serializers.BooleanField()
    matched = serializers.IntegerField(help_text="At most `limit`.")
    has_more = serializers.BooleanField()
    done = serializers.IntegerField()
    refused = serializers.DictField(child=serializers.IntegerField())


class BeginEffectIn(StrictSerializer):
    step = serializers.UUIDField(help_text="The step within which it happens.")
    request = JSONValueField(required=False)
    repeat = serializers.BooleanField(
        required=False,
        default=False,
        help_text="The downstream honours the key: begin anew though it is in doubt.",
    )


class CompleteEffectIn(StrictSerializer):
    token = serializers.IntegerField(min_value=0, max_value=2**53)
    result = JSONValueField(required=False)


class EffectOut(serializers.Serializer[Any]):
    key = serializers.CharField()
    outcome = serializers.ChoiceField(
        choices=["new", "done", "in_doubt"],
        help_text="new: go ahead. done: it has happened, see result. in_doubt: it was "
        "begun, and nobody has said how it went.",
    )
    token = serializers.IntegerField(allow_null=True)
    run = serializers.UUIDField()
    step = serializers.UUIDField()
    session = serializers.UUIDField()
    request = JSONValueField()
    result = JSONValueField()
    actor = serializers.CharField()
    begun_at = serializers.DateTimeField()
    done_at = serializers.DateTimeField(allow_null=True)
