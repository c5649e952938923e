"""What must hold between the tables at any moment; `manage.py check_invariants`.

Each check is one query that finds what breaks it. All look at one moment.
"""

from collections.abc import Iterator
from typing import NamedTuple
from uuid import UUID

from django.db import connection

from sessions_app.projection import one_moment

SHOWN = 100


class Broken(NamedTuple):
    """One row, or group of rows, that breaks an invariant."""

    project_id: UUID
    rule: str
    thing: str

    def __str__(self) -> str:
        return f"project {self.project_id}: {self.rule}: {self.thing}"


# Each query selects project_id and what breaks the rule.
RULES = {
    "an ended run has no open step": """
        SELECT r.project_id, 'run ' || r.id FROM agent_runs r
         WHERE r.state IN ('succeeded', 'failed', 'cancelled')
           AND EXISTS (SELECT FROM agent_steps s
                        WHERE s.project_id = r.project_id AND s.run_id = r.id
                          AND s.state NOT IN ('done', 'failed', 'skipped', 'cancelled'))
    """,
    "a run without an open step has ended": """
        SELECT r.project_id, 'run ' || r.id FROM agent_runs r
         WHERE r.state NOT IN ('succeeded', 'failed', 'cancelled', 'cancelling')
           AND r.step_count > 0
           AND r.n_pending + r.n_in_progress + r.n_waiting + r.n_in_doubt = 0
    """,
    "a done step has its result in the log": """
        SELECT s.project_id, 'step ' || s.id FROM agent_steps s
         WHERE s.state = 'done'
           AND NOT EXISTS (SELECT FROM agent_events e
                            WHERE e.project_id = s.project_id
                              AND e.session_id = s.session_id AND e.seq = s.result_seq)
    """,
    "the counters of a run are right": """
        SELECT r.project_id, 'run ' || r.id FROM agent_runs r
          LEFT JOIN LATERAL (
            SELECT count(*) FILTER (WHERE s.state = 'pending') AS n_pending,
                   count(*) FILTER (WHERE s.state = 'in_progress') AS n_in_progress,
                   count(*) FILTER (WHERE s.state = 'waiting') AS n_waiting,
                   count(*) FILTER (WHERE s.state = 'in_doubt') AS n_in_doubt,
                   count(*) AS n_all
              FROM agent_steps s
             WHERE s.project_id = r.project_id AND s.run_id = r.id) c ON true
         WHERE (r.n_pending, r.n_in_progress, r.n_waiting, r.n_in_doubt, r.step_count)
               <> (c.n_pending, c.n_in_progress, c.n_waiting, c.n_in_doubt, c.n_all)
            OR r.n_ready <> (SELECT count(*) FROM agent_ready_steps q
                              WHERE q.project_id = r.project_id AND q.run_id = r.id)
            OR r.n_held <> (SELECT count(*) FROM agent_held_steps h
                             WHERE h.project_id = r.project_id AND h.run_id = r.id)
    """,
    "a lease belongs to a step in progress": """
        SELECT l.project_id, 'lease of step ' || l.step_id FROM agent_step_leases l
         WHERE NOT EXISTS (SELECT FROM agent_steps s
                            WHERE s.id = l.step_id AND s.project_id = l.project_id
                              AND s.state = 'in_progress' AND s.claims = l.fence)
    """,
    "a step in progress has a lease": """
        SELECT s.project_id, 'step ' || s.id FROM agent_steps s
         WHERE s.state = 'in_progress'
           AND NOT EXISTS (SELECT FROM agent_step_leases l
                            WHERE l.step_id = s.id AND l.project_id = s.project_id)
    """,
    "a step that is ready or held is pending and waits for no other": """
        SELECT q.project_id, 'step ' || q.step_id
          FROM (SELECT project_id, step_id FROM agent_ready_steps
                UNION ALL SELECT project_id, step_id FROM agent_held_steps) q
         WHERE NOT EXISTS (SELECT FROM agent_steps s
                            WHERE s.id = q.step_id AND s.project_id = q.project_id
                              AND s.state = 'pending' AND s.deps_left = 0)
    """,
    "a pending step that waits for no other is ready or held": """
        SELECT s.project_id, 'step ' || s.id
          FROM agent_steps s JOIN agent_runs r
            ON r.id = s.run_id AND r.project_id = s.project_id
         WHERE s.state = 'pending' AND s.deps_left = 0 AND r.has_begun
           AND NOT EXISTS (SELECT FROM agent_ready_steps q
                            WHERE q.project_id = s.project_id AND q.run_id = s.run_id
                              AND q.step_id = s.id)
           AND NOT EXISTS (SELECT FROM agent_held_steps h
                            WHERE h.project_id = s.project_id AND h.run_id = s.run_id
                              AND h.ordinal = s.ordinal)
    """,
    "a wait belongs to a step that waits": """
        SELECT x.project_id, 'wait of step ' || x.step_id FROM agent_step_waits x
         WHERE NOT EXISTS (SELECT FROM agent_steps s
                            WHERE s.id = x.step_id AND s.project_id = x.project_id
                              AND (s.state = 'waiting' AND s.wait_kind = x.kind
                                   OR s.state = 'in_doubt' AND x.kind = 'in_doubt'))
    """,
    "no step waits for a signal that is there": """
        SELECT x.project_id, 'step ' || x.step_id FROM agent_step_waits x
         WHERE x.kind = 'signal'
           AND EXISTS (SELECT FROM agent_signals g
                        WHERE g.project_id = x.project_id AND g.run_id = x.run_id
                          AND g.name = x.name AND g.consumed_by IS NULL)
    """,
    "a step that waits for time has a timer": """
        SELECT s.project_id, 'step ' || s.id FROM agent_steps s
         WHERE s.state = 'waiting' AND s.wait_until IS NOT NULL
           AND NOT EXISTS (SELECT FROM agent_timers t
                            WHERE t.project_id = s.project_id AND t.run_id = s.run_id
                              AND t.step_id = s.id AND t.kind = 'wait')
    """,
    "a run that counts as charged has ended, and all it used is charged": """
        SELECT r.project_id, 'run ' || r.id FROM agent_runs r
         WHERE r.is_charged
           AND (r.state NOT IN ('succeeded', 'failed', 'cancelled')
                OR r.charged_tool_calls <> r.tool_calls + r.below_tool_calls
                OR r.charged_tokens <> r.tokens + r.below_tokens
                OR r.charged_cost <> r.cost + r.below_cost)
    """,
    "a run is charged what its children were; those erased count on": """
        SELECT r.project_id, 'run ' || r.id
          FROM (SELECT c.project_id, c.parent_run_id,
                       sum(c.charged_tool_calls) AS calls,
                       sum(c.charged_tokens) AS tokens, sum(c.charged_cost) AS cost
                  FROM (SELECT x.project_id, x.parent_run_id, x.charged_tool_calls,
                               x.charged_tokens, x.charged_cost FROM agent_runs x
                        UNION ALL
                        SELECT e.project_id, e.parent_run_id, e.charged_tool_calls,
                               e.charged_tokens, e.charged_cost
                          FROM agent_erased_runs e) c
                 WHERE c.parent_run_id IS NOT NULL
                 GROUP BY c.project_id, c.parent_run_id) c
          JOIN (SELECT x.project_id, x.id, x.below_tool_calls AS calls,
                       x.below_tokens AS tokens, x.below_cost AS cost
                  FROM agent_runs x
                UNION ALL
                SELECT e.project_id, e.id, e.tool_calls, e.tokens, e.cost
                  FROM agent_erased_runs e) r
            ON r.project_id = c.project_id AND r.id = c.parent_run_id
         WHERE r.calls < c.calls OR r.tokens < c.tokens OR r.cost < c.cost
    """,
    "what is kept of a run that was erased is charged no more than it used": """
        SELECT e.project_id, 'run ' || e.id FROM agent_erased_runs e
         WHERE e.charged_tool_calls > e.tool_calls OR e.charged_tokens > e.tokens
            OR e.charged_cost > e.cost
            OR EXISTS (SELECT FROM agent_runs r
                        WHERE r.id = e.id AND r.project_id = e.project_id)
    """,
    "nothing is uncharged below a run that counts as charged": """
        SELECT c.project_id, 'run ' || c.id
          FROM agent_runs c JOIN agent_runs p
            ON p.project_id = c.project_id AND p.id = c.parent_run_id
         WHERE p.is_charged AND NOT c.is_charged
    """,
    "a slot belongs to a step that is ready or in progress": """
        SELECT l.project_id, 'slot ' || l.key || ' of step ' || l.step_id
          FROM agent_limit_slots l
         WHERE NOT EXISTS (SELECT FROM agent_steps s
                            WHERE s.id = l.step_id AND s.project_id = l.project_id
                              AND s.state IN ('pending', 'in_progress'))
    """,
    "a log has no gap": """
        SELECT e.project_id, 'session ' || e.session_id FROM agent_events e
          JOIN agent_sessions s ON s.id = e.session_id AND s.project_id = e.project_id
         WHERE e.seq > 0
         GROUP BY e.project_id, e.session_id, s.last_seq, s.forked_from_seq
        HAVING max(e.seq) <> s.last_seq
            OR count(*) <> max(e.seq) - min(e.seq) + 1
    """,
}


def broken_invariants(project_id: UUID | None = None) -> Iterator[Broken]:
    """Yield what is broken, at most SHOWN of each rule, in one project or in all."""
    with one_moment():
        for rule, query in RULES.items():
            with connection.cursor() as cursor:
                cursor.execute(
                    f"SELECT * FROM ({query}) AS broken(project_id, thing)"
                    " WHERE %s::uuid IS NULL OR project_id = %s LIMIT %s",
                    [project_id, project_id, SHOWN],
                )
                rows = cursor.fetchall()
            yield from (Broken(project, rule, thing) for project, thing in rows)
