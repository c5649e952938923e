"""Workers, people and time at the same moment: one outcome, and nothing lost."""

import itertools
import random
import threading

import pytest

from runs_app.sweeps import sweep
from tests.concurrency.racing import at_once
from tests.runs_app.conftest import log_holds  # noqa: F401

ROUNDS = 12
OUTCOMES = ["done", "cancelled", "failed"]
END_EVENTS = {"run.succeeded", "run.failed", "run.cancelled"}


def fan(count, **fields):
    return [{"tool": "a", "depends_on": []} | fields for _ in range(count)]


@pytest.fixture(params=[ROUNDS, pytest.param(10_000, marks=pytest.mark.soak)])
def rounds(request):
    return range(request.param)


@pytest.mark.parametrize("outcomes", [*itertools.product(OUTCOMES, repeat=3)])
def test_st_10_every_combination_of_ends_ends_the_run(runs, work, outcomes):
    run = runs.create(fan(3, retry={"max_attempts": 1}))
    steps = work.claim(max=3)
    end = {
        "done": lambda step: work.complete(step)["ok"],
        "failed": lambda step: work.fail(step)["ok"],
        "cancelled": lambda step: runs.decide(step, "cancel"),
    }
    first, second, third = (
        lambda step=step, outcome=outcome: end[outcome](step)
        for step, outcome in zip(steps, outcomes, strict=True)
    )
    assert first()
    at_once(second, third)
    expected = "succeeded"
    if "failed" in outcomes:
        expected = "failed"
    elif "cancelled" in outcomes:
        expected = "cancelled"
    assert runs.get(run)["state"] == expected
    types = [e["type"] for e in runs.events(run)]
    assert len([name for name in types if name in END_EVENTS]) == 1
    assert sorted(runs.states(run)) == sorted(outcomes)


def test_each_step_is_claimed_by_one_worker(runs, work):
    for _ in range(4):
        runs.create(fan(25))

    def claim_all():
        found = []
        while batch := work.claim(max=random.choice([1, 3, 7])):
            found += [step["step"] for step in batch]
        return found

    claimed = sum(at_once(*[claim_all] * 6), [])
    claimed += claim_all()  # what a busy session made all of them pass over
    assert len(claimed) == len(set(claimed)) == 100


def test_04_a_rescue_and_a_completion_at_the_same_moment(
    runs, work, clock, project, rounds
):
    for _ in rounds:
        run = runs.create(["a"])
        step = work.claim_one(lease_s=10)
        clock.advance(seconds=11)
        [completed, _] = at_once(
            lambda: work.complete(step, "late"),  # noqa: B023
            lambda: sweep(project.id),
        )
        shown = runs.get(run)["steps"][0]
        if completed["ok"]:
            assert (shown["state"], shown["result"], shown["lost"]) == (
                "done",
                "late",
                0,
            )
        else:
            assert completed["code"] == "lease_lost"
            assert (shown["state"], shown["lost"]) == ("pending", 1)
            assert work.complete(work.claim_one(run=run["id"]))["ok"]
        assert runs.get(run)["state"] == "succeeded"


@pytest.mark.parametrize("steps", [120, pytest.param(3000, marks=pytest.mark.soak)])
def test_06_each_stalled_attempt_is_rescued_and_refused(runs, work, project, steps):
    """One in seven workers stalls past its lease, which lasts a tenth of a second."""
    chance = random.Random(steps)
    run = runs.create(fan(steps, retry={"max_lost": 1000}), window=1000)
    answers: list[str | None] = []
    is_over = threading.Event()

    def work_on() -> None:
        while runs.get(run)["state"] != "succeeded":
            for step in work.claim(run=run["id"], lease_s=0.1):
                if chance.random() < 0.15:
                    threading.Event().wait(0.25)
                answers.append(work.complete(step, step["attempt"])["code"])

    def rescue() -> None:
        while not is_over.wait(0.02):
            sweep(project.id)

    sweeper = threading.Thread(target=rescue)
    sweeper.start()
    try:
        at_once(*[work_on] * 6)
    finally:
        is_over.set()
        sweeper.join()
    refused = [code for code in answers if code is not None]
    assert set(refused) <= {"lease_lost", "already_finished"}
    shown = runs.get(run)
    lost = sum(attempt["outcome"] == "lost" for attempt in attempts_of(runs, run))
    assert lost == len(refused) > 0
    assert len(answers) - len(refused) == steps == shown["steps_by_state"]["done"]


def attempts_of(runs, run):
    found = []
    for event in runs.events(run):
        if event["type"] in ("step.done", "step.lost"):
            found.append({"outcome": event["type"].removeprefix("step.")})
    return found


ALLOWED = {
    # Whichever came first; nothing else.
    "cancel": {("cancelled", "done")},
    "pause": {("succeeded", "done")},
    "timeout": {("succeeded", "done"), ("running", "pending"), ("waiting", "waiting")},
}


@pytest.mark.parametrize("other", ALLOWED)
def test_05_a_completion_at_the_same_moment_as(
    runs, api, work, clock, project, other, rounds
):
    for _ in rounds:
        run = runs.create([{"tool": "a", "timeout_s": 5}])
        step = work.claim_one(lease_s=60)
        if other == "timeout":
            clock.advance(seconds=6)
            rival = lambda: sweep(project.id)  # noqa: E731
        else:
            path = f"/api/v1/runs/{run['id']}/{other}"
            rival = lambda: api.post(path, {})  # noqa: B023, E731
        [completed, _] = at_once(lambda: work.complete(step), rival)  # noqa: B023
        ended = runs.get(run)
        pair = (ended["state"], ended["steps"][0]["state"])
        # The completion came first: then the run had ended, and there was nothing left.
        assert pair in ALLOWED[other] | {("succeeded", "done")}
        assert completed["ok"] == (pair[1] == "done")
        if ended["state"] not in ("succeeded", "cancelled"):
            runs.move(run, "cancel")


def test_20_a_signal_at_the_same_moment_as_the_wait_begins(runs, work, api, rounds):
    for _ in rounds:
        run = runs.create(["a", {"signal": {"name": "go"}}, "b"])
        step = work.claim_one(run=run["id"])
        path = f"/api/v1/runs/{run['id']}/signals/go"
        at_once(
            lambda: work.complete(step),  # noqa: B023
            lambda: api.post(path, {"payload": 1}),  # noqa: B023
        )
        assert runs.states(run) == ["done", "done", "pending"]
        runs.move(run, "cancel")


def test_22_an_approval_at_the_moment_it_times_out(runs, api, clock, project, rounds):
    for _ in rounds:
        run = runs.create(
            [{"tool": "a", "requires_approval": True, "approval_timeout_s": 5}]
        )
        clock.advance(seconds=6)
        path = f"/api/v1/steps/{run['steps'][0]['id']}/approve"
        [answer, _] = at_once(lambda: api.post(path, {}), lambda: sweep(project.id))  # noqa: B023
        if answer.status_code == 200:
            assert runs.states(run) == ["pending"]
            runs.move(run, "cancel")
        else:
            assert answer.json["code"] == "wrong_state"
            assert runs.get(run)["state"] == "failed"


def test_lists_that_cross_do_not_wait_for_each_other(runs, work, rounds):
    for _ in rounds:
        made = [runs.create(fan(4)) for _ in range(3)]
        steps = [s for run in made for s in work.claim(run=run["id"], max=4)]
        held = [{"step": s["step"], "lease_token": s["lease_token"]} for s in steps]
        answers = at_once(
            lambda: work.end("complete", *held[::2]),  # noqa: B023
            lambda: work.end("heartbeat", *held[::-1]),  # noqa: B023
            lambda: work.end("complete", *held[1::2][::-1]),  # noqa: B023
        )
        assert all(item["ok"] for item in answers[0] + answers[2])
        assert {runs.get(run)["state"] for run in made} == {"succeeded"}


def test_23_never_two_holders_of_a_limit_of_one(runs, api, work, project):
    api.put("/api/v1/limits/one", {"max_concurrent": 1})
    run = runs.create(fan(20, concurrency_key="one"))
    held = set()

    def do_some():
        for _ in range(40):
            for step in work.claim(run=run["id"]):
                assert not held, "two holders"
                held.add(step["step"])
                held.discard(step["step"])
                work.complete(step)

    at_once(*[do_some] * 4)
    sweep(project.id)
    do_some()
    assert runs.get(run)["state"] == "succeeded"
    assert api.get("/api/v1/limits/one").json["in_use"] == 0


def test_two_plans_for_one_version(runs, api):
    run = runs.create(["a"])
    path = f"/api/v1/runs/{run['id']}/plan"
    body = {"plan_version": 1, "append": [{"tool": "b"}]}
    answers = at_once(*[lambda: api.post(path, body)] * 4)
    assert sorted(a.status_code for a in answers) == [200, 409, 409, 409]
    assert runs.get(run)["step_count"] == 2


def test_one_key_is_one_run(runs, api):
    body = {"session": runs.session(), "key": "r-1", "steps": [{"tool": "a"}]}
    answers = at_once(*[lambda: api.post("/api/v1/runs", body)] * 5)
    assert sorted(a.status_code for a in answers) == [200, 200, 200, 200, 201]
    assert len({a.json["id"] for a in answers}) == 1
