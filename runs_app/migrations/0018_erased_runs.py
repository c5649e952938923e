"""What an erased run used counts on, and the budgets above it bound what is below it.

An erased child gave back what it had not been charged for, and the runs below an erased
run were below none: free of the budgets above, and out of reach of a cancel.
"""

from importlib import import_module

import django.db.models.deletion
from django.db import migrations, models

moves = import_module("runs_app.migrations.0002_moves")
budgets = import_module("runs_app.migrations.0012_shared_budgets")
one_call = import_module("runs_app.migrations.0014_one_call")
meanwhile = import_module("runs_app.migrations.0015_erased_meanwhile")
further_on = import_module("runs_app.migrations.0016_look_further_on")

READ = """
-- A run, or what is kept of an erased one: what bounds it, and what it and those that it
-- was charged for have used.
CREATE FUNCTION agentstate_budget_of(p_project uuid, p_run uuid) RETURNS TABLE (
    id uuid, parent uuid, calls_most bigint, tokens_most bigint, cost_most numeric,
    tool_calls bigint, tokens bigint, cost numeric
) LANGUAGE sql STABLE AS $$
    SELECT r.id, r.parent_run_id, r.max_tool_calls, r.max_tokens, r.max_cost,
           r.tool_calls + r.below_tool_calls, r.tokens + r.below_tokens,
           r.cost + r.below_cost
      FROM agent_runs r
     WHERE r.id = p_run AND r.project_id IS NOT DISTINCT FROM p_project
    UNION ALL
    SELECT e.id, e.parent_run_id, e.max_tool_calls, e.max_tokens, e.max_cost,
           e.tool_calls, e.tokens, e.cost
      FROM agent_erased_runs e
     WHERE e.id = p_run AND e.project_id IS NOT DISTINCT FROM p_project
$$;

-- The children of a run, erased ones too, that are not charged to it for good, with what
-- is not charged yet.
CREATE FUNCTION agentstate_uncharged(p_project uuid, p_run uuid) RETURNS TABLE (
    id uuid, is_open boolean, tool_calls bigint, tokens bigint, cost numeric
) LANGUAGE sql STABLE AS $$
    SELECT r.id, r.state NOT IN ('succeeded', 'failed', 'cancelled'),
           r.tool_calls + r.below_tool_calls - r.charged_tool_calls,
           r.tokens + r.below_tokens - r.charged_tokens,
           r.cost + r.below_cost - r.charged_cost
      FROM agent_runs r
     WHERE r.project_id = p_project AND r.parent_run_id = p_run AND NOT r.is_charged
    UNION ALL
    SELECT e.id, false, e.tool_calls - e.charged_tool_calls,
           e.tokens - e.charged_tokens, e.cost - e.charged_cost
      FROM agent_erased_runs e
     WHERE e.project_id = p_project AND e.parent_run_id = p_run
$$;

-- The open runs below a run that have no other open one between: its children, and
-- those of children that have ended or were erased.
CREATE FUNCTION agentstate_open_below(p_project uuid, p_run uuid) RETURNS SETOF uuid
LANGUAGE sql STABLE AS $$
    WITH RECURSIVE below AS (
        SELECT p_run AS id, false AS is_open
        UNION ALL
        SELECT c.id, c.is_open FROM below
         CROSS JOIN LATERAL agentstate_uncharged(p_project, below.id) c
         WHERE NOT below.is_open
    )
    SELECT below.id FROM below WHERE below.is_open
$$;

-- What a run and all below it have used. What those that have ended used is charged to
-- their parent; of the others, it is read from their rows.
CREATE OR REPLACE FUNCTION agentstate_spent(
    p_project uuid, p_run uuid, OUT tool_calls bigint, OUT tokens bigint,
    OUT cost numeric
) LANGUAGE sql STABLE AS $$
    WITH RECURSIVE tree AS (
        SELECT b.id, b.tool_calls, b.tokens, b.cost
          FROM agentstate_budget_of(p_project, p_run) b
        UNION ALL
        SELECT c.id, c.tool_calls, c.tokens, c.cost FROM tree
         CROSS JOIN LATERAL agentstate_uncharged(p_project, tree.id) c
    )
    SELECT sum(tree.tool_calls)::bigint, sum(tree.tokens)::bigint, sum(tree.cost)
      FROM tree
$$;
"""

CHARGE = """
-- Charge to a run, or to an erased one, what has ended below it with none between that
-- is still there: what each used in all, so that a child that went on after its end is
-- charged the rest. A child counts as charged once nothing below it can use any more;
-- if it is erased, nothing is kept of it then. Returns the children with something new,
-- what they used in all and what of it is new. The caller adds that to the run.
--
-- Rows of runs are locked from the newest up, children before their parent, here and by
-- whoever else locks those of more than one session.
CREATE FUNCTION agentstate_charge_below(p_project uuid, p_run uuid) RETURNS TABLE (
    child uuid, tool_calls bigint, tokens bigint, cost numeric,
    new_tool_calls bigint, new_tokens bigint, new_cost numeric
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_erased uuid[] := ARRAY(
        WITH RECURSIVE erased AS (
            SELECT x.id, 1 AS depth FROM agent_erased_runs x
             WHERE x.project_id = p_project AND x.parent_run_id = p_run
            UNION ALL
            SELECT x.id, erased.depth + 1
              FROM erased JOIN agent_erased_runs x
                ON x.project_id = p_project AND x.parent_run_id = erased.id
        )
        SELECT erased.id FROM erased ORDER BY erased.depth DESC, erased.id DESC);
    v_ended uuid[] := ARRAY(
        SELECT r.id FROM agent_runs r
         WHERE r.project_id = p_project AND r.parent_run_id = ANY (v_erased || p_run)
           AND NOT r.is_charged AND r.state IN ('succeeded', 'failed', 'cancelled')
         -- Waits for what is being made, or is about to go on, below one of them.
         ORDER BY r.id DESC FOR UPDATE);
    v_one uuid;
    c record;
    e agent_erased_runs;
BEGIN
    FOR c IN
        -- In a statement of its own: one that waits for a lock sees other rows as of
        -- before, and a run below may have gone on meanwhile.
        WITH was AS (
            SELECT r.id, r.charged_tool_calls, r.charged_tokens, r.charged_cost
              FROM agent_runs r WHERE r.id = ANY (v_ended)
        )
        UPDATE agent_runs r
           SET charged_tool_calls = r.tool_calls + r.below_tool_calls,
               charged_tokens = r.tokens + r.below_tokens,
               charged_cost = r.cost + r.below_cost,
               is_charged = NOT EXISTS (
                   SELECT FROM agentstate_uncharged(p_project, r.id))
          FROM was
         WHERE r.id = was.id AND r.project_id IS NOT DISTINCT FROM p_project
        RETURNING r.id, r.parent_run_id, r.charged_tool_calls, r.charged_tokens,
                  r.charged_cost,
                  r.charged_tool_calls - was.charged_tool_calls AS new_tool_calls,
                  r.charged_tokens - was.charged_tokens AS new_tokens,
                  r.charged_cost - was.charged_cost AS new_cost
    LOOP
        CONTINUE WHEN (c.new_tool_calls, c.new_tokens, c.new_cost) = (0, 0, 0);
        IF c.parent_run_id = p_run THEN
            RETURN QUERY SELECT c.id, c.charged_tool_calls, c.charged_tokens,
                c.charged_cost, c.new_tool_calls, c.new_tokens, c.new_cost;
        ELSE
            PERFORM agentstate_charge_erased(p_project, c.parent_run_id,
                c.new_tool_calls, c.new_tokens, c.new_cost);
        END IF;
    END LOOP;
    FOREACH v_one IN ARRAY v_erased LOOP
        SELECT x.* INTO e FROM agent_erased_runs x
         WHERE x.id = v_one AND x.project_id IS NOT DISTINCT FROM p_project
           FOR NO KEY UPDATE;
        CONTINUE WHEN NOT FOUND;  -- another was at it
        IF EXISTS (SELECT FROM agentstate_uncharged(p_project, e.id)) THEN
            UPDATE agent_erased_runs x
               SET charged_tool_calls = e.tool_calls, charged_tokens = e.tokens,
                   charged_cost = e.cost
             WHERE x.id = e.id AND x.project_id IS NOT DISTINCT FROM p_project;
        ELSE
            DELETE FROM agent_erased_runs x
             WHERE x.id = e.id AND x.project_id IS NOT DISTINCT FROM p_project;
        END IF;
        CONTINUE WHEN (e.tool_calls, e.tokens, e.cost)
                    = (e.charged_tool_calls, e.charged_tokens, e.charged_cost);
        IF e.parent_run_id = p_run THEN
            RETURN QUERY SELECT e.id, e.tool_calls, e.tokens, e.cost,
                e.tool_calls - e.charged_tool_calls, e.tokens - e.charged_tokens,
                e.cost - e.charged_cost;
        ELSE
            PERFORM agentstate_charge_erased(p_project, e.parent_run_id,
                e.tool_calls - e.charged_tool_calls, e.tokens - e.charged_tokens,
                e.cost - e.charged_cost);
        END IF;
    END LOOP;
END $$;

CREATE FUNCTION agentstate_charge_erased(
    p_project uuid, p_run uuid, p_calls bigint, p_tokens bigint, p_cost numeric
) RETURNS void LANGUAGE sql VOLATILE AS $$
    UPDATE agent_erased_runs e
       SET tool_calls = e.tool_calls + p_calls, tokens = e.tokens + p_tokens,
           cost = e.cost + p_cost
     WHERE e.id = p_run AND e.project_id IS NOT DISTINCT FROM p_project
$$;

-- Charge what has ended below a run to it. The run is open as work.
CREATE OR REPLACE FUNCTION agentstate_charge_children(w agentstate_work)
RETURNS agentstate_work LANGUAGE plpgsql AS $$
DECLARE
    c record;
    v_calls bigint := 0;
    v_tokens bigint := 0;
    v_cost numeric := 0;
BEGIN
    FOR c IN
        SELECT x.* FROM agentstate_charge_below(w.project, w.run) x ORDER BY x.child
    LOOP
        v_calls := v_calls + c.new_tool_calls;
        v_tokens := v_tokens + c.new_tokens;
        v_cost := v_cost + c.new_cost;
        w := agentstate_note(w, 'run.charged', json_build_object(
            'child', c.child, 'tool_calls', c.tool_calls, 'tokens', c.tokens,
            'cost', c.cost)::text, NULL);
    END LOOP;
    IF (v_calls, v_tokens, v_cost) <> (0, 0, 0) THEN
        UPDATE agent_runs r
           SET below_tool_calls = r.below_tool_calls + v_calls,
               below_tokens = r.below_tokens + v_tokens,
               below_cost = r.below_cost + v_cost, is_charged = false
         WHERE r.id = w.run AND r.project_id IS NOT DISTINCT FROM w.project;
    END IF;
    RETURN w;
END $$;

-- Charge what has ended below an erased run to what is kept of it. Nothing is kept any
-- more if it was the uppermost and nothing is left below it that can use more. Returns
-- its parent, which is to be settled next.
CREATE FUNCTION agentstate_settle_erased(p_project uuid, p_run uuid) RETURNS uuid[]
LANGUAGE plpgsql AS $$
DECLARE
    v_parent uuid;
BEGIN
    PERFORM agentstate_charge_erased(p_project, p_run, sum(x.new_tool_calls)::bigint,
                                     sum(x.new_tokens)::bigint, sum(x.new_cost))
       FROM agentstate_charge_below(p_project, p_run) x
     HAVING count(*) > 0;
    DELETE FROM agent_erased_runs e
     WHERE e.id = p_run AND e.project_id IS NOT DISTINCT FROM p_project
       AND NOT EXISTS (SELECT FROM agentstate_budget_of(p_project, e.parent_run_id))
       AND NOT EXISTS (SELECT FROM agentstate_uncharged(p_project, p_run));
    SELECT e.parent_run_id INTO v_parent FROM agent_erased_runs e
     WHERE e.id = p_run AND e.project_id IS NOT DISTINCT FROM p_project;
    RETURN array_remove(ARRAY[v_parent], NULL);
END $$;

-- A run that had ended goes on: it counts as charged no more, nor do those above it; up
-- to the first that does not, since those above that do not either.
CREATE OR REPLACE FUNCTION agentstate_uncharge(p_project uuid, p_run uuid) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    v_run uuid := p_run;
BEGIN
    WHILE v_run IS NOT NULL LOOP
        UPDATE agent_runs r SET is_charged = false
         WHERE r.id = v_run AND r.project_id IS NOT DISTINCT FROM p_project
           AND r.is_charged
        RETURNING r.parent_run_id INTO v_run;
    END LOOP;
END $$;

-- Whether all runs above one are there. Until the end of the transaction they are
-- neither erased nor charged for good.
CREATE FUNCTION agentstate_keep_above(p_project uuid, p_parent uuid) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    v_above uuid := p_parent;
BEGIN
    WHILE v_above IS NOT NULL LOOP
        SELECT r.parent_run_id INTO v_above FROM agent_runs r
         WHERE r.id = v_above AND r.project_id IS NOT DISTINCT FROM p_project
           FOR KEY SHARE;
        IF NOT FOUND THEN
            RETURN false;
        END IF;
    END LOOP;
    RETURN true;
END $$;
"""


def changed(sql: str, name: str, *changes: tuple[str, str]) -> tuple[str, str]:
    """The function of an earlier migration as it was, and with the changes made."""
    before = one_call.as_it_was(sql, name)
    return before, further_on.changed(before, *changes)


CHANGED = [
    changed(
        budgets.CHECK,
        "agentstate_check_budget",
        (
            """            SELECT r.parent_run_id, r.max_tool_calls IS NOT NULL
                   OR r.max_tokens IS NOT NULL OR r.max_cost IS NOT NULL
              FROM up JOIN agent_runs r ON r.id = up.parent AND r.project_id = w.project
""",
            """            SELECT x.parent,
                   num_nonnulls(x.calls_most, x.tokens_most, x.cost_most) > 0
              FROM up CROSS JOIN LATERAL agentstate_budget_of(w.project, up.parent) x
""",
        ),
        (
            """               OR EXISTS (SELECT FROM agent_runs c
                           WHERE c.project_id = w.project AND c.parent_run_id = w.run
                             AND NOT c.is_charged)
""",
            """               OR EXISTS (SELECT FROM agentstate_uncharged(w.project, w.run))
""",
        ),
        (
            """                SELECT r.parent_run_id, r.id, r.max_tool_calls, r.max_tokens,
                       r.max_cost, up.height + 1
                  FROM up JOIN agent_runs r
                    ON r.id = up.parent AND r.project_id = w.project
""",
            """                SELECT x.parent, x.id, x.calls_most, x.tokens_most, x.cost_most,
                       up.height + 1
                  FROM up
                 CROSS JOIN LATERAL agentstate_budget_of(w.project, up.parent) x
""",
        ),
    ),
    changed(
        moves.CLOSE,
        "agentstate_settle",
        (
            """        IF EXISTS (SELECT FROM agent_runs c
                    WHERE c.project_id = w.project AND c.parent_run_id = w.run
                      AND c.state NOT IN ('succeeded', 'failed', 'cancelled')) THEN
""",
            """        IF EXISTS (SELECT FROM agentstate_open_below(w.project, w.run)) THEN
""",
        ),
    ),
    changed(
        meanwhile.AFTER,
        "agentstate_move_run",
        (
            """    IF NOT FOUND THEN
        outcome := 'not_found';
        RETURN;
    END IF;
""",
            """    IF NOT FOUND THEN
        outcome := 'not_found';
        IF p_move = 'settle' THEN
            parents := agentstate_settle_erased(p_project, p_run);
        END IF;
        RETURN;
    END IF;
""",
        ),
        (
            """        outcome := 'not_found';  -- erased meanwhile
""",
            """        outcome := 'not_found';  -- erased meanwhile
        IF p_move = 'settle' THEN
            parents := agentstate_settle_erased(p_project, p_run);
        END IF;
""",
        ),
    ),
    changed(
        meanwhile.AFTER,
        "agentstate_retry_run",
        (
            """    IF w.state <> 'failed' THEN
""",
            """    -- What goes on has to be charged to somebody.
    IF w.state <> 'failed' OR NOT agentstate_keep_above(p_project, w.parent) THEN
""",
        ),
    ),
    changed(
        moves.CLOSE,
        "agentstate_erase_runs",
        (
            """    DELETE FROM agent_runs r
     WHERE r.project_id = OLD.project_id AND r.session_id = OLD.id;
""",
            """    PERFORM FROM agent_runs r
      WHERE r.project_id = OLD.project_id AND r.session_id = OLD.id
      ORDER BY r.id DESC FOR UPDATE;
    -- In a statement of its own, which sees what was made or charged until now.
    WITH erased AS (
        DELETE FROM agent_runs r
         WHERE r.project_id = OLD.project_id AND r.session_id = OLD.id
        RETURNING r.id, r.parent_run_id, r.max_tool_calls, r.max_tokens, r.max_cost,
                  r.tool_calls + r.below_tool_calls AS tool_calls,
                  r.tokens + r.below_tokens AS tokens, r.cost + r.below_cost AS cost,
                  r.charged_tool_calls, r.charged_tokens, r.charged_cost, r.is_charged
    )
    INSERT INTO agent_erased_runs (
        project_id, id, parent_run_id, max_tool_calls, max_tokens, max_cost,
        tool_calls, tokens, cost, charged_tool_calls, charged_tokens, charged_cost)
    SELECT OLD.project_id, e.id, e.parent_run_id, e.max_tool_calls, e.max_tokens,
           e.max_cost, e.tool_calls, e.tokens, e.cost, e.charged_tool_calls,
           e.charged_tokens, e.charged_cost
      FROM erased e
     WHERE NOT e.is_charged AND (
           e.parent_run_id IS NOT NULL AND (e.tool_calls, e.tokens, e.cost)
               <> (e.charged_tool_calls, e.charged_tokens, e.charged_cost)
           OR EXISTS (SELECT FROM agentstate_uncharged(OLD.project_id, e.id)));
""",
        ),
    ),
]
# What is replaced loses the settings of its function.
SETTINGS = """
ALTER FUNCTION agentstate_move_run SET enable_seqscan = off;
ALTER FUNCTION agentstate_retry_run SET enable_seqscan = off;
ALTER FUNCTION agentstate_spent SET enable_seqscan = off;
ALTER FUNCTION agentstate_charge_children SET enable_seqscan = off;
ALTER FUNCTION agentstate_uncharge SET enable_seqscan = off;
"""
FORWARD = READ + CHARGE + "".join(after for _, after in CHANGED) + SETTINGS
REVERSE = f"""
{"".join(before for before, _ in CHANGED)}
{budgets.SPENT.replace("CREATE FUNCTION", "CREATE OR REPLACE FUNCTION")}
{SETTINGS}
DROP FUNCTION agentstate_keep_above(uuid, uuid),
    agentstate_settle_erased(uuid, uuid),
    agentstate_charge_erased(uuid, uuid, bigint, bigint, numeric),
    agentstate_charge_below(uuid, uuid), agentstate_open_below(uuid, uuid),
    agentstate_uncharged(uuid, uuid), agentstate_budget_of(uuid, uuid);
"""


class Migration(migrations.Migration):
    dependencies = [
        ("access_app", "0006_names"),
        ("runs_app", "0017_by_place"),
    ]

    operations = [
        migrations.CreateModel(
            name="ErasedRun",
            fields=[
                (
                    "id",
                    models.UUIDField(editable=False, primary_key=True, serialize=False),
                ),
                ("parent_run_id", models.UUIDField(null=True)),
                ("max_tool_calls", models.BigIntegerField(null=True)),
                ("tool_calls", models.BigIntegerField()),
                ("max_tokens", models.BigIntegerField(null=True)),
                ("tokens", models.BigIntegerField()),
                (
                    "max_cost",
                    models.DecimalField(decimal_places=6, max_digits=20, null=True),
                ),
                ("cost", models.DecimalField(decimal_places=6, max_digits=20)),
                ("charged_tool_calls", models.BigIntegerField()),
                ("charged_tokens", models.BigIntegerField()),
                ("charged_cost", models.DecimalField(decimal_places=6, max_digits=20)),
                (
                    "project",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        related_name="+",
                        to="access_app.project",
                    ),
                ),
            ],
            options={
                "db_table": "agent_erased_runs",
                "indexes": [
                    models.Index(
                        fields=["project", "parent_run_id"], name="erased_run_parent"
                    )
                ],
            },
        ),
        migrations.RunSQL(FORWARD, REVERSE),
    ]
