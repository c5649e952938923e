"""What a run wrote at length lies in the store, and the run goes on as before."""

import pytest

from agentstate import codec
from sessions_app.models import Event, Session
from sessions_app.moving import move_large_payloads
from sessions_app.projection import differences_of
from tests.artifacts.calls import objects
from tests.artifacts.conftest import bucket, in_bucket, s3_server
from tests.factories import error_of

__all__ = ["bucket", "in_bucket", "s3_server"]

RESULT = {"rows": ["r" * 1000] * 500, "n": 12345678901234567890123, "z": "\0"}
ARGS = {"text": "a" * 90_000}


@pytest.fixture
def moved(runs, work, project):
    """A run of three: its plan and the first result are large, and in the store."""
    run = runs.create(
        [{"tool": "a", "args": ARGS}, {"tool": "b"}, {"tool": "c"}],
        session=runs.session(subject="u-run"),
    )
    first = work.claim_one(run=run["id"])
    assert work.complete(first, RESULT)["state"] == "done"
    before = told(runs, run)
    assert move_large_payloads(project_id=project.id) >= 2
    types = Event.objects.filter(project_id=project.id, blob_id__isnull=False)
    assert {"run.created", "step.done"} <= set(types.values_list("type", flat=True))
    return run, first, before


def told(runs, run):
    found = runs.get(run)
    session = found["session"]
    steps = runs.api.get(f"/api/v1/runs/{run['id']}/steps").json["items"]
    last = runs.api.get(f"/api/v1/sessions/{session}").json["last_seq"]
    replays = [
        runs.api.get(f"/api/v1/sessions/{session}/replay", params={"at_seq": seq}).json
        for seq in range(last + 1)
    ]
    alone = [runs.api.get(f"/api/v1/steps/{s['id']}").json for s in found["steps"]]
    return codec.dumps([found, steps, replays, alone, runs.events(run)])


def test_it_reads_as_before(runs, moved, project):
    run, _, before = moved
    assert told(runs, run) == before
    assert runs.get(run)["steps"][0]["result"] == RESULT
    session = Session.objects.get(pk=run["session"])
    assert list(differences_of(project.id, session.pk)) == []


def test_completing_again_is_the_same_and_the_run_goes_on(runs, work, moved):
    run, first, _ = moved
    assert work.complete(first, RESULT)["state"] == "done"
    assert not work.complete(first, {"other": 1})["ok"]
    for _ in range(2):
        work.complete(work.claim_one(run=run["id"]))
    assert runs.get(run)["state"] == "succeeded"
    assert runs.get(run)["steps"][0]["result"] == RESULT


def test_a_resumed_run_has_its_results(runs, moved, project, api):
    run, _, _ = moved
    with_store = runs.api.get(f"/api/v1/runs/{run['id']}/steps").json["items"]
    assert [s["state"] for s in with_store] == ["done", "pending", "pending"]
    assert with_store[0]["result"] == RESULT
    fork = api.post(f"/api/v1/sessions/{run['session']}/fork", {"at_seq": 1}).json
    url = f"/api/v1/sessions/{fork['id']}/replay"
    plan = api.get(url, params={"at_seq": 1}).json["plan"]
    assert plan["steps"][0]["args"] == ARGS


def test_a_changed_plan_is_told_as_it_was(runs, moved, project):
    run, _, _ = moved
    large = [{"tool": "d", "args": {"text": "d" * 80_000}}]
    runs.move(run, "plan", plan_version=1, replace=large)
    before = told(runs, run)
    assert move_large_payloads(project_id=project.id) == 1
    assert told(runs, run) == before


def test_forgotten_its_digest_goes_with_it(runs, api, moved, project):
    run, _, _ = moved
    assert api.post("/api/v1/subjects/u-run/forget", {}).status_code == 200
    assert objects(project) == []
    assert runs.get(run)["steps"][0]["result"] != RESULT
    assert list(differences_of(project.id, run["session"])) == []


def test_a_run_goes_on_while_the_store_is_away(runs, work, api, project, in_bucket):
    run = runs.create(["a", "b"])
    work.complete(work.claim_one(run=run["id"]), RESULT)
    assert move_large_payloads(project_id=project.id) == 1
    in_bucket.die()
    second = work.claim_one(run=run["id"])
    assert work.beat(second)["ok"]
    assert work.complete(second, RESULT)["run_state"] == "succeeded"
    unread = api.get(f"/api/v1/runs/{run['id']}/steps")
    assert error_of(unread)[:2] == (503, "storage_unavailable")
    in_bucket.live()
    assert [s["result"] for s in runs.get(run)["steps"]] == [RESULT, RESULT]
    # The bucket goes with the test, and nothing may be left that lies in it.
    url = f"/api/v1/sessions/{run['session']}"
    assert api.request("DELETE", url).status_code == 204
    assert in_bucket.keys() == []
