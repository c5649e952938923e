"""The demo agent's runs: one that moves, and one that waits for a person.

A stocktake counts shelf after shelf, so that there is always something going on. A
refund waits in the inbox for whoever looks at the demo; once it is approved or
rejected, the next one begins.
"""

import os
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

RUNS = 100  # of a kind, then it rests: a demo must not fill a disk
ENDED = {"succeeded", "failed", "cancelled"}
LEASE_SECONDS = 20

type Call = Callable[..., dict[str, Any]]
type Json = dict[str, Any]


@dataclass
class DemoRuns:
    """Runs of one kind, one after the other.

    `call(method, path, body, headers)` makes one call of the API and retries it.
    """

    kind: ClassVar[str]

    call: Call
    session_id: str
    worker: str = field(
        default_factory=lambda: f"demo:{os.getpid()}:{uuid.uuid4().hex[:8]}"
    )

    def go_on(self) -> None:
        """Begin a run if none is under way, and do what can be done now."""
        run = self._newest()
        if run is None or run["state"] in ENDED:
            number = 1 if run is None else int(run["key"].rpartition("-")[2]) + 1
            if number > RUNS:
                return
            run = self._begin(number)
        self.work_on(run["id"])

    def steps(self, number: int) -> list[Json]:
        raise NotImplementedError

    def work_on(self, run_id: str) -> None:
        raise NotImplementedError

    def _newest(self) -> Json | None:
        path = f"/api/v1/runs?session={self.session_id}&label=kind:{self.kind}&limit=1"
        found = self.call("GET", path)["items"]
        return found[0] if found else None

    def _begin(self, number: int) -> Json:
        body = {
            "session": self.session_id,
            "key": f"{self.kind}-{number}",
            "agent": "support",
            "labels": {"kind": self.kind},
            "steps": self.steps(number),
        }
        return self.call("POST", "/api/v1/runs", body)

    def claim(self, run_id: str, most: int) -> list[Json]:
        body = {"worker": self.worker, "run": run_id, "max": most}
        body |= {"lease_s": LEASE_SECONDS}
        found: list[Json] = self.call("POST", "/api/v1/steps/claim", body)["steps"]
        return found

    def finish(self, call: str, step: Json, **said: Any) -> None:
        item = {"step": step["step"], "lease_token": step["lease_token"], **said}
        body = {"items": [item], "worker": self.worker}
        self.call("POST", f"/api/v1/steps/{call}", body)


class DemoPlan(DemoRuns):
    """A refund that a person approves before it is paid."""

    kind = "refund"

    def steps(self, number: int) -> list[Json]:
        order = 1000 + number
        amount = 20 + order % 30
        return [
            {"name": "find", "tool": "find_order", "args": {"order_id": order}},
            {"name": "policy", "tool": "check_policy", "args": {"amount": amount}},
            {
                "name": "refund",
                "tool": "pay_refund",
                "args": {"order_id": order, "amount": amount},
                "effect": "once",
                "requires_approval": True,
            },
            {"name": "answer", "tool": "tell_customer", "args": {"order_id": order}},
        ]

    def work_on(self, run_id: str) -> None:
        while claimed := self.claim(run_id, 10):
            for step in claimed:
                try:
                    result = result_of(step)
                except (KeyError, TypeError):  # approved with args of another shape
                    error = {"code": "bad_args", "message": "These args mean nothing."}
                    self.finish("fail", step, error=error, retryable=False)
                else:
                    self.finish("complete", step, result=result)


def result_of(step: Json) -> Json:
    args = step["args"]
    match step["tool"]:
        case "find_order":
            return {"order_id": args["order_id"], "status": "delivered"}
        case "check_policy":
            return {"within_30_days": True}
        case "pay_refund":
            return {"refund": f"r-{args['order_id']}", **args}
        case _:
            return {"told": True}


@dataclass
class DemoStocktake(DemoRuns):
    """Shelf after shelf, one at each look; now and then one is counted twice."""

    kind = "stocktake"

    at_work: Json | None = None
    shelves: int = 12

    def steps(self, number: int) -> list[Json]:
        return [
            {
                "name": f"shelf {shelf}",
                "tool": "count_shelf",
                "args": {"shelf": shelf, "blocked_at_first": shelf == 4},
                "effect": "none",
                "retry": {"max_attempts": 3, "backoff_s": 1},
            }
            for shelf in range(1, self.shelves + 1)
        ]

    def work_on(self, run_id: str) -> None:
        """Finish the shelf of the last look, and go to the next one."""
        step, self.at_work = self.at_work, None
        if step is not None and step["run"] == run_id:
            self._count(step)
        self.at_work = next(iter(self.claim(run_id, 1)), None)

    def _count(self, step: Json) -> None:
        args = step["args"]
        if args["blocked_at_first"] and step["attempt"] == 1:
            error = {"code": "blocked", "message": "A ladder stands before the shelf"}
            self.finish("fail", step, error=error)
        else:
            self.finish("complete", step, result={"items": 40 + 7 * args["shelf"]})
