"""What time does: expired leases, due timers, limits with room, cut-short cancels, and
charges that are due.

Any process may sweep, at any time and beside others: each item is one transaction that
looks again, under the session's lock, whether it is still so. Nothing depends on a
leader or on one process; a worker that finds nothing to claim sweeps too.
"""

import logging
import threading
import time
from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

from django.db import connection

from runs_app.calls import call_function, follow_up, promote_limited, settle_run

logger = logging.getLogger(__name__)

BATCH = 500
LIMITS_EVERY = 0.25  # seconds, for one project in one process

_last: dict[UUID, float] = {}
_guard = threading.Lock()


class Swept(NamedTuple):
    """How many of each a sweep has dealt with."""

    leases: int
    timers: int
    promoted: int
    settled: int
    charged: int

    @property
    def total(self) -> int:
        return sum(self)


def sweep(project_id: UUID | None = None) -> Swept:
    """Do all that is due, in one project or in all."""
    return Swept(
        expire_leases(project_id),
        fire_timers(project_id),
        promote_all(project_id),
        settle_cancelling(project_id),
        settle_charges(project_id),
    )


def free_work(project_id: UUID) -> bool:
    """Do what is due and may give an idle worker a step; whether anything was done.

    A worker that finds nothing comes by here, so that expired leases, timers and
    limits do not depend on any background process. One query when nothing is due.
    """
    if connection.in_atomic_block:
        return False
    with connection.cursor() as cursor:
        cursor.execute(ANYTHING_DUE, {"project": project_id})
        leases, timers, held = cursor.fetchone()
    done = 0
    if leases:
        done += expire_leases(project_id)
    if timers:
        done += fire_timers(project_id)
    if held and _is_time_for_limits(project_id):
        done += promote_all(project_id)
    return done > 0


ANYTHING_DUE = """
SELECT EXISTS (SELECT FROM agent_step_leases
                WHERE project_id = %(project)s AND (lease_until <= agentstate_now()
                   OR ends_at <= agentstate_now())),
       EXISTS (SELECT FROM agent_timers
                WHERE project_id = %(project)s AND due_at <= agentstate_now()),
       EXISTS (SELECT FROM agent_held_steps
                WHERE project_id = %(project)s AND reason = 'limit')
"""


PROJECTS_WITH_WORK = """
SELECT p.id FROM unnest(%(projects)s::uuid[]) AS p(id)
 WHERE EXISTS (SELECT FROM agent_ready_steps r WHERE r.project_id = p.id)
    OR EXISTS (SELECT FROM agent_step_leases l
                WHERE l.project_id = p.id AND (l.lease_until <= agentstate_now()
                   OR l.ends_at <= agentstate_now()))
    OR EXISTS (SELECT FROM agent_timers t
                WHERE t.project_id = p.id AND t.due_at <= agentstate_now())
    OR %(limits)s AND EXISTS (SELECT FROM agent_held_steps h
                               WHERE h.project_id = p.id AND h.reason = 'limit')
"""


def projects_with_work(
    projects: Sequence[UUID], *, with_limits: bool = True
) -> list[UUID]:
    """Return those of `projects` where a claim may get something: cheap, and a hint."""
    with connection.cursor() as cursor:
        cursor.execute(
            PROJECTS_WITH_WORK, {"projects": list(projects), "limits": with_limits}
        )
        return [row[0] for row in cursor.fetchall()]


def _is_time_for_limits(project_id: UUID) -> bool:
    """Whether this process has not just looked at the project's limits."""
    now = time.monotonic()
    with _guard:
        if now - _last.get(project_id, -LIMITS_EVERY) < LIMITS_EVERY:
            return False
        if len(_last) > 10_000:
            _last.clear()
        _last[project_id] = now
    return True


def expire_leases(project_id: UUID | None = None) -> int:
    """End the attempts whose lease or time is up; return how many."""
    with connection.cursor() as cursor:
        # Should the clock be set back, no lease outlives twice its length.
        cursor.execute(
            "UPDATE agent_step_leases"
            " SET lease_until = agentstate_now() + make_interval(secs => lease_s)"
            " WHERE ctid IN (SELECT ctid FROM agent_step_leases"
            " WHERE lease_until > agentstate_now() + make_interval(secs => lease_s)"
            " + interval '1 second' AND (%s::uuid IS NULL OR project_id = %s)"
            " FOR UPDATE SKIP LOCKED)",
            [project_id, project_id],
        )
        cursor.execute(
            "SELECT project_id, session_id, run_id, step_id, fence"
            " FROM agent_step_leases"
            " WHERE (lease_until <= agentstate_now() OR ends_at <= agentstate_now())"
            " AND (%s::uuid IS NULL OR project_id = %s)"
            " ORDER BY lease_until LIMIT %s",
            [project_id, project_id, BATCH],
        )
        due = cursor.fetchall()
    count = 0
    for row in due:
        is_expired, parents, limits = call_function(
            "agentstate_expire_lease", "uuid uuid uuid uuid bigint", row
        )
        follow_up(row[0], parents, limits)
        count += is_expired
    if count:
        logger.info("leases expired", extra={"leases": count})
    return count


def fire_timers(project_id: UUID | None = None) -> int:
    """Let happen what was set for a time that has come; return how many."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT project_id, session_id, run_id, step_id, kind FROM agent_timers"
            " WHERE due_at <= agentstate_now()"
            " AND (%s::uuid IS NULL OR project_id = %s)"
            " ORDER BY due_at LIMIT %s",
            [project_id, project_id, BATCH],
        )
        due = cursor.fetchall()
    count = 0
    for row in due:
        is_fired, parents, limits = call_function(
            "agentstate_fire_timer", "uuid uuid uuid uuid text", row
        )
        follow_up(row[0], parents, limits)
        count += is_fired
    return count


def promote_all(project_id: UUID | None = None) -> int:
    """Make ready what limits have room for; return how many."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT DISTINCT project_id, limit_key FROM agent_held_steps"
            " WHERE reason = 'limit' AND (%s::uuid IS NULL OR project_id = %s)",
            [project_id, project_id],
        )
        keys = cursor.fetchall()
    return sum(promote_limited(project, key) for project, key in keys)


def settle_cancelling(project_id: UUID | None = None) -> int:
    """Go on with cancels that were cut short; return how many were looked at."""
    from runs_app.services import cancel_children

    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT project_id, id FROM agent_runs"
            " WHERE state = 'cancelling' AND (%s::uuid IS NULL OR project_id = %s)"
            " AND n_in_progress = 0 ORDER BY project_id, id LIMIT %s",
            [project_id, project_id, BATCH],
        )
        runs = cursor.fetchall()
    for project, run_id in runs:
        cancel_children(project, run_id)
        settle_run(project, run_id)
    return len(runs)


# Runs that something below them is to be charged to: a child that has ended, or what is
# kept of an erased one. And what is kept of an erased run with nothing left below it.
CHARGES_DUE = """
SELECT c.project_id, c.parent_run_id FROM agent_runs c
 WHERE c.parent_run_id IS NOT NULL AND NOT c.is_charged
   AND c.state IN ('succeeded', 'failed', 'cancelled')
   AND (%(project)s::uuid IS NULL OR c.project_id = %(project)s)
   AND ((c.tool_calls + c.below_tool_calls, c.tokens + c.below_tokens,
         c.cost + c.below_cost)
            <> (c.charged_tool_calls, c.charged_tokens, c.charged_cost)
        OR NOT EXISTS (SELECT FROM agentstate_uncharged(c.project_id, c.id)))
UNION
SELECT e.project_id, CASE WHEN p.id IS NULL THEN e.id ELSE p.id END
  FROM agent_erased_runs e
  LEFT JOIN LATERAL agentstate_budget_of(e.project_id, e.parent_run_id) p ON true
 WHERE (%(project)s::uuid IS NULL OR e.project_id = %(project)s)
   AND (p.id IS NOT NULL AND (e.tool_calls, e.tokens, e.cost)
            <> (e.charged_tool_calls, e.charged_tokens, e.charged_cost)
        OR NOT EXISTS (SELECT FROM agentstate_uncharged(e.project_id, e.id)))
 LIMIT %(most)s
"""


def settle_charges(project_id: UUID | None = None) -> int:
    """Charge runs what was used below them; return how many had something due."""
    with connection.cursor() as cursor:
        cursor.execute(CHARGES_DUE, {"project": project_id, "most": BATCH})
        due = cursor.fetchall()
    for project, run_id in due:
        settle_run(project, run_id)
    return len(due)
