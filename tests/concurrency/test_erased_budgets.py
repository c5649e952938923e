"""Erasing a run while it is charged, retried, worked on, or given a child."""

import random
import threading
from uuid import UUID

import pytest
from django.db import connection, transaction

from agentstate.processes import wait_until
from runs_app.calls import settle_run
from runs_app.models import ErasedRun, Run
from runs_app.services import RunFields, create_run, retry_run
from runs_app.settling import cancel_orphans, settle_handoffs
from runs_app.sweeps import sweep
from sessions_app.services import erase_session
from tests.concurrency.racing import at_once
from tests.factories import fetch
from tests.fixtures import Api
from tests.runs_app.branches import Branch, fan
from tests.runs_app.conftest import log_holds  # noqa: F401

WAITING = """
SELECT 1 FROM pg_stat_activity
 WHERE wait_event_type = 'Lock' AND datname = current_database()
"""


def meanwhile(first, second):
    """Do `first`, and `second` from another thread before that is committed.

    Returns what the second returned and whether it had to wait.
    """
    found = []

    def run():
        try:
            found.append(second())
        finally:
            connection.close()

    thread = threading.Thread(target=run)
    with transaction.atomic():
        first()
        thread.start()
        assert wait_until(lambda: not thread.is_alive() or bool(fetch(WAITING)), 60)
        did_wait = thread.is_alive()
    thread.join()
    return found[0], did_wait


class Ends:
    """What the tests do to a tree, past the API: a move at a time."""

    def __init__(self, project, monkeypatch):
        self.project, self.monkeypatch = project, monkeypatch

    def unsettled(self, branch):
        """Do the last step of a run, by a process that dies before the charge."""
        self.monkeypatch.setattr("runs_app.calls.settle_run", lambda *of: None)
        assert branch.work()
        self.monkeypatch.undo()
        assert branch.state == "succeeded"

    def settle(self, branch):
        settle_run(self.project.id, UUID(branch.id))

    def erase(self, branch):
        run = Run.objects.get(id=branch.id)
        erase_session(self.project.id, run.session_id, actor="system")

    def sweep(self):
        while (
            sweep(self.project.id).total
            + settle_handoffs(self.project.id)
            + cancel_orphans(self.project.id)
        ):
            pass

    def kept(self):
        return list(ErasedRun.objects.filter(project_id=self.project.id))


@pytest.fixture
def ends(project, monkeypatch):
    return Ends(project, monkeypatch)


@pytest.mark.parametrize("is_charged_first", [True, False])
def test_an_erasure_beside_the_charge(giver, ends, is_charged_first):
    run = giver(max_tool_calls=3)
    below = run.child(2)
    assert below.work()
    ends.unsettled(below)
    calls = [lambda: ends.settle(run), lambda: ends.erase(below)]
    _, did_wait = meanwhile(*(calls if is_charged_first else reversed(calls)))
    assert did_wait
    assert len(ends.kept()) == (0 if is_charged_first else 1)
    ends.sweep()
    assert run.charges() == [(below.id, 2, 0, 0)]
    assert (run.spent(), ends.kept()) == ((2, 0, 0), [])
    assert run.work()
    assert run.refusal()[1] == "max_tool_calls"


@pytest.mark.parametrize("is_charged_first", [True, False])
def test_an_erasure_beside_a_charge_to_an_erased_run(giver, ends, is_charged_first):
    run = giver(max_tool_calls=4)
    middle = run.child()
    lowest = middle.child(1)
    assert middle.work()
    ends.unsettled(lowest)
    middle.erase()
    calls = [lambda: ends.settle(middle), lambda: ends.erase(lowest)]
    _, did_wait = meanwhile(*(calls if is_charged_first else reversed(calls)))
    assert did_wait
    assert run.spent() == (2, 0, 0)
    ends.sweep()
    assert run.charges()[-1] == (middle.id, 2, 0, 0)
    assert (run.spent(), ends.kept()) == ((2, 0, 0), [])


def test_a_run_is_erased_while_a_child_of_it_is_charged_to_it(giver, ends):
    run = giver(max_tool_calls=4)
    middle = run.child()
    lowest = middle.child(1)
    assert middle.work()
    ends.unsettled(lowest)
    _, did_wait = meanwhile(lambda: ends.erase(middle), lambda: ends.settle(middle))
    assert did_wait
    assert run.spent() == (2, 0, 0)
    ends.sweep()
    assert run.charges()[-1] == (middle.id, 2, 0, 0)
    assert ends.kept() == []


def begun_below(ends, parent, session):
    """Create a child run, in the caller's transaction."""
    fields = RunFields(parent_run_id=UUID(parent.id))
    run, _ = create_run(ends.project.id, session, fields, fan(2), actor="system")
    return run


def test_a_child_is_made_while_its_parent_is_erased(giver, ends, runs, api):
    run = giver(max_tool_calls=4)
    middle = run.child()
    body = {"session": runs.session(), "steps": fan(1), "parent_run": middle.id}
    answer, did_wait = meanwhile(
        lambda: ends.erase(middle), lambda: Api(api.key).post("/api/v1/runs", body)
    )
    assert did_wait
    assert (answer.status_code, answer.json["code"]) == (422, "invalid")
    assert answer.json["errors"][0]["path"] == "parent_run"


def test_a_parent_is_erased_while_a_child_of_it_is_made(giver, ends, runs):
    run = giver(max_tool_calls=2)
    middle = run.child()
    assert middle.work()
    made = []
    session = UUID(runs.session())
    _, did_wait = meanwhile(
        lambda: made.append(begun_below(ends, middle, session)),
        lambda: ends.erase(middle),
    )
    assert did_wait
    lowest = Branch(runs, str(made[0].id))
    assert lowest.work()
    assert lowest.refusal()[1:] == ("max_tool_calls", run.id)
    ends.sweep()
    assert run.charges()[-1] == (middle.id, 2, 0, 0)
    assert ends.kept() == []


def test_a_child_is_made_while_its_parent_is_charged_for_good(giver, ends, runs):
    run = giver(max_tool_calls=2)
    middle = run.child(1)
    session = UUID(runs.session())
    made = []
    _, did_wait = meanwhile(
        lambda: made.append(begun_below(ends, middle, session)),
        lambda: middle.work(),
    )
    assert did_wait
    assert middle.state == "succeeded"
    lowest = Branch(runs, str(made[0].id))
    assert lowest.work()
    assert run.spent() == (2, 0, 0)
    assert lowest.refusal()[1:] == ("max_tool_calls", run.id)


def test_a_run_is_erased_while_one_below_it_is_retried(giver, ends, runs):
    run = giver(max_tool_calls=3)
    middle = run.child()
    steps = [{"tool": "a", "retry": {"max_attempts": 1}, "depends_on": []}] * 2
    lowest = Branch(runs, runs.create(steps, parent_run=middle.id)["id"])
    runs.work.fail(lowest.claim())
    assert lowest.state == "failed"
    _, did_wait = meanwhile(
        lambda: retry_run(ends.project.id, UUID(lowest.id)),
        lambda: ends.erase(middle),
    )
    assert did_wait
    assert lowest.work() and lowest.work()
    assert run.spent() == (3, 0, 0)
    ends.sweep()
    assert run.charges()[-1] == (middle.id, 3, 0, 0)
    assert ends.kept() == []


def test_a_run_is_charged_while_one_below_it_is_retried(giver, ends, runs):
    run = giver(max_tool_calls=4)
    middle = run.child(1)
    steps = [{"tool": "a", "retry": {"max_attempts": 1}, "depends_on": []}] * 2
    lowest = Branch(runs, runs.create(steps, parent_run=middle.id)["id"])
    runs.work.fail(lowest.claim())
    assert middle.charges() == [(lowest.id, 1, 0, 0)]
    ends.unsettled(middle)
    _, did_wait = meanwhile(
        lambda: retry_run(ends.project.id, UUID(lowest.id)),
        lambda: ends.settle(run),
    )
    assert did_wait
    assert run.charges() == [(middle.id, 2, 0, 0)]
    assert lowest.work() and lowest.work()
    assert run.spent() == (4, 0, 0)
    assert run.refusal()[1] == "max_tool_calls"


@pytest.mark.parametrize("seed", range(3))
def test_workers_sweeps_and_erasures_at_the_same_moment(giver, ends, project, seed):
    """Two levels below a run, three runs a session at most; nothing is lost of it."""
    run = giver(steps=5, max_tool_calls=10_000)
    chance = random.Random(seed)
    middles = [run.child(8) for _ in range(6)]
    lowest = [
        chance.choice(middles).child(
            4, session=chance.choice([m.run["session"] for m in middles])
        )
        for _ in range(10)
    ]
    counted = threading.Lock()
    claims = []

    def work(branch):
        api = Api(branch.api.key)
        own = Branch(branch.runs, branch.id, api)
        for _ in range(12):
            step = own.claim()
            if step is not None:
                with counted:
                    claims.append(step["step"])
                own.complete(step)

    def erase(branch):
        found = Run.objects.filter(id=branch.id).values_list("session_id", flat=True)
        if session := found.first():
            answer = Api(branch.api.key).delete(f"/api/v1/sessions/{session}")
            assert answer.status_code in (204, 404), answer

    def tidy():
        for _ in range(10):
            sweep(project.id)
            cancel_orphans(project.id)

    calls = [lambda b=b: work(b) for b in (run, *middles[:3], *lowest[:4])]
    calls += [lambda b=b: erase(b) for b in (*middles[1:4], lowest[0], lowest[5])]
    at_once(*calls, tidy)
    assert run.spent()[0] == len(claims)
    for branch in (*middles, *lowest):
        if Run.objects.filter(id=branch.id).exists():
            branch.runs.api.post(f"/api/v1/runs/{branch.id}/cancel", {})
    ends.sweep()
    own = Run.objects.get(id=run.id).tool_calls
    assert run.below()[0] == len(claims) - own
    assert ends.kept() == []
