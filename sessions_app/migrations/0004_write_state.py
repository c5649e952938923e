from django.db import migrations

FORWARD = """
-- Replace a session's state if its version is still p_expected: append the
-- state.changed event that holds the patch, write the row, and take a snapshot once
-- the patches since the last one outweigh the state itself, or are two hundred. So
-- storage grows with what changed, and a replay never folds more than that.
-- `outcome` as for agentstate_append_events, `written`, or `version_conflict`.
CREATE FUNCTION agentstate_write_state(
    p_project uuid,
    p_session uuid,
    p_expected bigint,
    p_state text,
    p_patch text,
    p_event_id uuid,
    p_run uuid,
    p_step uuid,
    p_actor text,
    p_by_server boolean,
    p_lock uuid,
    p_subject text,
    OUT outcome text,
    OUT version bigint,
    OUT seq bigint,
    OUT info json
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_snapshot_version bigint;
    v_patch_bytes bigint;
    v_append record;
BEGIN
    SELECT s.version, s.snapshot_version, s.patch_bytes + octet_length(p_patch)
      INTO version, v_snapshot_version, v_patch_bytes
      FROM agent_sessions s
     WHERE s.id = p_session AND s.project_id = p_project
       AND (p_subject IS NULL OR s.subject = p_subject)
       FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        outcome := 'not_found';
        RETURN;
    END IF;
    IF version <> p_expected THEN
        outcome := 'version_conflict';
        RETURN;
    END IF;
    version := version + 1;
    SELECT * INTO v_append FROM agentstate_append_events(
        p_project, p_session, ARRAY[p_event_id], ARRAY[false],
        ARRAY['state.changed'],
        ARRAY['{"version":' || version || ',"patch":' || p_patch || '}'],
        ARRAY[p_run], ARRAY[p_step], ARRAY[NULL::timestamptz],
        NULL, NULL, NULL, NULL, p_actor, p_by_server, NULL, p_lock, p_subject,
        NULL, NULL, NULL, NULL, NULL);
    IF v_append.outcome <> 'appended' THEN
        outcome := v_append.outcome;
        info := v_append.info;
        RETURN;
    END IF;
    seq := v_append.last_seq;
    IF v_patch_bytes >= greatest(octet_length(p_state), 4096)
       OR version - v_snapshot_version >= 200 THEN
        INSERT INTO agent_snapshots (
            project_id, session_id, seq, version, state, created_at
        ) VALUES (p_project, p_session, seq, version, p_state::json, agentstate_now());
        v_snapshot_version := version;
        v_patch_bytes := 0;
    END IF;
    UPDATE agent_sessions s
       SET state = p_state::json, version = agentstate_write_state.version,
           snapshot_version = v_snapshot_version, patch_bytes = v_patch_bytes
     WHERE s.id = p_session AND s.project_id = p_project;
    outcome := 'written';
END $$;
"""

SIGNATURE = """agentstate_write_state(
    uuid, uuid, bigint, text, text, uuid, uuid, uuid, text, boolean, uuid, text
)"""


class Migration(migrations.Migration):
    dependencies = [("sessions_app", "0003_append_events")]

    operations = [migrations.RunSQL(FORWARD, f"DROP FUNCTION {SIGNATURE}")]
