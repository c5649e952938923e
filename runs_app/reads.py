"""Runs and steps as the API shows them, and why they wait."""

from collections.abc import Iterable, Sequence
from typing import Any
from uuid import UUID

from django.db import connection

from agentstate import codec
from runs_app.models import (
    HeldStep,
    ReadyStep,
    RejectedCompletion,
    Run,
    Step,
    StepLease,
)
from runs_app.states import RunState, StepState
from sessions_app.log import iso
from sessions_app.payloads import whole_texts

RESULT_BYTES = 8 * 1024 * 1024  # of results in one answer; the rest one by one
COUNTERS = (
    "pending",
    "in_progress",
    "waiting",
    "in_doubt",
    "done",
    "failed",
    "skipped",
    "cancelled",
)


def run_json(run: Run) -> dict[str, Any]:
    """Return a run as RunOut describes it, without its steps."""
    return {
        "id": str(run.id),
        "session": str(run.session_id),
        "key": run.key,
        "agent": run.agent,
        "state": run.state,
        "reason": run.reason,
        "error": run.error,
        "labels": run.labels,
        "input": run.input,
        "priority": run.priority,
        "second_run": run.second_run,
        "plan_version": run.plan_version,
        "step_count": run.step_count,
        "steps_by_state": {n: getattr(run, f"n_{n}") for n in COUNTERS},
        "retrying": run.n_retrying,
        "budget": {
            "max_tool_calls": run.max_tool_calls,
            "tool_calls": run.tool_calls,
            "max_tokens": run.max_tokens,
            "tokens": run.tokens,
            "max_cost": run.max_cost,
            "cost": run.cost,
            "below": {
                "tool_calls": run.below_tool_calls,
                "tokens": run.below_tokens,
                "cost": run.below_cost,
            },
            "tool_allowlist": run.tool_allowlist,
            "deadline": iso(run.deadline_at),
        },
        "parent_run": _text(run.parent_run_id),
        "parent_step": _text(run.parent_step_id),
        "root_run": _text(run.root_run_id),
        "again_of": _text(run.again_of),
        "again_from": run.again_from,
        "created_at": iso(run.created_at),
        "started_at": iso(run.started_at),
        "ended_at": iso(run.ended_at),
        "state_since": iso(run.state_since),
    }


def spent_by(project_id: UUID, run_ids: Iterable[UUID]) -> dict[UUID, dict[str, Any]]:
    """What each run and all below it have used so far, whether charged or not.

    Also of erased runs of which something is kept.
    """
    with connection.cursor() as cursor:
        cursor.execute(
            # Of one that was erased meanwhile, with nothing kept, it is nothing.
            "SELECT r.id, coalesce(s.tool_calls, 0), coalesce(s.tokens, 0),"
            " coalesce(s.cost, 0) FROM unnest(%s::uuid[]) r(id)"
            " CROSS JOIN LATERAL agentstate_spent(%s, r.id) s",
            [list(run_ids), project_id],
        )
        return {
            run_id: dict(zip(("tool_calls", "tokens", "cost"), uses, strict=True))
            for run_id, *uses in cursor.fetchall()
        }


def open_below(project_id: UUID, run_id: UUID) -> list[UUID]:
    """Return the open runs below a run with no other open one between: its children,
    and the children of such as have ended or were erased."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT id FROM agentstate_open_below(%s, %s) AS id ORDER BY id",
            [project_id, run_id],
        )
        return [row[0] for row in cursor.fetchall()]


def _text(value: UUID | None) -> str | None:
    return None if value is None else str(value)


def step_json(
    step: Step, result: Any = None, lease: StepLease | None = None
) -> dict[str, Any]:
    """Return a step as StepOut describes it. `result` is what the log holds."""
    return {
        "id": str(step.id),
        "run": str(step.run_id),
        "session": str(step.session_id),
        "index": step.index,
        "name": step.name,
        "kind": step.kind,
        "tool": step.tool,
        "args": step.args,
        "depends_on": step.depends_on,
        "effect": step.effect,
        "state": step.state,
        "wait": _wait_json(step),
        "requires_approval": step.requires_approval,
        "attempt": step.attempt,
        "failures": step.failures,
        "lost": step.lost,
        "max_attempts": step.max_attempts,
        "previous": step.previous,
        "worker": step.worker,
        "lease": _lease_json(lease),
        "idempotency_key": step.idempotency_key,
        "result": result,
        "error": step.error,
        "on_exhausted": step.on_exhausted,
        "timeout_s": step.timeout_s,
        "run_after": iso(step.run_after),
        "concurrency_key": step.limit_key,
        "priority": -step.rank,
        "created_at": iso(step.created_at),
        "started_at": iso(step.started_at),
        "ended_at": iso(step.ended_at),
        "state_since": iso(step.state_since),
    }


def _wait_json(step: Step) -> dict[str, Any] | None:
    if step.state != StepState.WAITING:
        return None
    return {
        "for": step.wait_kind,
        "signal": step.signal_name,
        "until": iso(step.wait_until),
        "since": iso(step.state_since),
    }


def _lease_json(lease: StepLease | None) -> dict[str, Any] | None:
    if lease is None:
        return None
    return {
        "worker": lease.worker,
        "claimed_at": iso(lease.claimed_at),
        "lease_until": iso(lease.lease_until),
        "timeout_at": iso(lease.ends_at),
    }


def steps_shown(steps: Sequence[Step]) -> list[dict[str, Any]]:
    """Return steps of one run with their results and leases: three queries at most."""
    if not steps:
        return []
    results = read_results(steps)
    busy = [s.id for s in steps if s.state == StepState.IN_PROGRESS]
    leases = {
        lease.step_id: lease
        for lease in (
            StepLease.objects.filter(project_id=steps[0].project_id, step_id__in=busy)
            if busy
            else ()
        )
    }
    return [
        step_json(step, results.get(step.result_seq), leases.get(step.id))
        for step in steps
    ]


def read_results(steps: Sequence[Step]) -> dict[int | None, Any]:
    """Return results by their seq, as the log holds them.

    Past RESULT_BYTES a result is left out; it then reads `{"omitted": bytes}`, and the
    step alone shows it.
    """
    seqs = [step.result_seq for step in steps if step.result_seq is not None]
    if not seqs:
        return {}
    where = [steps[0].project_id, steps[0].session_id]
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT seq, payload_bytes, blob_id, CASE WHEN sum(payload_bytes) OVER"
            " (ORDER BY seq) <= %s OR %s THEN payload::text END"
            " FROM agent_events"
            " WHERE project_id = %s AND session_id = %s AND seq = ANY(%s)",
            [RESULT_BYTES, len(seqs) == 1, *where, seqs],
        )
        rows = cursor.fetchall()
    shown = [(text, blob_id) for _, _, blob_id, text in rows if text is not None]
    texts = iter(whole_texts(steps[0].project_id, shown))
    return {
        seq: {"omitted": size} if text is None else _result_in(next(texts))
        for seq, size, _, text in rows
    }


def _result_in(payload_text: str) -> Any:
    # Not by SQL's ->, which refuses a payload that holds U+0000.
    payload = codec.loads(payload_text, max_depth=10_000)
    return payload.get("result") if isinstance(payload, dict) else None


def attempts_json(project_id: UUID, step_id: UUID) -> list[dict[str, Any]]:
    """Return the attempts of a step that have ended, oldest first."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT attempt, worker, outcome, error::text, started_at, ended_at, fence"
            " FROM agent_step_attempts WHERE project_id = %s AND step_id = %s"
            " ORDER BY fence LIMIT 1000",
            [project_id, step_id],
        )
        rows = cursor.fetchall()
    return [
        {
            "attempt": attempt,
            "token": fence,
            "worker": worker,
            "outcome": outcome,
            "error": None if error is None else codec.RawJSON(error),
            "started_at": iso(started),
            "ended_at": iso(ended),
        }
        for attempt, worker, outcome, error, started, ended, fence in rows
    ]


def rejected_json(rejected: RejectedCompletion) -> dict[str, Any]:
    return {
        "id": str(rejected.id),
        "step": str(rejected.step_id),
        "run": str(rejected.run_id),
        "lease_token": rejected.lease_token,
        "worker": rejected.worker,
        "call": rejected.call,
        "code": rejected.code,
        "body": rejected.body,
        "actor": rejected.actor,
        "created_at": iso(rejected.created_at),
    }


WHY_LIMIT = 100


def why_run_waits(run: Run) -> list[dict[str, Any]]:
    """Return what the run waits for, at most WHY_LIMIT reasons, each since when."""
    if run.has_ended:
        return []
    if not run.has_begun:
        return [_behind_another(run)]
    reasons: list[dict[str, Any]] = []
    if run.state == RunState.PAUSED:
        reasons.append(
            {"for": "paused", "since": iso(run.state_since), "detail": run.reason}
        )
    if run.state == RunState.CANCELLING:
        reasons += _open_children(run)
    if run.step_count == 0:
        reasons.append({"for": "plan", "since": iso(run.created_at)})
    open_steps = (
        Step.objects.of_run(run.project_id, run.id)
        .exclude(state__in=("done", "failed", "skipped", "cancelled"))
        .order_by("index")[:WHY_LIMIT]
    )
    return reasons + why_steps_wait(run, list(open_steps))


def _behind_another(run: Run) -> dict[str, Any]:
    before = (
        Run.objects.filter(project_id=run.project_id, session_id=run.session_id)
        .active()
        .exclude(id=run.id)
        .order_by("id")
        .first()
    )
    return {
        "for": "run",
        "run": str(before.id) if before else None,
        "since": iso(run.created_at),
        "detail": "another run of the session has to end first",
    }


def _open_children(run: Run) -> list[dict[str, Any]]:
    return [
        {"for": "child_run", "run": str(child), "since": iso(run.state_since)}
        for child in open_below(run.project_id, run.id)[:WHY_LIMIT]
    ]


def why_steps_wait(run: Run, steps: list[Step]) -> list[dict[str, Any]]:
    """Return one reason for each open step."""
    ids = [step.id for step in steps]
    project = run.project_id
    held = {
        h.step_id: h for h in HeldStep.objects.filter(project_id=project, run_id=run.id)
    }
    ready = {
        r.step_id: r
        for r in ReadyStep.objects.filter(project_id=project, run_id=run.id)
    }
    leases = {
        x.step_id: x
        for x in StepLease.objects.filter(project_id=project, step_id__in=ids)
    }
    ended = set(
        Step.objects.of_run(project, run.id)
        .filter(
            index__in={d for s in steps for d in s.depends_on},
            state__in=("done", "skipped"),
        )
        .values_list("index", flat=True)
    )
    return [
        {"step": str(s.id), "index": s.index}
        | _why(s, held.get(s.id), ready.get(s.id), leases.get(s.id), ended)
        for s in steps
    ]


def _why(
    step: Step,
    held: HeldStep | None,
    ready: ReadyStep | None,
    lease: StepLease | None,
    ended: set[int],
) -> dict[str, Any]:
    if step.state == StepState.IN_PROGRESS:
        return {
            "for": "worker",
            "worker": step.worker,
            "since": iso(step.started_at),
            "lease_until": iso(lease.lease_until) if lease else None,
        }
    if step.state == StepState.WAITING:
        return {
            "for": step.wait_kind,
            "signal": step.signal_name,
            "until": iso(step.wait_until),
            "since": iso(step.state_since),
        }
    if step.state == StepState.IN_DOUBT:
        return {"for": "resolve", "since": iso(step.state_since)}
    if ready is not None:
        return {
            "for": "claim",
            "tool": step.tool,
            "agent": ready.agent,
            "since": iso(ready.since),
            "detail": "no worker has claimed it yet",
        }
    if held is not None:
        return {
            "for": held.reason,
            "limit": held.limit_key,
            "since": iso(held.since),
        }
    return {
        "for": "steps",
        "steps": [index for index in step.depends_on if index not in ended],
        "since": iso(step.state_since),
    }
