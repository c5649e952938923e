"""Postgres goes away under workers: they are stopped or fenced, and nothing doubles."""

import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from agentstate_client import Client, Worker

from agentstate.processes import wait_until
from tests.ops.supervised import ROOT, Supervised


@pytest.fixture(scope="module")
def served() -> Iterator[Supervised]:
    top = Path(tempfile.mkdtemp(prefix="agentstate-serve-"))
    running = Supervised(top)
    running.start()
    yield running
    running.clean_up()
    shutil.rmtree(top, ignore_errors=True)


def stop_postgres(served: Supervised) -> None:
    """An immediate stop: no checkpoint, every connection cut."""
    os.kill(served.pid_of("postgres"), signal.SIGQUIT)


def check(served: Supervised, command: str) -> None:
    subprocess.run(
        [sys.executable, "manage.py", command],
        cwd=ROOT,
        env=served.environment,
        check=True,
        capture_output=True,
    )


def test_07_no_heartbeat_for_a_lease_since_the_database_is_away(served):
    client = Client(served.url, served.any_key(), deadline=120)
    began, ended = threading.Event(), threading.Event()
    first = Worker(client, lease_s=4, wait_s=0.2, name="first")
    second = Worker(client, lease_s=30, wait_s=0.2, name="second")

    @first.tool("slow")
    def hold(ctx):
        began.set()
        try:
            while True:
                threading.Event().wait(0.01)  # until it is interrupted
        finally:
            ended.set()

    @second.tool("slow")
    def finish(ctx):
        return "second"

    run = client.runs.create([{"tool": "slow"}], session_key="away")
    threads = [threading.Thread(target=first.run)]
    threads[0].start()
    assert served.process is not None
    try:
        assert began.wait(60)
        os.kill(served.process.pid, signal.SIGSTOP)  # so that nobody starts it again
        stop_postgres(served)
        assert ended.wait(60)  # by itself: nobody could tell it
        first.stop()
        os.kill(served.process.pid, signal.SIGCONT)
        threads.append(threading.Thread(target=second.run))
        threads[1].start()
        assert wait_until(lambda: client.runs.get(run.id).state == "succeeded", 90)
    finally:
        os.kill(served.process.pid, signal.SIGCONT)
        first.stop()
        second.stop()
        for thread in threads:
            thread.join(60)
    [step] = client.runs.get(run.id).steps
    # The first may have had it once more, and given it back.
    assert (step.result, step.lost, step.failures) == ("second", 1, 0)
    check(served, "check_invariants")


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_28_postgres_stops_at_once_again_and_again_under_load(served):
    """For ten minutes, every 5 to 40 seconds; then everything is in its place."""
    seed = int(os.environ.get("SEED", random.randrange(10**6)))
    print(f"seed {seed}")
    chance = random.Random(seed)
    client = Client(served.url, served.any_key(), deadline=120)
    worker = Worker(client, concurrency=8, lease_s=5, wait_s=1)
    done: list[str] = []

    @worker.tool("work")
    def work(ctx):
        threading.Event().wait(chance.random() / 10)
        done.append(ctx.idempotency_key)
        return ctx.args

    runs: list[str] = []
    is_over = threading.Event()

    def supply() -> None:
        while not is_over.is_set():
            plan = [
                {"tool": "work", "args": n, "depends_on": [], "retry": {"max_lost": 99}}
                for n in range(50)
            ]
            # The same key again if the answer was lost: one run all the same.
            made = client.runs.create(plan, session_key=f"load-{len(runs)}", key="run")
            runs.append(made.id)
            is_over.wait(0.5)

    threads = [threading.Thread(target=worker.run), threading.Thread(target=supply)]
    for thread in threads:
        thread.start()
    try:
        until = time.monotonic() + 600
        while time.monotonic() < until:
            is_over.wait(chance.uniform(5, 40))
            before = served.pid_of("postgres")
            stop_postgres(served)
            assert wait_until(lambda: served.is_replaced("postgres", before), 120)  # noqa: B023
        is_over.set()
        threads[1].join(150)

        def open_runs() -> list[str]:
            return [r for r in runs if client.runs.get(r).state != "succeeded"]

        assert wait_until(lambda: not open_runs(), 300), open_runs()
    finally:
        is_over.set()
        worker.stop()
        for thread in threads:
            thread.join(150)
    for run in runs:
        for step in client.runs.get(run).steps:
            assert (step.state, step.result) == ("done", step.index)
    check(served, "check_invariants")
    check(served, "verify_replay")
