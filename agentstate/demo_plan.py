"""The demo agent's plan: a refund that a person approves before it is paid.

One run at a time. The agent works on what it may, the payment waits in the inbox for
whoever looks at the demo; once it is approved or rejected, the next run begins.
"""

import os
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

RUNS = 100  # then it rests: a demo must not fill a disk
ENDED = {"succeeded", "failed", "cancelled"}

type Call = Callable[..., dict[str, Any]]


def steps(order: int) -> list[dict[str, Any]]:
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


def result_of(step: dict[str, Any]) -> dict[str, Any]:
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
class DemoPlan:
    """`call(method, path, body, headers)` makes one call of the API and retries it."""

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
        while claimed := self._claim(run["id"]):
            for step in claimed:
                self._complete(step)

    def _newest(self) -> dict[str, Any] | None:
        path = f"/api/v1/runs?session={self.session_id}&label=kind:refund&limit=1"
        found = self.call("GET", path)["items"]
        return found[0] if found else None

    def _begin(self, number: int) -> dict[str, Any]:
        body = {
            "session": self.session_id,
            "key": f"refund-{number}",
            "agent": "support",
            "labels": {"kind": "refund"},
            "steps": steps(1000 + number),
        }
        return self.call("POST", "/api/v1/runs", body)

    def _claim(self, run_id: str) -> list[dict[str, Any]]:
        body = {"worker": self.worker, "run": run_id, "max": 10}
        found: list[dict[str, Any]] = self.call("POST", "/api/v1/steps/claim", body)[
            "steps"
        ]
        return found

    def _complete(self, step: dict[str, Any]) -> None:
        item = {
            "step": step["step"],
            "lease_token": step["lease_token"],
            "result": result_of(step),
        }
        body = {"items": [item], "worker": self.worker}
        self.call("POST", "/api/v1/steps/complete", body)
