"""Several runs of one session, and runs of others."""

from itertools import permutations

import pytest

from access_app.models import AuditEntry
from tests.fixtures import Api, issue_key
from tests.runs_app.conftest import held


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_cc_09_runs_that_end_together_are_all_kept(api, runs, work, order):
    session = runs.session()
    made = [
        runs.create(["a"], session=session, second_run="parallel") for _ in range(3)
    ]
    runs.move(made[2], "pause")
    steps = {step["run"]: step for step in work.claim(max=3)}
    assert len(steps) == 2
    runs.move(made[2], "resume")
    steps |= {step["run"]: step for step in work.claim(max=3)}
    for place in order:
        work.complete(steps[made[place]["id"]], {"n": place})
        said = {"type": "message.user", "payload": {"content": str(place)}}
        answer = api.post(f"/api/v1/sessions/{session}/events", {"events": [said]})
        assert answer.status_code == 201
    listed = api.get("/api/v1/runs", params={"session": session}).json["items"]
    assert {run["id"]: run["state"] for run in listed} == {
        run["id"]: "succeeded" for run in made
    }
    log = api.get(f"/api/v1/sessions/{session}/events", params={"limit": 1000})
    seqs = [event["seq"] for event in log.json["items"]]
    assert seqs == list(range(1, len(seqs) + 1))
    spoken = [e for e in log.json["items"] if e["type"] == "message.user"]
    assert [e["payload"]["content"] for e in spoken] == [str(n) for n in order]


def test_au_05_nobody_reaches_a_run_through_its_id(
    api, other_api, project, other_project, runs, work
):
    """The server makes the ids; a run of another subject or project is not there."""
    run = runs.create(["a"], session=runs.session(subject="u-100"))
    step = work.claim_one()
    before = runs.get(run)
    stranger = Api(issue_key(project, subject="u-200"))
    named = {"id": run["id"], "session": runs.session(subject="u-200"), "steps": []}
    assert stranger.post("/api/v1/runs", named).status_code == 422
    for caller in (stranger, other_api):
        for move in ("cancel", "pause", "retry"):
            answer = caller.post(f"/api/v1/runs/{run['id']}/{move}", {})
            assert answer.status_code == 404
        assert caller.get(f"/api/v1/runs/{run['id']}").status_code == 404
        body = {"items": [held(step) | {"result": {"total": 0}}]}
        [item] = caller.post("/api/v1/steps/complete", body).json["items"]
        assert (item["ok"], item["code"]) == (False, "not_found")
    assert runs.get(run) == before
    for project_id in (project.id, other_project.id):
        refused = AuditEntry.objects.filter(
            project_id=project_id, action="access.refused"
        )
        noted = sorted({(entry.object, entry.after["code"]) for entry in refused})
        assert noted == [
            (f"run:{run['id']}", "run_not_found"),
            (f"step:{step['step']}", "not_found"),
        ]
