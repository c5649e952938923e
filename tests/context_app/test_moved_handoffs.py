"""A handoff whose words lie in the store by now is taken and ended as before."""

import pytest

from runs_app.settling import settle_handoffs
from sessions_app.artifacts.blobs import remove_strays
from sessions_app.models import Event
from sessions_app.moving import move_large_payloads
from sessions_app.projection import differences_of
from tests.artifacts.conftest import bucket, in_bucket, s3_server
from tests.context_app.handoffs import (
    HANDOFFS,
    RUNS,
    accept,
    child,
    move,
    offer,
    step_of,
)
from tests.factories import error_of

__all__ = ["bucket", "in_bucket", "s3_server"]

TASK = "Check every line of this invoice. " * 2500
WIDE = {"budget_tokens": 100_000}


@pytest.fixture(autouse=True)
def replay_holds(triage, project):
    yield
    assert [str(d) for d in differences_of(project.id, triage.id)] == []


def stored_types(project):
    events = Event.objects.filter(project_id=project.id, blob_id__isnull=False)
    return sorted(events.values_list("type", flat=True))


def test_a_large_offer_is_taken_and_ended_as_before(triage, project):
    made = offer(triage, TASK, context=WIDE)
    before = triage.api.get(f"{HANDOFFS}/{made['id']}").json
    assert move_large_payloads(project_id=project.id) == 1
    assert stored_types(project) == ["handoff.offered"]
    assert triage.api.get(f"{HANDOFFS}/{made['id']}").json == before
    assert accept(made)["bundle"]["task"] == TASK
    assert move_large_payloads(project_id=project.id) >= 1
    assert accept(made)["bundle"]["task"] == TASK
    result = {"summary": "All right.", "data": {"lines": ["l" * 100] * 1000}}
    done = move(child(made), made, "result", **result)
    assert done.status_code == 200, done
    move_large_payloads(project_id=project.id)
    assert {"handoff.accepted", "handoff.completed"} <= set(stored_types(project))
    again = move(triage.api, made, "result", **result)
    assert again.status_code == 200 and again.json == done.json
    other = move(triage.api, made, "result", summary="Another.")
    assert error_of(other)[:2] == (409, "already_finished")
    assert step_of(triage, made)["result"] == result


def test_it_is_given_up_while_the_store_is_away(triage, project, in_bucket):
    made = offer(triage, TASK, context=WIDE, on_failure="skip")
    assert move_large_payloads(project_id=project.id) == 1
    in_bucket.die()
    assert triage.api.post(f"{RUNS}/{made['child_run']}/cancel", {}).status_code == 200
    settle_handoffs()
    assert step_of(triage, made)["state"] == "skipped"
    in_bucket.live()
    assert triage.api.get(f"{HANDOFFS}/{made['id']}").json["status"] == "cancelled"
    # The bucket goes with the test, and nothing may be left that lies in it.
    for session in (made["child_session"], triage.id):
        move_large_payloads(project_id=project.id)
        found = [str(d) for d in differences_of(project.id, session)]
        assert found == []
        gone = triage.api.request("DELETE", f"/api/v1/sessions/{session}")
        assert gone.status_code == 204
    remove_strays()
    assert in_bucket.keys() == []
