"""Plans: their shape, their limits, their changes."""

import pytest


def create(api, runs, steps, **fields):
    body = {"session": runs.session(), "steps": steps} | fields
    return api.post("/api/v1/runs", body)


def refused(answer):
    assert answer.status_code == 422, answer
    [error] = answer.json["errors"]
    return error["path"], error["code"]


def test_a_diamond_runs_in_parallel_and_joins(runs, work):
    run = runs.create(
        [
            {"name": "start", "tool": "a"},
            {"name": "left", "tool": "b", "depends_on": ["start"]},
            {"name": "right", "tool": "c", "depends_on": [0]},
            {"name": "join", "tool": "d", "depends_on": ["left", "right"]},
        ]
    )
    work.complete(work.claim_one())
    left, right = work.claim(max=5)
    work.complete(left)
    assert work.claim() == []
    work.complete(right)
    assert work.claim_one()["name"] == "join"
    assert runs.get(run)["steps"][3]["depends_on"] == [1, 2]


@pytest.mark.parametrize(
    ("steps", "path", "code"),
    [
        ([{}], "steps[0].tool", "required"),
        ([{"tool": "a", "sleep_s": 1}], "steps[0].tool", "required"),
        ([7], "steps[0]", "not_an_object"),
        ([{"tool": "a", "efect": "once"}], "steps[0].efect", "unknown_field"),
        ([{"tool": "a", "effect": "twice"}], "steps[0].effect", "invalid_choice"),
        (
            [{"tool": "a", "depends_on": [0]}],
            "steps[0].depends_on[0]",
            "unknown_step",
        ),
        (
            [{"tool": "a", "depends_on": ["b"]}],
            "steps[0].depends_on[0]",
            "unknown_step",
        ),
        (
            [{"tool": "a", "depends_on": [9]}],
            "steps[0].depends_on[0]",
            "unknown_step",
        ),
        (
            [{"tool": "a", "name": "x"}, {"tool": "a", "name": "x"}],
            "steps[1].name",
            "duplicate_name",
        ),
        ([{"tool": "a", "timeout_s": -1}], "steps[0].timeout_s", "out_of_range"),
        ([{"tool": "a\0"}], "steps[0].tool", "null_character"),
        ([{"tool": "a", "run_after": "soon"}], "steps[0].run_after", "invalid"),
        ([{"signal": {}}], "steps[0].signal.name", "required"),
    ],
)
def test_a_plan_that_cannot_be_is_refused_with_its_place(api, runs, steps, path, code):
    assert refused(create(api, runs, steps)) == (path, code)
    assert api.get("/api/v1/runs").json["items"] == []


def test_steps_that_wait_for_each_other_are_refused(api, runs):
    steps = [
        {"tool": "a", "depends_on": []},
        {"tool": "b", "depends_on": [2]},
        {"tool": "c", "depends_on": [3]},
        {"tool": "d", "depends_on": [1]},
    ]
    answer = create(api, runs, steps)
    assert refused(answer) == ("steps[1].depends_on", "dependency_cycle")
    assert "1, 2, 3" in answer.json["detail"]


def test_a_plan_of_10000_steps_works(api, runs, work):
    run = create(api, runs, [{"tool": "a"}] * 10_000).json
    assert (run["step_count"], len(run["steps"])) == (10_000, 1000)
    page = api.get(
        f"/api/v1/runs/{run['id']}/steps", params={"cursor": run["steps_next"]}
    ).json
    assert page["items"][0]["index"] == 1000
    step = work.claim_one()
    assert work.complete(step)["ok"]
    assert work.claim_one()["index"] == 1
    assert runs.move(run, "cancel")["state"] == "cancelling"


def test_a_plan_of_a_million_steps_is_refused_with_the_limit(api, runs):
    step = b'{"tool":"a"}'
    body = b'{"session":"%s","steps":[%s]}' % (
        runs.session().encode(),
        b",".join([step] * 1_000_000),
    )
    answer = api.post("/api/v1/runs", data=body)
    assert (answer.status_code, answer.json["code"]) == (413, "plan_too_large")
    assert answer.json["limit"] == 10_000


def test_a_run_may_get_its_plan_later(api, runs, work):
    run = runs.create([])
    assert run["state"] == "queued"
    assert api.get(f"/api/v1/runs/{run['id']}/why").json["waits"][0]["for"] == "plan"
    runs.move(run, "plan", plan_version=1, append=[{"tool": "a"}])
    assert work.complete(work.claim_one())["run_state"] == "succeeded"


def test_steps_are_added_to_the_end(api, runs, work):
    run = runs.create(["a"])
    changed = runs.move(run, "plan", plan_version=1, append=[{"tool": "b"}])
    assert changed["plan_version"] == 2
    assert changed["steps"][1]["depends_on"] == [0]
    work.complete(work.claim_one())
    assert work.claim_one()["tool"] == "b"


def test_the_loser_of_a_race_for_the_plan_is_told(api, runs):
    run = runs.create(["a"])
    path = f"/api/v1/runs/{run['id']}/plan"
    body = {"plan_version": 1, "append": [{"tool": "b"}]}
    assert api.post(path, body).status_code == 200
    answer = api.post(path, body)
    assert (answer.status_code, answer.json["code"]) == (409, "plan_conflict")
    assert answer.json["current_version"] == 2
    assert runs.get(run)["step_count"] == 2


def test_what_is_not_begun_is_replaced(runs, work):
    run = runs.create(["a", "b", {"tool": "c", "requires_approval": True}])
    step = work.claim_one()
    changed = runs.move(
        run, "plan", plan_version=1, replace=[{"tool": "x"}, {"tool": "y"}]
    )
    assert [s["state"] for s in changed["steps"]] == [
        "in_progress",
        "skipped",
        "skipped",
        "pending",
        "pending",
    ]
    assert changed["steps"][3]["depends_on"] == [0]
    work.complete(step)
    x = work.claim_one()
    assert x["tool"] == "x"
    work.complete(x)
    assert work.complete(work.claim_one())["run_state"] == "succeeded"


def test_new_steps_may_depend_on_old_ones_by_name(runs, work):
    run = runs.create([{"tool": "a", "name": "first"}])
    work_step = work.claim_one()
    runs.move(
        run,
        "plan",
        plan_version=1,
        append=[
            {"tool": "b", "depends_on": ["first"]},
            {"tool": "c", "depends_on": []},
        ],
    )
    assert work.claim_one()["tool"] == "c"
    work.complete(work_step)
    assert work.claim_one()["tool"] == "b"


def test_an_ended_run_takes_no_steps(api, runs, work):
    run = runs.create(["a"])
    work.complete(work.claim_one())
    body = {"plan_version": 1, "append": [{"tool": "b"}]}
    answer = api.post(f"/api/v1/runs/{run['id']}/plan", body)
    assert (answer.status_code, answer.json["code"]) == (409, "wrong_state")


def test_bad_runs_are_refused(api, runs):
    assert refused(create(api, runs, [], labels={"a": 1}))
    assert create(api, runs, [], window=0).status_code == 422
    assert create(api, runs, "a").status_code == 422
    answer = api.post("/api/v1/runs", {"steps": []})
    assert refused(answer) == ("session", "required")
    unknown = "0199b2a0-9c02-7b55-8e4f-1a2b3c4d5e6f"
    answer = api.post("/api/v1/runs", {"session": unknown, "steps": []})
    assert (answer.status_code, answer.json["code"]) == (404, "session_not_found")


def test_args_come_back_as_they_were_sent(api, runs, work):
    raw = '{"big":123456789012345678901234567890,"x":1.10,"nul":"a\\u0000b"}'
    body = f'{{"session":"{runs.session()}","steps":[{{"tool":"a","args":{raw}}}]}}'
    assert api.post("/api/v1/runs", data=body.encode()).status_code == 201
    answer = api.post("/api/v1/steps/claim", {"worker": "w"})
    assert raw.encode() in answer.content


def test_another_project_sees_nothing(other_api, runs, work):
    run = runs.create(["a"])
    step = work.claim_one()
    assert other_api.get(f"/api/v1/runs/{run['id']}").status_code == 404
    assert other_api.get(f"/api/v1/steps/{step['step']}").status_code == 404
    assert other_api.post(f"/api/v1/runs/{run['id']}/cancel", {}).status_code == 404
    answer = other_api.post(
        "/api/v1/steps/complete",
        {"items": [{"step": step["step"], "lease_token": step["lease_token"]}]},
    )
    assert answer.json["items"][0]["code"] == "not_found"
    assert other_api.get("/api/v1/runs").json["items"] == []


def test_a_key_bound_to_a_subject_works_on_that_subjects_runs_only(api, runs, make_key):
    from tests.fixtures import Api

    mine = runs.create(["a"], session=runs.session(subject="u-1"))
    other = runs.create(["b"], session=runs.session(subject="u-2"))
    bound = Api(make_key(subject="u-1"))
    assert [r["id"] for r in bound.get("/api/v1/runs").json["items"]] == [mine["id"]]
    assert bound.get(f"/api/v1/runs/{other['id']}").status_code == 404
    assert bound.post(f"/api/v1/runs/{other['id']}/cancel", {}).status_code == 404
    steps = bound.post("/api/v1/steps/claim", {"worker": "w", "max": 9}).json["steps"]
    assert [s["run"] for s in steps] == [mine["id"]]


def test_scopes(runs, make_key):
    from tests.fixtures import Api

    run = runs.create(["a"])
    reader = Api(make_key(scopes=["runs:read"]))
    worker = Api(make_key(scopes=["runs:work"]))
    assert reader.get(f"/api/v1/runs/{run['id']}").status_code == 200
    assert reader.post("/api/v1/steps/claim", {"worker": "w"}).status_code == 403
    assert reader.post(f"/api/v1/runs/{run['id']}/cancel", {}).status_code == 403
    assert worker.post("/api/v1/steps/claim", {"worker": "w"}).status_code == 200
    assert worker.get(f"/api/v1/runs/{run['id']}").status_code == 403
