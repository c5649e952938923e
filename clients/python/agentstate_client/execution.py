"""A run in plain words, for an agent that works through its own plan.

    plan = ExecutionState("refund-1042")
    plan.init_plan(["look_up", {"tool": "refund", "effect": "once"}])
    while (step := plan.next_pending_step()) is not None:
        plan.mark_in_progress(step.index)
        plan.mark_done(step.index, do(step))

A process that begins again after a crash runs the same lines: the plan is there
already, done steps keep their results, and the next step is the interrupted one.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

from agentstate_client.async_client import AsyncClient
from agentstate_client.call import Call, Flow, ask, filled, is_id, page_after
from agentstate_client.calls import runs, sessions
from agentstate_client.calls import steps as calls
from agentstate_client.client import Client
from agentstate_client.errors import (
    AgentStateError,
    AlreadyFinished,
    Conflict,
    LeaseLost,
    NotFound,
    StepCancelled,
    ValidationError,
)
from agentstate_client.models import ClaimedStep, ItemAnswer, Page, Run, Step
from agentstate_client.work import Holdings, worker_name

T = TypeVar("T")
PlannedStep: TypeAlias = "str | Mapping[str, Any]"

REFUSALS: dict[str, type[AgentStateError]] = {
    "lease_lost": LeaseLost,
    "already_finished": AlreadyFinished,
    "cancelled": StepCancelled,
    "not_found": NotFound,
}
LOOK_AGAIN = 0.5  # seconds


class StepNotClaimable(Conflict):
    """The step cannot be begun now; `step` says how it stands."""

    def __init__(self, step: Step) -> None:
        wait = f", waits for {step.wait['for']}" if step.wait else ""
        super().__init__(
            f"step {step.index} is {step.state}{wait} and cannot be begun",
            status=409,
            code="step_not_claimable",
        )
        self.step = step


class _Flows:
    """What both do, call by call; holds the leases of the steps in progress."""

    def __init__(
        self, run_id: str, session: str | None, agent: str | None, lease_s: float
    ) -> None:
        self.name = run_id
        self.session = session
        self.agent = agent
        self.worker = worker_name("plan")
        self.holdings = Holdings(lease_s)
        self.tokens: dict[int, ClaimedStep] = {}
        self._id: str | None = run_id if is_id(run_id) else None

    def init_plan(self, steps: Sequence[PlannedStep]) -> Flow[Run]:
        run = yield from ask(
            runs.create(
                [{"tool": step} if isinstance(step, str) else step for step in steps],
                session_key=self.session or self.name,
                key=self.name,
                agent=self.agent,
            )
        )
        self._id = run.id
        return run

    def run_id(self) -> Flow[str]:
        """Return the run's id; of a run known by its key, once it is found."""
        if self._id is None:
            page = yield from ask(sessions.list_page(key=self.session or self.name))
            found: list[Run] = []
            if page.items:
                found = (
                    yield from ask(
                        runs.list_page(session=page.items[0].id, key=self.name)
                    )
                ).items
            if not found:
                raise NotFound(
                    f"There is no run {self.name!r}: init_plan creates it",
                    status=404,
                    code="run_not_found",
                )
            self._id = found[0].id
        return self._id

    def steps(self) -> Flow[list[Step]]:
        run_id = yield from self.run_id()
        following: Call[Page[Step]] | None = runs.list_steps(run_id, limit=1000)
        found: list[Step] = []
        while following is not None:
            page = yield from ask(following)
            found += page.items
            following = page_after(following, page)
        return found

    def next_pending_step(self) -> Flow[Step | None]:
        for step in (yield from self.steps()):
            if not step.has_ended:
                return step
        return None

    def step_at(self, index: int) -> Flow[Step]:
        found = yield from self.steps()
        if not 0 <= index < len(found):
            raise NotFound(
                f"the plan has {len(found)} steps, none at {index}",
                status=404,
                code="step_not_found",
            )
        return found[index]

    def try_to_begin(self, index: int) -> Flow[ClaimedStep | None]:
        """Claim just this step; None while it is not to be had."""
        run_id = yield from self.run_id()
        asked_at = time.monotonic()
        claimed = yield from ask(
            calls.claim(self.worker, run=run_id, max=100, lease_s=self.holdings.lease_s)
        )
        mine = None
        others: list[ClaimedStep] = []
        for step in claimed:
            if step.index == index:
                mine = step
            else:
                others.append(step)
        if others:
            # A claim cannot name one step of several that could be worked on.
            yield from ask(calls.release([_item(step) for step in others]))
        if mine is not None:
            self.tokens[index] = mine
            self.holdings.take(mine, asked_at)
        return mine

    def why_not(self, index: int) -> Flow[None]:
        """Raise StepNotClaimable unless waiting can help."""
        step = yield from self.step_at(index)
        waits = step.wait or {}
        if step.state not in ("pending", "in_progress") and waits.get("for") not in (
            "retry",
            "timer",
        ):
            raise StepNotClaimable(step)

    def end(self, index: int, call: Call[list[ItemAnswer]]) -> Flow[None]:
        [answer] = yield from ask(call)
        self.let_go(index)
        if not answer.ok:
            kind = REFUSALS.get(answer.code or "", ValidationError)
            raise kind(
                answer.detail or f"step {index} was refused",
                status=answer.status,
                code=answer.code or "error",
            )

    def item(self, index: int) -> dict[str, Any]:
        claimed = self.tokens.get(index)
        if claimed is None:
            raise LeaseLost(
                f"step {index} is not in progress here: mark_in_progress begins it",
                status=409,
                code="lease_lost",
            )
        return _item(claimed)

    def let_go(self, index: int) -> None:
        claimed = self.tokens.pop(index, None)
        for held in self.holdings.all():
            if claimed is not None and held.step.step == claimed.step:
                self.holdings.drop(held)


def _item(step: ClaimedStep) -> dict[str, Any]:
    return {"step": step.step, "lease_token": step.lease_token}


def _error(error: BaseException | Mapping[str, Any] | str) -> dict[str, Any]:
    if isinstance(error, Mapping):
        return dict(error)
    if isinstance(error, BaseException):
        return {"code": type(error).__name__, "message": str(error)}
    return {"code": "failed", "message": error}


class ExecutionState:
    """One run and its steps, by index. `run_id` is its id, or your own key for it.

    A key is looked for in the session whose key is `session`, the run's own key if not
    given. While a step is in progress here, a thread keeps its lease. Without a client
    it makes one from AGENTSTATE_URL and AGENTSTATE_API_KEY.
    """

    def __init__(
        self,
        run_id: str,
        client: Client | None = None,
        *,
        session: str | None = None,
        agent: str | None = None,
        lease_s: float = 30.0,
    ) -> None:
        self.client = client or Client()
        self._flows = _Flows(run_id, session, agent, lease_s)
        self._keeper: threading.Thread | None = None

    def init_plan(self, steps: Sequence[PlannedStep]) -> Run:
        """Create the run with its plan, or return it if it is there already.

        A step is the name of a tool, or `{"tool", "args"?, "effect"?, …}`.
        """
        return self.client.run(self._flows.init_plan(steps))

    def steps(self) -> list[Step]:
        """Return all steps in order; those that are done hold their results."""
        return self.client.run(self._flows.steps())

    def next_pending_step(self) -> Step | None:
        """Return the first step that has not ended; None if all have.

        After a crash that is the step that was interrupted.
        """
        return self.client.run(self._flows.next_pending_step())

    def mark_in_progress(
        self, index: int, *, timeout: float | None = None
    ) -> ClaimedStep:
        """Begin a step: from now on nobody else can, while this process lives.

        Waits for a lease that a process before left behind, at most `timeout` seconds
        (twice the lease if not given). Raises StepNotClaimable.
        """
        until = time.monotonic() + (timeout or 2 * self._flows.holdings.lease_s)
        while (claimed := self.client.run(self._flows.try_to_begin(index))) is None:
            self.client.run(self._flows.why_not(index))
            if time.monotonic() > until:
                step = self.client.run(self._flows.step_at(index))
                raise StepNotClaimable(step)
            time.sleep(LOOK_AGAIN)
        self._keep()
        return claimed

    def mark_done(self, index: int, result: Any = None) -> None:
        """Record a step's result. Raises LeaseLost if another has the step."""
        call = calls.complete([{**self._flows.item(index), "result": result}])
        self.client.run(self._flows.end(index, call))

    def mark_failed(
        self,
        index: int,
        error: BaseException | Mapping[str, Any] | str,
        *,
        retryable: bool | None = None,
        outcome_unknown: bool = False,
    ) -> None:
        """Record that a step failed; its retry policy says what follows.

        `outcome_unknown`: its effect may have happened all the same.
        """
        item = {
            **self._flows.item(index),
            "error": _error(error),
            "outcome_unknown": outcome_unknown,
            **filled(retryable=retryable),
        }
        self.client.run(self._flows.end(index, calls.fail([item])))

    def resolve(self, index: int, outcome: str, result: Any = None) -> Step:
        """Settle a step in doubt: it is `done` with `result`, `not_done`, `give_up`."""
        step = self.client.run(self._flows.step_at(index))
        if outcome == "done":
            return self.client.steps.resolve(step.id, outcome, result=result)
        return self.client.steps.resolve(step.id, outcome)

    def _keep(self) -> None:
        if self._keeper is None or not self._keeper.is_alive():
            self._keeper = threading.Thread(target=self._keep_leases, daemon=True)
            self._keeper.start()

    def _keep_leases(self) -> None:
        holdings = self._flows.holdings
        while len(holdings):
            time.sleep(holdings.beat_s)
            helds, asked_at = holdings.all(), time.monotonic()
            if not helds:
                return
            try:
                answers = self.client.send(
                    holdings.beat(helds), deadline=holdings.beat_s
                )
            except AgentStateError:
                continue  # the report at the end says whether the lease is lost
            except RuntimeError:
                return  # the client has been closed
            holdings.heard(helds, answers, asked_at)
            for held in helds:
                if held.stop == "lost":
                    holdings.drop(held)


class AsyncExecutionState:
    """As ExecutionState, for asyncio."""

    def __init__(
        self,
        run_id: str,
        client: AsyncClient | None = None,
        *,
        session: str | None = None,
        agent: str | None = None,
        lease_s: float = 30.0,
    ) -> None:
        self.client = client or AsyncClient()
        self._flows = _Flows(run_id, session, agent, lease_s)
        self._keeper: asyncio.Task[None] | None = None

    async def init_plan(self, steps: Sequence[PlannedStep]) -> Run:
        """Create the run with its plan, or return it if it is there already.

        A step is the name of a tool, or `{"tool", "args"?, "effect"?, …}`.
        """
        return await self.client.run(self._flows.init_plan(steps))

    async def steps(self) -> list[Step]:
        """Return all steps in order; those that are done hold their results."""
        return await self.client.run(self._flows.steps())

    async def next_pending_step(self) -> Step | None:
        """Return the first step that has not ended; None if all have.

        After a crash that is the step that was interrupted.
        """
        return await self.client.run(self._flows.next_pending_step())

    async def mark_in_progress(
        self, index: int, *, timeout: float | None = None
    ) -> ClaimedStep:
        """Begin a step: from now on nobody else can, while this process lives.

        Waits for a lease that a process before left behind, at most `timeout` seconds
        (twice the lease if not given). Raises StepNotClaimable.
        """
        until = time.monotonic() + (timeout or 2 * self._flows.holdings.lease_s)
        while True:
            claimed = await self.client.run(self._flows.try_to_begin(index))
            if claimed is not None:
                break
            await self.client.run(self._flows.why_not(index))
            if time.monotonic() > until:
                step = await self.client.run(self._flows.step_at(index))
                raise StepNotClaimable(step)
            await asyncio.sleep(LOOK_AGAIN)
        self._keep()
        return claimed

    async def mark_done(self, index: int, result: Any = None) -> None:
        """Record a step's result. Raises LeaseLost if another has the step."""
        call = calls.complete([{**self._flows.item(index), "result": result}])
        await self.client.run(self._flows.end(index, call))

    async def mark_failed(
        self,
        index: int,
        error: BaseException | Mapping[str, Any] | str,
        *,
        retryable: bool | None = None,
        outcome_unknown: bool = False,
    ) -> None:
        """Record that a step failed; its retry policy says what follows.

        `outcome_unknown`: its effect may have happened all the same.
        """
        item = {
            **self._flows.item(index),
            "error": _error(error),
            "outcome_unknown": outcome_unknown,
            **filled(retryable=retryable),
        }
        await self.client.run(self._flows.end(index, calls.fail([item])))

    async def resolve(self, index: int, outcome: str, result: Any = None) -> Step:
        """Settle a step in doubt: it is `done` with `result`, `not_done`, `give_up`."""
        step = await self.client.run(self._flows.step_at(index))
        if outcome == "done":
            return await self.client.steps.resolve(step.id, outcome, result=result)
        return await self.client.steps.resolve(step.id, outcome)

    def _keep(self) -> None:
        if self._keeper is None or self._keeper.done():
            self._keeper = asyncio.create_task(self._keep_leases())

    async def _keep_leases(self) -> None:
        holdings = self._flows.holdings
        while len(holdings):
            await asyncio.sleep(holdings.beat_s)
            helds, asked_at = holdings.all(), time.monotonic()
            if not helds:
                return
            try:
                answers = await self.client.send(
                    holdings.beat(helds), deadline=holdings.beat_s
                )
            except AgentStateError:
                continue  # the report at the end says whether the lease is lost
            except RuntimeError:
                return  # the client has been closed
            holdings.heard(helds, answers, asked_at)
            for held in helds:
                if held.stop == "lost":
                    holdings.drop(held)
