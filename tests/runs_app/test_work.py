"""Claim, heartbeat, complete, fail, release."""


def test_a_run_goes_from_step_to_step(runs, work):
    run = runs.create(["a", {"tool": "b", "args": {"n": 2}}])
    assert (run["state"], [s["state"] for s in run["steps"]]) == (
        "queued",
        ["pending", "pending"],
    )
    first = work.claim_one()
    assert (first["index"], first["tool"], first["attempt"]) == (0, "a", 1)
    assert work.claim() == []
    assert work.beat(first)["ok"]
    assert work.complete(first, {"rows": 4})["state"] == "done"
    second = work.claim_one()
    assert second["args"] == {"n": 2}
    assert work.complete(second)["run_state"] == "succeeded"
    ended = runs.get(run)
    assert ended["state"] == "succeeded"
    assert [s["result"] for s in ended["steps"]] == [{"rows": 4}, None]


def test_the_log_tells_the_whole_run(runs, work):
    run = runs.create(["a"])
    work.complete(work.claim_one(), "x")
    assert [e["type"] for e in runs.events(run)] == [
        "run.created",
        "run.started",
        "step.started",
        "step.done",
        "run.succeeded",
    ]
