"""What the tests of handoffs share: offering, taking, and looking at both sides."""

from tests.factories import SessionApi
from tests.fixtures import Api

RUNS = "/api/v1/runs"
HANDOFFS = "/api/v1/handoffs"


def make_run(session, steps=({"tool": "think"},), **fields):
    body = {"session": session.id, "steps": list(steps), **fields}
    answer = session.api.post(RUNS, body)
    assert answer.status_code == 201, answer
    return answer.json["id"]


def offer(session, task="Check invoice A-1", agent="billing", **body):
    answer = session.api.post(
        f"{RUNS}/{session.run}/handoffs", {"agent": agent, "task": task, **body}
    )
    assert answer.status_code == 201, answer
    return answer.json


def child(made):
    """The taking agent's own way in: the key that came with the handoff."""
    return Api(made["token"])


def move(api, made, name, **body):
    return api.post(f"{HANDOFFS}/{made['id']}/{name}", body)


def accept(made, by="billing-1"):
    answer = move(child(made), made, "accept", by=by)
    assert answer.status_code == 200, answer
    return answer.json


def step_of(session, made):
    steps = session.api.get(f"{RUNS}/{session.run}/steps").json["items"]
    return next(step for step in steps if step["id"] == made["step"])


def run_state(session, run_id=None):
    return session.api.get(f"{RUNS}/{run_id or session.run}").json["state"]


def make_own(made):
    """The child's session through the child's own key."""
    return SessionApi(child(made), made["child_session"])
