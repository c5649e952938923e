"""How handoffs end, on whichever side something ends first."""

from uuid import UUID

import pytest

from access_app.models import ApiKey
from runs_app.services import move_step
from runs_app.settling import cancel_orphans, settle_handoffs
from sessions_app.models import Session
from sessions_app.projection import differences_of
from tests.context_app.handoffs import (
    HANDOFFS,
    RUNS,
    accept,
    child,
    make_own,
    make_run,
    move,
    offer,
    run_state,
    step_of,
)
from tests.factories import error_of, make_session

STEPS = "/api/v1/steps"


def claim(api, run_id):
    body = {"worker": "w", "run": run_id}
    [step] = api.post(f"{STEPS}/claim", body).json["steps"]
    return {"step": step["step"], "lease_token": step["lease_token"]}


def fail(api, item):
    error = {"error": {"code": "broken"}, "retryable": False}
    [answer] = api.post(f"{STEPS}/fail", {"items": [item | error]}).json["items"]
    assert answer["ok"], answer
    return answer


def read(session, made):
    return session.api.get(f"{HANDOFFS}/{made['id']}").json


@pytest.fixture
def deep(triage):
    """A handoff with another below it: (the first, the second)."""
    first = offer(triage)
    accept(first)
    own = make_own(first)
    own.run = first["child_run"]
    return first, offer(own, agent="archive")


def test_a_parent_that_fails_stops_all_below_it(triage, deep):
    first, second = deep
    assert fail(triage.api, claim(triage.api, triage.run))["run_state"] == "failed"
    for made in deep:
        assert run_state(triage, made["child_run"]) == "cancelled"
        assert read(triage, made)["status"] == "cancelled"
    late = move(triage.api, first, "result", summary="late")
    assert error_of(late)[:2] == (409, "handoff_ended")


def test_its_key_ends_with_it(triage):
    made = offer(triage)
    fail(triage.api, claim(triage.api, triage.run))
    stopped = triage.api.get("/api/v1/keys").json["items"]
    [key] = [k for k in stopped if k["name"] == "handoff to billing"]
    assert key["revoked_at"] is not None
    assert read(triage, made)["reason"].startswith("the run that handed it over")


def test_the_sweep_stops_what_a_dead_process_left(triage, deep):
    first, _ = deep
    step = step_of(triage, first)
    move_step(project_of(triage), step["id"], "give_up", actor="x", reason="no")
    assert settle_handoffs(project_of(triage)) == 1
    assert read(triage, first)["status"] == "cancelled"
    assert run_state(triage, first["child_run"]) == "cancelled"


def project_of(session):
    return Session.objects.get(id=session.id).project_id


def test_a_child_run_without_a_handoff_ends_with_its_failed_parent(api):
    session = make_session(api)
    session.run = make_run(session, [{"tool": "a"}, {"tool": "b"}])
    below = make_run(session, parent_run=session.run)
    item = claim(api, session.run)
    fail(api, item)
    assert run_state(session, below) == "cancelled"


def test_the_sweep_finds_children_of_failed_runs(api):
    session = make_session(api)
    session.run = make_run(session, [{"tool": "a", "requires_approval": True}])
    below = make_run(session, parent_run=session.run)
    [step] = api.get(f"{RUNS}/{session.run}/steps").json["items"]
    move_step(project_of(session), step["id"], "reject", actor="x", reason="no")
    assert run_state(session) == "failed"
    assert cancel_orphans(project_of(session)) == 1
    assert run_state(session, below) == "cancelled"
    assert cancel_orphans(project_of(session)) == 0


def test_a_child_whose_giver_is_erased_is_cancelled_and_its_key_ends(triage):
    made, other = offer(triage), offer(triage)
    accept(made)
    project = project_of(triage)
    beside = make_session(triage.api)
    below = make_run(beside, parent_run=triage.run)
    deep = make_own(made)
    deep.run = made["child_run"]
    deeper = offer(deep)
    assert triage.api.delete(triage.url).status_code == 204
    while cancel_orphans(project) + settle_handoffs(project):
        pass
    for handed in (made, other, deeper):
        assert run_state(triage, handed["child_run"]) == "cancelled"
        key = ApiKey.objects.get(session_id=handed["child_session"])
        assert key.is_revoked
    assert run_state(triage, below) == "cancelled"  # though nobody waited for it
    assert list(differences_of(project, UUID(made["child_session"]))) == []


def test_a_child_that_fails_fails_the_step_that_waits(triage):
    made = offer(triage)
    accept(made)
    plan = {"plan_version": 1, "append": [{"tool": "t", "depends_on": []}]}
    child(made).post(f"{RUNS}/{made['child_run']}/plan", plan)
    fail(child(made), claim(child(made), made["child_run"]))
    told = read(triage, made)
    assert (told["status"], told["reason"]) == ("failed", "step 1 failed")
    step = step_of(triage, made)
    assert (step["state"], step["error"]["code"]) == ("failed", "handoff_failed")


def test_a_child_over_its_limit_is_stopped(triage):
    made = offer(triage, constraints={"max_tool_calls": 1})
    accept(made)
    plan = {
        "plan_version": 1,
        "append": [{"tool": "t", "depends_on": []} for _ in range(2)],
    }
    child(made).post(f"{RUNS}/{made['child_run']}/plan", plan)
    item = claim(child(made), made["child_run"])
    child(made).post(f"{STEPS}/complete", {"items": [item | {"result": 1}]})
    body = {"worker": "w", "run": made["child_run"]}
    assert child(made).post(f"{STEPS}/claim", body).json["steps"] == []
    told = read(triage, made)
    assert told["status"] == "failed"
    assert "max_tool_calls" in told["reason"]


def test_a_plan_without_the_step_takes_the_handoff_back(triage):
    made = offer(triage)
    accept(made)
    version = triage.api.get(f"{RUNS}/{triage.run}").json["plan_version"]
    plan = {"plan_version": version, "replace": [{"tool": "other"}]}
    assert triage.api.post(f"{RUNS}/{triage.run}/plan", plan).status_code == 200
    assert read(triage, made)["status"] == "cancelled"
    assert run_state(triage, made["child_run"]) == "cancelled"
    assert run_state(triage) not in ("failed", "cancelled")


@pytest.mark.parametrize("how", ["declined", "expired", "failed"])
def test_a_run_may_go_on_when_nothing_comes_of_it(triage, clock, how):
    made = offer(triage, constraints={"timeout_s": 60}, on_failure="skip")
    accept(made)
    if how == "declined":
        move(child(made), made, "decline", reason="not mine")
    elif how == "expired":
        clock.advance(seconds=61)
    else:
        triage.api.post(f"{RUNS}/{made['child_run']}/cancel", {})
    assert read(triage, made)["status"] == ("cancelled" if how == "failed" else how)
    assert step_of(triage, made)["state"] == "skipped"
    assert run_state(triage) not in ("failed", "cancelled")
    again = offer(triage, agent="another")
    accept(again, by="another-1")
    assert move(child(again), again, "result", summary="Done").status_code == 200
    assert step_of(triage, again)["state"] == "done"


def test_a_child_is_given_no_more_than_its_parent_has_left(api):
    session = make_session(api)
    session.run = make_run(session, budget={"max_tool_calls": 3, "max_tokens": 100})
    item = claim(api, session.run)
    done = item | {"result": 1, "usage": {"tokens": 30}}
    version = api.get(f"{RUNS}/{session.run}").json["plan_version"]
    more = {"plan_version": version, "append": [{"tool": "t"}]}
    api.post(f"{RUNS}/{session.run}/plan", more)
    api.post(f"{STEPS}/complete", {"items": [done]})
    url = f"{RUNS}/{session.run}/handoffs"
    body = {"agent": "b", "task": "t", "constraints": {"max_tool_calls": 3}}
    answer = api.post(url, body)
    assert error_of(answer) == (422, "invalid", "constraints.max_tool_calls")
    first = offer(session, constraints={"max_tool_calls": 1})
    assert accept(first)["bundle"]["limits"] == {"max_tool_calls": 1, "max_tokens": 70}
    answer = api.post(url, {"agent": "b", "task": "t"})
    assert error_of(answer) == (422, "invalid", "constraints.max_tokens")
    second = offer(session, constraints={"max_tokens": 0})
    assert second["constraints"] == {"max_tool_calls": 1, "max_tokens": 0}


def test_a_retried_run_waits_until_its_ended_handoff_is_skipped(triage):
    made = offer(triage)
    move(child(made), made, "decline", reason="not mine")
    assert run_state(triage) == "failed"
    assert triage.api.post(f"{RUNS}/{triage.run}/retry", {}).status_code == 200
    step = step_of(triage, made)
    assert step["state"] == "waiting"
    skipped = triage.api.post(f"{STEPS}/{step['id']}/skip", {"reason": "declined"})
    assert skipped.json["state"] == "skipped"
