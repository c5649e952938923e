"""Working memory of a run: a scope of its own that ends with the run."""

from uuid import UUID

import pytest

from agentstate.processes import wait_until
from runs_app.working_memory import REGISTER, expire_ended_runs, expire_run
from tests.fixtures import Api


@pytest.fixture
def session(api):
    return api.post("/api/v1/sessions", {}).json["id"]


def new_run(api, session):
    body = {"session": session, "steps": [{"tool": "t"}], "second_run": "parallel"}
    return api.post("/api/v1/runs", body).json["id"]


@pytest.fixture
def run(api, session):
    return new_run(api, session)


def path(run, key=""):
    return f"/api/v1/runs/{run}/working-memory" + (f"/{key}" if key else "")


def code(answer):
    return answer.status_code, answer.json["code"]


def entries(redis, run):
    return list(redis.scan_iter(match=f"*{run}*:entry:*", count=1000))


def test_a_run_has_a_memory_of_its_own(api, session, run):
    other = new_run(api, session)
    assert api.put(path(run, "k"), {"value": 1}).status_code == 201
    assert api.get(path(run, "k")).json["value"] == 1
    assert code(api.get(path(other, "k"))) == (404, "entry_not_found")
    of_session = f"/api/v1/sessions/{session}/working-memory/k"
    assert code(api.get(of_session)) == (404, "entry_not_found")
    assert api.post(path(run, "n/increment"), {}).json["value"] == 1
    assert api.post(path(run, "l/append"), {"item": 1}).json["length"] == 1
    keys = [item["key"] for item in api.get(path(run)).json["items"]]
    assert keys == ["k", "l", "n"]


def test_every_key_of_a_run_ends(api, run, redis):
    api.put(path(run, "k"), {"value": 1}, headers={"Idempotency-Key": "a"})
    found = list(redis.scan_iter(match="agentstate:wm:*", count=1000))
    assert REGISTER.encode() in found
    assert [key for key in found if redis.ttl(key) == -1] == []


def test_an_ended_run_shows_and_takes_nothing(api, run):
    api.put(path(run, "k"), {"value": "sentinel"})
    api.post(f"/api/v1/runs/{run}/cancel", {})
    assert code(api.get(path(run, "k"))) == (404, "entry_not_found")
    assert api.get(path(run)).json == {"items": [], "next": None}
    assert code(api.put(path(run, "k"), {"value": 1})) == (409, "wrong_state")
    assert code(api.delete(path(run, "k"))) == (409, "wrong_state")


def test_the_sweep_deletes_what_ended_runs_hold(api, session, run, redis):
    going_on = new_run(api, session)
    for each in (run, going_on):
        api.put(path(each, "k"), {"value": "sentinel"})
    api.post(f"/api/v1/runs/{run}/cancel", {})
    assert expire_ended_runs() >= 1
    assert entries(redis, run) == []
    assert len(entries(redis, going_on)) == 1
    assert api.get(path(going_on, "k")).json["value"] == "sentinel"
    assert not any(run.encode() in m for m in redis.zrange(REGISTER, 0, -1))


def test_expire_run_leaves_a_run_that_goes_on(api, project, run, redis):
    api.put(path(run, "k"), {"value": 1})
    assert expire_run(project.id, UUID(run)) == 0
    assert len(entries(redis, run)) == 1


def test_a_retried_run_may_write_again(api, session, project):
    body = {"session": session, "steps": [{"tool": "t"}]}
    run = api.post("/api/v1/runs", body).json["id"]
    api.put(path(run, "k"), {"value": 1})
    [step] = api.post("/api/v1/steps/claim", {"worker": "w", "run": run}).json["steps"]
    failed = {
        "step": step["step"],
        "lease_token": step["lease_token"],
        "error": {"code": "x"},
        "retryable": False,
    }
    api.post("/api/v1/steps/fail", {"items": [failed]})
    assert expire_run(project.id, UUID(run)) == 1
    api.post(f"/api/v1/runs/{run}/retry", {})
    assert code(api.get(path(run, "k"))) == (404, "entry_not_found")
    assert api.put(path(run, "k"), {"value": 2}).status_code == 201


def test_erasing_the_session_takes_the_memory_of_its_runs(api, session, run, redis):
    api.put(path(run, "k"), {"value": "sentinel"})
    api.put(f"/api/v1/sessions/{session}/working-memory/k", {"value": "sentinel"})
    assert api.delete(f"/api/v1/sessions/{session}").status_code == 204
    assert wait_until(lambda: not entries(redis, run), 60)
    left = redis.scan_iter(match=f"*{session}*", count=1000)
    assert [key for key in left if b":entry:" in key or b":names" in key] == []
    assert code(api.get(path(run, "k"))) == (404, "run_not_found")


def test_closing_the_session_leaves_the_memory_of_a_run_that_goes_on(api, session, run):
    api.put(path(run, "k"), {"value": 1})
    api.post(f"/api/v1/sessions/{session}/close", {})
    assert api.get(path(run, "k")).json["value"] == 1


def test_scopes_and_bindings(api, session, run, make_key, other_api):
    worker, reader = Api(make_key(["runs:work"])), Api(make_key(["runs:read"]))
    assert worker.put(path(run, "k"), {"value": 1}).status_code == 201
    assert code(worker.get(path(run, "k"))) == (403, "missing_scope")
    assert reader.get(path(run, "k")).json["value"] == 1
    assert code(reader.delete(path(run, "k"))) == (403, "missing_scope")
    assert code(other_api.get(path(run, "k"))) == (404, "run_not_found")
    bound = Api(make_key(session_id=UUID(session)))
    assert bound.get(path(run, "k")).json["value"] == 1
    elsewhere = api.post("/api/v1/sessions", {}).json["id"]
    stranger = Api(make_key(session_id=UUID(elsewhere)))
    assert code(stranger.get(path(run, "k"))) == (404, "run_not_found")
