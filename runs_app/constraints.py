"""What the taking run of a handoff may do: never more than the giving run can spare."""

from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

from access_app.scopes import (
    MEMORY_WRITE,
    RUNS_READ,
    RUNS_WORK,
    RUNS_WRITE,
    SESSIONS_READ,
    SESSIONS_WRITE,
)
from agentstate.errors import FieldError
from runs_app.models import ErasedRun, Run
from runs_app.reads import spent_by

SCOPES = (SESSIONS_READ, SESSIONS_WRITE, RUNS_READ, RUNS_WRITE, RUNS_WORK)
# A limit, and what counts against it.
SPENT = {"max_tool_calls": "tool_calls", "max_tokens": "tokens", "max_cost": "cost"}
USES = tuple(SPENT.values())


@dataclass(frozen=True)
class Constraints:
    """What the taking run may do; None is no limit but those of the giving run.

    `may_remember`: its key may write facts about the session's subject, and read none.
    """

    max_tool_calls: int | None = None
    max_tokens: int | None = None
    max_cost: Decimal | None = None
    timeout_s: float | None = None
    tool_allowlist: list[str] | None = None
    may_remember: bool = False


def constraints_within(run: Run, wanted: Constraints) -> Constraints:
    """Return `wanted` with what the giving run leaves open set to what it has left.

    Raises FieldError where more is wanted. The run's session is locked.
    """
    taken = _taken(run)
    limits: dict[str, Any] = {
        name: _limit(run, taken[SPENT[name]], wanted, name) for name in SPENT
    }
    return replace(wanted, tool_allowlist=_tools(run, wanted.tool_allowlist), **limits)


def _limit(run: Run, taken: Any, wanted: Constraints, name: str) -> Any | None:
    given, asked = getattr(run, name), getattr(wanted, name)
    if given is None:
        return asked
    left = max(given - taken, 0)
    if asked is not None and asked > left:
        raise FieldError(
            f"constraints.{name}", "more_than_left", f"the run itself has {left} left"
        )
    if asked is None and not left:
        raise FieldError(
            f"constraints.{name}",
            "nothing_left",
            "the run has used or handed on all it has: say how much each handoff gets",
        )
    return left if asked is None else asked


def _taken(run: Run) -> dict[str, Any]:
    """What is gone of each of the run's limits.

    A child takes all that it may use, until it has ended or was erased; then what it
    used.
    """
    below = {"project_id": run.project_id, "parent_run_id": run.id}
    children: list[Run | ErasedRun] = [
        *Run.objects.filter(**below, is_charged=False),
        *ErasedRun.objects.filter(**below),
    ]
    spent = spent_by(run.project_id, [child.id for child in children])
    taken = {use: getattr(run, use) + getattr(run, f"below_{use}") for use in USES}
    for child in children:
        is_over = isinstance(child, ErasedRun) or child.has_ended
        for limit_name, use in SPENT.items():
            limit = None if is_over else getattr(child, limit_name)
            used = spent[child.id][use]
            whole = used if limit is None else max(limit, used)
            taken[use] += whole - getattr(child, f"charged_{use}")
    return taken


def _tools(run: Run, wanted: list[str] | None) -> list[str] | None:
    if run.tool_allowlist is None or wanted is None:
        return run.tool_allowlist if wanted is None else wanted
    if beyond := sorted(set(wanted) - set(run.tool_allowlist)):
        raise FieldError(
            "constraints.tool_allowlist",
            "tool_not_allowed",
            f"{beyond[0]} is not in the run's own tool_allowlist",
        )
    return wanted


def scopes_of(constraints: Constraints) -> tuple[str, ...]:
    """The scopes of the key that comes with a handoff."""
    return (*SCOPES, MEMORY_WRITE) if constraints.may_remember else SCOPES
