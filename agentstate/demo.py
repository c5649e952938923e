"""The demo agent: a support agent that works through small made-up requests.

It talks to the server as any agent does, over plain HTTP with an API key, so that the
first look at the API and the pages finds something alive. Each turn is one request of a
customer: a message, a tool call, its result, an answer, and the state brought up to
date by compare-and-set. It resumes the same session after a restart of either side.
Between its turns it works on a run that moves and on one whose payment a person
approves; before all of them it leaves what there is to look at once.
"""

import itertools
import logging
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx

from agentstate.backoff import exponential
from agentstate.demo_plan import DemoPlan, DemoRuns, DemoStocktake
from agentstate.demo_team import DemoTeam

logger = logging.getLogger(__name__)

SESSION_KEY = "demo-support"
STOCK = {"key": "demo-stock", "agent": "support", "title": "Stocktake of the shop"}
TURNS = 200  # then it rests: a demo must not fill a disk
TURN_SECONDS = 15.0
PAUSE_SECONDS = 1.0  # between the events of a turn, so that a reader sees them come
ATTEMPTS = 8
PLAN_LOOKS = 5  # at the plan, between two turns

REQUESTS = (
    ("Where is order {order}?", "track_order", "It left our warehouse this morning."),
    ("Please cancel order {order}.", "cancel_order", "Order {order} is cancelled."),
    ("Can I still change the address of {order}?", "find_order", "Yes, until tonight."),
    (
        "Order {order} came in the wrong colour.",
        "start_return",
        "A label is on its way.",
    ),
    ("What did I pay for order {order}?", "find_order", "It came to 42.50 EUR."),
)


@dataclass(frozen=True)
class Turn:
    """One request of a customer, the same for the same number."""

    number: int

    @property
    def order(self) -> int:
        return 1000 + self.number

    def events(self) -> Iterator[dict[str, Any]]:
        question, tool, answer = REQUESTS[self.number % len(REQUESTS)]
        call = f"call_{self.number}"
        yield self._event("message.user", content=question.format(order=self.order))
        yield self._event(
            "tool.call",
            tool_call_id=call,
            name=tool,
            arguments={"order_id": self.order},
        )
        yield self._event(
            "tool.result",
            tool_call_id=call,
            name=tool,
            content={"order_id": self.order, "status": "ok"},
        )
        yield self._event("message.assistant", content=answer.format(order=self.order))

    def _event(self, type: str, **payload: Any) -> dict[str, Any]:
        return {"type": type, "payload": payload}


@dataclass
class DemoAgent:
    """Runs until `stopping` is set. `pause` and `rest` are seconds."""

    http: httpx.Client
    pause: float = PAUSE_SECONDS
    rest: float = TURN_SECONDS
    stopping: threading.Event = field(default_factory=threading.Event)
    runs: list[DemoRuns] = field(default_factory=list)

    def run(self, turns: int = TURNS) -> None:
        session = self.call(
            "POST",
            "/api/v1/sessions",
            {
                "key": SESSION_KEY,
                "agent": "support",
                "title": "Orders of the demo shop",
            },
        )
        path = f"/api/v1/sessions/{session['id']}"
        stock = self.call("POST", "/api/v1/sessions", STOCK)
        self.runs = [
            DemoPlan(self.call, session["id"]),
            DemoStocktake(self.call, stock["id"]),
        ]
        self.look_after_runs()
        DemoTeam(self.call).settle_once()
        for number in itertools.count(self.turns_done(path)):
            if number >= turns or self.stopping.is_set():
                break
            self.take_turn(path, Turn(number))
            self.rest_between_turns()

    def rest_between_turns(self) -> None:
        """Rest; but a payment that is approved meanwhile is not to wait long."""
        for _ in range(PLAN_LOOKS):
            self.look_after_runs()
            if self.stopping.wait(self.rest / PLAN_LOOKS):
                return

    def look_after_runs(self) -> None:
        for each in self.runs:
            each.go_on()

    def work_on_the_plan(self) -> None:
        """After the last turn, until `stopping` is set."""
        while not self.stopping.is_set():
            self.rest_between_turns()

    def turns_done(self, path: str) -> int:
        state = self.call("GET", f"{path}/state")["state"]
        return int(state.get("turns", 0))

    def take_turn(self, path: str, turn: Turn) -> None:
        """Append the turn's events and count it. Taken up again, it repeats none."""
        for part, event in enumerate(turn.events()):
            self.call(
                "POST",
                f"{path}/events",
                {"events": [event]},
                {"Idempotency-Key": f"turn-{turn.number}-{part}"},
            )
            self.stopping.wait(self.pause)
        current = self.call("GET", f"{path}/state")
        self.call(
            "PUT",
            f"{path}/state",
            {
                "state": {"turns": turn.number + 1, "last_order": turn.order},
                "expected_version": current["version"],
            },
            {"Idempotency-Key": f"turn-{turn.number}-state"},
        )

    def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        headers: dict[str, str] | None = None,
    ) -> dict[str, Any]:
        """Try until the server answers with a success. Every call may be repeated."""
        for failures in range(1, ATTEMPTS + 1):
            try:
                answer = self.http.request(method, path, json=body, headers=headers)
                answer.raise_for_status()
            except httpx.HTTPError as exc:
                if failures == ATTEMPTS or self.stopping.is_set():
                    raise
                logger.info("the demo agent tries again", extra={"error": str(exc)})
                self.stopping.wait(exponential(failures, first=0.2, most=10))
            else:
                found: dict[str, Any] = answer.json()
                return found
        raise AssertionError("unreachable")
