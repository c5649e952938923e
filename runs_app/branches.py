"""Who gave work to whom: the runs around a run, from the first of them down."""

from dataclasses import dataclass
from uuid import UUID

from django.db import connection

from runs_app.models import Run

BRANCHES_MOST = 200
DEPTH_MOST = 20


@dataclass(frozen=True)
class Branch:
    """A run of the tree, by its key or else its agent.

    `handoff` says how the one stands that it came by.
    """

    id: UUID
    name: str
    agent: str
    state: str
    handoff: str
    depth: int
    is_this: bool


TREE = """
WITH RECURSIVE tree AS (
    SELECT id, key, agent, state, 0 AS depth, ARRAY[id] AS path
    FROM agent_runs WHERE project_id = %(project)s AND id = %(root)s
    UNION ALL
    (SELECT r.id, r.key, r.agent, r.state, 1, ARRAY[o.id, r.id]
    FROM agent_runs o JOIN agent_runs r
      ON r.project_id = %(project)s AND r.root_run_id = o.id
    WHERE o.project_id = %(project)s AND o.id = %(root)s AND NOT EXISTS (
        SELECT FROM agent_runs p
        WHERE p.project_id = %(project)s AND p.id = r.parent_run_id)
    LIMIT %(most)s)
    UNION ALL
    SELECT r.id, r.key, r.agent, r.state, t.depth + 1, t.path || r.id
    FROM tree t JOIN agent_runs r
      ON r.project_id = %(project)s AND r.parent_run_id = t.id
    WHERE t.depth < %(deepest)s
), found AS (SELECT * FROM tree LIMIT %(most)s)
SELECT f.id, f.key, f.agent, f.state, f.depth, coalesce((
    SELECT h.status FROM agent_handoffs h
    WHERE h.project_id = %(project)s AND h.child_session_id = c.session_id
      AND h.child_run_id = f.id LIMIT 1), '')
FROM found f JOIN agent_runs c ON c.project_id = %(project)s AND c.id = f.id
ORDER BY f.path
"""


def tree_of(run: Run) -> list[Branch]:
    """Return the tree that `run` is in, each run below its parent; empty if alone.

    One whose parent was erased stands below the root.
    """
    with connection.cursor() as cursor:
        cursor.execute(
            TREE,
            {
                "project": run.project_id,
                "root": run.root_run_id or run.id,
                "deepest": DEPTH_MOST,
                "most": BRANCHES_MOST,
            },
        )
        branches = [
            Branch(
                id_,
                key or agent or str(id_),
                key and agent,
                state,
                handoff,
                depth,
                id_ == run.id,
            )
            for id_, key, agent, state, depth, handoff in cursor.fetchall()
        ]
    return branches if len(branches) > 1 else []
