"""What a worker decides: which leases it holds, when to stop, what to report.

Does no I/O. `Worker` and `AsyncWorker` do what this says; the rules are the same:

- A tool is started only while its lease is known to last.
- A step whose lease is lost, or may be, is stopped and never reported.
- A refusal of one report ends that step, never the worker.
- An effect of unknown outcome is reported as that, so that nobody repeats it.
"""

from __future__ import annotations

import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from agentstate_client.call import Call, filled
from agentstate_client.calls import steps as calls
from agentstate_client.errors import (
    AgentStateError,
    EffectInDoubt,
    NotFound,
    PermissionDenied,
    Unauthenticated,
    ValidationError,
)
from agentstate_client.models import ClaimedStep, ItemAnswer

# Wrong set-up: the next call would fare no better, and a person must hear of it.
SETUP_ERRORS = (Unauthenticated, PermissionDenied, NotFound, ValidationError)

Stop = Literal["cancelled", "lost", "shutdown"]
EffectKind = Literal["none", "idempotent", "once"]
ONCE = "once"
STRENGTH = {"none": 0, "idempotent": 1, "once": 2}
BEATS = 3  # heartbeats in the time of a lease
MAX_PAUSE = 5.0  # seconds between claims while the server cannot be reached
REPORT_TRIES_S = 120.0  # how long a result is kept for a server that is away


class StepFailed(Exception):
    """Raise it in a tool to say how the step failed.

    `code` is compared with the step's retry policy; `retryable` overrides it, and
    `retry_after_s` the delay. `outcome_unknown` says that the effect may have happened
    all the same; without it nothing has happened.
    """

    def __init__(
        self,
        message: str = "",
        *,
        code: str = "failed",
        retryable: bool | None = None,
        retry_after_s: float | None = None,
        outcome_unknown: bool = False,
        details: Any = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.retryable = retryable
        self.retry_after_s = retry_after_s
        self.outcome_unknown = outcome_unknown
        self.details = details


class StepStopped(BaseException):
    """The step is not to go on: cancelled, or not ours any more.

    A BaseException, so that a tool's `except Exception` does not swallow it.
    """

    def __init__(self, reason: Stop = "lost") -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True)
class Report:
    """What to tell the server about an attempt; None of these if there is nothing."""

    what: Literal["complete", "fail", "release"]
    members: Mapping[str, Any] = field(default_factory=dict)

    def call(self, step: ClaimedStep, worker: str) -> Call[list[ItemAnswer]]:
        item = {"step": step.step, "lease_token": step.lease_token, **self.members}
        make = {
            "complete": calls.complete,
            "fail": calls.fail,
            "release": calls.release,
        }[self.what]
        return make([item], worker=worker)


@dataclass
class Held:
    """A claimed step in this process. `kept_until` is when its lease may be over, by
    this process's own clock, counted from before the server was asked."""

    step: ClaimedStep
    kept_until: float  # time.monotonic()
    stop: Stop | None = None
    is_done: bool = False  # the tool has ended; only the report is left
    interrupt: Callable[[Stop], None] | None = None
    usage: dict[str, Any] = field(default_factory=dict)

    @property
    def is_once(self) -> bool:
        return self.step.effect == ONCE

    def end(self, reason: Stop) -> None:
        """Note that the step is to stop, and interrupt its tool. "lost" is final."""
        if self.stop is None or reason == "lost":
            self.stop = reason
            if self.interrupt is not None and not self.is_done:
                self.interrupt(reason)


class Holdings:
    """All the steps that a worker holds, and what a heartbeat means for them."""

    def __init__(
        self, lease_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.lease_s = lease_s
        self.clock = clock
        self._guard = threading.Lock()
        self._held: dict[str, Held] = {}

    def __len__(self) -> int:
        return len(self._held)

    def take(self, step: ClaimedStep, asked_at: float) -> Held:
        held = Held(step, asked_at + self.lease_s)
        with self._guard:
            self._held[step.step] = held
        return held

    def drop(self, held: Held) -> None:
        with self._guard:
            if self._held.get(held.step.step) is held:
                del self._held[held.step.step]

    def all(self) -> list[Held]:
        with self._guard:
            return list(self._held.values())

    @property
    def beat_s(self) -> float:
        return self.lease_s / BEATS

    def may_start(self, held: Held) -> bool:
        """Whether the lease surely lasts until the next heartbeat but one."""
        return held.stop is None and self.clock() < held.kept_until - self.lease_s / 2

    def beat(self, helds: Iterable[Held]) -> Call[list[ItemAnswer]]:
        return calls.heartbeat(
            [
                {
                    "step": held.step.step,
                    "lease_token": held.step.lease_token,
                    "lease_s": self.lease_s,
                }
                for held in helds
            ]
        )

    def heard(
        self, helds: list[Held], answers: list[ItemAnswer], asked_at: float
    ) -> None:
        """Take in a heartbeat's answers, item by item."""
        for held, answer in zip(helds, answers, strict=False):
            if not answer.ok:
                # To another, over, cancelled, gone: not ours, nothing to report.
                held.end("lost")
                continue
            held.kept_until = asked_at + self.lease_s
            if answer.stop:
                held.end("cancelled")

    def stop_overdue(self) -> None:
        """Stop what no heartbeat has kept: another may be at work on it by now."""
        now = self.clock()
        for held in self.all():
            if not held.is_done and now >= held.kept_until:
                held.end("lost")


def report_of_result(held: Held, result: Any) -> Report:
    return Report("complete", {"result": result, **_usage(held)})


def report_of_error(held: Held, error: Exception) -> Report:
    """Return what to report of a tool that raised."""
    if isinstance(error, StepFailed):
        body = {"code": error.code, "message": error.message}
        if error.details is not None:
            body["details"] = error.details
        return _failed(
            held,
            body,
            retryable=error.retryable,
            retry_after_s=error.retry_after_s,
            unknown=error.outcome_unknown,
        )
    if isinstance(error, EffectInDoubt):
        body = {"code": error.code, "message": error.detail}
        return _failed(held, body, retryable=False, unknown=True)
    # The tool did not say whether it was before or after the effect.
    body = {"code": type(error).__name__, "message": str(error)[:2000]}
    return _failed(held, body, unknown=held.is_once)


def report_of_stop(held: Held) -> Report | None:
    """Return what to report of a step that was stopped before its end."""
    if held.stop == "lost":
        return None
    if held.is_once:
        body = {"code": "stopped", "message": f"stopped: {held.stop}"}
        return _failed(held, body, unknown=True)
    return Report("release")


def report_instead(held: Held, answer: ItemAnswer) -> Report | None:
    """Return a report that the server can take, if it did not take the first one.

    None if the answer is yes, or says that the step is not ours any more.
    """
    if answer.ok or answer.status not in (413, 422):
        return None
    body = {"code": answer.code or "invalid", "message": answer.detail}
    return _failed(held, body, retryable=False, unknown=held.is_once)


def report_of_bad_result(held: Held, error: Exception) -> Report:
    """The result cannot be sent as JSON: the tool has run, and must not run again."""
    body = {"code": "result_not_json", "message": str(error)[:2000]}
    return _failed(held, body, retryable=False, unknown=held.is_once)


def _failed(
    held: Held,
    error: Mapping[str, Any],
    *,
    retryable: bool | None = None,
    retry_after_s: float | None = None,
    unknown: bool = False,
) -> Report:
    members = filled(retryable=retryable, retry_after_s=retry_after_s)
    if unknown:
        members["outcome_unknown"] = True
    return Report("fail", {"error": dict(error), **members, **_usage(held)})


def _usage(held: Held) -> dict[str, Any]:
    return {"usage": dict(held.usage)} if held.usage else {}


class Toolbox:
    """The functions that a worker runs, by the name of their tool."""

    def __init__(self) -> None:
        self.functions: dict[str, Callable[..., Any]] = {}
        self.effects: dict[str, EffectKind] = {}

    def add(
        self, name: str, function: Callable[..., Any], effect: EffectKind | None
    ) -> None:
        if name in self.functions:
            raise ValueError(f"there is a tool {name!r} already")
        if effect is not None and effect not in STRENGTH:
            raise ValueError(f"{effect!r} is none of {', '.join(STRENGTH)}")
        self.functions[name] = function
        if effect is not None:
            self.effects[name] = effect

    def step(self, tool: str, args: Any, more: Mapping[str, Any]) -> dict[str, Any]:
        if tool not in self.functions:
            raise ValueError(f"there is no tool {tool!r}")
        effect = filled(effect=self.effects.get(tool))
        return {"tool": tool, "args": args, **effect, **more}

    def mismatch(self, step: ClaimedStep) -> Report | None:
        """Refuse a step that would be run again where its tool must not be."""
        declared = self.effects.get(step.tool)
        if declared is None or STRENGTH[declared] <= STRENGTH.get(step.effect, 0):
            return None
        message = (
            f"the tool is declared effect={declared!r}, the step of the plan says "
            f"{step.effect!r}: after a crash it would be repeated"
        )
        error = {"code": "effect_mismatch", "message": message}
        return Report("fail", {"error": error, "retryable": False})


class Pauses:
    """How long to wait between claims that failed: longer each time, up to a limit."""

    def __init__(self) -> None:
        self.failures = 0

    def after_failure(self) -> float:
        self.failures += 1
        return min(MAX_PAUSE, 0.1 * 2.0 ** min(self.failures, 10))

    def after_answer(self) -> None:
        self.failures = 0


def worker_name(base: str | None) -> str:
    """Return a name that no other process has, nor this one after a restart."""
    host = socket.gethostname()
    return f"{base or 'worker'}@{host}:{os.getpid()}:{uuid.uuid4().hex[:8]}"


def is_setup_error(error: AgentStateError) -> bool:
    return isinstance(error, SETUP_ERRORS)
