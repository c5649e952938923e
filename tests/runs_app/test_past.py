"""The plan that a replay of the session tells, after each event."""

import pytest

from runs_app.past import plan_at
from sessions_app.models import Session
from tests.queries import CallQueries


def replayed(api, session_id, at_seq):
    answer = api.get(f"/api/v1/sessions/{session_id}/replay", params={"at_seq": at_seq})
    assert answer.status_code == 200, answer
    return answer.json["plan"]


def states(plan):
    return plan["state"], [step["state"] for step in plan["steps"]]


def test_the_plan_is_as_it_was_after_each_event(api, runs, work):
    session = runs.session()
    run = runs.create(["look_up", "refund"], session=session, key="r-1")
    work.complete(work.claim_one(run=run["id"]), {"order": 10**20})
    work.claim_one(run=run["id"])
    told = {
        event["type"]: states(replayed(api, session, event["seq"]))
        for event in runs.events(run)
    }
    assert replayed(api, session, 0) is None
    assert told["run.created"] == ("queued", ["pending", "pending"])
    assert told["step.done"] == ("running", ["done", "pending"])
    last = runs.events(run)[-1]
    plan = replayed(api, session, last["seq"])
    assert states(plan) == ("running", ["done", "in_progress"])
    assert (plan["run"], plan["key"], plan["plan_version"]) == (run["id"], "r-1", 1)
    done = plan["steps"][0]
    [event] = [e for e in runs.events(run) if e["type"] == "step.done"]
    assert done["result_seq"] == event["seq"]
    assert event["payload"]["result"] == {"order": 10**20}


def test_of_two_runs_it_is_the_one_that_had_begun_last(api, runs, work):
    session = runs.session()
    first = runs.create(["a"], session=session)
    second = runs.create(["b"], session=session)  # stands in line behind the first
    created = runs.events(second)[0]["seq"]
    assert replayed(api, session, created)["run"] == first["id"]
    work.complete(work.claim_one(run=first["id"]))
    [begun] = [e["seq"] for e in runs.events(second) if e["type"] == "run.begun"]
    assert replayed(api, session, begun - 1)["run"] == first["id"]
    assert states(replayed(api, session, begun)) == ("queued", ["pending"])
    assert replayed(api, session, begun)["run"] == second["id"]


def test_a_plan_that_changed_later_is_told_as_it_was(api, runs):
    session = runs.session()
    run = runs.create(["a", "b"], session=session)
    before = runs.events(run)[-1]["seq"]
    runs.move(run, "plan", plan_version=1, replace=[{"tool": "c"}])
    assert [s["tool"] for s in replayed(api, session, before)["steps"]] == ["a", "b"]
    after = replayed(api, session, runs.events(run)[-1]["seq"])
    assert after["plan_version"] == 2
    assert [(s["tool"], s["state"]) for s in after["steps"]] == [
        ("a", "skipped"),
        ("b", "skipped"),
        ("c", "pending"),
    ]


def test_a_fork_tells_the_plan_as_it_was_where_it_forked(api, runs, work):
    session = runs.session()
    run = runs.create(["a"], session=session)
    at_seq = runs.events(run)[-1]["seq"]
    work.complete(work.claim_one(run=run["id"]))
    fork = api.post(f"/api/v1/sessions/{session}/fork", {"at_seq": at_seq}).json
    end = fork["last_seq"]
    assert replayed(api, fork["id"], end) == replayed(api, session, at_seq)
    assert states(replayed(api, fork["id"], end)) == ("queued", ["pending"])


@pytest.mark.parametrize("others", [0, 40])
def test_it_reads_the_events_of_one_run(api, runs, work, others):
    """The same queries, whatever other runs the log tells of."""
    session = runs.session()
    for _ in range(others):
        runs.create(["x"], session=session, second_run="parallel")
    run = runs.create(["a"], session=session, second_run="parallel")
    work.complete(work.claim_one(run=run["id"]))
    stored = Session.objects.get(pk=session)
    with CallQueries() as queries:
        assert plan_at(stored, stored.last_seq)["run"] == run["id"]
    assert len(queries) == 2
