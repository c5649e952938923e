"""Effects: free, idempotent, once; doubt and how it is settled."""

import pytest


@pytest.fixture
def doubtful(runs, work, clock):
    """A `once` step whose worker went silent."""
    run = runs.create([{"tool": "refund", "effect": "once"}, "b"])
    step = work.claim_one()
    clock.advance(seconds=31)
    assert work.claim() == []
    assert runs.states(run) == ["in_doubt", "pending"]
    assert runs.get(run)["state"] == "waiting"
    return step


def test_nobody_runs_it_again(runs, work, doubtful, clock):
    clock.advance(seconds=3600)
    assert work.claim() == []
    [item] = runs.api.get("/api/v1/approvals", params={"kind": "in_doubt"}).json[
        "items"
    ]
    assert item["step"]["id"] == doubtful["step"]


def test_it_is_settled_as_done_with_the_result(runs, work, doubtful):
    runs.decide(doubtful, "resolve", outcome="done", result={"refund": "r-7"})
    assert work.claim_one()["tool"] == "b"
    assert runs.get(doubtful["run"])["steps"][0]["result"] == {"refund": "r-7"}


def test_it_is_settled_as_not_done_and_done_now(runs, work, doubtful):
    runs.decide(doubtful, "resolve", outcome="not_done", reason="the shop has nothing")
    again = work.claim_one()
    assert again["idempotency_key"] == doubtful["idempotency_key"]
    assert again["previous"] is None
    assert work.complete(again)["ok"]


def test_it_is_given_up(runs, doubtful):
    runs.decide(doubtful, "resolve", outcome="give_up", reason="nobody knows")
    assert runs.get(doubtful["run"])["state"] == "failed"


def test_a_late_result_of_the_silent_worker_is_refused_but_kept(runs, work, doubtful):
    assert work.complete(doubtful, {"refund": "r-7"})["code"] == "lease_lost"
    answer = runs.api.get(f"/api/v1/runs/{doubtful['run']}/rejected-completions")
    assert answer.json["items"][0]["body"] == {"refund": "r-7"}


def test_settling_twice_is_told(runs, api, doubtful):
    path = f"/api/v1/steps/{doubtful['step']}/resolve"
    body = {"outcome": "done", "result": 1}
    assert api.post(path, body).status_code == 200
    assert api.post(path, body).status_code == 200  # the same again
    answer = api.post(path, {"outcome": "done", "result": 2})
    assert (answer.status_code, answer.json["code"]) == (409, "wrong_state")


def test_a_worker_may_say_itself_that_it_does_not_know(runs, work):
    run = runs.create([{"tool": "refund", "effect": "once"}])
    assert (
        work.fail(work.claim_one(), "timeout", outcome_unknown=True)["state"]
        == "in_doubt"
    )
    runs.move(run, "cancel")
    assert runs.get(run)["state"] == "cancelled"


def test_a_failure_that_is_known_is_tried_again(runs, work):
    runs.create([{"tool": "refund", "effect": "once", "retry": {"backoff_s": 0}}])
    assert work.fail(work.claim_one(), "refused")["state"] == "pending"
    assert work.claim_one()["attempt"] == 2


@pytest.mark.parametrize("effect", ["none", "idempotent"])
def test_others_run_again(runs, work, clock, effect):
    runs.create([{"tool": "a", "effect": effect}])
    work.claim_one()
    clock.advance(seconds=31)
    assert work.claim_one()["previous"] == "unknown"


def test_a_failing_run_waits_until_the_doubt_is_settled(runs, work, clock):
    run = runs.create(
        [
            {"tool": "a", "effect": "once", "depends_on": []},
            {"tool": "b", "depends_on": [], "retry": {"max_attempts": 1}},
        ]
    )
    a, b = work.claim(max=2)
    work.fail(b, "busy")
    clock.advance(seconds=31)
    assert work.claim() == []
    assert runs.states(run) == ["in_doubt", "failed"]
    assert runs.get(run)["state"] == "waiting"
    runs.decide(a, "resolve", outcome="not_done")
    assert runs.states(run) == ["cancelled", "failed"]
    assert runs.get(run)["state"] == "failed"


def test_run_again_does_not_double_an_effect_unasked(api, runs, work):
    run = runs.create(["a", {"tool": "refund", "effect": "once"}, "c"])
    work.complete(work.claim_one(), "kept")
    work.complete(work.claim_one(), "r-7")
    work.complete(work.claim_one())
    path = f"/api/v1/runs/{run['id']}/again"
    answer = api.post(path, {"from_step": 1})
    assert (answer.status_code, answer.json["code"]) == (409, "effect_unknown")
    answer = api.post(path, {"from_step": 1, "confirm_repeat": True})
    again = answer.json
    assert [s["state"] for s in again["steps"]] == ["done", "pending", "pending"]
    assert again["steps"][0]["result"] == "kept"
    assert (again["again_of"], again["again_from"]) == (run["id"], 1)
    step = work.claim_one()
    assert (step["index"], step["run"]) == (1, again["id"])
    assert step["idempotency_key"] != run["steps"][1]["idempotency_key"]
