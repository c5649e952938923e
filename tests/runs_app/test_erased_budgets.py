"""What an erased run used counts on, and what was below it neither runs free nor on."""

import random

import pytest
from django.db import connection, transaction

from access_app.models import ApiKey
from memory_app.forgetting.services import forget_subject
from runs_app.invariants import broken_invariants
from runs_app.models import ErasedRun, Run
from runs_app.settling import cancel_orphans, settle_handoffs
from runs_app.sweeps import sweep
from tests.context_app.handoffs import child
from tests.runs_app.branches import Branch, fan

BUDGETS = [
    ("max_tool_calls", 4, {}, (3, 0, 0)),
    ("max_tokens", 8, {"tokens": 2}, (3, 6, 0)),
    ("max_cost", 2, {"cost": 0.5}, (3, 0, 1.5)),
]


@pytest.fixture
def swept(project):
    """Sweep as the jobs do, until nothing is left to do."""

    def until_done():
        while (
            sweep(project.id).total
            + settle_handoffs(project.id)
            + (cancel_orphans(project.id))
        ):
            pass

    return until_done


@pytest.fixture
def kept(project):
    """What is kept of erased runs."""
    return lambda: list(ErasedRun.objects.filter(project_id=project.id))


@pytest.fixture
def dying(monkeypatch):
    """A process that dies before it settles the parents of what has ended."""

    def until(work):
        monkeypatch.setattr("runs_app.calls.settle_run", lambda *of: None)
        work()
        monkeypatch.undo()

    return until


@pytest.mark.parametrize(("budget", "most", "usage", "used"), BUDGETS)
@pytest.mark.parametrize("is_swept", [False, True])
def test_a_child_that_ended_uncharged_and_was_erased(
    giver, swept, kept, dying, budget, most, usage, used, is_swept
):
    run = giver(**{budget: most})
    below = run.child(3)
    dying(lambda: [below.work(**usage) for _ in range(3)])
    assert (below.state, run.charges()) == ("succeeded", [])
    below.erase()
    assert run.spent() == used
    if is_swept:
        swept()
        assert run.charges() == [(below.id, *used)]
        assert (run.below(), run.spent(), kept()) == (used, used, [])
    assert run.work(**usage)
    assert run.refusal() == ("budget_exceeded", budget, run.id)


@pytest.mark.parametrize(("budget", "most", "usage", "used"), BUDGETS)
@pytest.mark.parametrize("is_swept", [False, True])
def test_a_child_that_is_erased_while_it_is_open(
    giver, swept, kept, budget, most, usage, used, is_swept
):
    run = giver(**{budget: most})
    below = run.child()
    for _ in range(3):
        assert below.work(**usage)
    below.erase()
    assert run.spent() == used
    if is_swept:
        swept()
        assert run.charges() == [(below.id, *used)]
        assert (run.below(), kept()) == (used, [])
    assert run.work(**usage)
    assert run.refusal() == ("budget_exceeded", budget, run.id)


def test_a_child_that_was_charged_leaves_nothing(giver, swept, kept):
    run = giver(max_tool_calls=3)
    below = run.child(2)
    assert below.work() and below.work()
    assert run.charges() == [(below.id, 2, 0, 0)]
    below.erase()
    assert kept() == []
    swept()
    assert (len(run.charges()), run.spent()) == (1, (2, 0, 0))


def test_a_child_that_went_on_after_its_charge_owes_the_rest(giver, swept, kept, runs):
    run = giver(max_tool_calls=5)
    steps = [{"tool": "a", "retry": {"max_attempts": 1}}, {"tool": "b"}]
    below = Branch(runs, runs.create(steps, parent_run=run.id)["id"])
    runs.work.fail(runs.work.claim_one(run=below.id))
    runs.move(below.id, "retry")
    assert below.work()
    below.erase()
    assert run.spent() == (2, 0, 0)
    swept()
    assert [charge[1] for charge in run.charges()] == [1, 2]
    assert (run.below(), kept()) == ((2, 0, 0), [])


def test_what_a_child_was_given_is_free_again_but_for_what_it_used(giver):
    run = giver(max_tool_calls=10)
    below = run.hand_on(max_tool_calls=6)
    assert below.work() and below.work()
    below.erase()
    assert run.hand_on().run["budget"]["max_tool_calls"] == 8


class Erased:
    """A run, one below it that is erased, and one below that."""

    def __init__(self, run, steps=10, **budget):
        self.run = run
        self.middle = run.child(budget=budget)
        self.lowest = self.middle.child(steps)


@pytest.mark.parametrize(("budget", "most", "usage", "used"), BUDGETS)
def test_what_is_below_an_erased_run_is_not_free(giver, budget, most, usage, used):
    each = Erased(giver(**{budget: most}))
    assert each.middle.work(**usage) and each.lowest.work(**usage)
    each.middle.erase()
    assert each.lowest.work(**usage)
    assert each.run.spent() == used
    assert each.run.work(**usage)
    assert each.lowest.refusal() == ("budget_exceeded", budget, each.run.id)
    assert each.run.refusal() == ("budget_exceeded", budget, each.run.id)


def test_nor_free_of_the_budget_of_the_erased(giver):
    each = Erased(giver(max_tool_calls=10), max_tool_calls=2)
    assert each.lowest.work()
    each.middle.erase()
    assert each.lowest.work()
    assert each.lowest.refusal()[1:] == ("max_tool_calls", each.middle.id)


def test_it_is_cancelled_by_the_sweep_and_charged_what_it_used(giver, swept, kept):
    each = Erased(giver(max_tokens=100))
    assert each.middle.work(tokens=1) and each.lowest.work(tokens=2)
    step = each.lowest.claim()
    each.middle.erase()
    swept()
    assert each.lowest.state == "cancelling"
    [told] = [
        event["payload"]
        for event in each.lowest.runs.events(each.lowest.id)
        if event["type"] == "run.cancelling"
    ]
    assert told["reason"] == "a run above it was erased"
    # Its worker is told, and what it used meanwhile counts.
    assert each.lowest.complete(step, tokens=4)["ok"]
    assert each.lowest.state == "cancelled"
    assert each.run.charges()[-1] == (each.middle.id, 3, 7, 0)
    assert (each.run.below(), kept()) == ((3, 7, 0), [])


def test_all_below_an_erased_run_is_cancelled(giver, swept, kept):
    run = giver(max_tool_calls=20)
    middle = run.hand_on(max_tool_calls=15)
    lower = middle.hand_on(max_tool_calls=10)
    lowest = lower.hand_on(max_tool_calls=5)
    beside = middle.child()
    for branch in (run, middle, lower, lowest, beside):
        assert branch.work()
    middle.erase()
    swept()
    assert {each.state for each in (lower, lowest, beside)} == {"cancelled"}
    assert run.charges()[-1] == (middle.id, 4, 0, 0)
    assert kept() == []
    given = ApiKey.objects.filter(run_id__in=[lower.id, lowest.id])
    assert [key.is_revoked for key in given] == [True, True]


def test_one_below_an_ended_run_below_an_erased_one(giver, swept, kept):
    each = Erased(giver(), steps=1)
    deepest = each.lowest.child()
    assert each.lowest.work() and deepest.work()
    assert (each.lowest.state, deepest.state) == ("succeeded", "running")
    each.middle.erase()
    swept()
    assert deepest.state == "cancelled"
    assert each.run.charges()[-1] == (each.middle.id, 2, 0, 0)
    assert kept() == []


def test_a_cancel_goes_through_an_erased_run(giver, kept):
    each = Erased(giver())
    assert each.lowest.work()
    step = each.lowest.claim()
    each.middle.erase()
    assert each.run.cancel() == "cancelling"
    assert each.lowest.state == "cancelling"
    [why] = each.run.api.get(f"/api/v1/runs/{each.run.id}/why").json["waits"]
    assert (why["for"], why["run"]) == ("child_run", each.lowest.id)
    assert each.lowest.complete(step)["ok"]
    assert each.run.state == "cancelled"
    assert each.run.charges() == [(each.middle.id, 2, 0, 0)]
    assert kept() == []


def test_a_cancel_goes_through_a_run_that_has_ended(giver):
    each = Erased(giver())
    middle = each.run.child(1)
    lowest = middle.child()
    assert middle.work() and lowest.work()
    assert (middle.state, lowest.state) == ("succeeded", "running")
    each.run.cancel()
    assert (each.run.state, lowest.state) == ("cancelled", "cancelled")
    assert (middle.id, 2, 0, 0) in each.run.charges()


@pytest.mark.parametrize("how", ["fails", "rejected"])
def test_the_end_of_a_run_goes_through_one_that_has_ended(runs, swept, how):
    step = {"tool": "a", "retry": {"max_attempts": 1}, "depends_on": []}
    run = Branch(
        runs,
        runs.create([step, step | {"requires_approval": True}])["id"],
    )
    middle = run.child(1)
    lowest = middle.child()
    assert middle.work()
    if how == "fails":
        runs.work.fail(run.claim())
    else:
        assert run.work()
        runs.decide(run.run["steps"][1], "reject")
        swept()
    assert (run.state, lowest.state) == ("failed", "cancelled")


def test_runs_erased_from_below_or_from_above(giver, swept, kept):
    for order in (["lowest", "middle"], ["middle", "lowest"]):
        each = Erased(giver(max_tool_calls=4))
        assert each.middle.work() and each.lowest.work()
        for name in order:
            getattr(each, name).erase()
            assert each.run.spent() == (2, 0, 0)
        swept()
        assert each.run.charges()[-1] == (each.middle.id, 2, 0, 0)
        assert (each.run.below(), kept()) == ((2, 0, 0), [])
        assert each.run.work() and each.run.work()
        assert each.run.refusal()[1] == "max_tool_calls"


def test_a_run_and_its_child_in_one_session(giver, swept, kept):
    run = giver(max_tool_calls=4)
    middle = run.child()
    lowest = middle.child(session=middle.run["session"])
    assert middle.work() and lowest.work()
    middle.erase()
    assert run.spent() == (2, 0, 0)
    swept()
    assert (run.charges(), kept()) == ([(middle.id, 2, 0, 0)], [])


def test_erasing_the_root_takes_all_with_it(giver, swept, kept):
    each = Erased(giver(max_tool_calls=3))
    assert each.run.work() and each.middle.work()
    each.run.erase()
    # Until the sweep comes by, the budget holds.
    assert each.lowest.work()
    assert each.middle.refusal()[1:] == ("max_tool_calls", each.run.id)
    swept()
    assert (each.middle.state, each.lowest.state) == ("failed", "cancelled")
    assert each.middle.charges() == [(each.lowest.id, 1, 0, 0)]
    assert kept() == []


def test_erasing_all_of_a_tree_leaves_nothing(giver, swept, kept):
    for order in (("run", "middle", "lowest"), ("lowest", "run", "middle")):
        each = Erased(giver())
        assert each.middle.work() and each.lowest.work()
        for name in order:
            getattr(each, name).erase()
        swept()
        assert kept() == []


def test_what_was_below_a_run_that_left_nothing_is_cancelled(giver, swept, project):
    """It was erased by a version that kept nothing."""
    each = Erased(giver())
    ended = each.middle.child(1)
    each.middle.erase()
    ErasedRun.objects.filter(project_id=project.id).delete()
    assert ended.work() and each.lowest.work()
    swept()
    assert (ended.state, each.lowest.state) == ("succeeded", "cancelled")


def test_a_run_alone_leaves_nothing(giver, kept):
    run = giver()
    assert run.work()
    run.erase()
    assert kept() == []


def test_what_is_below_an_erased_run_is_not_retried(giver, swept, runs):
    each = Erased(giver())
    steps = [{"tool": "a", "retry": {"max_attempts": 1}}]
    failed = Branch(runs, runs.create(steps, parent_run=each.lowest.id)["id"])
    runs.work.fail(failed.claim())
    assert failed.state == "failed"
    each.middle.erase()
    swept()
    answer = runs.api.post(f"/api/v1/runs/{failed.id}/retry", {})
    assert (answer.status_code, answer.json["code"]) == (409, "wrong_state")
    assert "erased" in answer.json["detail"]
    assert each.run.spent() == (1, 0, 0)


def test_the_handoff_of_an_erased_run_ends(giver, swept):
    run = giver(max_tool_calls=3)
    body = {"agent": "b", "task": "t", "on_failure": "skip"}
    made = run.api.post(f"/api/v1/runs/{run.id}/handoffs", body).json
    below = Branch(run.runs, made["child_run"], child(made))
    below.add(fan(3))
    assert below.work()
    below.erase()
    swept()
    told = run.api.get(f"/api/v1/handoffs/{made['id']}").json
    assert (told["status"], told["reason"]) == ("cancelled", "its run was erased")
    assert run.charges() == [(below.id, 1, 0, 0)]
    assert run.work() and run.work()
    assert run.refusal()[1] == "max_tool_calls"


def test_forgetting_a_subject_takes_no_use_back(giver, project, runs, swept):
    run = giver(max_tool_calls=3)
    session = runs.session(subject="u-100")
    below = run.child(2, session=session)
    assert below.work() and below.work()
    forget_subject(project.id, "u-100", actor="system")
    swept()
    assert run.spent() == (2, 0, 0)
    assert run.work()
    assert run.refusal()[1] == "max_tool_calls"


def test_a_tree_shows_what_is_below_an_erased_run_at_its_root(giver, runs):
    each = Erased(giver(max_tool_calls=9))
    beside = each.run.child()
    for branch in (each.run, each.middle, each.lowest, beside):
        assert branch.work()
    each.middle.erase()
    tree = each.run.tree()
    assert [below["run"] for below in tree["children"]] == [each.lowest.id, beside.id]
    assert tree["budget"]["spent"]["tool_calls"] == 4


DAMAGE = {
    "a run that counts as charged has ended, and all it used is charged": (
        "UPDATE agent_runs SET is_charged = true"
    ),
    "a run is charged what its children were; those erased count on": (
        "UPDATE agent_erased_runs SET charged_tool_calls = 5, tool_calls = 5"
    ),
    "what is kept of a run that was erased is charged no more than it used": (
        "UPDATE agent_erased_runs SET charged_tokens = 5"
    ),
    "nothing is uncharged below a run that counts as charged": (
        "UPDATE agent_runs SET is_charged = parent_run_id IS NULL"
    ),
}


@pytest.mark.parametrize("rule", DAMAGE)
def test_sums_that_are_wrong_are_found(giver, project, rule):
    each = Erased(giver())
    beside = each.run.child()
    assert each.lowest.work() and beside.work()
    each.middle.erase()
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute(f"{DAMAGE[rule]}")
        assert rule in {broken.rule for broken in broken_invariants(project.id)}
        transaction.set_rollback(True)


def test_a_log_tells_of_a_charge_by_numbers_alone(giver, swept, runs, project):
    run = giver()
    session = runs.session(subject="u-100", title="of Alex")
    below = run.child(session=session, agent="alex", labels={"who": "Alex"})
    assert below.work()
    below.erase()
    [kept] = ErasedRun.objects.filter(project_id=project.id).values()
    assert "alex" not in str(kept).lower() and session not in str(kept)
    swept()
    [charged] = [e for e in runs.events(run.id) if e["type"] == "run.charged"]
    assert set(charged["payload"]) == {"at", "child", "tool_calls", "tokens", "cost"}


class Forest:
    """A tree that is worked on, cancelled and erased at random, and what it used."""

    def __init__(self, run, chance, swept):
        self.root, self.chance, self.swept = run, chance, swept
        self.open = [run]
        self.used = 0

    def step(self):
        branch = self.chance.choice(self.open)
        what = self.chance.choice(
            ["work"] * 5 + ["child"] * 3 + ["cancel", "erase", "sweep"]
        )
        if what == "work":
            self.used += self.worked(branch)
        elif what == "child" and len(self.open) < 12:
            if branch.state in ("queued", "running"):
                self.open.append(branch.child(3))
        elif what == "sweep":
            self.swept()
        elif branch is self.root:
            return
        elif what == "cancel":
            branch.runs.api.post(f"/api/v1/runs/{branch.id}/cancel", {})
        elif what == "erase":
            branch.erase()
            self.open.remove(branch)

    def worked(self, branch):
        return branch.work(tokens=1)


@pytest.mark.parametrize("seed", range(4))
def test_whatever_is_erased_the_root_has_used_what_was_claimed(
    giver, swept, kept, seed
):
    run = giver(steps=60, max_tool_calls=1000)
    forest = Forest(run, random.Random(seed), swept)
    for _ in range(60):
        forest.step()
        assert run.spent() == (forest.used, forest.used, 0)
    swept()
    assert run.spent() == (forest.used, forest.used, 0)
    for branch in forest.open[1:]:
        branch.runs.api.post(f"/api/v1/runs/{branch.id}/cancel", {})
    swept()
    below = forest.used - Run.objects.get(id=run.id).tool_calls
    assert (run.below(), kept()) == ((below, below, 0), [])
