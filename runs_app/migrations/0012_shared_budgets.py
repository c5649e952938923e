"""A budget bounds a run and all below it."""

from importlib import import_module

from django.db import migrations

SPENT = """
-- What a run and all below it have used. What those that have ended used is charged to
-- their parent; of the others, it is read from their rows.
CREATE FUNCTION agentstate_spent(
    p_project uuid, p_run uuid, OUT tool_calls bigint, OUT tokens bigint,
    OUT cost numeric
) LANGUAGE sql STABLE AS $$
    WITH RECURSIVE tree AS (
        SELECT p_run AS id, false AS is_below
        UNION ALL
        SELECT c.id, true FROM tree
          JOIN agent_runs c ON c.project_id = p_project AND c.parent_run_id = tree.id
                           AND NOT c.is_charged
    )
    SELECT sum(r.tool_calls + r.below_tool_calls
               - CASE WHEN tree.is_below THEN r.charged_tool_calls ELSE 0 END)::bigint,
           sum(r.tokens + r.below_tokens
               - CASE WHEN tree.is_below THEN r.charged_tokens ELSE 0 END)::bigint,
           sum(r.cost + r.below_cost
               - CASE WHEN tree.is_below THEN r.charged_cost ELSE 0 END)
      FROM tree JOIN agent_runs r ON r.id = tree.id AND r.project_id = p_project
$$;

-- Charge the children that have ended to their run, which is open: what each used in
-- all, so that a child that went on after its end is charged the rest. A child counts
-- as charged once nothing below it can use any more.
CREATE FUNCTION agentstate_charge_children(w agentstate_work)
RETURNS agentstate_work LANGUAGE plpgsql AS $$
DECLARE
    c record;
BEGIN
    FOR c IN
        SELECT r.id, r.charged_tool_calls, r.charged_tokens, r.charged_cost,
               r.tool_calls + r.below_tool_calls AS tool_calls,
               r.tokens + r.below_tokens AS tokens, r.cost + r.below_cost AS cost,
               NOT EXISTS (
                   SELECT FROM agent_runs g
                    WHERE g.project_id = w.project AND g.parent_run_id = r.id
                      AND NOT g.is_charged) AS is_final
          FROM agent_runs r
         WHERE r.project_id = w.project AND r.parent_run_id = w.run
           AND NOT r.is_charged AND r.state IN ('succeeded', 'failed', 'cancelled')
         ORDER BY r.id FOR NO KEY UPDATE
    LOOP
        UPDATE agent_runs r
           SET charged_tool_calls = c.tool_calls, charged_tokens = c.tokens,
               charged_cost = c.cost, is_charged = c.is_final
         WHERE r.id = c.id AND r.project_id = w.project;
        CONTINUE WHEN (c.tool_calls, c.tokens, c.cost)
                    = (c.charged_tool_calls, c.charged_tokens, c.charged_cost);
        UPDATE agent_runs r
           SET below_tool_calls = r.below_tool_calls
                                  + c.tool_calls - c.charged_tool_calls,
               below_tokens = r.below_tokens + c.tokens - c.charged_tokens,
               below_cost = r.below_cost + c.cost - c.charged_cost,
               is_charged = false
         WHERE r.id = w.run AND r.project_id = w.project;
        w := agentstate_note(w, 'run.charged', json_build_object(
            'child', c.id, 'tool_calls', c.tool_calls, 'tokens', c.tokens,
            'cost', c.cost)::text, NULL);
    END LOOP;
    RETURN w;
END $$;

-- A run that had ended goes on: it counts as charged no more, nor do those above it.
CREATE FUNCTION agentstate_uncharge(p_project uuid, p_run uuid) RETURNS void
LANGUAGE sql VOLATILE AS $$
    WITH RECURSIVE up AS (
        SELECT r.id, r.parent_run_id FROM agent_runs r
         WHERE r.id = p_run AND r.project_id = p_project
        UNION ALL
        SELECT r.id, r.parent_run_id FROM up
          JOIN agent_runs r ON r.id = up.parent_run_id AND r.project_id = p_project
    )
    UPDATE agent_runs r SET is_charged = false FROM up
     WHERE r.id = up.id AND r.project_id = p_project AND r.is_charged
$$;
"""

CHECK = """
-- Doom a run when the next attempt would break its budget, or that of a run above it:
-- a budget bounds a run and all below it. Runs that share one are claimed in turns,
-- each seeing what was claimed before. Nobody who has that lock waits for a session's.
-- Where no budget is shared nobody takes it.
CREATE OR REPLACE FUNCTION agentstate_check_budget(w agentstate_work, p_tool text)
RETURNS agentstate_work LANGUAGE plpgsql AS $$
DECLARE
    v_code text;
    v_detail text;
    v_has boolean := w.max_tool_calls IS NOT NULL OR w.max_tokens IS NOT NULL
                     OR w.max_cost IS NOT NULL;
    v_shares boolean := false;
    v_whose uuid;
    b record;
BEGIN
    IF w.parent IS NOT NULL THEN
        WITH RECURSIVE up AS (
            SELECT w.parent AS parent, v_has AS has
            UNION ALL
            SELECT r.parent_run_id, r.max_tool_calls IS NOT NULL
                   OR r.max_tokens IS NOT NULL OR r.max_cost IS NOT NULL
              FROM up JOIN agent_runs r ON r.id = up.parent AND r.project_id = w.project
        )
        SELECT bool_or(up.has) INTO v_shares FROM up;
    ELSIF v_has THEN
        SELECT (r.below_tool_calls, r.below_tokens, r.below_cost) <> (0, 0, 0)
               OR EXISTS (SELECT FROM agent_runs c
                           WHERE c.project_id = w.project AND c.parent_run_id = w.run
                             AND NOT c.is_charged)
          INTO v_shares FROM agent_runs r
         WHERE r.id = w.run AND r.project_id = w.project;
    END IF;
    IF v_shares THEN
        PERFORM pg_advisory_xact_lock(
            hashtextextended('agentstate budgets ' || w.project, 0));
        FOR b IN
            WITH RECURSIVE up AS (
                SELECT w.parent AS parent, w.run AS id, w.max_tool_calls AS calls_most,
                       w.max_tokens AS tokens_most, w.max_cost AS cost_most, 0 AS height
                UNION ALL
                SELECT r.parent_run_id, r.id, r.max_tool_calls, r.max_tokens,
                       r.max_cost, up.height + 1
                  FROM up JOIN agent_runs r
                    ON r.id = up.parent AND r.project_id = w.project
            )
            -- The counts of the run itself are ahead of its row.
            SELECT up.*, s.tool_calls + w.tool_calls - own.tool_calls AS calls,
                   s.tokens + w.tokens - own.tokens AS tokens,
                   s.cost + w.cost - own.cost AS cost
              FROM up JOIN agent_runs own ON own.id = w.run
                                         AND own.project_id = w.project
             CROSS JOIN LATERAL agentstate_spent(w.project, up.id) s
             WHERE up.calls_most IS NOT NULL OR up.tokens_most IS NOT NULL
                OR up.cost_most IS NOT NULL
             ORDER BY up.height
        LOOP
            IF b.calls >= b.calls_most THEN
                v_code := 'max_tool_calls';
                v_detail := 'have made all ' || b.calls_most || ' of their tool calls';
            ELSIF b.tokens >= b.tokens_most THEN
                v_code := 'max_tokens';
                v_detail := 'have used ' || b.tokens || ' tokens; they may use '
                            || b.tokens_most;
            ELSIF b.cost >= b.cost_most THEN
                v_code := 'max_cost';
                v_detail := 'have spent ' || b.cost || '; they may spend '
                            || b.cost_most;
            END IF;
            IF v_code IS NOT NULL THEN
                v_whose := b.id;
                v_detail := CASE b.height WHEN 0 THEN 'the run'
                                 ELSE 'the run ' || b.id || ' above this one' END
                            || ' and those below it ' || v_detail;
                EXIT;
            END IF;
        END LOOP;
    ELSIF w.tool_calls >= w.max_tool_calls THEN
        v_code := 'max_tool_calls';
        v_detail := 'the run has made all ' || w.max_tool_calls || ' of its tool calls';
    ELSIF w.tokens >= w.max_tokens THEN
        v_code := 'max_tokens';
        v_detail := w.tokens || ' tokens are used; the run may use ' || w.max_tokens;
    ELSIF w.cost >= w.max_cost THEN
        v_code := 'max_cost';
        v_detail := w.cost || ' is spent; the run may spend ' || w.max_cost;
    END IF;
    IF v_code IS NOT NULL THEN
        NULL;
    ELSIF w.deadline_at <= w.now THEN
        v_code := 'deadline';
        v_detail := 'the deadline of the run has passed';
    ELSIF w.allowlist IS NOT NULL AND NOT p_tool = ANY (w.allowlist) THEN
        v_code := 'tool_not_allowed';
        v_detail := 'the tool ' || p_tool || ' is not in the allowlist of the run';
    ELSE
        RETURN w;
    END IF;
    RETURN agentstate_doom(w, json_build_object(
        'code', 'budget_exceeded', 'budget', v_code, 'message', v_detail,
        'run', coalesce(v_whose, w.run))::text, 'budget_exceeded: ' || v_code);
END $$;
"""

steering = import_module("runs_app.migrations.0004_steering")
hot_calls = import_module("runs_app.migrations.0003_hot_calls")


def function_in(text: str, name: str) -> str:
    """The function `name` of an earlier migration, to be put in place of a newer."""
    _, found, rest = text.partition(f"CREATE FUNCTION {name}(")
    assert found, name
    body, end, _ = rest.partition("END $$;")
    return f"CREATE OR REPLACE FUNCTION {name}({body}{end}\n"


MOVE_BEFORE = function_in(steering.RUN_MOVES, "agentstate_move_run")
NOTHING = "NULL;  -- a child has ended, or a cancel was cut short"
assert NOTHING in MOVE_BEFORE
MOVE = MOVE_BEFORE.replace(
    NOTHING,
    "-- A child has ended, or a cancel was cut short.\n"
    "            w := agentstate_charge_children(w);",
)
# What is replaced loses the settings of its function.
INDEXED = """
ALTER FUNCTION agentstate_move_run SET enable_seqscan = off;
ALTER FUNCTION agentstate_spent SET enable_seqscan = off;
ALTER FUNCTION agentstate_charge_children SET enable_seqscan = off;
ALTER FUNCTION agentstate_uncharge SET enable_seqscan = off;
"""
REVERSE = f"""
{MOVE_BEFORE}
ALTER FUNCTION agentstate_move_run SET enable_seqscan = off;
{function_in(hot_calls.CLAIM, "agentstate_check_budget")}
DROP FUNCTION agentstate_uncharge(uuid, uuid);
DROP FUNCTION agentstate_charge_children(agentstate_work);
DROP FUNCTION agentstate_spent(uuid, uuid);
"""


class Migration(migrations.Migration):
    dependencies = [("runs_app", "0011_uncharged_index")]

    operations = [migrations.RunSQL(SPENT + CHECK + MOVE + INDEXED, REVERSE)]
