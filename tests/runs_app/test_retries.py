"""Failures, backoff, timeouts, and what is done when tries run out."""

import pytest


def make(runs, **retry):
    step = {"tool": "a", "retry": {"jitter": 0} | retry}
    return runs.create([step])


def test_a_failure_is_tried_again_after_the_backoff(runs, work, clock):
    run = make(runs, backoff_s=100, factor=3)
    assert work.fail(work.claim_one(), "busy")["state"] == "waiting"
    assert runs.get(run)["state"] == "waiting"
    assert runs.get(run)["retrying"] == 1
    clock.advance(seconds=60)
    assert work.claim() == []
    clock.advance(seconds=41)
    step = work.claim_one()
    assert (step["failures"], step["previous"]) == (1, None)
    work.fail(step, "busy")
    clock.advance(seconds=240)
    assert work.claim() == []
    clock.advance(seconds=61)
    assert work.complete(work.claim_one())["run_state"] == "succeeded"
    assert runs.get(run)["retrying"] == 0


def test_attempts_run_out_and_the_run_fails(runs, work):
    run = make(runs, max_attempts=3, backoff_s=0)
    for state in ("pending", "pending", "failed"):
        assert work.fail(work.claim_one(), "busy")["state"] == state
    ended = runs.get(run)
    assert ended["state"] == "failed"
    assert ended["error"]["code"] == "step_failed"
    assert ended["error"]["cause"]["code"] == "busy"


def test_own_11_attempt_100_has_a_capped_delay(runs, work, clock):
    make(runs, max_attempts=1000, backoff_s=1, factor=100, max_backoff_s=60)
    for _ in range(100):
        work.fail(work.claim_one(), "busy")
        clock.advance(seconds=61)
    assert work.claim_one()["failures"] == 100


@pytest.mark.parametrize(
    "retry",
    [{"max_attempts": 0}, {"max_attempts": -1}, {"backoff": "2^n s"}, {"factor": 0}],
)
def test_own_11_odd_retry_settings_are_refused(api, runs, retry):
    answer = api.post(
        "/api/v1/runs",
        {"session": runs.session(), "steps": [{"tool": "a", "retry": retry}]},
    )
    [name] = retry
    assert answer.status_code == 422
    assert answer.json["errors"][0]["path"] == f"steps[0].retry.{name}"


def test_an_error_that_is_not_to_be_retried(runs, work):
    run = make(runs, no_retry_on=["forbidden"])
    work.fail(work.claim_one(), "forbidden")
    assert runs.get(run)["state"] == "failed"


def test_only_some_errors_are_retried(runs, work):
    run = make(runs, retry_on=["busy"], backoff_s=0)
    assert work.fail(work.claim_one(), "busy")["state"] == "pending"
    work.fail(work.claim_one(), "other")
    assert runs.get(run)["state"] == "failed"


def test_a_worker_may_say_that_it_is_no_use(runs, work):
    run = make(runs)
    work.fail(work.claim_one(), "busy", retryable=False)
    assert runs.get(run)["state"] == "failed"


def test_the_error_may_say_when(runs, work, clock):
    make(runs, backoff_s=1)
    work.fail(work.claim_one(), "busy", retry_after_s=120)
    clock.advance(seconds=100)
    assert work.claim() == []
    clock.advance(seconds=21)
    assert work.claim_one()


def test_a_person_decides_when_tries_run_out(runs, work):
    run = runs.create(
        [{"tool": "a", "retry": {"max_attempts": 1}, "on_exhausted": "hold"}, "b"]
    )
    assert work.fail(work.claim_one(), "busy")["state"] == "waiting"
    assert runs.get(run)["state"] == "waiting"
    [held] = runs.api.get("/api/v1/approvals", params={"kind": "hold"}).json["items"]
    runs.decide(held["step"], "retry", reason="the shop is back")
    step = work.claim_one()
    assert step["failures"] == 0
    work.fail(step, "busy")
    runs.decide(step, "resolve", outcome="done", result={"by": "hand"})
    assert work.claim_one()["tool"] == "b"
    assert runs.get(run)["steps"][0]["result"] == {"by": "hand"}


def test_an_attempt_may_take_only_so_long(runs, work, clock):
    run = runs.create(
        [{"tool": "a", "timeout_s": 5, "retry": {"backoff_s": 0, "max_attempts": 2}}]
    )
    step = work.claim_one(lease_s=60)
    clock.advance(seconds=6)
    again = work.claim_one(lease_s=60)
    assert (again["failures"], again["lost"], again["previous"]) == (1, 0, "unknown")
    assert work.beat(step)["code"] == "lease_lost"
    clock.advance(seconds=6)
    assert work.beat(again)["code"] == "lease_lost"
    assert work.claim() == []
    assert runs.get(run)["steps"][0]["error"]["code"] == "timeout"


def test_a_step_may_wait_only_so_long_for_a_worker(runs, work, clock):
    run = runs.create([{"tool": "a", "start_timeout_s": 60}])
    clock.advance(seconds=61)
    assert work.claim(tools=["other"]) == []
    ended = runs.get(run)
    assert (ended["state"], ended["steps"][0]["error"]["code"]) == (
        "failed",
        "start_timeout",
    )


def test_a_claim_in_time_ends_the_wait_for_a_worker(runs, work, clock):
    run = runs.create([{"tool": "a", "start_timeout_s": 60}])
    step = work.claim_one(lease_s=600)
    clock.advance(seconds=100)
    assert work.claim() == []
    work.complete(step)
    assert runs.get(run)["state"] == "succeeded"


def test_a_failed_run_goes_on_when_retried(runs, work):
    run = runs.create(["a", {"tool": "b", "retry": {"max_attempts": 1}}, "c"])
    work.complete(work.claim_one(), 1)
    work.fail(work.claim_one(), "busy")
    assert runs.states(run) == ["done", "failed", "cancelled"]
    assert runs.move(run, "retry")["state"] == "running"
    assert runs.states(run) == ["done", "pending", "pending"]
    work.complete(work.claim_one(), 2)
    assert work.complete(work.claim_one(), 3)["run_state"] == "succeeded"


def test_what_is_in_progress_may_finish_when_another_step_fails(runs, work):
    run = runs.create(
        [
            {"tool": "a", "depends_on": [], "retry": {"max_attempts": 1}},
            {"tool": "b", "depends_on": []},
            {"tool": "c", "depends_on": [1]},
        ]
    )
    a, b = work.claim(max=2)
    work.fail(a, "busy")
    assert runs.states(run) == ["failed", "in_progress", "cancelled"]
    assert runs.get(run)["state"] == "running"
    assert work.beat(b)["stop"]
    assert work.complete(b, "kept")["run_state"] == "failed"
    assert runs.get(run)["steps"][1]["result"] == "kept"


def test_runs_that_are_retrying_can_be_listed(api, runs, work):
    make(runs)
    work.fail(work.claim_one(), "busy")
    runs.create(["b"])
    answer = api.get("/api/v1/runs", params={"retrying": "true"})
    assert len(answer.json["items"]) == 1
