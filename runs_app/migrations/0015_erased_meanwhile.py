"""A move of a run that is erased while it waits for the session: there is no such run."""

from importlib import import_module

from django.db import migrations

steering = import_module("runs_app.migrations.0004_steering")
budgets = import_module("runs_app.migrations.0012_shared_budgets")

RUN_OPENS = "w := agentstate_open_run(p_project, v_session, p_run, p_actor, false);"
STEP_OPENS = RUN_OPENS.replace("v_session, p_run", "s.session_id, s.run_id")
GONE = """
    IF w.run IS NULL THEN
        outcome := 'not_found';  -- erased meanwhile
        RETURN;
    END IF;"""

BEFORE = (
    budgets.MOVE
    + budgets.function_in(steering.RUN_MOVES, "agentstate_retry_run")
    + budgets.function_in(steering.STEP_MOVES, "agentstate_move_step")
    + budgets.function_in(steering.SIGNALS, "agentstate_send_signal")
)
AFTER = BEFORE
for opens, times in ((RUN_OPENS, 3), (STEP_OPENS, 1)):
    assert AFTER.count(opens) == times
    AFTER = AFTER.replace(opens, opens + GONE)
# What is replaced loses the settings of its function.
INDEXED = """
ALTER FUNCTION agentstate_move_run SET enable_seqscan = off;
ALTER FUNCTION agentstate_retry_run SET enable_seqscan = off;
ALTER FUNCTION agentstate_move_step SET enable_seqscan = off;
ALTER FUNCTION agentstate_send_signal SET enable_seqscan = off;
"""


class Migration(migrations.Migration):
    dependencies = [("runs_app", "0014_one_call")]

    operations = [migrations.RunSQL(AFTER + INDEXED, BEFORE + INDEXED)]
