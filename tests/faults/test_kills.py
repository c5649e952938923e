"""Workers killed with SIGKILL at every point of the protocol: each effect once.

AGENTSTATE_SEED repeats a run, AGENTSTATE_KILLS says how many processes are killed.
"""

import os
import random
import signal

import httpx
import pytest
from agentstate_client import ExecutionState

from runs_app.invariants import broken_invariants
from runs_app.sweeps import sweep
from tests.faults.mortal import POINTS, start

LEASE = 30  # seconds; the clock is moved past it, nobody waits
AT_ONCE = 6  # workers that live at the same time
PATIENT = {"max_lost": 1000, "max_attempts": 1000, "backoff_s": 0}


class Field:
    """Runs on a server, two services downstream, and workers that die."""

    def __init__(self, server, key, client, project, clock, downstream, careless):
        self.server = server
        self.key = key
        self.client = client
        self.project = project
        self.clock = clock
        self.downstream = downstream
        self.careless = careless
        self.runs = []
        self.killed = 0

    def new_run(self, number):
        plan = [
            {
                "tool": "refund" if index % 2 == 0 else "refund_once",
                "effect": "idempotent" if index % 2 == 0 else "once",
                "args": {"order": f"{number}-{index}"},
                "retry": PATIENT,
            }
            for index in range(4)
        ]
        self.runs.append(self.client.runs.create(plan, session_key=f"s-{number}").id)

    def start(self, point):
        return start(
            self.server.base_url,
            self.key,
            self.downstream.url,
            self.careless.url,
            point,
        )

    def wait_for(self, processes):
        for process in processes:
            process.join(120)
            assert process.exitcode in (0, -signal.SIGKILL), process.exitcode
            self.killed += process.exitcode == -signal.SIGKILL
        # What was on its way to the services when its sender died has arrived.
        for service in (self.downstream, self.careless):
            httpx.get(f"{service.url}/counts", timeout=30)

    def time_passes(self):
        self.clock.advance(seconds=LEASE + 1)
        sweep(self.project.id)

    def settle_doubts(self):
        """As an agent would: ask the service whether it has been done."""
        for item in list(self.client.steps.inbox(kind="in_doubt", limit=1000)):
            step = item.step
            assert step.effect == "once"
            receipt = self.careless.receipt(step.idempotency_key)
            if receipt is None:
                self.client.steps.resolve(step.id, "not_done")
            else:
                self.client.steps.resolve(step.id, "done", result=receipt)

    def all_steps(self):
        return [step for run in self.runs for step in self.client.runs.get(run).steps]

    def work_to_the_end(self):
        for _ in range(20):
            self.settle_doubts()
            self.wait_for([self.start("never")])
            if all(step.has_ended for step in self.all_steps()):
                return
            self.time_passes()

    def check_never_twice(self):
        for service in (self.downstream, self.careless):
            twice = [key for key, n in service.carried_out.items() if n != 1]
            assert twice == []

    def check_all_once(self):
        """Each run has succeeded, and each step's result is what was done, once."""
        for run in self.runs:
            assert self.client.runs.get(run).state == "succeeded"
        for step in self.all_steps():
            service = self.downstream if step.tool == "refund" else self.careless
            assert service.carried_out[step.idempotency_key] == 1
            assert step.result == service.receipt(step.idempotency_key)
        assert list(broken_invariants(self.project.id)) == []


@pytest.fixture
def field(server, key, client, project, clock, downstream, careless):
    return Field(server, key, client, project, clock, downstream, careless)


def kill(field, kills, seed):
    print(f"AGENTSTATE_SEED={seed} AGENTSTATE_KILLS={kills}")
    chance = random.Random(seed)
    number = 0
    while field.killed < kills:
        # A worker that finds nothing leaves alive: keep more to do than workers.
        while number < 2 * AT_ONCE + field.killed // 4:
            field.new_run(number)
            number += 1
        points = [chance.choice(POINTS) for _ in range(AT_ONCE)]
        field.wait_for([field.start(point) for point in points])
        field.time_passes()
        field.check_never_twice()
        if chance.random() < 0.5:
            field.settle_doubts()
    field.work_to_the_end()
    field.check_all_once()


def seed():
    return int(
        os.environ.get("AGENTSTATE_SEED") or random.SystemRandom().getrandbits(32)
    )


def test_each_effect_once_whenever_workers_are_killed(field):
    kill(field, int(os.environ.get("AGENTSTATE_KILLS", 100)), seed())


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_each_effect_once_over_a_thousand_kills(field):
    kill(field, int(os.environ.get("AGENTSTATE_KILLS", 1200)), seed())


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("tool", ["refund", "refund_once"])
def test_a_new_process_goes_on_at_the_interrupted_step(field, point, tool):
    """Step 0 is done, a worker dies in step 1: the next sees step 1, not the first."""
    effect = "idempotent" if tool == "refund" else "once"
    plan = [
        {"tool": tool, "effect": effect, "args": {"order": n}, "retry": PATIENT}
        for n in range(3)
    ]
    run = field.client.runs.create(plan, session_key=f"s-{tool}-{point}")
    field.runs.append(run.id)
    first = ExecutionState(run.id, field.client)
    first.mark_in_progress(0)
    key = run.steps[0].idempotency_key
    service = field.downstream if tool == "refund" else field.careless
    receipt = service.refund(key, {"order": 0})
    first.mark_done(0, receipt)
    field.wait_for([field.start(point)])
    field.time_passes()

    again = ExecutionState(run.id, field.client)
    steps = again.steps()
    assert (steps[0].state, steps[0].result) == ("done", receipt)
    following = again.next_pending_step()
    is_reported = point in ("complete_unread", "after_complete")
    if point != "any":
        assert following.index == (2 if is_reported else 1)
        assert following.idempotency_key == run.steps[following.index].idempotency_key
        was_claimed = point != "before_claim" and not is_reported
        assert following.previous == ("unknown" if was_claimed else None)
        in_doubt = tool == "refund_once" and was_claimed
        assert following.state == ("in_doubt" if in_doubt else "pending")
    field.work_to_the_end()
    field.check_all_once()
