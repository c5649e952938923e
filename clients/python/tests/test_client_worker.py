"""Workers, with threads and with asyncio, against the real server."""

import asyncio
import logging
import threading
import time

import pytest
from agentstate.processes import wait_until
from django.db import connection
from runs_app.sweeps import sweep
from tests.factories import fetch
from tests.fixtures import issue_key

from agentstate_client import (
    Client,
    MissingScope,
    StepFailed,
    Unauthenticated,
    Worker,
    work,
)


@pytest.fixture
def worker(kind, client):
    return kind.worker(client)


def new_run(client, *steps, **fields):
    return client.runs.create(list(steps), session_key=f"s-{time.time_ns()}", **fields)


def states(client, run):
    return [step.state for step in client.runs.get(run.id).steps]


def test_a_tool_is_handed_its_step_and_returns_its_result(client, worker):
    seen = []

    @worker.tool("greet")
    def greet(ctx):
        seen.append(ctx)
        return {"hello": ctx.args["name"]}

    run = new_run(client, worker.step("greet", {"name": "Ada"}))
    worker.run(until_idle=True)
    [step] = client.runs.get(run.id).steps
    assert (step.state, step.result) == ("done", {"hello": "Ada"})
    [ctx] = seen
    assert ctx.idempotency_key == step.idempotency_key == f"{run.id}:{step.id}"
    assert (ctx.attempt, ctx.previous, ctx.run_id) == (1, None, run.id)
    assert step.worker == worker.name


def test_it_works_through_a_plan_in_order_and_leaves_other_tools(client, worker):
    order = []

    @worker.tool("a")
    def note(ctx):
        order.append(ctx.index)

    run = new_run(client, *[worker.step("a")] * 3, {"tool": "b"})
    worker.run(until_idle=True)
    assert order == [0, 1, 2]
    assert states(client, run) == ["done", "done", "done", "pending"]


def test_what_a_tool_raises_is_the_steps_failure(client, worker):
    @worker.tool("t")
    def fail(ctx):
        if ctx.attempt == 1:
            raise KeyError("first")
        raise StepFailed("no such order", code="unknown_order", retryable=False)

    run = new_run(client, worker.step("t", retry={"backoff_s": 0}))
    worker.run(until_idle=True)
    [step] = client.runs.get(run.id).steps
    assert (step.state, step.failures, step.attempt) == ("failed", 2, 2)
    assert step.error["code"] == "unknown_order"


def test_an_unforeseen_error_leaves_a_once_step_in_doubt(client, worker):
    @worker.tool("pay", effect="once")
    def pay(ctx):
        raise TimeoutError("no answer")

    run = new_run(client, worker.step("pay"))
    worker.run(until_idle=True)
    assert states(client, run) == ["in_doubt"]


def test_a_once_step_that_says_it_did_nothing_is_retried(client, worker):
    @worker.tool("pay", effect="once")
    def pay(ctx):
        if ctx.attempt == 1:
            raise StepFailed("not connected", code="busy")
        return "paid"

    run = new_run(client, worker.step("pay", retry={"backoff_s": 0}))
    worker.run(until_idle=True)
    assert states(client, run) == ["done"]


def test_a_step_that_would_be_repeated_is_not_given_to_a_once_tool(client, worker):
    called = []

    @worker.tool("pay", effect="once")
    def pay(ctx):
        called.append(1)

    run = new_run(client, {"tool": "pay"})  # idempotent, as the plan says nothing
    worker.run(until_idle=True)
    [step] = client.runs.get(run.id).steps
    assert (step.state, step.error["code"], called) == ("failed", "effect_mismatch", [])


@pytest.mark.parametrize("effect", ["idempotent", "once"])
def test_a_result_that_cannot_be_sent_is_not_computed_again(client, worker, effect):
    called = []

    @worker.tool("t")
    def bad(ctx):
        called.append(1)
        return {1, 2} if len(ctx.args) == 1 else "x" * 2_000_000

    for args in ([1], [1, 2]):
        run = new_run(client, {"tool": "t", "args": args, "effect": effect})
        worker.run(until_idle=True)
        [step] = client.runs.get(run.id).steps
        assert step.state == ("in_doubt" if effect == "once" else "failed")
        assert step.error["code"] in ("result_not_json", "result_too_large")
    assert called == [1, 1]


def test_heartbeats_keep_a_step_that_takes_long(
    kind, client, project, clock, monkeypatch
):
    """Longer than its lease, by the database's clock: it would be lost without them."""
    monkeypatch.setattr(work, "BEATS", 60)
    worker = kind.worker(client, lease_s=30)

    @worker.tool("slow")
    def slow(ctx):
        for _ in range(3):
            before = leased_until(ctx.step_id)
            clock.advance(seconds=12)
            assert wait_until(lambda: leased_until(ctx.step_id) > before, 60)  # noqa: B023
            sweep(project.id)
        connection.close()  # the thread ends with its step
        return ctx.sleep(0.01)

    run = new_run(client, worker.step("slow"))
    worker.run(until_idle=True)
    [step] = client.runs.get(run.id).steps
    assert (step.state, step.attempt, step.lost) == ("done", 1, 0)


def leased_until(step_id):
    [(until,)] = fetch(
        "SELECT lease_until FROM agent_step_leases WHERE step_id = %s", step_id
    )
    return until


def test_several_steps_at_once(kind, client):
    worker = kind.worker(client, concurrency=4)
    together = threading.Barrier(4)

    @worker.tool("meet")
    def meet(ctx):
        if kind.name == "sync":
            return together.wait(30)
        return asyncio.to_thread(together.wait, 30)

    run = new_run(client, *[worker.step("meet", depends_on=[])] * 4)
    worker.run(until_idle=True)
    assert sorted(s.result for s in client.runs.get(run.id).steps) == [0, 1, 2, 3]


def test_an_effect_is_entered_in_the_ledger_and_not_repeated(client, server, key):
    worker, sent = Worker(Client(server.base_url, key)), []

    @worker.tool("mail")
    def mail(ctx):
        with ctx.effect("mail", request={"to": "ada"}) as effect:
            if effect.is_new:
                sent.append(effect.key)
                effect.result = {"id": "m-1"}
        if ctx.attempt == 1:
            raise StepFailed("after the mail")
        return effect.result

    run = client.runs.create(
        [worker.step("mail", retry={"backoff_s": 0})], session_key="s"
    )
    run_id = getattr(run, "id", None)
    worker.run(until_idle=True)
    [step] = client.runs.get(run_id).steps
    assert (step.state, step.result, step.attempt) == ("done", {"id": "m-1"}, 2)
    assert sent == [f"{step.idempotency_key}:mail"]
    assert client.effects.get(sent[0]).outcome == "done"


def test_an_effect_in_doubt_is_raised_and_with_repeat_done_again(client, server, key):
    worker, sent = Worker(Client(server.base_url, key)), []

    @worker.tool("mail")
    def mail(ctx):
        with ctx.effect("mail", repeat=ctx.args == "repeat"):
            sent.append(ctx.attempt)
            if ctx.attempt == 1:
                raise StepFailed("in the middle")

    runs = [
        client.runs.create(
            [worker.step("mail", args, retry={"backoff_s": 0})], session_key=args
        )
        for args in ("ask", "repeat")
    ]
    worker.run(until_idle=True)
    asked, repeated = (client.runs.get(run.id).steps[0] for run in runs)
    assert (asked.state, asked.error["code"]) == ("failed", "effect_in_doubt")
    assert repeated.state == "done"
    assert sorted(sent) == [1, 1, 2]


def test_tokens_and_cost_are_reported(client, worker):
    @worker.tool("think")
    def think(ctx):
        ctx.use(tokens=100)
        ctx.use(tokens=20, cost=0.5)

    run = new_run(client, worker.step("think"))
    worker.run(until_idle=True)
    budget = client.runs.get(run.id).extra["budget"]
    assert (budget["tokens"], float(budget["cost"])) == (120, 0.5)


def test_st_04_each_refusal_has_its_code_and_the_worker_goes_on(
    client, worker, server, key, project, clock
):
    """lease_lost, already_finished and cancelled end a step, not the worker."""
    rival = Client(server.base_url, key)

    def time_passes():
        clock.advance(seconds=31)
        sweep(project.id)
        connection.close()  # the thread ends with its step

    def lose(ctx):
        time_passes()
        return rival.steps.claim("rival", run=ctx.run_id).steps[0]

    @worker.tool("t")
    def meddled(ctx):
        if ctx.args == "lease_lost":
            lose(ctx)
        elif ctx.args == "already_finished":
            taken = lose(ctx)
            item = {"step": taken.step, "lease_token": taken.lease_token, "result": 1}
            rival.steps.complete([item])
        elif ctx.args == "cancelled":
            rival.steps.cancel(ctx.step_id)
            time_passes()
        return 2

    codes = ["lease_lost", "already_finished", "cancelled", "fine"]
    runs = [new_run(client, worker.step("t", code)) for code in codes]
    worker.run(until_idle=True)
    found = [client.runs.get(run.id).steps[0] for run in runs]
    assert [step.state for step in found] == [
        "in_progress",
        "done",
        "cancelled",
        "done",
    ]
    assert [step.result for step in found][1::2] == [1, 2]


def test_st_04_only_a_wrong_set_up_ends_it(kind, server, project):
    for key, error in (
        (issue_key(project)[:-1] + "x", Unauthenticated),
        (issue_key(project, ["runs:read"]), MissingScope),
    ):
        worker = kind.worker(kind.client(server.base_url, key))
        worker.tool("t")(lambda ctx: None)
        with pytest.raises(error):
            worker.run()


def test_a_server_that_is_away_is_waited_for(kind, proxy, key, client):
    patient = kind.client(proxy.base_url, key, max_retries=0)
    worker = kind.worker(patient)
    worker.tool("t")(lambda ctx: "done")
    run = new_run(client, worker.step("t"))
    proxy.lose_answers = 1  # the claim's: the step comes back when its lease ends
    worker.run(until_idle=True)
    assert states(client, run) in (["in_progress"], ["done"])
    again = new_run(client, worker.step("t"))
    worker.run(until_idle=True)
    assert states(client, again) == ["done"]


def test_stop_lets_the_tool_end(server, key, client):
    worker = Worker(Client(server.base_url, key), wait_s=0.2)
    began, may_end = threading.Event(), threading.Event()

    @worker.tool("t")
    def slow(ctx):
        began.set()
        may_end.wait(60)
        return "done"

    run = new_run(client, worker.step("t"), worker.step("t"))
    thread = threading.Thread(target=worker.run)
    thread.start()
    assert began.wait(60)
    worker.stop()
    may_end.set()
    thread.join(60)
    assert states(client, run) == ["done", "pending"]


@pytest.mark.parametrize(
    ("effect", "state"), [("none", "pending"), ("once", "in_doubt")]
)
def test_what_does_not_end_in_time_is_given_back(kind, client, effect, state):
    worker = kind.worker(client, grace_s=1, wait_s=0.2)

    @worker.tool("t")
    def endless(ctx):
        worker.stop()
        if kind.name == "sync":
            ctx.sleep(60)
        else:
            return asyncio.sleep(60)

    run = new_run(client, {"tool": "t", "effect": effect})
    worker.run()
    [step] = client.runs.get(run.id).steps
    assert (step.state, step.lost) == (state, 0)


def test_a_tool_is_not_started_when_its_lease_is_over(kind, client, clock, project):
    """The claim's answer came late: another may have the step by now."""
    worker, called = kind.worker(client, lease_s=5), []
    worker.tool("t")(lambda ctx: called.append(1))
    run = new_run(client, worker.step("t"))
    [step] = client.steps.claim(worker.name, lease_s=5)
    clock.advance(seconds=6)
    sweep(project.id)
    held = worker._holdings.take(step, time.monotonic() - 5)
    outcome = worker._outcome(held)
    assert (outcome if kind.name == "sync" else worker._runner.run(outcome)) is None
    assert called == []
    assert states(client, run) == ["pending"]


def test_names_are_new_each_time(kind, client):
    names = {kind.worker(client, name="pod-0").name for _ in range(10)}
    assert len(names) == 10
    assert all(name.startswith("pod-0@") for name in names)


def test_mistakes_of_the_set_up_are_told_at_once(kind, client, worker):
    with pytest.raises(ValueError, match="no tool"):
        worker.run()
    worker.tool("t")(lambda ctx: None)
    with pytest.raises(ValueError, match="already"):
        worker.tool("t")(lambda ctx: None)
    with pytest.raises(ValueError, match="sometimes"):
        worker.tool("u", effect="sometimes")(lambda ctx: None)
    with pytest.raises(ValueError, match="concurrency"):
        kind.worker(client, concurrency=0)


def test_logs_hold_no_payloads(client, worker, caplog):
    @worker.tool("t")
    def fail(ctx):
        raise StepFailed("nothing of the args")

    with caplog.at_level(logging.DEBUG, "agentstate_client.worker"):
        new_run(client, worker.step("t", "sentinel", retry={"max_attempts": 1}))
        worker.run(until_idle=True)
    assert "sentinel" not in caplog.text
