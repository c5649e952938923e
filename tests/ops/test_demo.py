"""The demo agent: what it leaves to look at, and that it resumes."""

import threading

import httpx
import pytest

from agentstate.demo import DemoAgent
from agentstate.preparation import DEMO_SCOPES, DEMO_SETTINGS
from agentstate.processes import wait_until
from tests.ops.supervised import Supervised

SECONDS = 120


def get(http: httpx.Client, path: str, **params) -> dict:
    answer = http.get(f"/api/v1/{path}", params=params)
    assert answer.status_code == 200, answer.text
    return answer.json()


def turns_done(served: Supervised, key: str) -> int:
    with served.client(key) as http:
        found = get(http, "sessions", q="Orders of the demo shop")["items"]
        if not found:
            return 0
        state = get(http, f"sessions/{found[0]['id']}/state")["state"]
        return state.get("turns", 0)


def test_the_demo_agent_is_started_works_and_resumes(supervise):
    served = supervise(AGENTSTATE_DEMO="1")
    served.start()
    key = served.key  # printed this once
    assert wait_until(lambda: turns_done(served, key) >= 1, SECONDS)
    with served.client(key) as http:
        waiting = get(http, "approvals")["items"]
        review = get(http, "memory", subject="maya", status="proposed")["items"]
        assert len(waiting) == 1 and len(review) == 2
    before = turns_done(served, key)
    served.kill_everything()
    served.start()
    assert wait_until(lambda: turns_done(served, key) > before, SECONDS)
    with served.client(key) as http:
        names = [made["name"] for made in get(http, "keys")["items"]]
        assert names.count("demo agent") == 1, "the same key as before"
        [told] = get(http, "sessions", q="A leaking kettle")["items"]
        events = get(http, f"sessions/{told['id']}/events", types="message.user")
        assert len(events["items"]) == 1, "and nothing is said twice"


@pytest.fixture
def demo(server, project, make_key):
    """The demo agent at work without pauses; `http` looks as an owner would."""
    from access_app.services import update_project

    update_project(project.id, settings=DEMO_SETTINGS)
    key = make_key(scopes=DEMO_SCOPES)
    headers = {"Authorization": f"Bearer {key}"}
    http = httpx.Client(base_url=server.base_url, headers=headers, timeout=30)
    agent = DemoAgent(http, pause=0, rest=0.05)
    thread = threading.Thread(target=lambda: (agent.run(2), agent.work_on_the_plan()))
    thread.start()
    yield agent
    agent.stopping.set()
    thread.join(SECONDS)
    assert not thread.is_alive()
    http.close()


@pytest.fixture
def http(server, make_key):
    headers = {"Authorization": f"Bearer {make_key()}"}
    with httpx.Client(base_url=server.base_url, headers=headers, timeout=30) as client:
        yield client


def test_a_person_finds_all_there_is_to_see(demo, http):
    def runs(**params):
        return get(http, "runs", **params)["items"]

    assert wait_until(lambda: len(get(http, "approvals")["items"]) == 1, SECONDS)
    assert wait_until(lambda: runs(label="kind:stocktake"), SECONDS)

    def shelves():
        run = runs(label="kind:stocktake")[0]
        steps = get(http, f"runs/{run['id']}/steps")["items"]
        return run["key"], sum(step["state"] == "done" for step in steps)

    seen = shelves()
    assert wait_until(lambda: shelves() != seen, SECONDS), "a run moves"
    assert wait_until(
        lambda: [r["state"] for r in runs(key="return-77")] == ["succeeded"], SECONDS
    )
    [returned] = runs(key="return-77")
    tree = get(http, f"runs/{returned['id']}/tree")
    assert {
        child["agent"]: [below["agent"] for below in child["children"]]
        for child in tree["children"]
    } == {"billing": ["bank"], "warehouse": []}
    facts = get(http, "memory", subject="maya")["items"]
    assert sorted(fact["status"] for fact in facts) == ["active", *["proposed"] * 2]
    assert all(fact["source"]["seqs"] for fact in facts)
    demo.stopping.set()
    again = DemoAgent(demo.http, pause=0, rest=0)
    again.run(0)  # as after a restart: it finds it all and repeats none of it
    assert len(get(http, "memory", subject="maya")["items"]) == 3
    assert len(runs(key="return-77")) == 1


def test_the_payment_waits_for_approval_and_is_then_paid(demo, http):
    def waiting():
        items = get(http, "approvals")["items"]
        return items[0]["step"] if items else None

    assert wait_until(waiting, SECONDS)
    step = waiting()
    assert (step["tool"], step["effect"]) == ("pay_refund", "once")
    args = step["args"] | {"amount": 5}
    http.post(f"/api/v1/steps/{step['id']}/approve", json={"args": args})

    def run():
        return get(http, f"runs/{step['run']}")

    assert wait_until(lambda: run()["state"] == "succeeded", SECONDS)
    assert run()["steps"][2]["result"]["amount"] == 5
    # And the next one comes to wait.
    assert wait_until(lambda: waiting() and waiting()["run"] != step["run"], SECONDS)


def test_args_that_mean_nothing_fail_the_step_not_the_demo(demo, http):
    def waiting():
        items = get(http, "approvals")["items"]
        return items[0]["step"] if items else None

    assert wait_until(waiting, SECONDS)
    step = waiting()
    http.post(f"/api/v1/steps/{step['id']}/approve", json={"args": [1]})

    def run():
        return get(http, f"runs/{step['run']}")

    assert wait_until(lambda: run()["state"] == "failed", SECONDS)
    assert run()["steps"][2]["error"]["code"] == "bad_args"
    assert wait_until(lambda: waiting() and waiting()["run"] != step["run"], SECONDS)
