"""What the demo agent does once: a return that three agents settled between them, and
what it learned of the customer, which waits for review."""

from dataclasses import dataclass
from typing import Any

from agentstate.demo_plan import ENDED, Call, DemoPlan, Json

RUN_KEY = "return-77"
CUSTOMER = "maya"
WORDS = (
    "Hello, this is Maya. The kettle of order 77 leaks, I would like to send it back."
    " Please write to me in German, and call only in the morning."
)
# Fact, kind, and who it comes from: what an agent inferred waits for a person.
FACTS = (
    ("Wants to be written to in German", "preference", "user"),
    ("Can be called in the morning only", "preference", "agent"),
    ("Is a careful buyer who keeps all boxes", "profile", "agent"),
)


@dataclass
class DemoTeam:
    """Everything here may be repeated: it has the same keys each time."""

    call: Call

    def settle_once(self) -> None:
        session = self.call(
            "POST",
            "/api/v1/sessions",
            {
                "key": "demo-return",
                "agent": "support",
                "subject": CUSTOMER,
                "title": "A leaking kettle",
            },
        )
        said = self._say(session["id"], "hello", "message.user", WORDS)
        self._remember(session["id"], said)
        self._return_the_kettle(session["id"])

    def _say(self, session_id: str, key: str, type_: str, content: str) -> int:
        event = {"type": type_, "payload": {"content": content}}
        path = f"/api/v1/sessions/{session_id}/events"
        told = self.call("POST", path, {"events": [event]}, once(key))
        seq: int = told["events"][0]["seq"]
        return seq

    def _remember(self, session_id: str, seq: int) -> None:
        for number, (fact, kind, who) in enumerate(FACTS):
            source = {"kind": who, "session": session_id, "seqs": [seq]}
            body = {"subject": CUSTOMER, "fact": fact, "kind": kind, "source": source}
            self.call("POST", "/api/v1/memory", body, once(f"fact-{number}"))

    def _return_the_kettle(self, session_id: str) -> None:
        body = {
            "session": session_id,
            "key": RUN_KEY,
            "agent": "support",
            "steps": [{"tool": "read_complaint", "args": {"order_id": 77}}],
        }
        run = self.call("POST", "/api/v1/runs", body)
        if run["state"] in ENDED:
            return
        billing = self._hand_over(run["id"], "billing", "Refund order 77: 39 EUR")
        bank = self._hand_over(
            billing["child_run"], "bank", "Pay 39 EUR to the card of order 77", billing
        )
        self._report(bank, "Paid.", {"payment": "p-7701"})
        self._report(billing, "The customer has her money back.", {"refund": "r-77"})
        stores = self._hand_over(run["id"], "warehouse", "Expect the kettle")
        self._report(stores, "It goes to repair when it comes.", {"shelf": 4})
        own = DemoPlan(self.call, session_id)
        for step in own.claim(run["id"], 1):
            own.finish("complete", step, result={"wants": "a refund"})
        answer = "Your money is on its way; the label for the parcel is in your mail."
        self._say(session_id, "answer", "message.assistant", answer)

    def _hand_over(
        self, run_id: str, agent: str, task: str, giver: Json | None = None
    ) -> Json:
        body = {"agent": agent, "task": task, "context": {"inline": {"order_id": 77}}}
        headers = once(f"to-{agent}") | (by(giver) if giver else {})
        offer = self.call("POST", f"/api/v1/runs/{run_id}/handoffs", body, headers)
        path = f"/api/v1/handoffs/{offer['id']}/accept"
        self.call("POST", path, {"by": agent}, by(offer))
        return offer

    def _report(self, offer: Json, summary: str, data: Json) -> None:
        body = {"summary": summary, "data": data}
        self.call("POST", f"/api/v1/handoffs/{offer['id']}/result", body, by(offer))


def once(key: str) -> dict[str, str]:
    return {"Idempotency-Key": f"demo-{key}"}


def by(offer: dict[str, Any]) -> dict[str, str]:
    """As the agent that was handed the work: with the key that came with it."""
    return {"Authorization": f"Bearer {offer['token']}"}
