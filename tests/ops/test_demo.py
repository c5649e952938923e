"""The demo agent, through the server that starts it."""

from agentstate.processes import wait_until
from tests.ops.supervised import Supervised


def demo_session(served: Supervised, key: str) -> dict:
    with served.client(key) as http:
        found = http.get("/api/v1/sessions", params={"agent": "support"}).json()
        if not found["items"]:
            return {"state": {}}
        return http.get(f"/api/v1/sessions/{found['items'][0]['id']}").json()


def turns_done(served: Supervised, key: str) -> int:
    return demo_session(served, key)["state"].get("turns", 0)


def test_the_demo_agent_holds_a_session_and_resumes_it(supervise):
    served = supervise(AGENTSTATE_DEMO="1")
    served.start()
    key = served.key
    assert wait_until(lambda: turns_done(served, key) >= 1, 60)
    session = demo_session(served, key)
    with served.client(key) as http:
        events = http.get(f"/api/v1/sessions/{session['id']}/events").json()["items"]
    types = {event["type"] for event in events}
    assert types >= {"message.user", "tool.call", "tool.result", "message.assistant"}

    served.kill_everything()
    served.start()
    before = turns_done(served, key)
    assert wait_until(lambda: turns_done(served, key) > before, 60)
    assert demo_session(served, key)["id"] == session["id"]


def test_the_demo_agents_payment_waits_for_approval_and_is_then_paid(supervise):
    served = supervise(AGENTSTATE_DEMO="1")
    served.start()
    with served.client(served.key) as http:

        def waiting():
            items = http.get("/api/v1/approvals").json()["items"]
            return items[0]["step"] if items else None

        assert wait_until(waiting, 60)
        step = waiting()
        assert (step["tool"], step["effect"]) == ("pay_refund", "once")
        args = step["args"] | {"amount": 5}
        http.post(f"/api/v1/steps/{step['id']}/approve", json={"args": args})

        def run():
            return http.get(f"/api/v1/runs/{step['run']}").json()

        assert wait_until(lambda: run()["state"] == "succeeded", 60)
        assert run()["steps"][2]["result"]["amount"] == 5
        # And the next one comes to wait.
        assert wait_until(lambda: waiting() and waiting()["run"] != step["run"], 60)
