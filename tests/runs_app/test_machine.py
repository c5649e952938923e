"""The same commands to the API and to a model in memory; the states must agree (32)."""

from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from runs_app.sweeps import sweep
from tests.fixtures import Api, Clock, issue_key, make_project
from tests.runs_app.conftest import Runs, held
from tests.runs_app.model import ENDED, MAX_LOST, ModelRun, ModelStep

STEP = st.builds(
    ModelStep,
    depends_on=st.just([]),
    effect=st.sampled_from(["none", "idempotent", "once"]),
    max_attempts=st.integers(1, 2),
    holds=st.booleans(),
    needs_approval=st.sampled_from([False, False, True]),
)
MOVES = [
    "approve",
    "reject",
    "skip",
    "cancel",
    "retry",
    "done",
    "not_done",
    "give_up",
]


@st.composite
def plans(draw: Any) -> list[ModelStep]:
    steps = draw(st.lists(STEP, min_size=1, max_size=4))
    for index, step in enumerate(steps):
        if index:
            earlier = st.sampled_from(range(index))
            step.depends_on = sorted(draw(st.sets(earlier, max_size=2)))
    return steps


def sent(step: ModelStep) -> dict[str, Any]:
    return {
        "tool": "a",
        "depends_on": step.depends_on,
        "effect": step.effect,
        "requires_approval": step.needs_approval,
        "on_exhausted": "hold" if step.holds else "fail",
        "retry": {
            "max_attempts": step.max_attempts,
            "max_lost": MAX_LOST,
            "backoff_s": 0,
        },
    }


class RunMachine(RuleBasedStateMachine):
    """One run; `held` are the claims that the API has given out, stale ones too."""

    @initialize(steps=plans())
    def create(self, steps: list[ModelStep]) -> None:
        self.project = make_project()
        self.api = Api(issue_key(self.project))
        self.runs = Runs(self.api)
        self.clock = Clock()
        self.run = self.runs.create([sent(step) for step in steps])
        self.model = ModelRun(steps)
        self.model.settle()
        self.live: dict[int, dict[str, Any]] = {}
        self.stale: list[dict[str, Any]] = []

    def teardown(self) -> None:
        if hasattr(self, "clock"):
            self.clock.reset()
            from runs_app.invariants import broken_invariants
            from runs_app.projection import run_differences
            from sessions_app.models import Session

            session = Session.objects.get(id=self.run["session"])
            assert list(run_differences(session)) == []
            assert list(broken_invariants(self.project.id)) == []

    @invariant()
    def states_agree(self) -> None:
        shown = self.runs.get(self.run)
        assert [s["state"] for s in shown["steps"]] == [
            step.state for step in self.model.steps
        ]
        assert shown["state"] == self.model.state
        failing = [s["failures"] for s in shown["steps"]]
        assert failing == [step.failures for step in self.model.steps]

    @rule()
    def claim(self) -> None:
        claimed = self.runs.work.claim(run=self.run["id"], lease_s=30)
        expected = self.model.claimable()
        assert bool(claimed) == bool(expected)
        for step in claimed:
            assert step["index"] in expected
            self.live[step["index"]] = step
            self.model.claim(step["index"])

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def complete(self, data: Any) -> None:
        index = data.draw(st.sampled_from(sorted(self.live)))
        step = self.live.pop(index)
        assert self.runs.work.complete(step, index)["ok"]
        self.model.complete(index)
        assert self.runs.work.complete(step, index)["ok"]  # the same again
        assert self.runs.work.complete(step, "x")["code"] == "already_finished"

    @precondition(lambda self: self.live)
    @rule(data=st.data(), retryable=st.booleans())
    def fail(self, data: Any, retryable: bool) -> None:
        index = data.draw(st.sampled_from(sorted(self.live)))
        step = self.live.pop(index)
        assert self.runs.work.fail(step, retryable=retryable)["ok"]
        self.model.fail(index, retryable)
        self.stale.append(step)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def release(self, data: Any) -> None:
        index = data.draw(st.sampled_from(sorted(self.live)))
        step = self.live.pop(index)
        assert self.runs.work.release(step)["ok"]
        self.model.release(index)
        self.stale.append(step)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def lose(self, data: Any) -> None:
        """All but one of the workers keep their leases."""
        index = data.draw(st.sampled_from(sorted(self.live)))
        self.clock.advance(seconds=20)
        for other, step in self.live.items():
            if other != index:
                assert self.runs.work.beat(step)["ok"]
        self.clock.advance(seconds=11)
        sweep(self.project.id)
        self.stale.append(self.live.pop(index))
        self.model.lose(index)

    @precondition(lambda self: self.stale)
    @rule(data=st.data(), call=st.sampled_from(["complete", "heartbeat", "release"]))
    def come_late(self, data: Any, call: str) -> None:
        step = data.draw(st.sampled_from(self.stale))
        [item] = self.runs.work.end(call, held(step))
        if item["state"] == "done":  # a person has said so, perhaps with this result
            assert item["code"] in ("lease_lost", "already_finished", None)
            assert not item["ok"] or call == "complete"
        else:
            assert not item["ok"]
            assert item["code"] in ("lease_lost", "already_finished", "cancelled")

    @rule(move=st.sampled_from(["cancel", "pause", "resume", "retry"]))
    def steer(self, move: str) -> None:
        state = self.model.state
        allowed = {
            "cancel": state not in ENDED and state != "cancelling",
            "pause": state in ("queued", "running", "waiting"),
            "resume": state == "paused",
            "retry": state == "failed",
        }[move]
        answer = self.api.post(f"/api/v1/runs/{self.run['id']}/{move}", {})
        if allowed:
            assert answer.status_code == 200, answer
            getattr(self.model, move)()
        else:
            assert answer.status_code in (200, 409)

    @rule(data=st.data(), move=st.sampled_from(MOVES))
    def decide(self, data: Any, move: str) -> None:
        index = data.draw(st.integers(0, len(self.model.steps) - 1))
        step = self.run["steps"][index]["id"]
        allowed = self.model.may_decide(index, move)
        if move in ("done", "not_done", "give_up"):
            answer = self.api.post(f"/api/v1/steps/{step}/resolve", {"outcome": move})
        else:
            answer = self.api.post(f"/api/v1/steps/{step}/{move}", {})
        if allowed:
            assert answer.status_code == 200, answer
            if index in self.live:
                self.stale.append(self.live.pop(index))
            self.model.decide(index, move)
        else:
            assert answer.status_code in (200, 409)


def bounded(examples: int) -> settings:
    return settings(
        max_examples=examples,
        stateful_step_count=25,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        print_blob=True,
    )


class TestRunMachine(RunMachine.TestCase):  # type: ignore[misc,valid-type]
    settings = bounded(12)


@pytest.mark.soak
@pytest.mark.timeout(7200)
class TestRunMachineForLong(RunMachine.TestCase):  # type: ignore[misc,valid-type]
    settings = bounded(1000)
