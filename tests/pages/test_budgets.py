"""A run's page says what counts against its budget, also of runs that were erased."""

import pytest

from runs_app.sweeps import sweep
from tests.runs_app.branches import Branch
from tests.runs_app.conftest import Runs


@pytest.fixture
def run(api):
    budget = {"max_tool_calls": 9, "max_tokens": 100, "max_cost": 2}
    return Branch.begin(Runs(api), budget=budget)


@pytest.fixture
def page(browse, project, run):
    def read():
        answer = browse("owner").get(f"/p/{project.slug}/runs/{run.id}/")
        return answer.content.decode()

    return read


def facts(html):
    return {text.partition("</span>")[0] for text in html.split("<span>")}


def test_what_was_used_below_a_run(run, page, project):
    assert run.work(tokens=3)
    alone = {"1 of 9 tool calls", "3 of 100 tokens", "0 of 2 spent"}
    assert alone <= facts(page())
    below = run.child()
    assert below.work(tokens=4, cost=0.5)
    used = {
        "2 of 9 tool calls, 1 below it",
        "7 of 100 tokens, 4 below it",
        "0.5 of 2 spent, 0.5 below it",
    }
    assert used <= facts(page())
    below.erase()
    assert used <= facts(page())
    sweep(project.id)
    assert used <= facts(page())


def test_a_run_whose_parent_was_erased_is_in_the_tree(run, page):
    middle = run.child()
    lowest = middle.child()
    assert lowest.work()
    middle.erase()
    assert f"/runs/{lowest.id}/" in page()
