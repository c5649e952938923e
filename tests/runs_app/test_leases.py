"""Leases are fenced; who lost one changes nothing."""

import json
from uuid import UUID

import pytest
from django.db import connection

from tests.runs_app.conftest import held


@pytest.fixture
def step(runs, work):
    runs.create(["a"])
    return work.claim_one(lease_s=30)


def test_a_lease_that_ended_is_claimed_again_with_the_same_key(work, step, clock):
    clock.advance(seconds=31)
    again = work.claim_one()
    assert again["step"] == step["step"]
    assert again["lease_token"] > step["lease_token"]
    assert again["idempotency_key"] == step["idempotency_key"]
    assert (again["attempt"], again["lost"], again["failures"]) == (2, 1, 0)
    assert again["previous"] == "unknown"


@pytest.mark.parametrize("call", ["heartbeat", "complete", "fail", "release"])
def test_01_and_02_a_frozen_worker_is_refused_everything(runs, work, step, clock, call):
    clock.advance(seconds=31)
    again = work.claim_one(worker="w-1")  # the same name
    [item] = work.end(
        call,
        {"step": step["step"], "lease_token": step["lease_token"]}
        | ({"error": {"code": "x"}} if call == "fail" else {}),
    )
    assert (item["ok"], item["status"], item["code"]) == (False, 409, "lease_lost")
    assert work.complete(again, "mine")["ok"]
    shown = runs.get(again["run"])["steps"][0]
    assert (shown["state"], shown["result"]) == ("done", "mine")


def test_st_03_a_late_result_is_kept_and_changes_nothing(runs, work, step, clock):
    clock.advance(seconds=31)
    again = work.claim_one(worker="w-2")
    work.complete(again, "in time")
    late = {"report": "42 pages", "artifact": "a-7"}
    before = runs.events(again["run"])
    assert work.complete(step, late)["code"] == "lease_lost"
    assert runs.events(again["run"]) == before
    answer = runs.api.get(f"/api/v1/runs/{step['run']}/rejected-completions")
    [kept] = answer.json["items"]
    assert (kept["body"], kept["worker"], kept["lease_token"], kept["code"]) == (
        late,
        "w-1",
        step["lease_token"],
        "lease_lost",
    )


def test_st_04_each_refusal_has_its_code(api, runs, work, step, clock, anonymous):
    unknown = step | {"step": "0199b2a0-9c02-7b55-8e4f-1a2b3c4d5e6f"}
    assert work.complete(unknown)["code"] == "not_found"
    assert work.beat(unknown)["code"] == "not_found"
    work.complete(step, 1)
    assert work.complete(step, 2)["code"] == "already_finished"
    assert work.beat(step)["code"] == "already_finished"

    run = runs.create(["b"])
    other = work.claim_one()
    runs.decide(other, "cancel")
    assert runs.get(run)["state"] == "cancelled"
    for item in (work.complete(other), work.beat(other)):
        assert (item["code"], item["status"]) == ("cancelled", 409)

    runs.create(["c"])
    lost = work.claim_one()
    clock.advance(seconds=31)
    assert work.claim_one()["step"] == lost["step"]
    assert work.complete(lost)["code"] == work.beat(lost)["code"] == "lease_lost"

    for call in ("complete", "heartbeat"):
        answer = anonymous.post(f"/api/v1/steps/{call}", {"items": []})
        assert (answer.status_code, answer.json["code"]) == (401, "unauthenticated")


def test_st_06_and_13_the_first_result_stays(runs, work, step):
    assert work.complete(step, {"total": 10, "n": 1})["ok"]
    assert work.complete(step, {"n": 1, "total": 10})["ok"]
    refused = work.complete(step, {"total": 12})
    assert (refused["status"], refused["code"]) == (409, "already_finished")
    assert runs.get(step["run"])["steps"][0]["result"] == {"total": 10, "n": 1}
    done = [e for e in runs.events(step["run"]) if e["type"] == "step.done"]
    assert len(done) == 1


def test_st_14_liveness_hangs_on_the_token_not_on_the_name(work, step, clock):
    clock.advance(seconds=20)
    wrong = step | {"lease_token": step["lease_token"] + (1 << 20)}
    assert work.beat(wrong)["code"] == "lease_lost"
    clock.advance(seconds=11)
    assert work.claim_one(worker="w-1")["step"] == step["step"]


def test_the_token_of_another_step_is_not_taken(runs, work, step):
    runs.create(["b"])
    other = work.claim_one()
    mixed = step | {"lease_token": other["lease_token"]}
    assert work.complete(mixed)["code"] == "lease_lost"
    assert work.complete(step)["ok"]


def test_heartbeats_keep_a_lease(work, step, clock):
    for _ in range(5):
        clock.advance(seconds=20)
        assert work.beat(step)["ok"]
        assert work.claim() == []
    assert work.complete(step)["ok"]


def test_heartbeats_write_no_event(runs, work, step):
    before = len(runs.events(step["run"]))
    work.beat(step)
    assert len(runs.events(step["run"])) == before


def test_own_12_the_clock_jumps_forward(runs, work, clock):
    run = runs.create([{"tool": "a", "depends_on": []} for _ in range(10)])
    steps = work.claim(max=10)
    clock.advance(seconds=3600)
    again = work.claim(max=10)
    assert {s["step"] for s in again} == {s["step"] for s in steps}
    assert {work.complete(s)["code"] for s in steps} == {"lease_lost"}
    assert all(work.complete(s)["ok"] for s in again)
    assert runs.get(run)["state"] == "succeeded"


def test_own_12_the_clock_jumps_back(runs, work, clock, project):
    from runs_app.sweeps import sweep

    run = runs.create([{"tool": "a", "depends_on": []} for _ in range(10)])
    work.claim(max=10)
    clock.advance(seconds=-3600)
    sweep(project.id)
    clock.advance(seconds=31)
    assert len(work.claim(max=10)) == 10  # no lease lived longer than twice its length
    runs.move(run, "cancel")


def test_a_step_that_kills_its_workers_runs_out(runs, work, clock):
    run = runs.create([{"tool": "a", "retry": {"max_lost": 3}}])
    for attempt in (1, 2, 3):
        assert work.claim_one()["attempt"] == attempt
        clock.advance(seconds=31)
    assert work.claim() == []
    ended = runs.get(run)
    assert (ended["state"], ended["steps"][0]["lost"]) == ("failed", 3)
    assert ended["steps"][0]["failures"] == 0


def test_09_a_release_counts_nothing(runs, work, step):
    for attempt in (2, 3, 4):
        assert work.release(step)["state"] == "pending"
        step = work.claim_one()
        assert step["attempt"] == attempt
        assert (step["failures"], step["lost"], step["previous"]) == (0, 0, None)


def test_a_release_may_ask_for_a_delay(work, step, clock):
    assert work.release(step, delay_s=60)["state"] == "waiting"
    assert work.claim() == []
    clock.advance(seconds=61)
    assert work.claim_one()["step"] == step["step"]


def test_attempts_are_listed_with_how_they_ended(runs, work, step, clock):
    clock.advance(seconds=31)
    work.fail(work.claim_one(), "busy", retry_after_s=0)
    work.complete(work.claim_one())
    answer = runs.api.get(f"/api/v1/steps/{step['step']}/attempts")
    assert [a["outcome"] for a in answer.json["items"]] == ["lost", "failed", "done"]


def test_one_bad_item_fails_alone(runs, work, step):
    answer = runs.api.post(
        "/api/v1/steps/complete",
        {
            "items": [
                {"step": step["step"]},
                {"step": "x", "lease_token": 1},
                7,
                {"step": step["step"], "lease_token": step["lease_token"]},
                {"step": step["step"], "lease_token": step["lease_token"]},
            ]
        },
    )
    codes = [item["code"] for item in answer.json["items"]]
    assert codes == ["required", "invalid_uuid", "not_an_object", None, "duplicate"]


def test_st_18_a_result_with_u0000_comes_back_equal(api, runs, work, step):
    raw = body_with(step, '{"text":"ok\\u0000"}')
    answer = api.post("/api/v1/steps/complete", data=raw.encode())
    assert answer.json["items"][0]["ok"]
    shown = runs.get(step["run"])
    assert (shown["state"], shown["steps"][0]["result"]) == (
        "succeeded",
        {"text": "ok\0"},
    )


def test_a_result_that_cannot_be_kept_leaves_the_step_claimed(api, work, step):
    raw = body_with(step, '"\\ud800"')
    assert api.post("/api/v1/steps/complete", data=raw.encode()).status_code == 422
    assert work.complete(step, "clean")["ok"]


def test_st_21_a_result_of_30_mb_is_refused_with_the_limit(runs, work, step):
    refused = work.complete(step, "x" * 30_000_000)
    assert (refused["status"], refused["code"]) == (413, "result_too_large")
    assert "1048576" in refused["detail"] and "artifact" in refused["detail"]
    assert work.complete(step, {"artifact": "a-1"})["run_state"] == "succeeded"


def test_complete_may_claim_the_next(runs, work, step):
    run = runs.create(["b"])
    answer = runs.api.post(
        "/api/v1/steps/complete",
        {
            "items": [{"step": step["step"], "lease_token": step["lease_token"]}],
            "claim_next": {"worker": "w-1"},
        },
    )
    [following] = answer.json["steps"]
    assert following["run"] == run["id"]


def complete_and_claim(api, *steps, **wanted):
    items = [held(step) | {"result": step["index"]} for step in steps]
    body = {"items": items, "claim_next": {"worker": "w-1"} | wanted}
    return api.post("/api/v1/steps/complete", body).json


def test_a_run_is_gone_through_by_completions_that_claim(api, runs, work):
    run = runs.create(["a", "b", "c"])
    step = work.claim_one()
    for tool in ("b", "c"):
        [step] = complete_and_claim(api, step)["steps"]
        assert step["tool"] == tool
    answer = complete_and_claim(api, step)
    assert (answer["items"][0]["run_state"], answer["steps"]) == ("succeeded", [])
    assert [s["result"] for s in runs.get(run)["steps"]] == [0, 1, 2]
    assert [e["type"] for e in runs.events(run)][1:] == [
        "run.started",
        *["step.started", "step.done"] * 3,
        "run.succeeded",
    ]


def test_a_completion_claims_what_it_made_ready_elsewhere(api, runs, work):
    """A limit's slot, and the run that stood in line: both follow from the end."""
    api.put("/api/v1/limits/shop", {"max_concurrent": 1})
    first = runs.create([{"tool": "a", "concurrency_key": "shop"}])
    runs.create([{"tool": "b", "concurrency_key": "shop"}])
    runs.create(["c"], session=first["session"])
    step = work.claim_one()
    [second, third] = complete_and_claim(api, step, max=5)["steps"]
    assert {second["tool"], third["tool"]} == {"b", "c"}


def test_a_list_over_runs_ends_what_it_can_and_claims_by_priority(api, runs, work):
    """Some are followed by others, one was completed before, one is another's."""
    join = {"tool": "join", "depends_on": [0, 1, 2]}
    fan = [{"tool": "a", "depends_on": []} for _ in range(3)]
    one, two = runs.create([*fan, join]), runs.create([*fan, join])
    urgent = runs.create([{"tool": "z"}], priority=5)
    steps = work.claim(max=6, tools=["a"])
    assert work.complete(steps[1], steps[1]["index"])["ok"]
    stale = steps[4] | {"lease_token": steps[4]["lease_token"] + (1 << 20)}
    said = [steps[5], steps[0], stale, steps[3], steps[2], steps[1]]
    answer = complete_and_claim(api, *said, max=9)
    assert [item["code"] for item in answer["items"]] == [
        *[None, None, "lease_lost", None, None, None]
    ]
    assert [item["state"] for item in answer["items"]] == [
        *["done", "done", "in_progress", "done", "done", "done"]
    ]
    assert [item["step"] for item in answer["items"]] == [s["step"] for s in said]
    assert [s["tool"] for s in answer["steps"]] == ["z", "join"]
    assert [s["run"] for s in answer["steps"]] == [urgent["id"], one["id"]]
    assert runs.states(two) == ["done", "in_progress", "done", "pending"]


@pytest.mark.parametrize("first_frees", ["a slot", "its parent"])
def test_a_list_keeps_what_it_ends_after_a_run_that_is_followed_up(
    api, runs, work, first_frees
):
    """What has ended is followed up before a claim; the runs after it are written."""
    if first_frees == "a slot":
        api.put("/api/v1/limits/shop", {"max_concurrent": 1})
        runs.create([{"tool": "a", "concurrency_key": "shop"}, "other"])
    else:
        parent = runs.create(["other"])
        runs.create(["a"], parent_run=parent["id"])
    last = runs.create(["a", "other"])
    said = work.claim(max=2, tools=["a"])
    assert said[-1]["run"] == last["id"]
    answer = complete_and_claim(api, *said, tools=["other"], max=9)
    assert [item["ok"] for item in answer["items"]] == [True, True]
    assert last["id"] in [step["run"] for step in answer["steps"]]
    assert runs.get(last)["steps"][0]["result"] == 0
    assert [e["type"] for e in runs.events(last)][1:] == [
        *["run.started", "step.started", "step.done", "step.started"]
    ]


def test_a_server_of_the_version_before_goes_on(runs, work, project):
    """It calls by name functions that are no longer what does the work."""
    run = runs.create(["a", "b"])
    claim = (
        "SELECT claimed::text[], skipped, parents, limits FROM agentstate_claim_steps("
        "%s, 'w', 1, 30, NULL, NULL, NULL, 'system', NULL, NULL)"
    )
    complete = (
        "SELECT * FROM agentstate_end_attempts(%s, 'complete', %s::uuid[],"
        " %s::bigint[], '{1}', ARRAY[sha256('1')], NULL, NULL, NULL, NULL, NULL, NULL,"
        " 'w', 'system', NULL, NULL)"
    )
    with connection.cursor() as cursor:
        for run_state in ("running", "succeeded"):
            cursor.execute(claim, [project.id])
            [[claimed], *rest] = cursor.fetchone()
            step = json.loads(claimed)
            assert rest == [0, [], []]
            given = [project.id, [step["step"]], [step["lease_token"]]]
            cursor.execute(complete, given)
            ended = (["ok"], ["done"], [UUID(run["id"])], [run_state], [], [])
            assert cursor.fetchone() == ended
        cursor.execute(claim, [project.id])
        assert cursor.fetchone() == ([], 0, [], [])
        cursor.execute(complete, [given[0], [str(project.id)], [1]])
        assert cursor.fetchone()[:2] == (["not_found"], [None])


@pytest.mark.parametrize("lease_s", [0.1, 86400])
def test_own_11_the_shortest_and_the_longest_lease(runs, work, lease_s):
    runs.create(["a"])
    assert float(work.claim_one(lease_s=lease_s)["lease_s"]) == lease_s


@pytest.mark.parametrize("lease_s", [0, -1, 1e12, "30", None, True])
def test_own_11_odd_leases_are_refused(api, lease_s):
    answer = api.post("/api/v1/steps/claim", {"worker": "w", "lease_s": lease_s})
    if lease_s is None:
        assert answer.status_code == 200
    else:
        assert (answer.status_code, answer.json["errors"][0]["path"]) == (
            422,
            "lease_s",
        )


def body_with(step, result):
    """A completion whose result is written as it stands."""
    item = f'"step":"{step["step"]}","lease_token":{step["lease_token"]}'
    return f'{{"items":[{{{item},"result":{result}}}]}}'
