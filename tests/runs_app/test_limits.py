"""Budgets, concurrency keys, rates, windows, priorities."""


def fan(count, **fields):
    return [{"tool": "a", "depends_on": []} | fields for _ in range(count)]


def test_a_limit_is_applied_before_a_step_is_ready(api, runs, work):
    api.put("/api/v1/limits/shop", {"max_concurrent": 2})
    run = runs.create(fan(5, concurrency_key="shop"))
    steps = work.claim(max=10)
    assert len(steps) == 2
    assert work.claim(max=10) == []
    waits = api.get(f"/api/v1/runs/{run['id']}/why").json["waits"]
    assert [w["for"] for w in waits].count("limit") == 3
    assert api.get("/api/v1/limits/shop").json["in_use"] == 2
    work.complete(steps[0])
    assert len(work.claim(max=10)) == 1
    api.delete("/api/v1/limits/shop")
    assert len(work.claim(max=10)) == 2


def test_23_the_slot_of_a_frozen_holder_is_freed_once(api, runs, work, clock, project):
    from runs_app.sweeps import sweep

    api.put("/api/v1/limits/one", {"max_concurrent": 1})
    runs.create(fan(1, concurrency_key="one"))
    frozen = work.claim_one()
    runs.create(fan(1, concurrency_key="one"))
    assert work.claim(max=5) == []
    clock.advance(seconds=31)
    sweep(project.id)
    [holder] = work.claim(max=5)
    assert work.complete(frozen)["code"] == "lease_lost"
    assert work.claim(max=5) == []
    assert api.get("/api/v1/limits/one").json["in_use"] == 1
    work.complete(holder)
    [last] = work.claim(max=5)
    work.complete(last)
    assert api.get("/api/v1/limits/one").json["in_use"] == 0


def test_a_rate_lets_so_many_begin_in_a_time(api, runs, work, clock, project):
    from runs_app.sweeps import sweep

    api.put("/api/v1/limits/slow", {"rate": 2, "per_s": 60})
    run = runs.create(fan(5, concurrency_key="slow"))
    assert len(work.claim(max=10)) == 2
    clock.advance(seconds=31)
    sweep(project.id)
    assert len(work.claim(max=10)) == 1
    clock.advance(seconds=61)
    sweep(project.id)
    assert len(work.claim(max=10, lease_s=600)) > 0
    runs.move(run, "cancel")


def test_a_key_without_a_limit_holds_nothing_back(runs, work):
    runs.create(fan(3, concurrency_key="free"))
    assert len(work.claim(max=10)) == 3


def test_a_paused_run_gives_its_slots_to_others(api, runs, work):
    api.put("/api/v1/limits/shop", {"max_concurrent": 1})
    first = runs.create(fan(1, concurrency_key="shop"))
    second = runs.create(fan(1, concurrency_key="shop"))
    runs.move(first, "pause")
    [step] = work.claim(max=5)
    assert step["run"] == second["id"]
    runs.move(first, "resume")
    assert work.claim(max=5) == []
    work.complete(step)
    assert work.claim_one()["run"] == first["id"]


def test_27_a_huge_run_does_not_starve_small_ones(runs, work):
    runs.create(fan(2000), window=10)
    small = [runs.create(["a"])["id"] for _ in range(20)]
    claimed = [work.claim_one()["run"] for _ in range(60)]
    assert set(small) <= set(claimed)


def test_priority_goes_before_age(runs, work):
    runs.create(["low"])
    runs.create(["high"], priority=5)
    runs.create(["mid", "x"], priority=1)
    assert [s["tool"] for s in work.claim(max=3)] == ["high", "mid", "low"]


def test_the_priority_of_a_step(runs, work):
    runs.create([{"tool": "a", "depends_on": []}, {"tool": "b", "depends_on": []}])
    runs.create([{"tool": "c", "priority": 9}])
    assert [s["tool"] for s in work.claim(max=3)] == ["c", "a", "b"]


def test_a_worker_asks_for_its_tools_its_agents_or_a_run(runs, work):
    one = runs.create(fan(1, tool="a") + fan(1, tool="b"), agent="x")
    two = runs.create(fan(1, tool="a") + fan(1, tool="c"), agent="y")
    assert work.claim(tools=["none"]) == work.claim(agents=["none"]) == []
    assert work.claim(tools=[]) == []
    [b, c] = work.claim(tools=["c", "b"], max=5)
    assert (b["tool"], c["tool"]) == ("b", "c")
    [y] = work.claim(agents=["y"], max=5)
    assert (y["run"], y["agent"]) == (two["id"], "y")
    assert work.claim(run=two["id"]) == []
    assert work.claim_one(run=one["id"], tools=["a"], agents=["x"])


def test_max_tool_calls(runs, work):
    run = runs.create(["a", "b", "c"], budget={"max_tool_calls": 2})
    work.complete(work.claim_one())
    work.complete(work.claim_one())
    assert work.claim() == []
    ended = runs.get(run)
    assert ended["state"] == "failed"
    assert ended["error"]["budget"] == "max_tool_calls"
    assert "2" in ended["error"]["message"]
    assert ended["budget"]["tool_calls"] == 2


def test_tokens_and_money(runs, work):
    for budget, usage in (
        ({"max_tokens": 100}, {"tokens": 120}),
        ({"max_cost": 0.5}, {"cost": 0.75}),
    ):
        run = runs.create(["a", "b"], budget=budget)
        step = work.claim_one()
        [item] = work.end(
            "complete",
            {
                "step": step["step"],
                "lease_token": step["lease_token"],
                "usage": usage,
            },
        )
        assert item["ok"]
        assert work.claim() == []
        assert runs.get(run)["error"]["code"] == "budget_exceeded"


def test_a_tool_that_is_not_allowed_is_refused_with_the_plan(api, runs):
    body = {
        "session": runs.session(),
        "steps": [{"tool": "a"}, {"tool": "rm"}],
        "budget": {"tool_allowlist": ["a"]},
    }
    answer = api.post("/api/v1/runs", body)
    assert answer.json["errors"][0] == {
        "path": "steps[1].tool",
        "code": "tool_not_allowed",
        "detail": "is not in the run's tool_allowlist",
    }


def test_the_deadline_ends_a_run(runs, work, clock):
    run = runs.create(fan(3), budget={"deadline_s": 60})
    step = work.claim_one(lease_s=600)
    clock.advance(seconds=61)
    assert work.claim() == []
    assert work.claim() == []
    ended = runs.get(run)
    assert (ended["state"], ended["error"]["budget"]) == ("failed", "deadline")
    assert work.beat(step)["ok"] is False


def test_bulk_actions_count_first(api, runs, work):
    made = [runs.create(["a"], labels={"batch": "7"})["id"] for _ in range(3)]
    other = runs.create(["a"])
    body = {"action": "cancel", "filter": {"labels": {"batch": "7"}}, "dry_run": True}
    assert api.post("/api/v1/runs/bulk", body).json["matched"] == 3
    assert runs.get(made[0])["state"] == "queued"
    answer = api.post("/api/v1/runs/bulk", body | {"dry_run": False, "limit": 2}).json
    assert (answer["done"], answer["has_more"]) == (2, True)
    assert api.post("/api/v1/runs/bulk", body | {"dry_run": False}).json["done"] == 1
    assert [runs.get(r)["state"] for r in made] == ["cancelled"] * 3
    assert runs.get(other)["state"] == "queued"
