"""A run with the runs below it, for whoever steers them."""

from typing import Any
from uuid import UUID

from runs_app.constraints import USES
from runs_app.models import Run
from sessions_app.log import iso


def run_tree(project_id: UUID, run: Run) -> dict[str, Any]:
    """Return a run with the runs below it, each with its state and budget.

    `spent` of a budget is what counts against it: of the run and of all below it.
    """
    root = run.root_run_id or run.id
    below = Run.objects.filter(project_id=project_id, root_run_id=root).order_by("id")
    children: dict[UUID | None, list[Run]] = {}
    for each in below:
        children.setdefault(each.parent_run_id, []).append(each)
    return _branch(run, children)


def _branch(run: Run, children: dict[UUID | None, list[Run]]) -> dict[str, Any]:
    below = children.get(run.id, [])
    branches = [_branch(child, children) for child in below]
    return {
        "run": str(run.id),
        "session": str(run.session_id),
        "agent": run.agent,
        "state": run.state,
        "reason": run.reason,
        "budget": {
            "max_tool_calls": run.max_tool_calls,
            "tool_calls": run.tool_calls,
            "max_tokens": run.max_tokens,
            "tokens": run.tokens,
            "max_cost": run.max_cost,
            "cost": run.cost,
            "deadline": iso(run.deadline_at),
            "spent": {
                use: getattr(run, use)
                + getattr(run, f"below_{use}")
                + sum(
                    branch["budget"]["spent"][use] - getattr(child, f"charged_{use}")
                    for child, branch in zip(below, branches, strict=True)
                    if not child.is_charged
                )
                for use in USES
            },
        },
        "children": branches,
    }
