"""A run with the runs below it, for whoever steers them."""

from typing import Any
from uuid import UUID

from runs_app.models import Run
from runs_app.reads import spent_by
from sessions_app.log import iso


def run_tree(project_id: UUID, run: Run) -> dict[str, Any]:
    """Return a run with the runs below it, each with its state and budget.

    `spent` of a budget is what counts against it: of the run and of all below it. A run
    whose parent was erased stands below the root.
    """
    root = run.root_run_id or run.id
    below = Run.objects.filter(project_id=project_id, root_run_id=root).order_by("id")
    runs = {each.id: each for each in below}
    children: dict[UUID | None, list[Run]] = {}
    for each in runs.values():
        is_below = each.parent_run_id in runs
        children.setdefault(each.parent_run_id if is_below else root, []).append(each)
    return _branch(run, children, spent_by(project_id, [run.id, *runs]))


def _branch(
    run: Run, children: dict[UUID | None, list[Run]], spent: dict[UUID, dict[str, Any]]
) -> dict[str, Any]:
    below = children.get(run.id, [])
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
            "spent": spent[run.id],
        },
        "children": [_branch(child, children, spent) for child in below],
    }
