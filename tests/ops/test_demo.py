"""The demo agent, through the server that starts it."""

from agentstate.processes import wait_until
from tests.ops.supervised import Supervised


def demo_session(served: Supervised, key: str) -> dict:
    found = served.client(key).get("/api/v1/sessions", params={"agent": "support"})
    return found.json()["items"][0]


def test_the_demo_agent_holds_a_session_and_resumes_it(supervise):
    served = supervise(AGENTSTATE_DEMO="1")
    served.start()
    key = served.key
    assert wait_until(lambda: demo_state(served, key).get("turns", 0) >= 1, 60)
    session = demo_session(served, key)
    events = served.client(key).get(f"/api/v1/sessions/{session['id']}/events").json()
    types = [event["type"] for event in events["items"]]
    for wanted in ("message.user", "tool.call", "tool.result", "message.assistant"):
        assert wanted in types

    served.kill_everything()
    served.start()
    before = demo_state(served, key)["turns"]
    assert wait_until(lambda: demo_state(served, key)["turns"] > before, 60)
    assert demo_session(served, key)["id"] == session["id"]


def demo_state(served: Supervised, key: str) -> dict:
    http = served.client(key)
    sessions = http.get("/api/v1/sessions", params={"agent": "support"}).json()["items"]
    return sessions[0]["state"] if sessions else {}


def test_without_the_demo_there_is_nothing(supervise):
    served = supervise(AGENTSTATE_DEMO="0")
    served.start()
    assert served.client(served.key).get("/api/v1/sessions").json()["items"] == []
    assert not (served.data_dir / "run" / "demo.pid").exists()
