"""Runs and steps, and the small hot tables that say what may be done next.

`agent_runs` and `agent_steps` are projections of the session's log. No index covers
what a claim or a completion changes in them, so those are HOT updates. What may be
claimed lies alone in `agent_ready_steps`; what could be but for a limit in
`agent_held_steps`; leases, timers and waits have a small table each. There are no
foreign keys between them: whoever changes one holds the session's row lock.
"""

from decimal import Decimal

from django.contrib.postgres.fields import ArrayField
from django.contrib.postgres.indexes import GinIndex
from django.db import models
from django.db.models import Q

from access_app.models import Project
from agentstate.clock import Now
from agentstate.fields import ExactJSONField, plain_link
from agentstate.ids import new_id
from runs_app.querysets import RunQuerySet, StepQuerySet
from runs_app.states import (
    RUN_ENDED,
    RUN_OPEN,
    STEP_ENDED,
    Effect,
    RunState,
    SecondRun,
    StepState,
    WaitKind,
)
from sessions_app.models import Session


class Run(models.Model):
    """A plan under way in a session. The n_ columns count its steps by state.

    `n_ready` and `n_held` are part of `n_pending`. `has_begun` is false while the run
    stands behind another of its session. `rank` is minus the priority: the queue is
    read upwards. `error` of a run that has not ended says that it is about to fail.

    The below_ columns sum what child runs were charged; the charged_ columns say what
    of this run's use its parent has been charged, and `is_charged` that no more will
    come. What is not charged yet is counted from the children's rows.
    """

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    project = plain_link(Project)
    session = plain_link(Session)
    key = models.TextField(null=True)
    agent = models.TextField(default="")
    state = models.TextField(choices=RunState.choices, default=RunState.QUEUED)
    reason = models.TextField(default="")
    error = ExactJSONField(null=True)
    labels = models.JSONField(default=dict)
    input = ExactJSONField(null=True)
    rank = models.IntegerField(default=0)
    window = models.IntegerField(default=100)
    second_run = models.TextField(choices=SecondRun.choices, default=SecondRun.ENQUEUE)
    has_begun = models.BooleanField(default=False)
    plan_version = models.BigIntegerField(default=1)
    step_count = models.IntegerField(default=0)
    n_pending = models.IntegerField(default=0)
    n_ready = models.IntegerField(default=0)
    n_held = models.IntegerField(default=0)
    n_in_progress = models.IntegerField(default=0)
    n_waiting = models.IntegerField(default=0)
    n_in_doubt = models.IntegerField(default=0)
    n_done = models.IntegerField(default=0)
    n_failed = models.IntegerField(default=0)
    n_skipped = models.IntegerField(default=0)
    n_cancelled = models.IntegerField(default=0)
    n_retrying = models.IntegerField(default=0)
    max_tool_calls = models.BigIntegerField(null=True)
    tool_calls = models.BigIntegerField(default=0)
    max_tokens = models.BigIntegerField(null=True)
    tokens = models.BigIntegerField(default=0)
    max_cost = models.DecimalField(max_digits=20, decimal_places=6, null=True)
    cost = models.DecimalField(max_digits=20, decimal_places=6, default=0)
    below_tool_calls = models.BigIntegerField(default=0, db_default=0)
    below_tokens = models.BigIntegerField(default=0, db_default=0)
    below_cost = models.DecimalField(
        max_digits=20, decimal_places=6, default=0, db_default=Decimal(0)
    )
    charged_tool_calls = models.BigIntegerField(default=0, db_default=0)
    charged_tokens = models.BigIntegerField(default=0, db_default=0)
    charged_cost = models.DecimalField(
        max_digits=20, decimal_places=6, default=0, db_default=Decimal(0)
    )
    is_charged = models.BooleanField(default=False, db_default=False)
    tool_allowlist = ArrayField(models.TextField(), null=True)
    deadline_at = models.DateTimeField(null=True)
    parent_run_id = models.UUIDField(null=True)
    parent_step_id = models.UUIDField(null=True)
    root_run_id = models.UUIDField(null=True)
    again_of = models.UUIDField(null=True)
    again_from = models.IntegerField(null=True)
    created_at = models.DateTimeField(db_default=Now())
    started_at = models.DateTimeField(null=True)
    ended_at = models.DateTimeField(null=True)
    state_since = models.DateTimeField(db_default=Now())

    objects = RunQuerySet.as_manager()

    class Meta:
        db_table = "agent_runs"
        constraints = [
            models.UniqueConstraint(
                fields=["project", "session", "key"], name="run_session_key_uniq"
            ),
            models.CheckConstraint(
                condition=Q(state__in=RunState.values), name="run_state"
            ),
            models.CheckConstraint(
                condition=Q(n_pending__gte=0)
                & Q(n_ready__gte=0)
                & Q(n_held__gte=0)
                & Q(n_in_progress__gte=0)
                & Q(n_waiting__gte=0)
                & Q(n_in_doubt__gte=0),
                name="run_counters",
            ),
        ]
        indexes = [
            models.Index(fields=["project", "id"], name="run_project_id"),
            models.Index(fields=["project", "state", "id"], name="run_state_id"),
            models.Index(fields=["project", "agent", "id"], name="run_agent"),
            models.Index(fields=["project", "session", "id"], name="run_session"),
            models.Index(
                fields=["project", "id"],
                name="run_retrying",
                condition=Q(n_retrying__gt=0),
            ),
            models.Index(
                fields=["project", "parent_run_id", "id"],
                name="run_parent",
                condition=Q(parent_run_id__isnull=False),
            ),
            models.Index(
                fields=["project", "key", "id"],
                name="run_key",
                condition=Q(key__isnull=False),
            ),
            # A tree of handoffs, read by the run at its root.
            models.Index(
                fields=["project", "root_run_id", "id"],
                name="run_root",
                condition=Q(root_run_id__isnull=False),
            ),
            models.Index(
                fields=["project", "parent_run_id"],
                name="run_open_child",
                condition=Q(parent_run_id__isnull=False) & Q(state__in=RUN_OPEN),
            ),
            models.Index(
                fields=["project", "parent_run_id"],
                name="run_uncharged",
                condition=Q(parent_run_id__isnull=False) & Q(is_charged=False),
            ),
            GinIndex(
                fields=["labels"], name="run_labels", opclasses=["jsonb_path_ops"]
            ),
        ]

    def __str__(self) -> str:
        return self.key or str(self.id)

    @property
    def has_ended(self) -> bool:
        return self.state in RUN_ENDED

    @property
    def priority(self) -> int:
        return -self.rank

    @property
    def n_open(self) -> int:
        return self.n_pending + self.n_in_progress + self.n_waiting + self.n_in_doubt


class ErasedRun(models.Model):
    """What is kept of an erased run, in numbers alone, while it stands between others.

    It stands in for the run until its parent has been charged what it and all below it
    used, and nothing below it can use more: so that the budgets above still bound what
    is below. The uses are the run's own and what it was charged for those below it.
    """

    id = models.UUIDField(primary_key=True, editable=False)
    project = plain_link(Project)
    parent_run_id = models.UUIDField(null=True)
    max_tool_calls = models.BigIntegerField(null=True)
    tool_calls = models.BigIntegerField()
    max_tokens = models.BigIntegerField(null=True)
    tokens = models.BigIntegerField()
    max_cost = models.DecimalField(max_digits=20, decimal_places=6, null=True)
    cost = models.DecimalField(max_digits=20, decimal_places=6)
    charged_tool_calls = models.BigIntegerField()
    charged_tokens = models.BigIntegerField()
    charged_cost = models.DecimalField(max_digits=20, decimal_places=6)

    class Meta:
        db_table = "agent_erased_runs"
        indexes = [
            models.Index(fields=["project", "parent_run_id"], name="erased_run_parent"),
        ]

    def __str__(self) -> str:
        return str(self.id)


class Step(models.Model):
    """One step of a run's plan: what to do, how often to try, and how far it is.

    `dependents` are the steps that depend on this one, the reverse of their
    `depends_on`; `deps_left` counts what a step still waits for. `claims` only grows,
    one for each claim: it is the fence. A result lies in the log, at `result_seq`.
    """

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    project = plain_link(Project)
    session = plain_link(Session)
    run = plain_link(Run)
    index = models.IntegerField(db_column="ordinal")
    name = models.TextField(default="")
    kind = models.TextField(default="tool")
    tool = models.TextField(default="")
    args = ExactJSONField(null=True)
    depends_on = ArrayField(models.IntegerField(), default=list)
    dependents = ArrayField(models.IntegerField(), default=list)
    deps_left = models.IntegerField(default=0)
    effect = models.TextField(choices=Effect.choices, default=Effect.IDEMPOTENT)
    requires_approval = models.BooleanField(default=False)
    is_approved = models.BooleanField(default=False)
    run_after = models.DateTimeField(null=True)
    sleep_s = models.FloatField(null=True)
    signal_name = models.TextField(null=True)
    wait_timeout_s = models.FloatField(null=True)
    max_attempts = models.IntegerField(default=5)
    max_lost = models.IntegerField(default=5)
    backoff_s = models.FloatField(default=1)
    backoff_factor = models.FloatField(default=2)
    backoff_max_s = models.FloatField(default=300)
    jitter = models.FloatField(default=1)
    no_retry_on = ArrayField(models.TextField(), default=list)
    retry_on = ArrayField(models.TextField(), null=True)
    on_exhausted = models.TextField(default="fail")
    timeout_s = models.FloatField(null=True)
    start_timeout_s = models.FloatField(null=True)
    limit_key = models.TextField(null=True)
    rank = models.IntegerField(default=0)
    state = models.TextField(choices=StepState.choices, default=StepState.PENDING)
    wait_kind = models.TextField(choices=WaitKind.choices, null=True)
    wait_until = models.DateTimeField(null=True)
    attempt = models.IntegerField(default=0)
    failures = models.IntegerField(default=0)
    lost = models.IntegerField(default=0)
    claims = models.BigIntegerField(default=0)
    previous = models.TextField(null=True)
    worker = models.TextField(default="")
    result_seq = models.BigIntegerField(null=True)
    result_hash = models.BinaryField(null=True)
    error = ExactJSONField(null=True)
    created_at = models.DateTimeField(db_default=Now())
    started_at = models.DateTimeField(null=True)
    ended_at = models.DateTimeField(null=True)
    state_since = models.DateTimeField(db_default=Now())

    objects = StepQuerySet.as_manager()

    class Meta:
        db_table = "agent_steps"
        constraints = [
            models.UniqueConstraint(
                fields=["project", "run", "index"], name="step_run_index_uniq"
            ),
            models.CheckConstraint(
                condition=Q(state__in=StepState.values), name="step_state"
            ),
            models.CheckConstraint(
                condition=Q(state="waiting", wait_kind__isnull=False)
                | (~Q(state="waiting") & Q(wait_kind=None)),
                name="step_wait_kind",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.run_id} [{self.index}] {self.name or self.tool or self.kind}"

    @property
    def has_ended(self) -> bool:
        return self.state in STEP_ENDED

    @property
    def idempotency_key(self) -> str:
        return f"{self.run_id}:{self.id}"


class ReadyStep(models.Model):
    """A step that may be claimed now. Deleted when it is."""

    id = models.BigAutoField(primary_key=True)
    project = plain_link(Project)
    session = plain_link(Session)
    run_id = models.UUIDField()
    step_id = models.UUIDField()
    rank = models.IntegerField()
    agent = models.TextField()
    tool = models.TextField()
    since = models.DateTimeField(db_default=Now())

    class Meta:
        db_table = "agent_ready_steps"
        indexes = [
            models.Index(fields=["project", "rank", "id"], name="ready_any"),
            models.Index(fields=["project", "tool", "rank", "id"], name="ready_tool"),
            models.Index(fields=["project", "agent", "rank", "id"], name="ready_agent"),
            models.Index(fields=["project", "run_id", "rank", "id"], name="ready_run"),
        ]


class HeldStep(models.Model):
    """A step whose turn it is but for `reason`: window, limit or paused."""

    pk = models.CompositePrimaryKey("project_id", "run_id", "index")
    project = plain_link(Project)
    session = plain_link(Session)
    run_id = models.UUIDField()
    index = models.IntegerField(db_column="ordinal")
    step_id = models.UUIDField()
    reason = models.TextField()
    limit_key = models.TextField(null=True)
    rank = models.IntegerField()
    since = models.DateTimeField(db_default=Now())

    class Meta:
        db_table = "agent_held_steps"
        indexes = [
            models.Index(
                fields=["project", "limit_key", "rank", "since"],
                name="held_limit",
                condition=Q(reason="limit"),
            ),
        ]


class StepLease(models.Model):
    """A worker's hold on a step. `fence` is the step's `claims` at the claim.

    `lease_until` is not indexed: heartbeats stay HOT, and the sweep reads this small
    table as a whole. `ends_at` is when the attempt's own time is up.
    """

    pk = models.CompositePrimaryKey("project_id", "step_id")
    project = plain_link(Project)
    session = plain_link(Session)
    run_id = models.UUIDField()
    step_id = models.UUIDField()
    fence = models.BigIntegerField()
    attempt = models.IntegerField()
    worker = models.TextField()
    claimed_at = models.DateTimeField()
    lease_s = models.FloatField()
    lease_until = models.DateTimeField()
    ends_at = models.DateTimeField(null=True)
    limit_key = models.TextField(null=True)

    class Meta:
        db_table = "agent_step_leases"


class StepWait(models.Model):
    """What a waiting step waits for, beyond time: the inbox, signals, handoffs."""

    pk = models.CompositePrimaryKey("project_id", "step_id")
    project = plain_link(Project)
    session = plain_link(Session)
    run_id = models.UUIDField()
    step_id = models.UUIDField()
    kind = models.TextField()
    name = models.TextField(default="")
    since = models.DateTimeField(db_default=Now())

    class Meta:
        db_table = "agent_step_waits"
        indexes = [
            models.Index(fields=["project", "kind", "step_id"], name="wait_kind"),
            models.Index(fields=["project", "run_id", "name"], name="wait_run"),
        ]


class Timer(models.Model):
    """Something that happens at `due_at`. `fence` tells a timer that came too late.

    Kinds: timer, retry and wait (of a step), start (nobody claimed it in time), and
    deadline (of a run; step_id is then the run's id).
    """

    pk = models.CompositePrimaryKey("project_id", "run_id", "step_id", "kind")
    project = plain_link(Project)
    session = plain_link(Session)
    run_id = models.UUIDField()
    step_id = models.UUIDField()
    kind = models.TextField()
    due_at = models.DateTimeField()
    fence = models.BigIntegerField(default=0)

    class Meta:
        db_table = "agent_timers"
        indexes = [models.Index(fields=["project", "due_at"], name="timer_due")]


class Attempt(models.Model):
    """One claim of a step, written when it ended."""

    pk = models.CompositePrimaryKey("project_id", "step_id", "fence")
    project = plain_link(Project)
    session = plain_link(Session)
    run_id = models.UUIDField()
    step_id = models.UUIDField()
    fence = models.BigIntegerField()
    attempt = models.IntegerField()
    worker = models.TextField()
    outcome = models.TextField()
    error = ExactJSONField(null=True)
    started_at = models.DateTimeField()
    ended_at = models.DateTimeField()

    class Meta:
        db_table = "agent_step_attempts"
        indexes = [
            models.Index(fields=["project", "run_id", "started_at"], name="attempt_run")
        ]


class RejectedCompletion(models.Model):
    """What a worker reported too late. It changed nothing; support can read it."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    project = plain_link(Project)
    session = plain_link(Session)
    run_id = models.UUIDField()
    step_id = models.UUIDField()
    lease_token = models.BigIntegerField()
    worker = models.TextField(default="")
    call = models.TextField()
    code = models.TextField()
    body = ExactJSONField(null=True)
    actor = models.TextField()
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        db_table = "agent_rejected_completions"
        indexes = [
            models.Index(fields=["project", "step_id", "id"], name="rejected_step"),
            models.Index(fields=["project", "run_id", "id"], name="rejected_run"),
        ]

    def __str__(self) -> str:
        return f"{self.call} of step {self.step_id}: {self.code}"


class EffectState(models.TextChoices):
    BEGUN = "begun"  # sent, perhaps: nobody has said how it went
    DONE = "done"


class EffectRecord(models.Model):
    """The ledger: one side effect, by its idempotency key."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    project = plain_link(Project)
    session = plain_link(Session)
    run_id = models.UUIDField()
    step_id = models.UUIDField()
    key = models.TextField()
    state = models.TextField(choices=EffectState.choices, default=EffectState.BEGUN)
    token = models.BigIntegerField(default=1)
    request = ExactJSONField(null=True)
    result = ExactJSONField(null=True)
    actor = models.TextField()
    begun_at = models.DateTimeField(db_default=Now())
    done_at = models.DateTimeField(null=True)

    class Meta:
        db_table = "agent_effects"
        verbose_name = "effect"
        constraints = [
            models.UniqueConstraint(
                fields=["project", "key"], name="effect_project_key_uniq"
            )
        ]
        indexes = [models.Index(fields=["project", "run_id", "id"], name="effect_run")]

    def __str__(self) -> str:
        return f"{self.key}: {self.state}"


class Signal(models.Model):
    """A signal sent to a run; kept until a step that waits for its name takes it."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    project = plain_link(Project)
    session = plain_link(Session)
    run_id = models.UUIDField()
    name = models.TextField()
    signal_id = models.TextField()
    payload = ExactJSONField(null=True)
    sender = models.TextField()
    received_at = models.DateTimeField(db_default=Now())
    consumed_by = models.UUIDField(null=True)

    class Meta:
        db_table = "agent_signals"
        constraints = [
            models.UniqueConstraint(
                fields=["project", "run_id", "name", "signal_id"],
                name="signal_run_name_id_uniq",
            )
        ]


class Limit(models.Model):
    """How many steps of one key may be ready or in progress at once, or begin in time.

    `tokens` and `refilled_at` are the bucket of the rate: `rate` steps each `per_s`.
    """

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    project = plain_link(Project)
    key = models.TextField()
    max_concurrent = models.IntegerField(null=True)
    rate = models.IntegerField(null=True)
    per_s = models.FloatField(null=True)
    tokens = models.FloatField(default=0)
    refilled_at = models.DateTimeField(db_default=Now())

    class Meta:
        db_table = "agent_limits"
        constraints = [
            models.UniqueConstraint(
                fields=["project", "key"], name="limit_project_key_uniq"
            )
        ]

    def __str__(self) -> str:
        return self.key


class Slot(models.Model):
    """A step that counts against its key's limit, from ready until it ends."""

    pk = models.CompositePrimaryKey("project_id", "key", "step_id")
    project = plain_link(Project)
    key = models.TextField()
    step_id = models.UUIDField()
    run_id = models.UUIDField()
    taken_at = models.DateTimeField(db_default=Now())

    class Meta:
        db_table = "agent_limit_slots"


class RunPolicy(models.Model):
    """What a second run means in a session; without a row it is enqueued."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    project = plain_link(Project)
    session = plain_link(Session)
    second_run = models.TextField(choices=SecondRun.choices)

    class Meta:
        db_table = "agent_run_policies"
        constraints = [
            models.UniqueConstraint(
                fields=["project", "session"], name="run_policy_session_uniq"
            )
        ]


class HandoffStatus(models.TextChoices):
    OFFERED = "offered"
    ACCEPTED = "accepted"  # somebody is at it; what it carries is fixed
    COMPLETED = "completed"
    DECLINED = "declined"
    EXPIRED = "expired"
    FAILED = "failed"  # its run failed, or ended without a result
    CANCELLED = "cancelled"


class Handoff(models.Model):
    """Work that a run gave to another agent, in a session and a run of its own.

    A projection of the `handoff.*` events in the giving session's log, which hold all
    that was said: task, what it carries, result. `step_id` is the giving run's step
    that waits for the result. `key_id` is the key that sees the taking session alone.
    """

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    project = plain_link(Project)
    session = plain_link(Session)
    run_id = models.UUIDField()
    step_id = models.UUIDField()
    child_session_id = models.UUIDField()
    child_run_id = models.UUIDField()
    agent = models.TextField()
    status = models.TextField(
        choices=HandoffStatus.choices, default=HandoffStatus.OFFERED
    )
    depth = models.IntegerField()
    accepted_by = models.TextField(default="")
    offered_seq = models.BigIntegerField()
    accepted_seq = models.BigIntegerField(null=True)
    ended_seq = models.BigIntegerField(null=True)
    expires_at = models.DateTimeField(null=True)
    key_id = models.UUIDField(null=True)
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        db_table = "agent_handoffs"
        constraints = [
            models.CheckConstraint(
                condition=Q(status__in=HandoffStatus.values), name="handoff_status"
            ),
        ]
        indexes = [
            models.Index(fields=["project", "run_id", "id"], name="handoff_run"),
            models.Index(
                fields=["project", "child_session_id"], name="handoff_child_session"
            ),
            models.Index(fields=["project", "session", "id"], name="handoff_session"),
            models.Index(
                fields=["project", "id"],
                name="handoff_open",
                condition=Q(status__in=("offered", "accepted")),
            ),
        ]

    def __str__(self) -> str:
        return f"to {self.agent}: {self.status}"

    @property
    def is_open(self) -> bool:
        return self.status in (HandoffStatus.OFFERED, HandoffStatus.ACCEPTED)
