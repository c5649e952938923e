from django.db import migrations

FORWARD = """
-- Appends update the session's row: room for the new version in the same page, and a
-- state of some size kept out of the row, make that update cheap.
ALTER TABLE agent_sessions SET (fillfactor = 70, toast_tuple_target = 256);

-- The log is changed by the functions named here and by nothing else. The trigger
-- knows them by its call stack, which no setting can imitate.
CREATE FUNCTION agentstate_refuse_log_change() RETURNS trigger
LANGUAGE plpgsql AS $$
DECLARE
    stack text;
BEGIN
    GET DIAGNOSTICS stack = PG_CONTEXT;
    IF TG_OP <> 'TRUNCATE' AND stack ~
        E'\\nPL/pgSQL function agentstate_(erase_session|pass_on_log|redact_events)[(]'
    THEN
        RETURN NULL;
    END IF;
    RAISE EXCEPTION 'agent_events is append-only: % is refused', TG_OP
        USING ERRCODE = 'insufficient_privilege';
END $$;

CREATE TRIGGER event_append_only
    BEFORE UPDATE OR DELETE OR TRUNCATE ON agent_events
    FOR EACH STATEMENT EXECUTE FUNCTION agentstate_refuse_log_change();

-- Erase a session and all that was derived from it. Returns the events removed.
CREATE FUNCTION agentstate_erase_session(p_project uuid, p_session uuid)
RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    erased bigint;
BEGIN
    DELETE FROM agent_events
     WHERE project_id = p_project AND session_id = p_session;
    GET DIAGNOSTICS erased = ROW_COUNT;
    DELETE FROM agent_tool_calls
     WHERE project_id = p_project AND session_id = p_session;
    DELETE FROM agent_snapshots
     WHERE project_id = p_project AND session_id = p_session;
    DELETE FROM access_idempotency
     WHERE project_id = p_project AND session_id = p_session;
    DELETE FROM agent_sessions WHERE project_id = p_project AND id = p_session;
    RETURN erased;
END $$;

-- Hand the log up to p_upto, with its snapshots and tool calls, to a fork that needs
-- it when its parent is erased.
CREATE FUNCTION agentstate_pass_on_log(
    p_project uuid, p_from uuid, p_to uuid, p_upto bigint
) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    UPDATE agent_events SET session_id = p_to
     WHERE project_id = p_project AND session_id = p_from
       AND seq BETWEEN 1 AND p_upto;
    UPDATE agent_snapshots SET session_id = p_to
     WHERE project_id = p_project AND session_id = p_from AND seq <= p_upto
       AND NOT EXISTS (SELECT FROM agent_snapshots own
                        WHERE own.project_id = p_project AND own.session_id = p_to
                          AND own.seq = agent_snapshots.seq);
    UPDATE agent_tool_calls SET session_id = p_to
     WHERE project_id = p_project AND session_id = p_from AND call_seq <= p_upto
       AND NOT EXISTS (SELECT FROM agent_tool_calls own
                        WHERE own.project_id = p_project AND own.session_id = p_to
                          AND own.call_seq = agent_tool_calls.call_seq);
END $$;
"""

REVERSE = """
DROP FUNCTION agentstate_pass_on_log(uuid, uuid, uuid, bigint);
DROP FUNCTION agentstate_erase_session(uuid, uuid);
DROP TRIGGER event_append_only ON agent_events;
DROP FUNCTION agentstate_refuse_log_change();
ALTER TABLE agent_sessions RESET (fillfactor, toast_tuple_target);
"""


class Migration(migrations.Migration):
    dependencies = [("sessions_app", "0001_initial")]

    operations = [migrations.RunSQL(FORWARD, REVERSE)]
