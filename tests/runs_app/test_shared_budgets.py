"""A budget bounds a run and all below it, handed on or begun as child runs."""

import os
import threading

import psycopg
import pytest

from agentstate.processes import wait_until
from runs_app.models import Run
from tests.concurrency.racing import at_once
from tests.fixtures import Api
from tests.runs_app.branches import Branch, fan
from tests.runs_app.conftest import held


@pytest.mark.parametrize(
    ("budget", "usage", "used"),
    [
        ("max_tool_calls", {}, (3, 0, 0)),
        ("max_tokens", {"tokens": 2}, (3, 6, 0)),
        ("max_cost", {"cost": 0.5}, (3, 0, 1.5)),
    ],
)
def test_what_a_child_used_is_gone_of_its_givers_budget(giver, budget, usage, used):
    most = {"max_tool_calls": 4, "max_tokens": 8, "max_cost": 2}[budget]
    run = giver(**{budget: most})
    below = run.hand_on()
    for _ in range(3):
        assert below.work(**usage)
    below.give_back()
    assert run.charges() == [(below.id, *used)]
    names = ("tool_calls", "tokens", "cost")
    assert tuple(run.run["budget"]["below"][name] for name in names) == used
    assert run.work(**usage)
    assert run.refusal() == ("budget_exceeded", budget, run.id)
    assert run.run["state"] == "failed"


def test_it_counts_before_the_child_has_ended(giver):
    run = giver(max_tool_calls=3)
    below = run.hand_on(max_tool_calls=2)
    assert below.work() and below.work()
    assert run.work()
    assert run.refusal() == ("budget_exceeded", "max_tool_calls", run.id)
    assert run.charges() == []


def test_a_child_is_refused_what_its_giver_has_used_up(giver):
    run = giver(max_tokens=10)
    below = run.hand_on()
    assert below.work(tokens=4)
    assert run.work(tokens=6)
    assert below.refusal() == ("budget_exceeded", "max_tokens", run.id)


def test_what_is_handed_on_counts_at_every_height(giver):
    run = giver(max_tool_calls=6)
    middle = run.hand_on(max_tool_calls=5)
    lowest = middle.hand_on(max_tool_calls=4)
    assert lowest.work() and lowest.work()
    assert middle.work()
    tree = run.api.get(f"/api/v1/runs/{run.id}/tree").json

    def spent(branch):
        below = [spent(each) for each in branch["children"]]
        return [branch["budget"]["spent"]["tool_calls"], *below]

    assert spent(tree) == [3, [3, [2]]]
    lowest.give_back()
    middle.give_back()
    assert [charge[1] for charge in middle.charges()] == [2]
    assert [charge[1] for charge in run.charges()] == [3]
    assert spent(run.api.get(f"/api/v1/runs/{run.id}/tree").json) == [3, [3, [2]]]
    assert run.work() and run.work() and run.work()
    assert run.refusal()[1] == "max_tool_calls"


def test_the_next_handoff_is_given_what_is_left_of_all(giver):
    run = giver(max_tool_calls=10)
    first = run.hand_on(max_tool_calls=6)
    lower = first.hand_on(max_tool_calls=4)
    assert lower.work() and first.work()
    lower.give_back()
    first.give_back()
    second = run.hand_on()
    assert second.run["budget"]["max_tool_calls"] == 8


def test_child_runs_of_a_plan_count_as_well(giver, runs):
    run = giver(max_tool_calls=3)
    made = runs.create(fan(2), parent_run=run.id)
    below = Branch(runs, made["id"])
    assert below.work() and below.work()
    assert below.run["state"] == "succeeded"
    assert run.charges() == [(below.id, 2, 0, 0)]
    assert run.work()
    assert run.refusal()[1] == "max_tool_calls"


def test_a_child_that_goes_on_is_charged_the_rest(giver, runs):
    run = giver(max_tool_calls=5)
    steps = [{"tool": "a", "retry": {"max_attempts": 1}}, {"tool": "b"}]
    below = Branch(runs, runs.create(steps, parent_run=run.id)["id"])
    runs.work.fail(runs.work.claim_one(run=below.id))
    assert below.run["state"] == "failed"
    runs.move(below.id, "retry")
    assert below.work() and below.work()
    assert [charge[1] for charge in run.charges()] == [1, 3]
    assert run.work() and run.work()
    assert run.refusal()[1] == "max_tool_calls"


def test_a_charge_that_was_not_made_is_counted_all_the_same(giver, runs, monkeypatch):
    """As after a process that died between the child's end and the charge."""
    run = giver(max_tool_calls=3)
    below = Branch(runs, runs.create(fan(2), parent_run=run.id)["id"])
    monkeypatch.setattr("runs_app.calls.settle_run", lambda *of: None)
    assert below.work() and below.work()
    monkeypatch.undo()
    assert run.charges() == []
    assert run.work()
    assert run.refusal()[1] == "max_tool_calls"


def test_runs_that_share_no_budget_take_no_turns(giver, project):
    run, alone = giver(), giver(max_tool_calls=2)
    below = run.hand_on()
    with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as other:
        other.execute(
            "SELECT pg_advisory_lock("
            "hashtextextended('agentstate budgets ' || %s::uuid, 0))",
            [project.id],
        )
        assert below.work() and run.work() and alone.work()
    below.give_back()
    assert Run.objects.get(id=below.id).is_charged


def test_a_run_that_another_writes_meanwhile_is_written_all_the_same(giver, project):
    """A parent charges its child's row without the lock of the child's session."""
    run = giver(max_tool_calls=5)
    below = run.hand_on()
    claimed = []
    worker = threading.Thread(target=lambda: claimed.append(below.work()))
    with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as other:
        lock = "hashtextextended('agentstate budgets ' || %s::uuid, 0)"
        other.execute(f"SELECT pg_advisory_lock({lock})", [project.id])
        worker.start()  # and waits for its turn, the run loaded
        waits = "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
        assert wait_until(lambda: bool(other.execute(waits).fetchone()), 60)
        other.execute(
            "UPDATE agent_runs SET charged_tokens = charged_tokens WHERE id = %s",
            [below.id],
        )
        other.execute(f"SELECT pg_advisory_unlock({lock})", [project.id])
        worker.join()
    assert claimed == [True]
    row = Run.objects.get(id=below.id)
    assert (row.n_done, row.n_in_progress, row.tool_calls) == (1, 0, 1)


def test_claims_at_the_same_moment_never_exceed_the_budget_of_the_tree(giver, runs):
    run = giver(steps=30, max_tool_calls=25)
    branches = [run, *(run.hand_on(steps=30, max_tool_calls=5) for _ in range(3))]
    done = threading.Lock()
    claimed = []

    def work(branch):
        api = Api(branch.api.key)
        while True:
            body = {"worker": "w", "run": branch.id}
            steps = api.post("/api/v1/steps/claim", body).json["steps"]
            if not steps:
                return
            with done:
                claimed.extend(steps)

    at_once(*(lambda b=branch: work(b) for branch in branches * 2))
    assert len(claimed) <= 25
    row = Run.objects.get(id=run.id)
    total = sum(
        Run.objects.filter(root_run_id=run.id).values_list("tool_calls", flat=True)
    )
    assert row.tool_calls + total == len(claimed)


@pytest.mark.parametrize(("use", "most"), [("tokens", 10**12), ("cost", 10**9)])
def test_the_most_that_steps_may_report_can_be_added_up(runs, use, most):
    parent = runs.create(fan(1))
    for _ in range(2):
        below = runs.create(fan(100), parent_run=parent["id"])
        steps = runs.work.claim(run=below["id"], max=100)
        more = {"usage": {use: most + 1}}
        [refused] = runs.work.end("complete", held(steps[0]) | more)
        assert (refused["status"], refused["code"]) == (422, "out_of_range")
        said = [held(step) | {"result": 1, "usage": {use: most}} for step in steps]
        assert all(item["ok"] for item in runs.work.end("complete", *said))
        assert runs.get(below)["state"] == "succeeded"
    assert runs.get(parent)["budget"]["below"][use] == 200 * most
