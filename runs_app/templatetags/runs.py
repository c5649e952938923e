"""What runs say to people: why one waits, and what can be decided."""

from decimal import Decimal
from typing import Any

from django import template

from runs_app.constraints import SPENT
from runs_app.models import Run

register = template.Library()

DECISIONS = {
    "approve": "Approve",
    "reject": "Reject",
    "retry": "Retry now",
    "done": "It is done",
    "not_done": "It is not done",
    "give_up": "Give up",
    "skip": "Skip",
    "cancel": "Cancel the step",
}


@register.filter
def decision_text(decision: str) -> str:
    return DECISIONS[decision]


@register.filter
def uses(run: Run, spent: dict[str, Any]) -> list[str]:
    """What counts against each of the run's limits, and how much of it was used below.

    `spent` is what `reads.spent_by` says of the run.
    """
    texts = []
    for limit_name, use in SPENT.items():
        limit, below = getattr(run, limit_name), spent[use] - getattr(run, use)
        if limit is None and not spent[use]:
            continue
        most = "" if limit is None else f" of {_plain(limit)}"
        what = "spent" if use == "cost" else use.replace("_", " ")
        lower = f", {_plain(below)} below it" if below else ""
        texts.append(f"{_plain(spent[use])}{most} {what}{lower}")
    return texts


def _plain(number: int | Decimal) -> str:
    """The number without the zeros of its column."""
    return f"{Decimal(number).normalize():f}"


@register.filter
def why_text(reason: dict[str, Any]) -> str:
    """One reason of `reads.why_run_waits` as a sentence."""
    step = f"Step {reason['index']}" if "index" in reason else "The run"
    match reason["for"]:
        case "worker":
            return f"{step} is at work at {reason['worker']}"
        case "approval":
            return f"{step} waits for somebody to approve it"
        case "timer":
            return f"{step} waits for its time"
        case "retry":
            return f"{step} waits for its next attempt"
        case "signal" if (reason["signal"] or "").startswith("handoff:"):
            return f"{step} waits for another agent's result"
        case "signal":
            return f"{step} waits for the signal {reason['signal']}"
        case "handoff":
            return f"{step} waits for another agent's result"
        case "hold":
            return f"{step} ran out of tries and waits for a person"
        case "resolve":
            return f"{step} is in doubt: a person or an agent has to settle it"
        case "claim":
            tool = reason["tool"] or "its tool"
            return f"{step} waits for a worker that does {tool}; none has claimed it"
        case "steps":
            before = ", ".join(str(index) for index in reason["steps"])
            return f"{step} waits for step {before}"
        case "limit":
            return f"{step} waits for room in the limit {reason['limit']}"
        case "window":
            return f"{step} waits until fewer steps of the run are ready"
        case "run":
            return "Another run of the session has to end first"
        case "child_run":
            return f"The child run {reason['run']} has to end first"
        case "plan":
            return "The run has no plan yet"
        case "paused":
            return "The run is paused"
        case other:
            return f"{step} waits: {other}"
