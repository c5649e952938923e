"""A run's steps and their attempts on one line of time, in numbers that SVG draws."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

from agentstate.clock import db_now
from runs_app.models import Attempt, Run, Step, StepLease
from runs_app.reads import read_results
from runs_app.states import STEP_ENDED, StepState, WaitKind

WIDTH = 1000
BAR_MIN = 4
ATTEMPTS_MOST = 5000
RECENT_ATTEMPTS = 20

# What a person may decide about a step, by what it is at.
BY_WAIT: dict[str | None, tuple[str, ...]] = {
    WaitKind.APPROVAL: ("approve", "reject"),
    WaitKind.HOLD: ("retry", "done", "give_up"),
    WaitKind.HANDOFF: ("done", "give_up"),
    WaitKind.RETRY: ("retry",),
}


@dataclass(frozen=True)
class Bar:
    """One stretch: an attempt, or the wait at the end."""

    x: float
    width: float
    kind: str
    label: str


@dataclass(frozen=True)
class Line:
    """A step with its bars, its attempts, its result, and what can be decided."""

    step: Step
    bars: list[Bar]
    attempts: list[Attempt]
    lease: StepLease | None
    result: Any
    decisions: tuple[str, ...]

    @property
    def has_result(self) -> bool:
        return self.step.result_seq is not None


@dataclass(frozen=True)
class Timeline:
    begin: datetime
    end: datetime
    lines: list[Line] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        return (self.end - self.begin).total_seconds()


def timeline_of(run: Run, steps: Sequence[Step]) -> Timeline:
    """Return the lines of `steps`, which are some of `run`'s, in their order."""
    begin = run.created_at
    end = run.ended_at or db_now()
    attempts = _attempts(run, [step.id for step in steps])
    leases = {
        lease.step_id: lease
        for lease in StepLease.objects.filter(
            project_id=run.project_id, step_id__in=[s.id for s in steps]
        )
    }
    results = read_results(steps)
    scale = _Scale(begin, end)
    lines = [
        Line(
            step,
            scale.bars(step, attempts[step.id], leases.get(step.id)),
            attempts[step.id][-RECENT_ATTEMPTS:],
            leases.get(step.id),
            results.get(step.result_seq),
            decisions_for(step),
        )
        for step in steps
    ]
    return Timeline(begin, end, lines)


def decisions_for(step: Step) -> tuple[str, ...]:
    if step.state in STEP_ENDED or step.state == StepState.IN_PROGRESS:
        return ()
    if step.state == StepState.IN_DOUBT:
        return ("done", "not_done", "give_up", "skip")
    if step.state == StepState.WAITING:
        return (*BY_WAIT.get(step.wait_kind, ()), "skip", "cancel")
    return ("skip", "cancel")


def _attempts(run: Run, step_ids: list[UUID]) -> dict[UUID, list[Attempt]]:
    found: dict[UUID, list[Attempt]] = defaultdict(list)
    rows = Attempt.objects.filter(
        project_id=run.project_id, run_id=run.id, step_id__in=step_ids
    )
    for attempt in rows.order_by("started_at")[:ATTEMPTS_MOST]:
        found[attempt.step_id].append(attempt)
    return found


class _Scale:
    def __init__(self, begin: datetime, end: datetime) -> None:
        self.begin = begin
        self.seconds = max((end - begin).total_seconds(), 0.001)
        self.end = end

    def bars(
        self, step: Step, attempts: list[Attempt], lease: StepLease | None
    ) -> list[Bar]:
        bars = [
            self.bar(a.started_at, a.ended_at, a.outcome, f"attempt {a.attempt}")
            for a in attempts
        ]
        if lease is not None:
            label = f"attempt {lease.attempt}, under way"
            bars.append(self.bar(lease.claimed_at, self.end, "in_progress", label))
        elif step.state in (StepState.WAITING, StepState.IN_DOUBT):
            kind = step.wait_kind or "in doubt"
            label = f"waits: {kind}"
            bars.append(self.bar(step.state_since, self.end, "waiting", label))
        return bars

    def bar(self, begin: datetime, end: datetime, kind: str, label: str) -> Bar:
        x = self.x(begin)
        width = max(self.x(end) - x, BAR_MIN)
        seconds = max((end - begin).total_seconds(), 0)
        return Bar(
            round(min(x, WIDTH - BAR_MIN), 1),
            round(width, 1),
            kind,
            f"{label}: {kind}, {seconds:.1f} s",
        )

    def x(self, at: datetime) -> float:
        part = (at - self.begin).total_seconds() / self.seconds
        return min(max(part, 0), 1) * WIDTH
