"""What a session's log says its runs and steps must hold, for `verify_replay`.

Each run.* and step.* event carries the state that its move led to and when, so the fold
is plain; each move is held against the tables in `states`.
"""

from collections.abc import Iterator
from decimal import Decimal
from typing import Any
from uuid import UUID

from runs_app.models import Run, Step
from runs_app.plans import DEFAULTS
from runs_app.results import result_hash
from runs_app.states import RUN_ENDED, STEP_ENDED, may_move_run, may_move_step
from sessions_app.event_types import RUN_CREATED
from sessions_app.log import StoredEvent, iso, read_log, segments_of
from sessions_app.models import Session
from sessions_app.projection import NOTHING, Difference, compare

COUNTED = (
    "pending",
    "in_progress",
    "waiting",
    "in_doubt",
    "done",
    "failed",
    "skipped",
    "cancelled",
)
RUN_FACTS = (
    "key",
    "agent",
    "labels",
    "input",
    "priority",
    "window",
    "second_run",
    "max_tool_calls",
    "max_tokens",
    "max_cost",
    "tool_allowlist",
    "deadline_at",
    "parent_run",
    "parent_step",
    "root_run",
    "again_of",
    "again_from",
)
DEFINITION = tuple(
    name for name in DEFAULTS if name not in ("dependents", "deps_left", "run_after")
)


class RunFold:
    """One run and its steps, as the log tells them, event by event."""

    def __init__(self, run_id: str, created: StoredEvent) -> None:
        payload = created.payload
        self.id = run_id
        self.wrong_moves: list[tuple[int, str, str]] = []
        self.facts: dict[str, Any] = {name: payload[name] for name in RUN_FACTS}
        self.facts |= {
            "state": payload["state"],
            "reason": "",
            "error": None,
            "has_begun": payload["begins"],
            "plan_version": payload["plan_version"],
            "tool_calls": 0,
            "tokens": 0,
            "cost": Decimal(0),
            "below_tool_calls": 0,
            "below_tokens": 0,
            "below_cost": Decimal(0),
            "created_at": None,
            "started_at": None,
            "ended_at": None,
        }
        self.charges: dict[str, dict[str, Any]] = {}
        self.steps: list[dict[str, Any]] = []
        self._add_steps(payload["steps"])
        for carried in payload["carried"]:
            self.steps[carried["index"]] |= {
                "state": carried["state"],
                "result_seq": carried["result_seq"],
                "ended_at": carried["ended_at"],
                "is_carried": True,
            }

    def _add_steps(self, told: list[dict[str, Any]]) -> None:
        for definition in told:
            step = DEFAULTS | definition
            step |= {
                "state": "pending",
                "is_approved": False,
                "wait_kind": None,
                "wait_until": None,
                "attempt": 0,
                "failures": 0,
                "lost": 0,
                "claims": 0,
                "previous": None,
                "worker": "",
                "result_seq": None,
                "result_hash": None,
                "error": None,
                "started_at": None,
                "ended_at": None,
                "is_removed": False,
                "is_carried": False,
            }
            self.steps.append(step)

    def take(self, event: StoredEvent) -> None:
        payload = event.payload
        if event.type.startswith("run."):
            self._take_run(event, payload)
        else:
            self._take_step(event, payload, self.steps[payload["index"]])

    def _take_run(self, event: StoredEvent, payload: dict[str, Any]) -> None:
        match event.type:
            case "run.charged":
                # The newest says what the child has used in all.
                self.charges[payload["child"]] = payload
                for name in ("tool_calls", "tokens", "cost"):
                    total = sum(charge[name] for charge in self.charges.values())
                    self.facts[f"below_{name}"] = total
            case "run.begun":
                self.facts["has_begun"] = True
            case "run.failing":
                self.facts["error"] = payload["error"]
                self.facts["reason"] = payload["reason"]
            case "run.cancelling" | "run.paused":
                self.facts["reason"] = payload["reason"]
            case "run.resumed" if "reason" in payload:
                self.facts["reason"] = ""
            case "run.retried":
                self.facts |= {"error": None, "reason": "", "ended_at": None}
                for index in payload["indexes"]:
                    step = self.steps[index]
                    self._move_step(event.seq, step, "pending", payload)
                    step |= {"failures": 0, "lost": 0}
            case "run.steps_cancelled":
                for index in payload["indexes"]:
                    self._move_step(event.seq, self.steps[index], "cancelled", payload)
                return
            case "run.plan_changed":
                self._change_plan(event, payload)
            case "run.started":
                self.facts["started_at"] = payload["at"]
        if "state" in payload:
            self._move_run(event.seq, payload)

    def _move_run(self, seq: int, payload: dict[str, Any]) -> None:
        old, new = self.facts["state"], payload["state"]
        if old != new and not may_move_run(old, new):
            self.wrong_moves.append((seq, old, new))
        self.facts["state"] = new
        if new in RUN_ENDED:
            self.facts["ended_at"] = payload["at"]

    def _change_plan(self, event: StoredEvent, payload: dict[str, Any]) -> None:
        self.facts["plan_version"] = payload["plan_version"]
        for index in payload["removed"]:
            self._move_step(event.seq, self.steps[index], "skipped", payload)
            self.steps[index]["is_removed"] = True
        self._add_steps(payload["steps"])

    def _move_step(
        self, seq: int, step: dict[str, Any], new: str, payload: dict[str, Any]
    ) -> None:
        old = step["state"]
        if old != new and not may_move_step(old, new):
            self.wrong_moves.append((seq, old, new))
        step |= {
            "state": new,
            "wait_kind": payload.get("wait") if new == "waiting" else None,
            "wait_until": payload.get("until") if new == "waiting" else None,
            "ended_at": payload["at"] if new in STEP_ENDED else None,
        }

    def _take_step(
        self, event: StoredEvent, payload: dict[str, Any], step: dict[str, Any]
    ) -> None:
        if "state" not in payload:
            return  # of an effect inside it
        self._move_step(event.seq, step, payload["state"], payload)
        self.facts["tokens"] += payload.get("tokens", 0)
        self.facts["cost"] += payload.get("cost", 0)
        if event.type == "step.started":
            self.facts["tool_calls"] += 1
            step["started_at"] = payload["at"]
            step |= {name: payload[name] for name in ("attempt", "worker")}
            step["claims"] = payload["token"]
        elif payload["state"] == "done":
            step |= {"error": None, "result_seq": event.seq}
            if "token" in payload or "outcome" in payload:
                step["result_hash"] = result_hash(payload["result"])
        elif "failures" in payload:
            step |= {name: payload[name] for name in ("failures", "lost")}
            step["previous"] = payload.get("previous")
            step["error"] = payload.get("error")
        elif "error" in payload:
            step["error"] = payload["error"]
        elif event.type == "step.skipped":
            step["error"] = None
        self._take_decision(event.type, payload, step)

    def _take_decision(
        self, event_type: str, payload: dict[str, Any], step: dict[str, Any]
    ) -> None:
        if event_type == "step.approved":
            step["is_approved"] = True
            step["args"] = payload.get("args", step["args"])
        elif event_type == "step.retried":
            step |= {"failures": 0, "lost": 0}
        elif payload.get("outcome") == "not_done":
            step["previous"] = None

    def row(self) -> dict[str, Any]:
        """The facts as `_run_row` has them."""
        counts = {f"n_{state}": 0 for state in COUNTED}
        for step in self.steps:
            counts[f"n_{step['state']}"] += 1
        retrying = sum(
            step["failures"] > 0 and step["state"] not in STEP_ENDED
            for step in self.steps
        )
        return (
            self.facts
            | counts
            | {"n_retrying": retrying, "step_count": len(self.steps)}
        )

    def deps_left(self, step: dict[str, Any]) -> int:
        return sum(
            self.steps[index]["state"] not in ("done", "skipped")
            or self.steps[index]["is_removed"]
            for index in step["depends_on"]
        )


def fold_runs(session: Session) -> dict[str, RunFold]:
    """Return the runs that began in this session, by id, as its own log tells them."""
    folds: dict[str, RunFold] = {}
    # What a fork was given of its parent's log tells of the parent's runs.
    after, more = segments_of(session)[-1].first_seq - 1, True
    while more:
        events, more = read_log(
            session, after_seq=after, types=["run.*", "step.*"], limit=500
        )
        for event in events:
            after = event.seq
            if event.run_id is None:
                continue
            run_id = str(event.run_id)
            if event.type == RUN_CREATED:
                folds[run_id] = RunFold(run_id, event)
            elif run_id in folds:
                folds[run_id].take(event)
    return folds


def run_differences(session: Session) -> Iterator[Difference]:
    """Compare a session's runs and steps with its log."""
    folds = fold_runs(session)
    rows = Run.objects.filter(project_id=session.project_id, session_id=session.pk)
    for run in rows.order_by("id"):
        path = f"runs/{run.id}"
        fold = folds.pop(str(run.id), None)
        if fold is None:
            yield Difference(session.pk, path, NOTHING, "a run")
            continue
        for seq, old, new in fold.wrong_moves:
            yield Difference(
                session.pk, f"{path}/events/{seq}", f"no {old} to {new}", new
            )
        yield from _run_difference(session.pk, path, fold, run)
        yield from _step_differences(session.pk, path, fold, run)
    for run_id in folds:
        yield Difference(session.pk, f"runs/{run_id}", "a run", NOTHING)


def _run_difference(
    session_id: UUID, path: str, fold: RunFold, run: Run
) -> Iterator[Difference]:
    log = fold.row()
    for name, value in _run_row(run).items():
        if name in ("max_cost", "cost", "below_cost"):
            if (log[name] is None) != (value is None) or (log[name] or 0) != (
                value or 0
            ):
                yield Difference(session_id, f"{path}/{name}", log[name], value)
            continue
        yield from compare(session_id, f"{path}/{name}", log[name], value)


def _run_row(run: Run) -> dict[str, Any]:
    own = {
        name: getattr(run, name)
        for name in (
            "key",
            "agent",
            "labels",
            "input",
            "priority",
            "window",
            "second_run",
            "max_tool_calls",
            "max_tokens",
            "max_cost",
            "tool_allowlist",
            "again_from",
            "state",
            "reason",
            "error",
            "has_begun",
            "plan_version",
            "step_count",
            "tool_calls",
            "tokens",
            "cost",
            "below_tool_calls",
            "below_tokens",
            "below_cost",
            "n_retrying",
        )
    }
    times = {n: iso(getattr(run, n)) for n in ("deadline_at", "started_at", "ended_at")}
    ids = {
        "parent_run": run.parent_run_id,
        "parent_step": run.parent_step_id,
        "root_run": run.root_run_id,
        "again_of": run.again_of,
    }
    counts = {f"n_{state}": getattr(run, f"n_{state}") for state in COUNTED}
    return own | times | counts | {k: str(v) if v else None for k, v in ids.items()}


def _step_differences(
    session_id: UUID, path: str, fold: RunFold, run: Run
) -> Iterator[Difference]:
    found = 0
    rows = Step.objects.of_run(run.project_id, run.id).order_by("index")
    for row in rows.iterator(chunk_size=1000):
        found += 1
        own = f"{path}/steps/{row.index}"
        if row.index >= len(fold.steps):
            yield Difference(session_id, own, NOTHING, "a step")
            continue
        yield from _step_difference(session_id, own, fold, row)
    if found < len(fold.steps):
        yield Difference(session_id, f"{path}/steps", len(fold.steps), found)


def _step_difference(
    session_id: UUID, path: str, fold: RunFold, row: Step
) -> Iterator[Difference]:
    log = fold.steps[row.index]
    shown = {name: getattr(row, name) for name in (*DEFINITION, *OWN)}
    shown |= {"id": str(row.id), "args": row.args}
    for name, value in shown.items():
        if isinstance(value, float):
            # A float's text is not the number's that was sent; the value is.
            if float(log[name]) != value:
                yield Difference(session_id, f"{path}/{name}", log[name], value)
            continue
        yield from compare(session_id, f"{path}/{name}", log[name], value)
    for name in ("started_at", "ended_at", "wait_until"):
        yield from compare(
            session_id, f"{path}/{name}", log[name], iso(getattr(row, name))
        )
    if row.state not in STEP_ENDED:
        yield from compare(
            session_id, f"{path}/deps_left", fold.deps_left(log), row.deps_left
        )
    if not log["is_carried"]:
        digest = bytes(row.result_hash).hex() if row.result_hash else None
        hashed = log["result_hash"].hex() if log["result_hash"] else None
        yield from compare(session_id, f"{path}/result_hash", hashed, digest)


OWN = (
    "state",
    "is_approved",
    "wait_kind",
    "attempt",
    "failures",
    "lost",
    "claims",
    "previous",
    "worker",
    "result_seq",
    "error",
)
