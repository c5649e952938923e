"""Large payloads lie in the store of artifacts; their rows say where."""

from importlib import import_module

from django.db import migrations, models

FORWARD = """
CREATE OR REPLACE FUNCTION agentstate_refuse_log_change() RETURNS trigger
LANGUAGE plpgsql AS $$
DECLARE
    stack text;
BEGIN
    GET DIAGNOSTICS stack = PG_CONTEXT;
    IF TG_OP <> 'TRUNCATE' AND stack ~
        E'\\nPL/pgSQL function agentstate_(erase_session|pass_on_log|redact_events|store_payloads)[(]'
    THEN
        RETURN NULL;
    END IF;
    RAISE EXCEPTION 'agent_events is append-only: % is refused', TG_OP
        USING ERRCODE = 'insufficient_privilege';
END $$;

-- Say of events that were appended as stubs in this very transaction what they stand
-- for. The session's row is locked, and counts what the payloads truly weigh.
CREATE FUNCTION agentstate_store_payloads(
    p_project uuid, p_session uuid, p_seqs bigint[], p_blobs uuid[], p_sizes integer[]
) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_delta bigint;
BEGIN
    SELECT coalesce(sum(n.size - e.payload_bytes), 0) INTO v_delta
      FROM unnest(p_seqs, p_sizes) AS n(seq, size)
      JOIN agent_events e
        ON e.project_id = p_project AND e.session_id = p_session AND e.seq = n.seq
     WHERE e.xid = pg_current_xact_id();
    UPDATE agent_events e
       SET blob_id = n.blob, payload_bytes = n.size
      FROM unnest(p_seqs, p_blobs, p_sizes) AS n(seq, blob, size)
     WHERE e.project_id = p_project AND e.session_id = p_session AND e.seq = n.seq
       AND e.xid = pg_current_xact_id();
    UPDATE agent_sessions SET log_bytes = log_bytes + v_delta
     WHERE project_id = p_project AND id = p_session;
END $$;

-- As before; what stands in the place of a payload stands in the row.
CREATE OR REPLACE FUNCTION agentstate_redact_events(
    p_project uuid, p_session uuid, p_seqs bigint[], p_payloads text[]
) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    changed bigint;
    log_delta bigint;
    patch_delta bigint;
BEGIN
    PERFORM FROM agent_sessions
      WHERE project_id = p_project AND id = p_session FOR NO KEY UPDATE;
    SELECT coalesce(sum(octet_length(n.payload) - e.payload_bytes)
                    FILTER (WHERE e.seq > greatest(0, coalesce(s.forked_from_seq, 0))),
                    0),
           coalesce(sum(octet_length(n.payload) - e.payload_bytes)
                    FILTER (WHERE e.type = 'state.changed'
                              AND e.seq > coalesce(s.forked_from_seq, 0)
                              AND (e.payload ->> 'version')::bigint
                                  > s.snapshot_version),
                    0)
      INTO log_delta, patch_delta
      FROM unnest(p_seqs, p_payloads) AS n(seq, payload)
      JOIN agent_events e
        ON e.project_id = p_project AND e.session_id = p_session AND e.seq = n.seq
      JOIN agent_sessions s ON s.project_id = p_project AND s.id = p_session;
    UPDATE agent_events e
       SET payload = n.payload::json, payload_bytes = octet_length(n.payload),
           blob_id = NULL
      FROM unnest(p_seqs, p_payloads) AS n(seq, payload)
     WHERE e.project_id = p_project AND e.session_id = p_session AND e.seq = n.seq;
    GET DIAGNOSTICS changed = ROW_COUNT;
    UPDATE agent_sessions
       SET log_bytes = log_bytes + log_delta, patch_bytes = patch_bytes + patch_delta
     WHERE project_id = p_project AND id = p_session
       AND (log_delta <> 0 OR patch_delta <> 0);
    RETURN changed;
END $$;
"""


# The version before knows nothing of stubs: it would show them, and nobody would know
# any more where the payloads lie.
REFUSE = """
DO $$
DECLARE
    v_stubs bigint;
BEGIN
    SELECT count(*) INTO v_stubs FROM agent_events WHERE blob_id IS NOT NULL;
    IF v_stubs > 0 THEN
        RAISE EXCEPTION 'the payloads of % events lie in the store: going back would '
            'lose them', v_stubs
            USING HINT = 'Restore a backup of before; see docs/artifacts.md.';
    END IF;
END $$;
"""
BEFORE = REFUSE + import_module(
    "sessions_app.migrations.0006_redact_events"
).FORWARD.replace("CREATE FUNCTION", "CREATE OR REPLACE FUNCTION") + """
DROP FUNCTION agentstate_store_payloads(uuid, uuid, bigint[], uuid[], integer[]);
"""


class Migration(migrations.Migration):
    dependencies = [("sessions_app", "0010_artifacts")]

    operations = [
        migrations.AddField(
            model_name="event", name="blob_id", field=models.UUIDField(null=True)
        ),
        migrations.RunSQL(FORWARD, BEFORE),
    ]
