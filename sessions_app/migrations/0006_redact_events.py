from django.db import migrations

FORWARD = """
-- Put other payloads in the place of what was forgotten: `p_payloads[i]` is the text of
-- event `p_seqs[i]` of the session's own rows. Number, type and time stay, and so does
-- what the session's row counts of its log. Returns the events changed.
CREATE FUNCTION agentstate_redact_events(
    p_project uuid, p_session uuid, p_seqs bigint[], p_payloads text[]
) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    changed bigint;
    log_delta bigint;
    patch_delta bigint;
BEGIN
    PERFORM FROM agent_sessions
      WHERE project_id = p_project AND id = p_session FOR NO KEY UPDATE;
    -- Before the change: what the row counts is what its payloads weigh now.
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
       SET payload = n.payload::json, payload_bytes = octet_length(n.payload)
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


class Migration(migrations.Migration):
    dependencies = [("sessions_app", "0005_tool_call_stand_in")]

    operations = [
        migrations.RunSQL(
            FORWARD,
            "DROP FUNCTION agentstate_redact_events(uuid, uuid, bigint[], text[])",
        )
    ]
