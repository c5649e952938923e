"""Large payloads find their events by number, one at a time.

To a plan made before the log was analysed, an index on the session and something else
looked as good as that on its numbers, and each large payload cost a look at the whole
log. With its number given and the plan made anew, there is nothing to mistake.
"""

from importlib import import_module

from django.db import migrations

FORWARD = """
CREATE OR REPLACE FUNCTION agentstate_store_payloads(
    p_project uuid, p_session uuid, p_seqs bigint[], p_blobs uuid[], p_sizes integer[]
) RETURNS void LANGUAGE plpgsql SET plan_cache_mode = force_custom_plan AS $$
DECLARE
    v_delta bigint := 0;
    v_before integer;
BEGIN
    FOR at IN 1 .. cardinality(p_seqs) LOOP
        SELECT e.payload_bytes INTO v_before FROM agent_events e
         WHERE e.project_id = p_project AND e.session_id = p_session
           AND e.seq = p_seqs[at] AND e.xid = pg_current_xact_id();
        CONTINUE WHEN NOT FOUND;
        UPDATE agent_events e
           SET blob_id = p_blobs[at], payload_bytes = p_sizes[at]
         WHERE e.project_id = p_project AND e.session_id = p_session
           AND e.seq = p_seqs[at];
        v_delta := v_delta + p_sizes[at] - v_before;
    END LOOP;
    UPDATE agent_sessions SET log_bytes = log_bytes + v_delta
     WHERE id = p_session AND project_id IS NOT DISTINCT FROM p_project;
END $$;
"""
# As it was: from its own line to the next function's.
BEFORE = import_module("sessions_app.migrations.0011_stored_payloads").FORWARD
begin = BEFORE.index("CREATE FUNCTION agentstate_store_payloads")
BEFORE = BEFORE[begin : BEFORE.index("$$;", begin) + len("$$;")].replace(
    "CREATE FUNCTION", "CREATE OR REPLACE FUNCTION"
)


class Migration(migrations.Migration):
    dependencies = [("sessions_app", "0016_found_by_id")]

    operations = [migrations.RunSQL(FORWARD, BEFORE)]
