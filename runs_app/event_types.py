"""The events of runs and steps. Written by the server alone.

Each carries `at`, when it happened by the database's clock, and where it moves a run or
a step the `state` that this led to. Steps are named by their `index` in the plan.
"""

from typing import Any

from sessions_app.event_types import EVENT_TYPES, EventType

AT = {"at": "2026-01-15T09:30:00.000000Z"}


def _known(name: str, doc: str, /, **example: Any) -> EventType:
    return EventType(name, doc, example=AT | example)


RUN_EVENTS = (
    _known(
        "run.created",
        "A run and its whole plan. What stands at its default is left out of a step. "
        "`begins`: it did not have to stand in line. `carried`: steps whose outcome it "
        "takes over from the run that it is `again_of`.",
        state="queued",
        begins=True,
        agent="support",
        plan_version=1,
        steps=[{"index": 0, "tool": "refund", "args": {"order": 1042}}],
    ),
    _known("run.begun", "It stood behind another run; now it may go.", state="queued"),
    _known("run.started", "Its first step was claimed.", state="running"),
    _known("run.waiting", "All that is left waits.", state="waiting"),
    _known("run.resumed", "It goes on.", state="running"),
    _known("run.paused", "Nothing is handed out.", state="paused", reason=""),
    _known(
        "run.plan_changed",
        "Steps were taken out (they are skipped) and added.",
        plan_version=2,
        removed=[3],
        steps=[],
    ),
    _known("run.signalled", "A signal was sent to it.", name="paid", payload={}),
    _known(
        "run.charged",
        "A run below it has ended or was erased, and counts against its budget with "
        "what it and all below it have used.",
        child="0199b2a0-9d04-7f99-9c8d-6e7f8091a2b3",
        tool_calls=3,
        tokens=1200,
        cost=0.02,
    ),
    _known(
        "run.failing",
        "It will fail once its steps in progress have ended.",
        error={"code": "step_failed", "index": 1},
        reason="step 1 failed",
    ),
    _known(
        "run.steps_cancelled",
        "Steps that were not begun were cancelled; `state` is theirs.",
        state="cancelled",
        indexes=[2, 3],
        reason="",
    ),
    _known("run.retried", "A failed run goes on.", state="running", indexes=[1, 2]),
    _known("run.cancelling", "It is being cancelled.", state="cancelling", reason=""),
    _known("run.cancelled", "All of it has ended.", state="cancelled"),
    _known("run.succeeded", "All steps are done or skipped.", state="succeeded"),
    _known("run.failed", "It failed.", state="failed", reason="", error={}),
)
STEP_EVENTS = (
    _known(
        "step.started",
        "A worker claimed it. `token` counts its claims; `key` is what a downstream "
        "system can tell a repeat by.",
        index=0,
        state="in_progress",
        attempt=1,
        token=1,
        worker="w-1",
        key="RUN:STEP",
    ),
    _known("step.done", "Its result.", index=0, state="done", token=1, result={}),
    _known(
        "step.failed",
        "A worker reported that the attempt failed, or time ran out for a wait.",
        index=0,
        state="waiting",
        wait="retry",
        until="2026-01-15T09:30:01.000000Z",
        failures=1,
        error={"code": "http_503"},
    ),
    _known("step.timed_out", "The attempt took too long.", index=0, state="pending"),
    _known(
        "step.lost",
        "Its lease ended without a word.",
        index=0,
        state="pending",
        lost=1,
        previous="unknown",
    ),
    _known("step.released", "Given back, not done.", index=0, state="pending"),
    _known("step.waiting", "It waits.", index=0, state="waiting", wait="approval"),
    _known("step.resumed", "Its wait is over.", index=0, state="pending"),
    _known(
        "step.approved",
        "Somebody approved it; `args` if they were edited.",
        index=0,
        state="pending",
        by="key:ab12",
        reason="checked",
    ),
    _known("step.rejected", "Somebody rejected it.", index=0, state="failed"),
    _known("step.retried", "Somebody had it tried again.", index=0, state="pending"),
    _known("step.skipped", "Somebody skipped it.", index=0, state="skipped"),
    _known("step.cancelled", "It was cancelled.", index=0, state="cancelled"),
    _known(
        "step.resolved",
        "What was in doubt or on hold was settled.",
        index=0,
        state="done",
        outcome="done",
        result={},
    ),
    _known("step.effect_begun", "An effect inside it was begun.", index=0, key="k-1"),
    _known("step.effect_done", "It has happened.", index=0, key="k-1", result={}),
)
HANDOFF_EVENTS = (
    _known(
        "handoff.offered",
        "The run gives work to another agent. `context` says what it is to carry, "
        "`constraints` what the other may do, `on_failure` what becomes of the "
        "step that waits when nothing comes of it.",
        handoff="0199b2a0-9d01-7c66-8f5a-3b4c5d6e7f80",
        agent="billing",
        task="Check invoice A-1",
        depth=1,
        context={"facts": []},
        constraints={"max_tool_calls": 5},
        on_failure="fail",
    ),
    _known(
        "handoff.accepted",
        "Somebody is at it. `bundle` is all that it carries, as it was then.",
        by="billing-2",
        bundle={"task": "Check invoice A-1", "relevant_facts": []},
    ),
    _known(
        "handoff.completed",
        "What came back.",
        result={"summary": "The invoice is right.", "data": {"ok": True}},
    ),
    _known("handoff.declined", "The other agent declined.", reason="not mine"),
    _known("handoff.expired", "No result came in time.", reason=""),
    _known("handoff.failed", "The other agent's run failed.", reason=""),
    _known("handoff.cancelled", "A run on either side was cancelled.", reason=""),
)
ALL_EVENTS = (*RUN_EVENTS, *STEP_EVENTS, *HANDOFF_EVENTS)


def register() -> None:
    """Add the types to those that are documented."""
    EVENT_TYPES.update({known.name: known for known in ALL_EVENTS})
