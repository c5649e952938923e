"""Plans as clients send them: read, checked, and made into steps.

By hand, not by a serializer: a plan may have ten thousand steps. Every refusal names
the path, `steps[3].depends_on[0]`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

from django.conf import settings
from rest_framework.exceptions import ValidationError

from agentstate import codec
from agentstate.api.serializers import InstantField
from agentstate.codec import json_path
from agentstate.errors import FieldError
from agentstate.ids import new_id
from runs_app.errors import PlanTooLarge
from runs_app.states import Effect

NAME_MAX = 200
ERROR_CODES_MAX = 100
SECONDS_MAX = 366 * 86_400.0
PRIORITY_MAX = 1_000_000
INSTANT = InstantField()

STEP_FIELDS = {
    "name",
    "tool",
    "args",
    "depends_on",
    "effect",
    "retry",
    "on_exhausted",
    "timeout_s",
    "start_timeout_s",
    "requires_approval",
    "approval_timeout_s",
    "run_after",
    "sleep_s",
    "signal",
    "priority",
    "concurrency_key",
}
RETRY_FIELDS = {
    "max_attempts",
    "max_lost",
    "backoff_s",
    "factor",
    "max_backoff_s",
    "jitter",
    "retry_on",
    "no_retry_on",
}


@dataclass
class NewStep:
    """One step as it will be inserted; the names are the columns'."""

    index: int
    name: str = ""
    kind: str = "tool"
    tool: str = ""
    args: Any = None
    depends_on: list[int] = field(default_factory=list)
    effect: str = Effect.IDEMPOTENT.value
    requires_approval: bool = False
    run_after: datetime | None = None
    sleep_s: float | None = None
    signal_name: str | None = None
    wait_timeout_s: float | None = None
    max_attempts: int = 5
    max_lost: int = 5
    backoff_s: float = 1.0
    backoff_factor: float = 2.0
    backoff_max_s: float = 300.0
    jitter: float = 1.0
    no_retry_on: list[str] = field(default_factory=list)
    retry_on: list[str] | None = None
    on_exhausted: str = "fail"
    timeout_s: float | None = None
    start_timeout_s: float | None = None
    limit_key: str | None = None
    rank: int | None = None
    id: UUID = field(default_factory=new_id)
    dependents: list[int] = field(default_factory=list)
    deps_left: int = 0


class Reader:
    """Reads one object's fields; every refusal carries the object's path."""

    def __init__(self, given: Any, path: tuple[str | int, ...]) -> None:
        self.path = path
        if not isinstance(given, dict):
            raise FieldError(json_path(path), "not_an_object", "must be an object")
        self.given: dict[str, Any] = given

    def refuse(self, name: str, code: str, detail: str) -> FieldError:
        return FieldError(json_path((*self.path, name)), code, detail)

    def check_names(self, known: set[str]) -> None:
        for name in self.given:
            if name not in known:
                raise self.refuse(name, "unknown_field", "there is no such field")

    def text(self, name: str, default: str = "", most: int = NAME_MAX) -> str:
        value = self.given.get(name)
        if value is None:
            return default
        if not isinstance(value, str):
            raise self.refuse(name, "wrong_type", "this must be a string")
        if "\0" in value:
            raise self.refuse(name, "null_character", "must not hold U+0000")
        if len(value) > most:
            raise self.refuse(name, "too_long", f"is longer than {most} characters")
        return value

    def flag(self, name: str) -> bool:
        value = self.given.get(name, False)
        if not isinstance(value, bool):
            raise self.refuse(name, "wrong_type", "this must be true or false")
        return value

    def number(
        self, name: str, default: Any = None, *, low: float, high: float
    ) -> float | Any:
        value = self.given.get(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
            raise self.refuse(name, "wrong_type", "this must be a number")
        if isinstance(value, Decimal):
            value = float(value)  # as the limits are: 0.1 is not below 0.1
        if not low <= value <= high:
            raise self.refuse(
                name, "out_of_range", f"must be {_short(low)} to {_short(high)}"
            )
        return float(value)

    def whole(self, name: str, default: Any = None, *, low: int, high: int) -> Any:
        value = self.given.get(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.refuse(name, "wrong_type", "this must be a whole number")
        if not low <= value <= high:
            raise self.refuse(name, "out_of_range", f"must be {low} to {high}")
        return value

    def choice(self, name: str, choices: Sequence[str], default: str) -> str:
        value = self.given.get(name)
        if value is None:
            return default
        if value not in choices:
            raise self.refuse(name, "invalid_choice", f"must be {' or '.join(choices)}")
        return str(value)

    def texts(self, name: str) -> list[str] | None:
        value = self.given.get(name)
        if value is None:
            return None
        if not isinstance(value, list) or len(value) > ERROR_CODES_MAX:
            raise self.refuse(
                name, "wrong_type", f"must be a list of up to {ERROR_CODES_MAX} strings"
            )
        inner = Reader(dict(enumerate(value)), (*self.path, name))
        return [inner.text(at) for at in range(len(value))]  # type: ignore[arg-type]

    def instant(self, name: str) -> datetime | None:
        value = self.given.get(name)
        if value is None:
            return None
        try:
            at: datetime = INSTANT.to_internal_value(value)
        except ValidationError as exc:
            details: Any = exc.get_full_details()
            [detail] = details
            raise self.refuse(name, detail["code"], detail["message"]) from None
        return at


def _short(number: float) -> str:
    return f"{number:g}"


def read_steps(
    given: Any,
    *,
    path: str = "steps",
    first: int = 0,
    follows: Sequence[int] = (),
    names: dict[str, int] | None = None,
    allowlist: Sequence[str] | None = None,
) -> list[NewStep]:
    """Return the steps that a plan's list spells, numbered from `first`.

    `follows` is what the first step depends on when it does not say. `names` are those
    of steps that exist. Raises FieldError or PlanTooLarge.
    """
    if not isinstance(given, list):
        raise FieldError(path, "wrong_type", "must be a list of steps")
    limit = settings.PLAN_MAX_STEPS
    if first + len(given) > limit:
        raise PlanTooLarge(
            f"{path}: the plan would have {first + len(given)} steps; "
            f"the limit is {limit}",
            limit=limit,
            errors=[
                {"path": path, "code": "plan_too_large", "detail": f"limit {limit}"}
            ],
        )
    known = dict(names or {})
    steps = []
    for at, item in enumerate(given):
        reader = Reader(item, (path, at))
        step = _read_step(reader, first + at, allowlist)
        if step.name:
            if step.name in known:
                raise reader.refuse(
                    "name", "duplicate_name", "another step has this name"
                )
            known[step.name] = step.index
        steps.append(step)
    for at, step in enumerate(steps):
        before = [first + at - 1] if at else list(follows)
        step.depends_on = _read_depends_on(
            Reader(given[at], (path, at)), step, before, known, first + len(given)
        )
    _check_cycles(steps, first, path)
    return steps


def _read_step(reader: Reader, index: int, allowlist: Sequence[str] | None) -> NewStep:
    reader.check_names(STEP_FIELDS)
    step = NewStep(
        index=index,
        name=reader.text("name"),
        tool=reader.text("tool"),
        args=reader.given.get("args", {}),
        effect=reader.choice("effect", Effect.values, Effect.IDEMPOTENT),
        requires_approval=reader.flag("requires_approval"),
        run_after=reader.instant("run_after"),
        sleep_s=reader.number("sleep_s", low=0, high=SECONDS_MAX),
        wait_timeout_s=reader.number("approval_timeout_s", low=0, high=SECONDS_MAX),
        on_exhausted=reader.choice("on_exhausted", ("fail", "hold"), "fail"),
        timeout_s=reader.number("timeout_s", low=0.001, high=SECONDS_MAX),
        start_timeout_s=reader.number("start_timeout_s", low=0.001, high=SECONDS_MAX),
        limit_key=reader.text("concurrency_key") or None,
    )
    priority = reader.whole("priority", low=-PRIORITY_MAX, high=PRIORITY_MAX)
    step.rank = None if priority is None else -priority
    _read_retry(reader, step)
    _read_kind(reader, step)
    if allowlist is not None and step.kind == "tool" and step.tool not in allowlist:
        raise reader.refuse(
            "tool", "tool_not_allowed", "is not in the run's tool_allowlist"
        )
    return step


def _read_kind(reader: Reader, step: NewStep) -> None:
    """A step calls a tool, or sleeps, or waits for a signal."""
    signal = reader.given.get("signal")
    kinds = [bool(step.tool), step.sleep_s is not None, signal is not None]
    if sum(kinds) != 1:
        raise reader.refuse(
            "tool", "required", "a step has one of tool, sleep_s and signal"
        )
    if step.sleep_s is not None:
        step.kind = "sleep"
    elif signal is not None:
        inner = Reader(signal, (*reader.path, "signal"))
        inner.check_names({"name", "timeout_s"})
        step.kind, step.signal_name = "signal", inner.text("name")
        if not step.signal_name:
            raise inner.refuse("name", "required", "is required")
        step.wait_timeout_s = inner.number("timeout_s", low=0, high=SECONDS_MAX)


def _read_retry(reader: Reader, step: NewStep) -> None:
    given = reader.given.get("retry")
    if given is None:
        return
    retry = Reader(given, (*reader.path, "retry"))
    retry.check_names(RETRY_FIELDS)
    step.max_attempts = retry.whole("max_attempts", 5, low=1, high=1000)
    step.max_lost = retry.whole("max_lost", 5, low=1, high=1000)
    step.backoff_s = retry.number("backoff_s", 1.0, low=0, high=86_400)
    step.backoff_factor = retry.number("factor", 2.0, low=1, high=100)
    step.backoff_max_s = retry.number("max_backoff_s", 300.0, low=0.001, high=86_400)
    step.jitter = retry.number("jitter", 1.0, low=0, high=1)
    step.retry_on = retry.texts("retry_on")
    step.no_retry_on = retry.texts("no_retry_on") or []


def _read_depends_on(
    reader: Reader,
    step: NewStep,
    before: list[int],
    names: dict[str, int],
    total: int,
) -> list[int]:
    given = reader.given.get("depends_on")
    if given is None:
        return before
    if not isinstance(given, list):
        raise reader.refuse(
            "depends_on", "wrong_type", "must be a list of indexes or names"
        )
    found: dict[int, None] = {}
    for at, item in enumerate(given):
        index = names.get(item) if isinstance(item, str) else item
        if isinstance(item, bool) or not isinstance(index, int):
            raise _refuse_dependency(reader, at, "there is no step of this name")
        if not 0 <= index < total:
            raise _refuse_dependency(reader, at, "there is no step of this index")
        if index == step.index:
            raise _refuse_dependency(reader, at, "a step cannot wait for itself")
        found[index] = None
    return list(found)


def _refuse_dependency(reader: Reader, at: int, detail: str) -> FieldError:
    path = json_path((*reader.path, "depends_on", at))
    return FieldError(path, "unknown_step", detail)


def _check_cycles(steps: list[NewStep], first: int, path: str) -> None:
    """Raise FieldError if steps wait for each other; also count what each waits for.

    Kahn's order: take away what waits for nothing until nothing is left.
    """
    for step in steps:
        step.deps_left = len(step.depends_on)
        for index in step.depends_on:
            if index >= first:
                steps[index - first].dependents.append(step.index)
    left = {s.index: sum(d >= first for d in s.depends_on) for s in steps}
    free = [step for step in steps if not left[step.index]]
    while free:
        for index in free.pop().dependents:
            left[index] -= 1
            if not left[index]:
                free.append(steps[index - first])
    cycle = [index for index, count in left.items() if count]
    if cycle:
        shown = ", ".join(map(str, cycle[:20]))
        raise FieldError(
            json_path((path, cycle[0] - first, "depends_on")),
            "dependency_cycle",
            f"steps wait for each other: {shown}",
        )


def row_of(step: NewStep, rank: int) -> dict[str, Any]:
    """Return the step as agentstate_insert_steps reads it, without its args."""
    row = {name: value for name, value in vars(step).items() if name != "args"}
    row["id"] = str(step.id)
    row["rank"] = rank if step.rank is None else step.rank
    row["run_after"] = step.run_after.isoformat() if step.run_after else None
    return row


def told_of(step: NewStep, rank: int) -> dict[str, Any]:
    """Return the step as run.created and run.plan_changed tell of it.

    What stands at its default is left out; `projection` puts it back.
    """
    row = row_of(step, rank)
    told = {
        name: value
        for name, value in row.items()
        if name not in ("dependents", "deps_left") and value != DEFAULTS.get(name)
    }
    return told | {"args": step.args, "depends_on": step.depends_on}


DEFAULTS: dict[str, Any] = {
    name: value
    for name, value in row_of(NewStep(index=-1), 0).items()
    if name not in ("id", "index")
}


def steps_json(steps: Sequence[NewStep], rank: int) -> tuple[str, list[str]]:
    """Return the two arguments of agentstate_insert_steps: rows, and args."""
    rows = codec.dumps([row_of(step, rank) for step in steps])
    return rows, [codec.dumps(step.args) for step in steps]
