"""Large payloads find their events among those of their own transaction.

By session and number was not safe: to a plan made before the log is analysed, the index
on the session and the clients' ids looks as good as that on its numbers, and each large
payload costs a look at the session's whole log. What a transaction has appended has an
index that begins with nothing another could take its place for.
"""

from importlib import import_module

from django.db import migrations

FORWARD = """
CREATE OR REPLACE FUNCTION agentstate_store_payloads(
    p_project uuid, p_session uuid, p_seqs bigint[], p_blobs uuid[], p_sizes integer[]
) RETURNS void LANGUAGE plpgsql
  SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
  SET plan_cache_mode = force_custom_plan AS $$
DECLARE
    v_delta bigint;
BEGIN
    WITH own AS MATERIALIZED (
        SELECT e.id, e.payload_bytes, n.blob, n.size
          FROM agent_events e
          JOIN unnest(p_seqs, p_blobs, p_sizes) AS n(seq, blob, size) ON n.seq = e.seq
         WHERE e.project_id = p_project AND e.xid = pg_current_xact_id()
           AND e.gen = (SELECT max(g.gen) FROM agent_feed_generations g)
           AND e.session_id IS NOT DISTINCT FROM p_session
    ), stored AS (
        UPDATE agent_events e SET blob_id = own.blob, payload_bytes = own.size
          FROM own WHERE e.id = own.id
    )
    SELECT sum(own.size - own.payload_bytes) INTO v_delta FROM own;
    UPDATE agent_sessions SET log_bytes = log_bytes + coalesce(v_delta, 0)
     WHERE id = p_session AND project_id IS NOT DISTINCT FROM p_project;
END $$;
"""
BEFORE = import_module("sessions_app.migrations.0017_stored_by_number").FORWARD


class Migration(migrations.Migration):
    dependencies = [("sessions_app", "0017_stored_by_number")]

    operations = [migrations.RunSQL(FORWARD, BEFORE)]
