"""A plan in plain words: begun, interrupted, gone on with."""

import pytest
from runs_app.sweeps import sweep

from agentstate_client import (
    LeaseLost,
    NotFound,
    RunKeyTaken,
    StepNotClaimable,
)


@pytest.fixture
def plan(kind, client):
    plan = kind.execution("refund-1", client)
    plan.init_plan(["look_up", "refund", {"tool": "tell", "args": {"to": "ada"}}])
    return plan


def test_working_through_a_plan(plan):
    seen = []
    while (step := plan.next_pending_step()) is not None:
        plan.mark_in_progress(step.index)
        plan.mark_done(step.index, {"did": step.tool})
        seen.append(step.tool)
    assert seen == ["look_up", "refund", "tell"]
    assert [step.result["did"] for step in plan.steps()] == seen


def test_the_same_plan_again_is_the_same_run(kind, client, plan):
    again = kind.execution("refund-1", client)
    run = again.init_plan(["look_up", "refund", "tell"])
    assert run.id == plan.init_plan(["look_up", "refund", "tell"]).id
    assert len(run.steps) == 3
    with pytest.raises(RunKeyTaken):
        again.init_plan(["look_up", "something else"])


def test_a_new_process_goes_on_at_the_interrupted_step(
    kind, client, plan, clock, project
):
    plan.mark_in_progress(0)
    plan.mark_done(0, "found")
    claimed = plan.mark_in_progress(1)  # and here the process dies
    clock.advance(seconds=31)
    sweep(project.id)
    again = kind.execution("refund-1", client)
    step = again.next_pending_step()
    assert (step.index, step.previous) == (1, "unknown")
    assert again.steps()[0].result == "found"
    anew = again.mark_in_progress(1)
    assert anew.idempotency_key == claimed.idempotency_key
    assert anew.attempt == 2
    again.mark_done(1, "paid")
    with pytest.raises(LeaseLost):
        plan.mark_done(1, "paid twice")
    assert again.steps()[1].result == "paid"


def test_a_step_whose_turn_it_is_not_cannot_be_begun(plan):
    with pytest.raises(StepNotClaimable) as refused:
        plan.mark_in_progress(2, timeout=0.1)
    assert refused.value.step.state == "pending"
    with pytest.raises(NotFound):
        plan.mark_in_progress(3)
    with pytest.raises(LeaseLost):
        plan.mark_done(2)


def test_failures_follow_the_retry_policy(kind, client):
    plan = kind.execution("r", client)
    plan.init_plan([{"tool": "t", "retry": {"max_attempts": 2, "backoff_s": 0}}])
    for error in (ValueError("first"), {"code": "second"}):
        plan.mark_in_progress(0)
        plan.mark_failed(0, error)
    [step] = plan.steps()
    assert (step.state, step.failures, step.error["code"]) == ("failed", 2, "second")
    assert plan.next_pending_step() is None


def test_an_interrupted_once_step_is_in_doubt_until_it_is_settled(
    kind, client, clock, project
):
    plan = kind.execution("r", client)
    plan.init_plan([{"tool": "pay", "effect": "once"}, "tell"])
    plan.mark_in_progress(0)
    clock.advance(seconds=31)
    sweep(project.id)
    again = kind.execution("r", client)
    assert again.next_pending_step().state == "in_doubt"
    with pytest.raises(StepNotClaimable, match="in_doubt"):
        again.mark_in_progress(0)
    again.resolve(0, "done", {"receipt": 1})
    assert again.steps()[0].result == {"receipt": 1}
    assert again.next_pending_step().index == 1


def test_parallel_steps_may_be_begun_in_any_order(kind, client):
    plan = kind.execution("r", client)
    plan.init_plan([{"tool": "t", "depends_on": []} for _ in range(3)])
    for index in (2, 0, 1):
        plan.mark_in_progress(index)
        plan.mark_done(index, index)
    assert [step.result for step in plan.steps()] == [0, 1, 2]


def test_a_plan_by_the_id_of_a_run(kind, client, plan):
    run = plan.init_plan(["look_up", "refund", "tell"])
    by_id = kind.execution(run.id, client)
    assert by_id.next_pending_step().tool == "look_up"
    with pytest.raises(NotFound):
        kind.execution("nothing", client).next_pending_step()
