"""The worker for asyncio: as `Worker`, with tasks in place of threads."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import time
from collections.abc import Awaitable, Callable, Generator, Sequence
from typing import Any, TypeVar

from agentstate_client.async_client import AsyncClient
from agentstate_client.calls import steps as calls
from agentstate_client.context import AsyncContext
from agentstate_client.errors import AgentStateError
from agentstate_client.models import ClaimedStep
from agentstate_client.work import (
    REPORT_TRIES_S,
    EffectKind,
    Held,
    Holdings,
    Pauses,
    Report,
    StepStopped,
    Stop,
    Toolbox,
    is_setup_error,
    report_instead,
    report_of_bad_result,
    report_of_error,
    report_of_result,
    report_of_stop,
    worker_name,
)

logger = logging.getLogger("agentstate_client.worker")

AsyncTool = Callable[[AsyncContext], Awaitable[Any]]
T = TypeVar("T", bound=AsyncTool)


class AsyncWorker:
    """Claims steps and awaits the coroutine functions registered for their tools.

    As `Worker`: a step that is to stop has its task cancelled, so the tool sees
    CancelledError at its next await.
    """

    def __init__(
        self,
        client: AsyncClient | None = None,
        *,
        name: str | None = None,
        concurrency: int = 1,
        lease_s: float = 30.0,
        wait_s: float = 5.0,
        grace_s: float = 20.0,
        run: str | None = None,
        agents: Sequence[str] | None = None,
    ) -> None:
        """`name` is a prefix: each process has a name of its own.

        `run` and `agents` narrow what is claimed; the registered tools always do.
        """
        if concurrency < 1:
            raise ValueError("concurrency must be at least 1")
        self.client = client or AsyncClient()
        self.name = worker_name(name)
        self.concurrency = concurrency
        self.wait_s = wait_s
        self.grace_s = grace_s
        self._run_id = run
        self._agents = agents
        self._tools = Toolbox()
        self._holdings = Holdings(lease_s)
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopping = asyncio.Event()
        self._trouble: AgentStateError | None = None
        self.steps_ended = 0

    def tool(self, name: str, *, effect: EffectKind | None = None) -> Callable[[T], T]:
        """Register a coroutine function for a tool.

        `effect` says what the function needs: a step whose plan would have it repeated
        after a crash, although it is `once`, is refused.
        """

        def register(function: T) -> T:
            self._tools.add(name, function, effect)
            return function

        return register

    def step(self, tool: str, args: Any = None, **more: Any) -> dict[str, Any]:
        """Return a step of a plan that calls a registered tool, with its effect."""
        return self._tools.step(tool, args, more)

    async def run(self, *, until_idle: bool = False) -> None:
        """Work until `stop`; with `until_idle` until there is nothing to claim."""
        if not self._tools.functions:
            raise ValueError("no tool is registered")
        with self._signals():
            keeper = asyncio.create_task(self._keep_leases())
            try:
                await self._claim_until_told(until_idle)
            finally:
                await self._finish()
                keeper.cancel()
        if self._trouble is not None:
            raise self._trouble

    def stop(self) -> None:
        """Claim no more; `run` ends when the tools have. From the loop's own thread."""
        self._stopping.set()

    @contextlib.contextmanager
    def _signals(self) -> Generator[None, None, None]:
        """Take SIGTERM and SIGINT as `stop`, where signals can be taken."""
        loop = asyncio.get_running_loop()
        taken = []
        for number in (signal.SIGTERM, signal.SIGINT):
            # Not in every thread, not on every system.
            with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
                loop.add_signal_handler(number, self.stop)
                taken.append(number)
        try:
            yield
        finally:
            for number in taken:
                loop.remove_signal_handler(number)

    async def _claim_until_told(self, until_idle: bool) -> None:
        pauses = Pauses()
        while not self._stopping.is_set():
            free = await self._wait_for_a_free_place()
            if not free:
                continue
            asked_at, was_idle = time.monotonic(), not self._tasks
            try:
                claimed = await self.client.send(
                    calls.claim(
                        self.name,
                        max=free,
                        lease_s=self._holdings.lease_s,
                        wait_s=0.0 if until_idle else self.wait_s,
                        tools=list(self._tools.functions),
                        agents=self._agents,
                        run=self._run_id,
                    )
                )
            except AgentStateError as error:
                if is_setup_error(error):
                    self._give_up(error)
                    return
                logger.warning("no claim: %s", error)
                await self._pause(pauses.after_failure())
                continue
            pauses.after_answer()
            for step in claimed:
                self._begin(step, asked_at)
            if until_idle and not claimed.steps:
                if was_idle:
                    return
                await self._wait_for_an_end()
            await self._pause(claimed.retry_after_s)

    async def _pause(self, seconds: float) -> None:
        if seconds:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), seconds)

    async def _wait_for_a_free_place(self) -> int:
        if len(self._tasks) >= self.concurrency:
            await asyncio.wait(
                self._tasks, timeout=0.5, return_when=asyncio.FIRST_COMPLETED
            )
        return max(0, self.concurrency - len(self._tasks))

    async def _wait_for_an_end(self) -> None:
        """Wait for a step to end, which may have made another one claimable."""
        if self._tasks:
            await asyncio.wait(
                self._tasks, timeout=0.1, return_when=asyncio.FIRST_COMPLETED
            )

    def _begin(self, step: ClaimedStep, asked_at: float) -> None:
        held = self._holdings.take(step, asked_at)
        task = asyncio.create_task(self._work(held))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _work(self, held: Held) -> None:
        try:
            report = await self._outcome(held)
            held.is_done = True
            if report is not None:
                await self._tell(held, report)
        except Exception:
            logger.exception("step %s was not reported", held.step.step)
        finally:
            self._holdings.drop(held)
            self.steps_ended += 1

    async def _outcome(self, held: Held) -> Report | None:
        """Run the tool and return what to report of it."""
        if self._stopping.is_set():
            return Report("release")
        mismatch = self._tools.mismatch(held.step)
        if mismatch is not None:
            return mismatch
        if not self._holdings.may_start(held):
            # The claim took long to come: ask what is left of the lease.
            await self._beat([held])
            if not self._holdings.may_start(held):
                logger.info("step %s: its lease is over", held.step.step)
                return None
        context = AsyncContext(held, self.client)
        tool = asyncio.ensure_future(self._tools.functions[held.step.tool](context))

        def interrupt(reason: Stop) -> None:
            tool.cancel()

        held.interrupt = interrupt
        try:
            return report_of_result(held, await tool)
        except StepStopped:
            return report_of_stop(held)
        except asyncio.CancelledError:
            if held.stop is None:  # the worker itself is being cancelled
                tool.cancel()
                raise
            return report_of_stop(held)
        except Exception as error:
            logger.info("step %s failed", held.step.step, exc_info=error)
            return report_of_error(held, error)

    async def _tell(self, held: Held, report: Report) -> None:
        """Report, until there is an answer or the step is known not to be ours."""
        try:
            call = report.call(held.step, self.name)
        except (TypeError, ValueError) as error:
            call = report_of_bad_result(held, error).call(held.step, self.name)
        pauses, until = Pauses(), time.monotonic() + REPORT_TRIES_S
        while held.stop != "lost" and time.monotonic() < until:
            try:
                [answer] = await self.client.send(call)
            except AgentStateError as error:
                if is_setup_error(error):
                    self._give_up(error)
                    return
                logger.warning("no report of %s: %s", held.step.step, error)
                await asyncio.sleep(pauses.after_failure())
                continue
            instead = report_instead(held, answer)
            if instead is None:
                if not answer.ok:
                    logger.info("step %s refused: %s", held.step.step, answer.code)
                return
            call = instead.call(held.step, self.name)

    async def _keep_leases(self) -> None:
        """Send heartbeats as long as `run` lasts."""
        while True:
            await asyncio.sleep(self._holdings.beat_s)
            helds = self._holdings.all()
            if helds:
                await self._beat(helds)
            self._holdings.stop_overdue()

    async def _beat(self, helds: list[Held]) -> None:
        asked_at = time.monotonic()
        try:
            answers = await self.client.send(
                self._holdings.beat(helds), deadline=self._holdings.beat_s
            )
        except AgentStateError as error:
            logger.warning("no heartbeat: %s", error)
            if is_setup_error(error):
                self._give_up(error)
            return
        self._holdings.heard(helds, answers, asked_at)

    def _give_up(self, error: AgentStateError) -> None:
        self._trouble = error
        self.stop()

    async def _finish(self) -> None:
        """Wait for the tools; stop those that take longer than `grace_s`."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=self.grace_s)
        for held in self._holdings.all():
            held.end("shutdown")
        if self._tasks:
            # A tool that does not end even so keeps its step: released, it might run
            # twice.
            await asyncio.wait(self._tasks, timeout=min(5.0, self.grace_s))
        for task in list(self._tasks):
            task.cancel()
