"""Workers, people and time at the same moment: one outcome, and nothing lost."""

import itertools
import random
import threading
from collections import Counter

import pytest
from django.db import connection

from runs_app.models import Run, Step
from runs_app.reads import read_results
from runs_app.results import result_hash
from runs_app.sweeps import sweep
from tests.concurrency.racing import at_once, each_at_once
from tests.runs_app.conftest import held, log_holds  # noqa: F401

APART = 0.004  # seconds
OUTCOMES = ["done", "cancelled", "failed"]
END_EVENTS = {"run.succeeded", "run.failed", "run.cancelled"}


def fan(count, **fields):
    return [{"tool": "a", "depends_on": []} | fields for _ in range(count)]


class Lots:
    """Races in lots: a lot has a run in each of the sessions, and a race in each run.

    Sessions, and what only prepares a race or looks how it ended, are shared by many,
    so that ten thousand races take minutes. Each race is of its own all the same.
    """

    def __init__(self, runs, sessions, lots):
        self.runs = runs
        self.sessions = [runs.session() for _ in range(sessions)]
        self.lots = lots
        self.firsts = Counter()  # what tells which of two was first, and how often

    def of(self, steps, **fields):
        """Yield lots of runs with these steps; the runs of the last have ended."""
        for _ in range(self.lots):
            yield [
                self.runs.create(steps, session=session, **fields)["id"]
                for session in self.sessions
            ]


@pytest.fixture(
    params=[(4, 3), pytest.param((50, 200), marks=pytest.mark.soak)],
    ids=["12", "10000"],
)
def lots(request, runs):
    lots = Lots(runs, *request.param)
    yield lots
    print(f"which was first: {dict(lots.firsts)}")
    if lots.firsts.total() > 1000:  # where one is always first there is no race
        assert len(lots.firsts) == 2 and min(lots.firsts.values()) > 100


def claim_all(work, lot, **wanted):
    """Claim the one step of each run, in the order of the runs."""
    claimed = {step["run"]: step for step in work.claim(max=len(lot), **wanted)}
    assert set(claimed) == set(lot)
    return [claimed[run] for run in lot]


def rows_of(lot):
    """The runs as they are, each with its steps."""
    runs = {str(run.id): (run, []) for run in Run.objects.filter(id__in=lot)}
    for step in Step.objects.filter(run_id__in=lot).order_by("index"):
        runs[str(step.run_id)][1].append(step)
    return [runs[run] for run in lot]


def end_of_lease(step):
    """Time comes for this lease alone."""
    be_due("agent_step_leases SET lease_until", step["step"])


def end_of_time(step):
    """Time comes for the attempt alone, however long its lease is."""
    be_due("agent_step_leases SET ends_at", step["step"])


def end_of_wait(step):
    be_due("agent_timers SET due_at", step)


def be_due(what, step):
    with connection.cursor() as cursor:
        cursor.execute(f"UPDATE {what} = agentstate_now() WHERE step_id = %s", [step])
        assert cursor.rowcount == 1


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


def test_04_a_rescue_and_a_completion_at_the_same_moment(work, project, lots):
    for lot in lots.of(["a"]):
        steps = claim_all(work, lot)
        answers = each_at_once(
            [(step,) for step in steps],
            lambda step: work.complete(step, "late"),
            lambda _: sweep(project.id),
            before=end_of_lease,
            apart=APART,
        )
        refused = []
        for (completed, _), (_, [step]) in zip(answers, rows_of(lot), strict=True):
            lots.firsts[completed["ok"]] += 1
            if completed["ok"]:
                assert (step.state, step.lost) == ("done", 0)
                assert bytes(step.result_hash) == result_hash("late")
            else:
                assert completed["code"] == "lease_lost"
                assert (step.state, step.lost) == ("pending", 1)
                refused.append(str(step.run_id))
        rescued = claim_all(work, refused) if refused else []
        assert all(item["ok"] for item in end_all(work, rescued))
        assert {run.state for run, _ in rows_of(lot)} == {"succeeded"}


def end_all(work, steps):
    return work.end("complete", *map(held, steps)) if steps else []


@pytest.mark.parametrize("steps", [120, pytest.param(3000, marks=pytest.mark.soak)])
def test_06_each_stalled_attempt_is_rescued_and_refused(runs, work, project, steps):
    """One in seven workers stalls past its lease, which lasts a tenth of a second."""
    chance = random.Random(steps)
    run = runs.create(fan(steps, retry={"max_lost": 1000}), window=1000)
    answers: list[str | None] = []
    is_over = threading.Event()

    def work_on() -> None:
        # Not over the API, which shows all of the steps.
        while Run.objects.get(id=run["id"]).state != "succeeded":
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
def test_05_a_completion_at_the_same_moment_as(runs, api, work, project, other, lots):
    def rival(step):
        if other == "timeout":
            return sweep(project.id)
        return api.post(f"/api/v1/runs/{step['run']}/{other}", {})

    for lot in lots.of([{"tool": "a", "timeout_s": 600}]):
        answers = each_at_once(
            [(step,) for step in claim_all(work, lot, lease_s=3600)],
            work.complete,
            rival,
            before=end_of_time if other == "timeout" else lambda _: None,
            apart=APART,
        )
        for (completed, rivals), (run, [step]) in zip(
            answers, rows_of(lot), strict=True
        ):
            lots.firsts[getattr(rivals, "status_code", completed["ok"])] += 1
            # The completion came first: then the run had ended, and there was nothing
            # left.
            pair = (run.state, step.state)
            assert pair in ALLOWED[other] | {("succeeded", "done")}
            assert completed["ok"] == (step.state == "done")
            if run.state not in ("succeeded", "cancelled"):
                runs.move(str(run.id), "cancel")


def test_20_a_signal_at_the_same_moment_as_the_wait_begins(work, api, runs, lots):
    for lot in lots.of(["a", {"signal": {"name": "go"}}, "b"]):
        answers = each_at_once(
            [(step,) for step in claim_all(work, lot)],
            work.complete,
            lambda step: api.post(
                f"/api/v1/runs/{step['run']}/signals/go", {"payload": 1}
            ),
            apart=APART,
        )
        for (completed, _), (_, steps) in zip(answers, rows_of(lot), strict=True):
            lots.firsts[completed["run_state"]] += 1
            assert [step.state for step in steps] == ["done", "done", "pending"]
            assert read_results(steps[1:2]) == {steps[1].result_seq: 1}
        assert all(item["ok"] for item in end_all(work, claim_all(work, lot)))


def test_22_an_approval_at_the_moment_it_times_out(work, api, project, lots):
    plan = [{"tool": "a", "requires_approval": True, "approval_timeout_s": 600}]
    for lot in lots.of(plan):
        answers = each_at_once(
            [(str(step.id),) for _, [step] in rows_of(lot)],
            lambda step: api.post(f"/api/v1/steps/{step}/approve", {}),
            lambda _: sweep(project.id),
            before=end_of_wait,
            apart=APART,
        )
        approved = []
        for (answer, _), (run, [step]) in zip(answers, rows_of(lot), strict=True):
            lots.firsts[answer.status_code] += 1
            if answer.status_code == 200:
                assert step.state == "pending"
                approved.append(str(run.id))
            else:
                assert answer.json["code"] == "wrong_state"
                assert (run.state, step.state) == ("failed", "failed")
        steps = claim_all(work, approved) if approved else []
        assert all(item["ok"] for item in end_all(work, steps))


def test_lists_that_cross_do_not_wait_for_each_other(runs, work, lots):
    """In each race three lists that name steps of the same three runs."""
    races = len(lots.sessions)
    for _ in range(lots.lots):
        made = [
            runs.create(fan(4 * races), session=session, window=1000)["id"]
            for session in lots.sessions[:3]
        ]
        of_runs = [[held(step) for step in claim_run(work, run)] for run in made]
        lists = [
            [step for steps in of_runs for step in steps[at : at + 4]]
            for at in range(0, 4 * races, 4)
        ]
        answers = each_at_once(
            [(steps,) for steps in lists],
            lambda steps: work.end("complete", *steps[::2]),
            lambda steps: work.end("heartbeat", *steps[::-1]),
            lambda steps: work.end("complete", *steps[1::2][::-1]),
            apart=APART,
        )
        for first, _, last in answers:
            assert all(item["ok"] for item in first + last)
        assert {run.state for run, _ in rows_of(made)} == {"succeeded"}


def claim_run(work, run):
    steps = []
    while claimed := work.claim(run=run, max=100):
        steps += claimed
    return steps


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
