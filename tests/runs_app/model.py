"""Runs and steps in memory: what the machine in test_machine must agree with."""

from dataclasses import dataclass

OPEN = {"pending", "in_progress", "waiting", "in_doubt"}
MET = {"done", "skipped"}
ENDED = {"succeeded", "failed", "cancelled"}
MAX_LOST = 2


@dataclass
class ModelStep:
    depends_on: list[int]
    effect: str = "idempotent"
    max_attempts: int = 1
    holds: bool = False
    needs_approval: bool = False
    state: str = "pending"
    wait: str = ""
    is_approved: bool = False
    failures: int = 0
    lost: int = 0


@dataclass
class ModelRun:
    steps: list[ModelStep]
    state: str = "queued"
    is_failing: bool = False
    has_started: bool = False

    def settle(self) -> None:
        """Let steps wait for approval, then see what the run's own state is."""
        if self.state in ENDED:
            return
        if not self.is_failing and self.state != "cancelling":
            for step in self.steps:
                if self.is_due(step) and step.needs_approval and not step.is_approved:
                    step.state, step.wait = "waiting", "approval"
        states = [step.state for step in self.steps]
        if not OPEN & set(states):
            if self.state == "cancelling":
                self.state = "cancelled"
            elif self.is_failing or "failed" in states:
                self.state = "failed"
            else:
                self.state = "cancelled" if "cancelled" in states else "succeeded"
        elif self.state not in ("paused", "cancelling"):
            goes_on = "in_progress" in states or any(map(self.is_due, self.steps))
            if not goes_on:
                self.state = "waiting"
            elif self.state == "waiting":
                self.state = "running"

    def is_due(self, step: ModelStep) -> bool:
        return step.state == "pending" and all(
            self.steps[index].state in MET for index in step.depends_on
        )

    def claimable(self) -> set[int]:
        if self.is_failing or self.state not in ("queued", "running", "waiting"):
            return set()
        return {i for i, step in enumerate(self.steps) if self.is_due(step)}

    def claim(self, index: int) -> None:
        self.steps[index].state = "in_progress"
        self.has_started = True
        self.state = "running"
        self.settle()

    def complete(self, index: int) -> None:
        self.steps[index].state = "done"
        self.settle()

    def fail(self, index: int, retryable: bool) -> None:
        step = self.steps[index]
        step.failures += 1
        if self.state == "cancelling":
            step.state = "cancelled"
        elif self.is_failing:
            step.state = "failed"
        elif retryable and step.failures < step.max_attempts:
            step.state = "pending"
        else:
            self._exhaust(step)
        self.settle()

    def lose(self, index: int) -> None:
        step = self.steps[index]
        step.lost += 1
        if self.state == "cancelling":
            step.state = "cancelled"
        elif step.effect == "once":
            step.state = "in_doubt"
        elif self.is_failing:
            step.state = "cancelled"
        elif step.lost < MAX_LOST:
            step.state = "pending"
        else:
            self._exhaust(step)
        self.settle()

    def release(self, index: int) -> None:
        is_over = self.is_failing or self.state == "cancelling"
        self.steps[index].state = "cancelled" if is_over else "pending"
        self.settle()

    def _exhaust(self, step: ModelStep) -> None:
        if step.holds:
            step.state, step.wait = "waiting", "hold"
        else:
            step.state = "failed"
            self._doom()

    def _doom(self) -> None:
        self.is_failing = True
        for step in self.steps:
            if step.state in ("pending", "waiting"):
                step.state = "cancelled"

    def cancel(self) -> None:
        self.state = "cancelling"
        for step in self.steps:
            if step.state in ("pending", "waiting", "in_doubt"):
                step.state = "cancelled"
        self.settle()

    def pause(self) -> None:
        self.state = "paused"
        self.settle()

    def resume(self) -> None:
        self.state = "running" if self.has_started else "queued"
        self.settle()

    def retry(self) -> None:
        self.state, self.is_failing = "running", False
        for step in self.steps:
            if step.state in ("failed", "cancelled"):
                step.state, step.failures, step.lost = "pending", 0, 0
        self.settle()

    def may_decide(self, index: int, move: str) -> bool:
        step = self.steps[index]
        if self.state in ENDED:
            return False
        waits = step.wait if step.state == "waiting" else ""
        return {
            "approve": waits == "approval",
            "reject": waits == "approval",
            "skip": step.state in ("pending", "waiting", "in_doubt"),
            "cancel": step.state in OPEN,
            "retry": waits == "hold",
            "done": step.state == "in_doubt" or waits == "hold",
            "not_done": step.state == "in_doubt",
            "give_up": step.state == "in_doubt" or waits == "hold",
        }[move]

    def decide(self, index: int, move: str) -> None:
        step = self.steps[index]
        if move in ("approve", "retry", "not_done"):
            step.is_approved = step.is_approved or move == "approve"
            if move == "retry":
                step.failures = step.lost = 0
            step.state = "cancelled" if self.is_failing else "pending"
        elif move in ("reject", "give_up"):
            step.state = "failed"
            self._doom()
        elif move == "cancel":
            step.state = "cancelled"
            if not self.is_failing and self.state != "cancelling":
                self._cancel_dependents(index)
        else:
            step.state = "skipped" if move == "skip" else "done"
        self.settle()

    def _cancel_dependents(self, index: int) -> None:
        reached = [index]
        while reached:
            at = reached.pop()
            for other, step in enumerate(self.steps):
                if at in step.depends_on:
                    reached.append(other)
                    if step.state in ("pending", "waiting"):
                        step.state = "cancelled"
