"""A run and its session are written where they were read, not looked up once more.

The places of their rows, known since they were locked and loaded, spare two ways down an
index for each call: with large tables six of the pages that a claim touches.
"""

from importlib import import_module

from django.db import migrations

one_call = import_module("runs_app.migrations.0014_one_call")
further_on = import_module("runs_app.migrations.0016_look_further_on")

PLACES = """
ALTER TYPE agentstate_work ADD ATTRIBUTE session_place tid, ADD ATTRIBUTE run_place tid;
"""
changed = further_on.changed

# Plain SQL, which `as_it_was` does not look for.
begin = one_call.CLOSE.index("FUNCTION agentstate_run_work(")
end = one_call.CLOSE.index("$$;", begin)
LOAD_BEFORE = f"CREATE OR REPLACE {one_call.CLOSE[begin:end]}$$;\n"
LOAD = changed(
    LOAD_BEFORE,
    ("'{}'::text[]\n      FROM", "'{}'::text[], NULL::tid, r.ctid\n      FROM"),
)
LOAD_AT = changed(
    LOAD,
    ("p_now timestamptz\n", "p_now timestamptz, p_session_place tid\n"),
    ("NULL::tid", "p_session_place"),
)

OPEN_BEFORE = one_call.as_it_was(one_call.CLOSE, "agentstate_open_run")
OPEN = changed(
    OPEN_BEFORE.replace(
        "SELECT s.last_seq INTO v_last_seq FROM",
        "SELECT s.last_seq, s.ctid INTO v_last_seq, v_place FROM",
    ),
    (
        "    v_last_seq bigint;\n",
        """    v_last_seq bigint;
    v_place tid;
    v_now timestamptz;
    w agentstate_work;
""",
    ),
    (
        "    RETURN agentstate_load_run(p_project, p_session, p_run, p_actor, v_last_seq);",
        """    v_now := agentstate_now();
    SELECT * INTO w FROM agentstate_run_work(
        p_project, p_session, p_run, p_actor, v_last_seq, v_now, v_place);
    RETURN w;""",
    ),
)

# What is written, whichever way the rows are found.
RUN = """UPDATE agent_runs r
           SET state = w.state, reason = w.reason, error = w.error::json,
               has_begun = w.has_begun, step_count = w.step_count,
               n_pending = w.n_pending, n_ready = w.n_ready, n_held = w.n_held,
               n_in_progress = w.n_in_progress, n_waiting = w.n_waiting,
               n_in_doubt = w.n_in_doubt, n_done = w.n_done, n_failed = w.n_failed,
               n_skipped = w.n_skipped, n_cancelled = w.n_cancelled,
               n_retrying = w.n_retrying, tool_calls = w.tool_calls,
               tokens = w.tokens, cost = w.cost, started_at = w.started_at,
               ended_at = CASE WHEN v_ended THEN w.now
                               WHEN w.state = w.was THEN r.ended_at END,
               state_since = CASE WHEN w.state = w.was THEN r.state_since
                                  ELSE w.now END
         WHERE r.id = w.run AND r.project_id IS NOT DISTINCT FROM w.project"""
SESSION = """UPDATE agent_sessions s
       SET last_seq = s.last_seq + cardinality(w.types),
           log_bytes = s.log_bytes + octet_length(array_to_string(w.payloads, '')),
           updated_at = w.now,
           active_at = CASE WHEN w.now >= s.active_at + interval '1 minute'
                            THEN date_trunc('minute', w.now) ELSE s.active_at END
     WHERE s.id = w.session AND s.project_id IS NOT DISTINCT FROM w.project
       AND cardinality(w.types) > 0"""
WRITE_BEFORE = one_call.as_it_was(one_call.CLOSE, "agentstate_write_work")
WRITE = changed(
    WRITE_BEFORE,
    (
        "DECLARE\n",
        "DECLARE\n    v_is_written boolean;  -- null: the session is not, or has no event\n",
    ),
    (f"{RUN}\n", f"{RUN}\n           AND r.ctid = w.run_place\n        RETURNING 1\n"),
    (
        f"{SESSION};\n",
        f"""{SESSION}
       AND s.ctid = w.session_place
    RETURNING EXISTS (SELECT FROM run) INTO v_is_written;
    IF v_is_written IS NOT TRUE THEN
        -- Not where they were read: another has charged the run meanwhile, or the place
        -- was not noted.
        {RUN};
        IF v_is_written IS NULL THEN
            {SESSION};
        END IF;
    END IF;
""",
    ),
)

TURN_BEFORE = further_on.AFTER
LOCKED = "SELECT x.last_seq INTO v_last_seq FROM agent_sessions x"
LOCKED_AT = """SELECT x.last_seq, x.ctid INTO v_last_seq, v_session_place
                  FROM agent_sessions x"""
assert TURN_BEFORE.count(LOCKED) == 3
TURN = changed(
    TURN_BEFORE.replace(LOCKED, LOCKED_AT),
    ("    v_last_seq bigint;\n", "    v_last_seq bigint;\n    v_session_place tid;\n"),
    (
        "p_project, v_sessions[v_at], v_runs[v_at], p_actor, v_last_seq, v_clock);",
        "p_project, v_sessions[v_at], v_runs[v_at], p_actor, v_last_seq, v_clock,\n"
        "            v_session_place);",
    ),
    (
        "p_project, c.session_id, c.run_id, p_actor, v_last_seq, v_clock);",
        "p_project, c.session_id, c.run_id, p_actor, v_last_seq, v_clock,\n"
        "                    v_session_place);",
    ),
)
AFTER = PLACES + LOAD + LOAD_AT + OPEN + WRITE + TURN
BEFORE = f"""
{TURN_BEFORE}
{WRITE_BEFORE}
{OPEN_BEFORE}
DROP FUNCTION agentstate_run_work(uuid, uuid, uuid, text, bigint, timestamptz, tid);
ALTER TYPE agentstate_work DROP ATTRIBUTE session_place, DROP ATTRIBUTE run_place;
{LOAD_BEFORE}
"""


class Migration(migrations.Migration):
    dependencies = [("runs_app", "0016_look_further_on")]

    operations = [migrations.RunSQL(AFTER, BEFORE)]
