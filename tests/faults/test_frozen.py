"""Workers that freeze, are doubled, are told to end; servers that die."""

import os
import signal
import threading
import time

import httpx
import pytest
from agentstate_client import Client, Worker, work

from agentstate.processes import wait_until
from runs_app.sweeps import sweep
from tests.cutting_proxy import CuttingProxy
from tests.faults.mortal import FORKS

LEASE = 30


def slow_worker(base_url, key, downstream, may_end):
    """Pays, then holds its step until it is told to end; `quick` steps end at once."""
    worker = Worker(Client(base_url, key), wait_s=0.2, lease_s=LEASE)

    @worker.tool("slow", effect="once")
    def slow(ctx):
        headers = {"Idempotency-Key": ctx.idempotency_key}
        httpx.post(f"{downstream}/refunds", json={}, headers=headers, timeout=30)
        may_end.wait(60)
        return {"by": "the frozen one"}

    @worker.tool("quick")
    def quick(ctx):
        ctx.sleep(ctx.args or 0)
        return os.getpid()

    worker.run()


@pytest.fixture
def start_worker(server, key, downstream):
    started = []
    may_end = FORKS.Event()

    def start():
        arguments = (server.base_url, key, downstream.url, may_end)
        process = FORKS.Process(target=slow_worker, args=arguments, daemon=True)
        process.start()
        started.append(process)
        return process

    start.may_end = may_end
    yield start
    for process in started:
        process.kill()
        process.join()


def held(step):
    return {"step": step.step, "lease_token": step.lease_token}


def refusals(client, item):
    """What each of a worker's calls answers to this token."""
    answers = [
        *client.steps.heartbeat([item]),
        *client.steps.complete([item | {"result": {"by": "the frozen one"}}]),
        *client.steps.fail([item | {"error": {"code": "late"}}]),
        *client.steps.release([item]),
    ]
    assert {answer.status for answer in answers} == {409}
    assert not any(answer.ok for answer in answers)
    return {answer.code for answer in answers}


@pytest.mark.parametrize("has_same_name", [True, False])
def test_a_frozen_worker_that_wakes_is_refused_and_carries_on(
    client, project, clock, downstream, start_worker, has_same_name
):
    """SIGSTOP in a step, another finishes it, SIGCONT: also with the same name."""
    plan = [{"tool": "slow", "effect": "once"}]
    run = client.runs.create(plan, session_key="s")
    frozen = start_worker()
    assert wait_until(lambda: sum(downstream.asked.values()) == 1, 120)
    [step] = client.runs.get(run.id).steps
    os.kill(frozen.pid, signal.SIGSTOP)
    clock.advance(seconds=LEASE + 1)
    sweep(project.id)
    assert client.steps.get(step.id).state == "in_doubt"
    client.steps.resolve(step.id, "not_done")
    name = step.worker if has_same_name else "another"
    [mine] = client.steps.claim(name, run=run.id)
    assert mine.idempotency_key == step.idempotency_key
    assert client.steps.complete([held(mine) | {"result": {"by": "another"}}])[0].ok

    os.kill(frozen.pid, signal.SIGCONT)
    start_worker.may_end.set()
    after = client.runs.create([{"tool": "quick"}], session_key="after")
    assert wait_until(lambda: client.runs.get(after.id).state == "succeeded", 120)
    assert client.runs.get(after.id).steps[0].result == frozen.pid
    [step] = client.runs.get(run.id).steps
    assert (step.state, step.result) == ("done", {"by": "another"})


def test_03_a_killed_worker_counts_as_lost_and_not_as_failed(
    client, start_worker, clock
):
    run = client.runs.create([{"tool": "quick", "args": 60}], session_key="s")
    killed = start_worker()
    assert wait_until(lambda: has_worked(client, run, killed.pid), 120)
    killed.kill()
    killed.join()
    assert client.steps.claim("w-2", run=run.id).steps == []
    # The claim that finds nothing sweeps: not even the sweep's own time is waited for.
    clock.advance(seconds=LEASE + 1)
    [mine] = client.steps.claim("w-2", run=run.id)
    assert (mine.attempt, mine.lost, mine.failures) == (2, 1, 0)
    assert mine.previous == "unknown"
    assert client.steps.complete([held(mine)])[0].ok


def worker_of_another_time(base_url, key, seconds):
    """Works, on a machine whose clock is wrong."""
    right = time.time
    time.time = lambda: right() + seconds
    worker = Worker(Client(base_url, key), lease_s=LEASE)

    @worker.tool("quick")
    def quick(ctx):
        return time.time() - right()

    worker.run(until_idle=True)


@pytest.mark.parametrize("seconds", [-600, 600])
def test_08_the_clock_of_a_worker_decides_nothing(client, server, key, seconds):
    plan = [{"tool": "quick", "timeout_s": 60, "retry": {"max_attempts": 1}}] * 3
    run = client.runs.create(plan, session_key="s")
    arguments = (server.base_url, key, seconds)
    process = FORKS.Process(target=worker_of_another_time, args=arguments, daemon=True)
    process.start()
    process.join(60)
    assert process.exitcode == 0
    shown = client.runs.get(run.id)
    assert shown.state == "succeeded"
    for step in shown.steps:
        assert abs(step.result - seconds) < 60
        assert (step.attempt, step.lost, step.failures) == (1, 0, 0)


def test_a_lost_token_is_refused_in_every_call(client, project, clock):
    client.runs.create([{"tool": "t"}], session_key="s")
    [old] = client.steps.claim("pod-0")
    clock.advance(seconds=LEASE + 1)
    sweep(project.id)
    [new] = client.steps.claim("pod-0")
    assert new.step == old.step
    assert new.lease_token > old.lease_token
    assert new.previous == "unknown"
    assert refusals(client, held(old)) == {"lease_lost"}
    assert client.steps.complete([held(new) | {"result": 1}])[0].ok
    assert refusals(client, held(old)) <= {"lease_lost", "already_finished"}
    assert client.steps.get(old.step).result == 1


def test_st_14_a_name_keeps_no_step_alive(client, project, clock):
    """pod-0 is killed; a new pod-0 sends heartbeats without the step's token."""
    client.runs.create([{"tool": "t"}], session_key="s")
    [old] = client.steps.claim("pod-0")
    for _ in range(3):
        clock.advance(seconds=LEASE / 3)
        guess = {"step": old.step, "lease_token": old.lease_token + 1}
        [answer] = client.steps.heartbeat([guess])
        assert (answer.ok, answer.code) == (False, "lease_lost")
        assert client.steps.claim("pod-0", tools=["other"]).steps == []
    clock.advance(seconds=2)
    sweep(project.id)
    [again] = client.steps.claim("pod-0")
    assert again.step == old.step


def test_st_16_a_restart_of_the_server_loses_no_claim(server_factory, key, project):
    server = server_factory()
    with Client(server.base_url, key) as client:
        client.runs.create([{"tool": "t"}], session_key="s")
        [step] = client.steps.claim("w-1", lease_s=60)
        server.kill()
        server.restart()
        assert client.steps.heartbeat([held(step)])[0].ok
        assert client.steps.complete([held(step) | {"result": 1}])[0].ok
        assert client.steps.complete([held(step) | {"result": 1}])[0].ok
        [other] = client.steps.complete([held(step) | {"result": 2}])
        assert other.code == "already_finished"


class CountingTransport(httpx.HTTPTransport):
    """Counts the heartbeats that are answered."""

    beats = 0

    def handle_request(self, request):
        response = super().handle_request(request)
        self.beats += request.url.path.endswith("/steps/heartbeat")
        return response


def test_st_20_a_worker_stops_within_one_heartbeat_of_a_cancel(
    client, server, key, clock, project, monkeypatch
):
    """A cancel and, apart from it, a lease that another has taken over."""
    monkeypatch.setattr(work, "BEATS", LEASE)  # one a second, and a lease that lasts
    began, stopped = threading.Semaphore(0), threading.Semaphore(0)
    answered = CountingTransport()
    worker = Worker(
        Client(server.base_url, key, transport=answered), wait_s=0.2, lease_s=LEASE
    )
    beats = []  # until a step was stopped

    @worker.tool("endless")
    def endless(ctx):
        began.release()
        try:
            while True:
                threading.Event().wait(0.01)
        finally:
            beats.append(answered.beats)
            stopped.release()

    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        cancelled = client.runs.create([{"tool": "endless"}], session_key="cancelled")
        assert began.acquire(timeout=60)
        client.runs.cancel(cancelled.id)
        before = answered.beats
        assert stopped.acquire(timeout=60)
        assert beats.pop() - before <= 2  # one may have been under way
        assert wait_until(
            lambda: client.runs.get(cancelled.id).state == "cancelled", 30
        )

        taken = client.runs.create([{"tool": "endless"}], session_key="taken")
        assert began.acquire(timeout=60)
        clock.advance(seconds=LEASE + 1)
        sweep(project.id)
        [mine] = client.steps.claim("w-2", run=taken.id)
        before = answered.beats
        assert stopped.acquire(timeout=60)
        assert beats.pop() - before <= 2
        assert client.steps.complete([held(mine)])[0].ok
    finally:
        worker.stop()
        thread.join(60)
    assert not thread.is_alive()


def has_worked(client, run, pid):
    """Whether the process has claimed a step; its id is in the worker's name."""
    return any(f":{pid}:" in (s.worker or "") for s in client.runs.get(run.id).steps)


def test_a_rolling_restart_fails_no_step_and_counts_none(client, start_worker):
    """Workers get SIGTERM one after another while new ones take over."""
    plan = [{"tool": "quick", "args": 0.05, "depends_on": []} for _ in range(150)]
    run = client.runs.create(plan, session_key="s")
    old = [start_worker() for _ in range(2)]
    for process in old:
        # This one at work, not just any: before that it hears no signal.
        assert wait_until(lambda pid=process.pid: has_worked(client, run, pid), 120)
        os.kill(process.pid, signal.SIGTERM)
        start_worker()
        process.join(60)
        assert process.exitcode == 0
    assert wait_until(lambda: client.runs.get(run.id).state == "succeeded", 120)
    for step in client.runs.get(run.id).steps:
        assert (step.failures, step.lost) == (0, 0)
        assert step.previous is None


def test_answers_lost_on_the_way_double_nothing(client, server, key, downstream):
    """The server commits a complete, and its answer never arrives."""
    proxy = CuttingProxy(server.base_url)
    worker = Worker(Client(proxy.base_url, key))

    @worker.tool("pay", effect="once")
    def pay(ctx):
        receipt = downstream.refund(ctx.idempotency_key, {})
        proxy.lose_answers = 2
        return receipt

    run = client.runs.create([worker.step("pay")] * 3, session_key="s")
    worker.run(until_idle=True)
    proxy.close()
    assert client.runs.get(run.id).state == "succeeded"
    assert set(downstream.carried_out.values()) == {1}
    assert [step.attempt for step in client.runs.get(run.id).steps] == [1, 1, 1]


def test_a_server_killed_under_load_loses_and_doubles_nothing(
    server_factory, key, project, clock, downstream
):
    server = server_factory()
    client = Client(server.base_url, key, deadline=120)
    worker = Worker(client, concurrency=4, wait_s=0.2)

    @worker.tool("pay")
    def pay(ctx):
        return downstream.refund(ctx.idempotency_key, {"order": ctx.args})

    plan = [
        {"tool": "pay", "args": n, "depends_on": [], "retry": {"max_lost": 100}}
        for n in range(150)
    ]
    run = client.runs.create(plan, session_key="s")
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        for paid in (20, 80):
            assert wait_until(lambda paid=paid: len(downstream.paid) >= paid, 120)
            server.kill()
            server.restart()
            # A claim whose answer died with the server comes back with its lease.
            clock.advance(seconds=LEASE + 1)
        assert wait_until(lambda: client.runs.get(run.id).state == "succeeded", 90)
    finally:
        worker.stop()
        thread.join(60)
    assert len(downstream.paid) == 150
    assert set(downstream.carried_out.values()) == {1}
