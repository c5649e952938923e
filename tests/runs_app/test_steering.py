"""Cancel, pause, resume, skip; approvals, timers, signals; children."""

import pytest

from tests.factories import error_of


def test_st_07_a_queued_run_is_cancelled(api, runs, work):
    run = runs.create(["a", "b"])
    assert runs.move(run, "cancel", reason="no need")["state"] == "cancelled"
    assert runs.states(run) == ["cancelled", "cancelled"]
    assert work.claim() == []
    again = api.post(f"/api/v1/runs/{run['id']}/cancel", {})
    assert (again.status_code, again.json["state"]) == (200, "cancelled")


def test_st_07_a_run_that_waits_is_cancelled(runs, work, clock):
    approval = runs.create([{"tool": "a", "requires_approval": True}])
    retry = runs.create([{"tool": "b", "retry": {"jitter": 0}}])
    work.fail(work.claim_one(), "busy")
    for run in (approval, retry):
        assert runs.get(run)["state"] == "waiting"
        assert runs.move(run, "cancel")["state"] == "cancelled"
    clock.advance(seconds=600)
    assert work.claim() == []
    assert runs.api.get("/api/v1/approvals").json["items"] == []


def test_st_07_a_run_that_is_done_stays_done(api, runs, work):
    run = runs.create(["a"])
    work.complete(work.claim_one())
    answer = api.post(f"/api/v1/runs/{run['id']}/cancel", {})
    assert (answer.status_code, answer.json["code"], answer.json["state"]) == (
        409,
        "wrong_state",
        "succeeded",
    )
    assert runs.get(run)["state"] == "succeeded"


def test_st_08_cancelling_until_nothing_runs(runs, work):
    run = runs.create([{"tool": "a", "depends_on": []} for _ in range(200)])
    started = work.claim(max=20)
    assert len(started) == 20
    assert runs.move(run, "cancel")["state"] == "cancelling"
    assert work.claim(max=100) == []
    assert work.complete(started[0], "kept")["run_state"] == "cancelling"
    assert runs.get(run)["steps"][started[0]["index"]]["result"] == "kept"
    for step in started[1:10]:
        assert work.release(step)["state"] == "cancelled"
    for step in started[10:-1]:
        assert work.fail(step, "stopped")["state"] == "cancelled"
    assert runs.get(run)["state"] == "cancelling"
    assert work.complete(started[-1])["run_state"] == "cancelled"
    assert runs.get(run)["steps_by_state"] == {
        "pending": 0,
        "in_progress": 0,
        "waiting": 0,
        "in_doubt": 0,
        "done": 2,
        "failed": 0,
        "skipped": 0,
        "cancelled": 198,
    }


def test_st_09_a_cancelled_run_is_cancelled_and_keeps_what_was_done(runs, work):
    run = runs.create(["a", "b", "c"])
    work.complete(work.claim_one(), {"rows": 4})
    b = work.claim_one()
    runs.move(run, "cancel")
    work.release(b)
    ended = runs.get(run)
    assert ended["state"] == "cancelled"
    assert [s["state"] for s in ended["steps"]] == ["done", "cancelled", "cancelled"]
    assert ended["steps"][0]["result"] == {"rows": 4}


def test_st_20_a_worker_hears_of_the_cancel_at_its_next_heartbeat(runs, work):
    run = runs.create(["a"])
    step = work.claim_one()
    assert not work.beat(step)["stop"]
    runs.move(run, "cancel")
    beat = work.beat(step)
    assert (beat["ok"], beat["stop"], beat["run_state"]) == (True, True, "cancelling")
    work.release(step)
    assert work.beat(step)["code"] == "cancelled"


def test_a_cancelled_run_ends_when_its_silent_worker_is_given_up(runs, work, clock):
    run = runs.create([{"tool": "a", "effect": "once"}])
    work.claim_one()
    runs.move(run, "cancel")
    clock.advance(seconds=31)
    assert work.claim() == []
    ended = runs.get(run)
    assert (ended["state"], ended["steps"][0]["state"]) == ("cancelled", "cancelled")
    assert ended["steps"][0]["previous"] == "unknown"


def test_a_paused_run_hands_nothing_out(runs, work):
    run = runs.create([{"tool": "a", "depends_on": []} for _ in range(3)])
    step = work.claim_one()
    assert runs.move(run, "pause", reason="shop closed")["state"] == "paused"
    assert work.claim() == []
    assert work.complete(step)["run_state"] == "paused"
    assert runs.move(run, "resume")["state"] == "running"
    assert len(work.claim(max=5)) == 2


def test_a_run_paused_before_it_began_is_queued_again(runs, work):
    run = runs.create(["a"])
    runs.move(run, "pause")
    assert work.claim() == []
    assert runs.move(run, "resume")["state"] == "queued"
    assert work.claim_one()


def test_a_paused_run_whose_last_step_ends_has_ended(runs, work):
    run = runs.create(["a"])
    step = work.claim_one()
    runs.move(run, "pause")
    assert work.complete(step)["run_state"] == "succeeded"
    assert runs.get(run)["state"] == "succeeded"


def test_time_goes_on_while_a_run_is_paused(runs, work, clock):
    run = runs.create([{"sleep_s": 60}, "a"])
    runs.move(run, "pause")
    clock.advance(seconds=61)
    assert work.claim() == []
    assert runs.states(run) == ["done", "pending"]
    runs.move(run, "resume")
    assert work.claim_one()["tool"] == "a"


def test_a_skipped_step_lets_the_next_go(runs, work):
    run = runs.create(["a", "b"])
    runs.decide(run["steps"][0], "skip", reason="done by hand")
    assert work.claim_one()["tool"] == "b"
    assert runs.states(run) == ["skipped", "in_progress"]


def test_a_step_in_progress_is_not_skipped(api, runs, work):
    runs.create(["a"])
    step = work.claim_one()
    answer = api.post(f"/api/v1/steps/{step['step']}/skip", {})
    assert (answer.status_code, answer.json["state"]) == (409, "in_progress")


def test_a_cancelled_step_takes_with_it_what_depends_on_it(runs, work):
    run = runs.create(
        [
            {"tool": "a", "depends_on": []},
            {"tool": "b", "depends_on": [0]},
            {"tool": "c", "depends_on": [1]},
            {"tool": "d", "depends_on": []},
        ]
    )
    runs.decide(run["steps"][0], "cancel")
    assert runs.states(run) == ["cancelled", "cancelled", "cancelled", "pending"]
    work.complete(work.claim_one())
    assert runs.get(run)["state"] == "cancelled"


def test_an_approval_with_other_args(api, runs, work):
    run = runs.create(
        [{"tool": "refund", "args": {"amount": 50}, "requires_approval": True}]
    )
    assert work.claim() == []
    [item] = api.get("/api/v1/approvals").json["items"]
    assert item["step"]["args"] == {"amount": 50}
    step = runs.decide(item["step"], "approve", args={"amount": 5}, reason="too much")
    assert (step["state"], step["args"]) == ("pending", {"amount": 5})
    assert work.claim_one()["args"] == {"amount": 5}
    [event] = [e for e in runs.events(run) if e["type"] == "step.approved"]
    assert event["payload"]["by"].startswith("key:")
    assert event["payload"]["reason"] == "too much"
    assert api.get("/api/v1/approvals").json["items"] == []


def test_a_rejection_fails_the_run(api, runs):
    run = runs.create([{"tool": "refund", "requires_approval": True}])
    runs.decide(run["steps"][0], "reject", reason="no receipt")
    ended = runs.get(run)
    assert ended["state"] == "failed"
    assert ended["steps"][0]["error"] == {"code": "rejected", "message": "no receipt"}
    answer = api.post(f"/api/v1/steps/{run['steps'][0]['id']}/approve", {})
    assert answer.status_code == 409


def test_approving_twice_is_approving(api, runs):
    run = runs.create([{"tool": "refund", "requires_approval": True}])
    path = f"/api/v1/steps/{run['steps'][0]['id']}/approve"
    assert api.post(path, {}).status_code == api.post(path, {}).status_code == 200


def test_an_approved_step_that_is_lost_needs_no_second_approval(runs, work, clock):
    run = runs.create([{"tool": "a", "requires_approval": True}])
    runs.decide(run["steps"][0], "approve")
    work.claim_one()
    clock.advance(seconds=31)
    assert work.claim_one()["attempt"] == 2


def test_an_approval_may_come_too_late(runs, work, clock):
    run = runs.create(
        [{"tool": "a", "requires_approval": True, "approval_timeout_s": 60}]
    )
    clock.advance(seconds=61)
    assert work.claim() == []
    assert runs.get(run)["steps"][0]["error"]["code"] == "approval_timeout"


def test_a_step_waits_for_its_hour(runs, work, clock):
    from agentstate.clock import db_now

    at = db_now().replace(microsecond=0).isoformat()
    run = runs.create([{"tool": "a", "run_after": at.replace("+00:00", "Z")}, "b"])
    assert work.claim_one()["tool"] == "a"
    later = db_now().timestamp() + 3600
    from datetime import UTC, datetime

    text = datetime.fromtimestamp(later, UTC).isoformat()
    runs.move(run, "cancel")
    runs.create([{"tool": "a", "run_after": text}])
    assert work.claim() == []
    clock.advance(seconds=3601)
    [step] = [s for s in work.claim(max=5) if s["run"] != run["id"]]
    assert step["tool"] == "a"


def test_a_sleep_ends_by_itself(runs, work, clock):
    run = runs.create(["a", {"sleep_s": 60}, "b"])
    work.complete(work.claim_one())
    assert runs.get(run)["state"] == "waiting"
    clock.advance(seconds=61)
    assert work.claim_one()["tool"] == "b"
    assert runs.states(run) == ["done", "done", "in_progress"]


@pytest.mark.parametrize("sent", ["before", "while"])
def test_a_signal_reaches_the_step_that_waits_for_it(runs, work, sent):
    run = runs.create(["a", {"signal": {"name": "paid"}}, "b"])
    step = work.claim_one()
    if sent == "before":
        runs.move(run, "signals/paid", payload={"by": "card"})
        work.complete(step)
    else:
        work.complete(step)
        assert runs.get(run)["state"] == "waiting"
        runs.move(run, "signals/paid", payload={"by": "card"})
    assert work.claim_one()["tool"] == "b"
    assert runs.get(run)["steps"][1]["result"] == {"by": "card"}


def test_signals_before_a_chain_of_waits(runs, work):
    run = runs.create([{"signal": {"name": "x"}} for _ in range(300)] + ["a"])
    for n in range(299):
        runs.move(run, "signals/x", payload=n)
    assert work.claim() == []
    runs.move(run, "signals/x", payload="last")
    assert work.claim_one()["tool"] == "a"


def test_a_signal_sent_twice_is_one(api, runs):
    run = runs.create([{"signal": {"name": "x"}}, {"signal": {"name": "x"}}])
    for is_new in (True, False):
        answer = runs.move(run, "signals/x", payload=1, id="s-1")
        assert answer["is_new"] is is_new
    assert runs.states(run) == ["done", "waiting"]
    answer = api.post(
        f"/api/v1/runs/{run['id']}/signals/x", {"payload": 2, "id": "s-1"}
    )
    assert (answer.status_code, answer.json["code"]) == (422, "signal_id_reused")


def test_a_signal_may_come_too_late(runs, work, clock):
    run = runs.create([{"signal": {"name": "x", "timeout_s": 60}}])
    clock.advance(seconds=61)
    assert work.claim() == []
    assert runs.get(run)["state"] == "failed"
    answer = runs.api.post(f"/api/v1/runs/{run['id']}/signals/x", {})
    assert answer.status_code == 409


def test_cancel_reaches_child_runs(runs, work):
    parent = runs.create(["a"])
    step = work.claim_one()
    child = runs.create(["b"], parent_run=parent["id"])
    grandchild = runs.create(["c"], parent_run=child["id"])
    assert grandchild["root_run"] == parent["id"]
    busy = work.claim_one(run=grandchild["id"])
    runs.move(parent, "cancel")
    work.release(step)
    states = [runs.get(r)["state"] for r in (parent, child, grandchild)]
    assert states == ["cancelling", "cancelling", "cancelling"]
    work.release(busy)
    states = [runs.get(r)["state"] for r in (parent, child, grandchild)]
    assert states == ["cancelled", "cancelled", "cancelled"]


def test_a_run_behind_another_of_its_session(runs, work):
    first = runs.create(["a"])
    second = runs.create(["b"], session=first["session"])
    [why] = runs.api.get(f"/api/v1/runs/{second['id']}/why").json["waits"]
    assert (why["for"], why["run"]) == ("run", first["id"])
    step = work.claim_one()
    assert work.claim() == []
    work.complete(step)
    assert work.claim_one()["run"] == second["id"]


def test_a_cancelled_run_in_line_lets_the_others_pass(runs, work):
    first = runs.create(["a"])
    second = runs.create(["b"], session=first["session"])
    third = runs.create(["c"], session=first["session"])
    runs.move(second, "cancel")
    assert work.claim_one()["run"] == first["id"]
    runs.move(first, "cancel")
    assert work.claim() == []
    [lease] = [runs.get(first)["steps"][0]]
    assert lease["state"] == "in_progress"
    runs.decide(lease, "cancel")
    assert work.claim_one()["run"] == third["id"]


def test_a_second_run_is_rejected(api, runs):
    first = runs.create(["a"])
    session = first["session"]
    api.put(f"/api/v1/sessions/{session}/run-policy", {"second_run": "reject"})
    answer = api.post("/api/v1/runs", {"session": session, "steps": [{"tool": "b"}]})
    assert (answer.status_code, answer.json["code"]) == (409, "run_active")
    assert answer.json["active_run"] == first["id"]
    runs.move(first, "cancel")
    runs.create(["b"], session=session)


def test_a_second_run_cancels_the_previous(runs, work):
    first = runs.create(["a"])
    step = work.claim_one()
    second = runs.create(["b"], session=first["session"], second_run="cancel_previous")
    assert runs.get(first)["state"] == "cancelling"
    assert work.claim() == []
    work.release(step)
    assert work.claim_one()["run"] == second["id"]


def test_a_second_run_goes_in_parallel(runs, work):
    first = runs.create(["a"])
    runs.create(["b"], session=first["session"], second_run="parallel")
    assert len(work.claim(max=5)) == 2


def test_the_same_key_is_the_same_run(api, runs):
    run = runs.create(["a"], key="r-1")
    body = {"session": run["session"], "key": "r-1", "steps": [{"tool": "a"}]}
    answer = api.post("/api/v1/runs", body)
    assert (answer.status_code, answer.json["id"]) == (200, run["id"])
    body["steps"] = [{"tool": "b"}]
    answer = api.post("/api/v1/runs", body)
    assert (answer.status_code, answer.json["code"]) == (409, "run_key_taken")


def test_a_session_is_made_by_its_key(api):
    body = {"session_key": "s-1", "agent": "support", "steps": [{"tool": "a"}]}
    first = api.post("/api/v1/runs", body).json
    second = api.post("/api/v1/runs", body).json
    assert first["session"] == second["session"]
    assert first["agent"] == "support"


def test_an_erased_session_takes_its_runs(api, runs, work):
    run = runs.create([{"tool": "a", "depends_on": []}, "b"])
    work.claim_one()
    runs.move(run, "signals/x", payload=1)
    assert api.delete(f"/api/v1/sessions/{run['session']}").status_code in (200, 204)
    assert api.get(f"/api/v1/runs/{run['id']}").status_code == 404
    assert work.claim() == []


def test_what_becomes_a_result_has_its_limit(api, runs, settings):
    settings.STEP_RESULT_MAX_BYTES = 1000
    run = runs.create([{"signal": {"name": "paid"}}])
    url = f"/api/v1/runs/{run['id']}/signals/paid"
    refused = api.post(url, {"payload": "x" * 1000})
    assert error_of(refused) == (413, "result_too_large", "payload")
    assert refused.json["limit_bytes"] == 1000
    assert refused.headers["Content-Type"] == "application/problem+json"
    assert api.post(url, {"payload": "x" * 998}).status_code in (200, 201)
    assert runs.states(run) == ["done"]
