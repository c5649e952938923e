"""A worker with threads: claims steps, runs their tools, reports, for ever."""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
import time
from collections.abc import Callable, Generator, Sequence
from types import FrameType
from typing import Any, TypeVar

from agentstate_client.calls import steps as calls
from agentstate_client.client import Client
from agentstate_client.context import Context
from agentstate_client.errors import AgentStateError
from agentstate_client.interrupt import Interruptible
from agentstate_client.models import ClaimedStep, ItemAnswer
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

Tool = Callable[[Context], Any]
T = TypeVar("T", bound=Tool)


class Worker:
    """Claims steps and runs the functions registered for their tools.

        worker = Worker(client)

        @worker.tool("send_email", effect="once")
        def send_email(ctx):
            return mail.send(ctx.args["to"], key=ctx.idempotency_key)

        worker.run()

    What the function returns is the step's result, what it raises the step's failure
    (see StepFailed). While it runs, heartbeats keep its lease; when the run is
    cancelled or the lease lost, StepStopped is raised in it within one heartbeat.

    `run` ends on SIGTERM and SIGINT once the tools have ended, at most `grace_s` later.
    It raises only for a wrong set-up: a key that is not known or may not work. May be
    killed at any moment: the step is claimed again when its lease ends, and a `once`
    step is in doubt then.
    """

    def __init__(
        self,
        client: Client | None = None,
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
        self.client = client or Client()
        self.name = worker_name(name)
        self.concurrency = concurrency
        self.wait_s = wait_s
        self.grace_s = grace_s
        self._run_id = run
        self._agents = agents
        self._tools = Toolbox()
        self._holdings = Holdings(lease_s)
        self._stopping = threading.Event()
        self._idle = threading.Condition()
        self._trouble: AgentStateError | None = None
        self.steps_ended = 0

    def tool(self, name: str, *, effect: EffectKind | None = None) -> Callable[[T], T]:
        """Register a function for a tool.

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

    def run(self, *, until_idle: bool = False) -> None:
        """Work until `stop`; with `until_idle` until there is nothing to claim."""
        if not self._tools.functions:
            raise ValueError("no tool is registered")
        ended = threading.Event()
        keeper = threading.Thread(target=self._keep_leases, args=(ended,), daemon=True)
        with self._signals():
            keeper.start()
            try:
                self._claim_until_told(until_idle)
            finally:
                self._finish()
                ended.set()
        if self._trouble is not None:
            raise self._trouble

    def stop(self) -> None:
        """Claim no more; `run` ends when the tools have. From any thread or signal."""
        self._stopping.set()

    @contextlib.contextmanager
    def _signals(self) -> Generator[None, None, None]:
        """Take SIGTERM and SIGINT as `stop`, where signals can be taken."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def on_signal(number: int, frame: FrameType | None) -> None:
            if self._stopping.is_set() and number == signal.SIGINT:
                raise KeyboardInterrupt
            self.stop()

        before = {n: signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)}
        for number in before:
            signal.signal(number, on_signal)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _claim_until_told(self, until_idle: bool) -> None:
        pauses = Pauses()
        while not self._stopping.is_set():
            free = self._wait_for_a_free_place()
            if not free:
                continue
            asked_at, was_idle = time.monotonic(), not len(self._holdings)
            try:
                claimed = self.client.send(
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
                self._stopping.wait(pauses.after_failure())
                continue
            pauses.after_answer()
            for step in claimed:
                self._begin(step, asked_at)
            if until_idle and not claimed.steps:
                if was_idle:
                    return
                self._wait_for_an_end()
            self._stopping.wait(claimed.retry_after_s)

    def _wait_for_a_free_place(self) -> int:
        with self._idle:
            self._idle.wait_for(
                lambda: (
                    self._stopping.is_set() or len(self._holdings) < self.concurrency
                ),
                timeout=0.5,
            )
            return max(0, self.concurrency - len(self._holdings))

    def _wait_for_an_end(self) -> None:
        """Wait for a step to end, which may have made another one claimable."""
        ended = self.steps_ended
        with self._idle:
            self._idle.wait_for(lambda: self.steps_ended > ended, timeout=0.1)

    def _begin(self, step: ClaimedStep, asked_at: float) -> None:
        held = self._holdings.take(step, asked_at)
        # Of its own, and a daemon: a tool that never ends must not keep the process.
        threading.Thread(target=self._work, args=(held,), daemon=True).start()

    def _work(self, held: Held) -> None:
        try:
            report = self._outcome(held)
            held.is_done = True
            if report is not None:
                self._tell(held, report)
        except Exception:
            logger.exception("step %s was not reported", held.step.step)
        finally:
            self._holdings.drop(held)
            with self._idle:
                self.steps_ended += 1
                self._idle.notify_all()

    def _outcome(self, held: Held) -> Report | None:
        """Run the tool and return what to report of it."""
        if self._stopping.is_set():
            return Report("release")
        mismatch = self._tools.mismatch(held.step)
        if mismatch is not None:
            return mismatch
        stopped, tool = threading.Event(), Interruptible()

        def interrupt(reason: Stop) -> None:
            stopped.set()
            tool.interrupt()

        held.interrupt = interrupt
        if not self._holdings.may_start(held):
            # The claim took long to come: ask what is left of the lease.
            self._beat([held])
            if not self._holdings.may_start(held):
                logger.info("step %s: its lease is over", held.step.step)
                return None
        context = Context(held, self.client, stopped)
        try:
            return report_of_result(
                held, tool.run(self._tools.functions[held.step.tool], context)
            )
        except StepStopped:
            return report_of_stop(held)
        except Exception as error:
            logger.info("step %s failed", held.step.step, exc_info=error)
            return report_of_error(held, error)

    def _tell(self, held: Held, report: Report) -> None:
        """Report, until there is an answer or the step is known not to be ours."""
        try:
            call = report.call(held.step, self.name)
        except (TypeError, ValueError) as error:
            call = report_of_bad_result(held, error).call(held.step, self.name)
        pauses, until = Pauses(), time.monotonic() + REPORT_TRIES_S
        while held.stop != "lost" and time.monotonic() < until:
            try:
                [answer] = self.client.send(call)
            except AgentStateError as error:
                if is_setup_error(error):
                    self._give_up(error)
                    return
                logger.warning("no report of %s: %s", held.step.step, error)
                time.sleep(pauses.after_failure())
                continue
            instead = report_instead(held, answer)
            if instead is None:
                self._note(held, answer)
                return
            call = instead.call(held.step, self.name)

    def _note(self, held: Held, answer: ItemAnswer) -> None:
        if answer.ok:
            return
        logger.info("step %s was refused: %s", held.step.step, answer.code)

    def _keep_leases(self, ended: threading.Event) -> None:
        """Send heartbeats as long as `run` lasts."""
        while not ended.wait(self._holdings.beat_s):
            helds = self._holdings.all()
            if helds:
                self._beat(helds)
            self._holdings.stop_overdue()

    def _beat(self, helds: list[Held]) -> None:
        asked_at = time.monotonic()
        try:
            answers = self.client.send(
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

    def _finish(self) -> None:
        """Wait for the tools; stop those that take longer than `grace_s`."""
        if self._wait_until_idle(self.grace_s):
            return
        for held in self._holdings.all():
            held.end("shutdown")
        # A tool that does not end even so keeps its step: released, it might run twice.
        self._wait_until_idle(min(5.0, self.grace_s))

    def _wait_until_idle(self, seconds: float) -> bool:
        with self._idle:
            return self._idle.wait_for(lambda: not len(self._holdings), seconds)
