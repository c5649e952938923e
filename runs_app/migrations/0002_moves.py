from django.db import migrations

TYPES = """
-- Postgres has uuidv7() from 18 on; before, it is the time over a random one.
DO $do$
BEGIN
    IF current_setting('server_version_num')::integer >= 180000 THEN
        CREATE FUNCTION agentstate_new_id() RETURNS uuid LANGUAGE sql VOLATILE AS
        'SELECT uuidv7()';
    ELSE
        CREATE FUNCTION agentstate_new_id() RETURNS uuid LANGUAGE sql VOLATILE AS $$
            SELECT encode(set_bit(set_bit(overlay(
                uuid_send(gen_random_uuid()) PLACING substring(int8send(floor(
                    extract(epoch FROM clock_timestamp()) * 1000)::bigint) FROM 3)
                FROM 1 FOR 6), 52, 1), 53, 1), 'hex')::uuid
        $$;
    END IF;
END $do$;

ALTER TABLE agent_runs SET (fillfactor = 70);
ALTER TABLE agent_steps SET (fillfactor = 70, toast_tuple_target = 512);
ALTER TABLE agent_step_leases SET (fillfactor = 50);
-- A queue: rows come and go, and its dead ones are in the way of every claim.
ALTER TABLE agent_ready_steps SET (
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000,
    autovacuum_vacuum_insert_scale_factor = 0);

-- A run under change: loaded and locked by agentstate_open_run, handed through the
-- moves, written back with its events by agentstate_close_run. One row update and one
-- append a call, however many moves it makes.
CREATE TYPE agentstate_work AS (
    project uuid, session uuid, run uuid, actor text, now timestamptz, at text,
    last_seq bigint, state text, was text, reason text, error text,
    has_begun boolean, agent text, rank integer, win integer, step_count integer,
    n_pending integer, n_ready integer, n_held integer, n_in_progress integer,
    n_waiting integer, n_in_doubt integer, n_done integer, n_failed integer,
    n_skipped integer, n_cancelled integer, n_retrying integer,
    tool_calls bigint, tokens bigint, cost numeric, started_at timestamptz,
    parent uuid, max_tool_calls bigint, max_tokens bigint, max_cost numeric,
    deadline_at timestamptz, allowlist text[],
    types text[], payloads text[], steps uuid[], woken uuid[], limits text[]
);
"""

OPEN = """
CREATE FUNCTION agentstate_iso(p_at timestamptz) RETURNS text
LANGUAGE sql STABLE AS $$
    SELECT to_char(p_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')
$$;

-- Lock the run's session, then load the run. All null if there is no such run, or
-- with p_skip if another holds the session's lock. The lock covers all rows of the
-- session's runs: nobody changes one without it.
CREATE FUNCTION agentstate_open_run(
    p_project uuid, p_session uuid, p_run uuid, p_actor text, p_skip boolean
) RETURNS agentstate_work LANGUAGE plpgsql AS $$
DECLARE
    w agentstate_work;
BEGIN
    IF p_skip THEN
        SELECT s.last_seq INTO w.last_seq FROM agent_sessions s
         WHERE s.id = p_session AND s.project_id = p_project
           FOR NO KEY UPDATE SKIP LOCKED;
    ELSE
        SELECT s.last_seq INTO w.last_seq FROM agent_sessions s
         WHERE s.id = p_session AND s.project_id = p_project
           FOR NO KEY UPDATE;
    END IF;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    SELECT r.project_id, r.session_id, r.id, r.state, r.state, r.reason, r.error::text,
           r.has_begun, r.agent, r.rank, r.window, r.step_count,
           r.n_pending, r.n_ready, r.n_held, r.n_in_progress, r.n_waiting,
           r.n_in_doubt, r.n_done, r.n_failed, r.n_skipped, r.n_cancelled,
           r.n_retrying, r.tool_calls, r.tokens, r.cost, r.started_at,
           r.parent_run_id, r.max_tool_calls, r.max_tokens, r.max_cost, r.deadline_at,
           r.tool_allowlist
      INTO w.project, w.session, w.run, w.state, w.was, w.reason, w.error,
           w.has_begun, w.agent, w.rank, w.win, w.step_count,
           w.n_pending, w.n_ready, w.n_held, w.n_in_progress, w.n_waiting,
           w.n_in_doubt, w.n_done, w.n_failed, w.n_skipped, w.n_cancelled,
           w.n_retrying, w.tool_calls, w.tokens, w.cost, w.started_at, w.parent,
           w.max_tool_calls, w.max_tokens, w.max_cost, w.deadline_at, w.allowlist
      FROM agent_runs r
     WHERE r.id = p_run AND r.project_id = p_project AND r.session_id = p_session;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    w.actor := p_actor;
    w.now := agentstate_now();
    w.at := agentstate_iso(w.now);
    w.types := '{}';
    w.payloads := '{}';
    w.steps := '{}';
    w.woken := '{}';
    w.limits := '{}';
    RETURN w;
END $$;

-- Add an event to those that the work will append. p_payload is the text of an object
-- with a member or more; when it happened, as the rows have it, is put before them.
CREATE FUNCTION agentstate_note(
    w agentstate_work, p_type text, p_payload text, p_step uuid
) RETURNS agentstate_work LANGUAGE plpgsql AS $$
BEGIN
    w.types := w.types || p_type;
    w.payloads := w.payloads || ('{"at":"' || w.at || '",' || substr(p_payload, 2));
    w.steps := array_append(w.steps, p_step);
    RETURN w;
END $$;

-- The seq that the event noted next will have.
CREATE FUNCTION agentstate_next_seq(w agentstate_work) RETURNS bigint
LANGUAGE sql IMMUTABLE AS $$ SELECT w.last_seq + cardinality(w.types) + 1 $$;

-- Count a step that goes from one state to another; either may be null.
CREATE FUNCTION agentstate_count(w agentstate_work, p_old text, p_new text)
RETURNS agentstate_work LANGUAGE plpgsql AS $$
BEGIN
    CASE p_old
        WHEN 'pending' THEN w.n_pending := w.n_pending - 1;
        WHEN 'in_progress' THEN w.n_in_progress := w.n_in_progress - 1;
        WHEN 'waiting' THEN w.n_waiting := w.n_waiting - 1;
        WHEN 'in_doubt' THEN w.n_in_doubt := w.n_in_doubt - 1;
        WHEN 'done' THEN w.n_done := w.n_done - 1;
        WHEN 'failed' THEN w.n_failed := w.n_failed - 1;
        WHEN 'skipped' THEN w.n_skipped := w.n_skipped - 1;
        WHEN 'cancelled' THEN w.n_cancelled := w.n_cancelled - 1;
        ELSE NULL;
    END CASE;
    CASE p_new
        WHEN 'pending' THEN w.n_pending := w.n_pending + 1;
        WHEN 'in_progress' THEN w.n_in_progress := w.n_in_progress + 1;
        WHEN 'waiting' THEN w.n_waiting := w.n_waiting + 1;
        WHEN 'in_doubt' THEN w.n_in_doubt := w.n_in_doubt + 1;
        WHEN 'done' THEN w.n_done := w.n_done + 1;
        WHEN 'failed' THEN w.n_failed := w.n_failed + 1;
        WHEN 'skipped' THEN w.n_skipped := w.n_skipped + 1;
        WHEN 'cancelled' THEN w.n_cancelled := w.n_cancelled + 1;
        ELSE NULL;
    END CASE;
    RETURN w;
END $$;
"""

ADMIT = """
CREATE FUNCTION agentstate_put_ready(w agentstate_work, s agent_steps)
RETURNS agentstate_work LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO agent_ready_steps (
        project_id, session_id, run_id, step_id, rank, agent, tool, since
    ) VALUES (w.project, w.session, w.run, s.id, s.rank, w.agent, s.tool, w.now);
    IF s.start_timeout_s IS NOT NULL THEN
        INSERT INTO agent_timers (
            project_id, session_id, run_id, step_id, kind, due_at, fence
        ) VALUES (w.project, w.session, w.run, s.id, 'start',
                  w.now + make_interval(secs => s.start_timeout_s), s.claims)
        ON CONFLICT (project_id, run_id, step_id, kind) DO UPDATE
            SET due_at = excluded.due_at, fence = excluded.fence;
    END IF;
    w.n_ready := w.n_ready + 1;
    RETURN w;
END $$;

CREATE FUNCTION agentstate_hold(w agentstate_work, s agent_steps, p_reason text)
RETURNS agentstate_work LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO agent_held_steps (
        project_id, session_id, run_id, ordinal, step_id, reason, limit_key, rank, since
    ) VALUES (w.project, w.session, w.run, s.ordinal, s.id, p_reason, s.limit_key,
              s.rank, w.now);
    w.n_held := w.n_held + 1;
    RETURN w;
END $$;

-- Let a step wait. p_until (may be null) is when time alone ends the wait.
CREATE FUNCTION agentstate_let_wait(
    w agentstate_work, s agent_steps, p_kind text, p_name text, p_until timestamptz
) RETURNS agentstate_work LANGUAGE plpgsql AS $$
BEGIN
    UPDATE agent_steps SET state = 'waiting', wait_kind = p_kind, wait_until = p_until,
           state_since = w.now
     WHERE id = s.id AND project_id = w.project;
    w := agentstate_count(w, s.state, 'waiting');
    IF p_kind NOT IN ('timer', 'retry') THEN
        INSERT INTO agent_step_waits (
            project_id, session_id, run_id, step_id, kind, name, since
        ) VALUES (w.project, w.session, w.run, s.id, p_kind, p_name, w.now);
    END IF;
    IF p_until IS NOT NULL THEN
        INSERT INTO agent_timers (
            project_id, session_id, run_id, step_id, kind, due_at, fence
        ) VALUES (w.project, w.session, w.run, s.id, 'wait', p_until, s.claims)
        ON CONFLICT (project_id, run_id, step_id, kind) DO UPDATE
            SET due_at = excluded.due_at, fence = excluded.fence;
    END IF;
    RETURN w;
END $$;

-- A pending step whose dependencies are met: let it wait, hold it, or make it ready.
CREATE FUNCTION agentstate_admit(w agentstate_work, s agent_steps)
RETURNS agentstate_work LANGUAGE plpgsql AS $$
DECLARE
    v_kind text;
    v_until timestamptz;
BEGIN
    IF s.requires_approval AND NOT s.is_approved THEN
        v_kind := 'approval';
        v_until := w.now + make_interval(secs => s.wait_timeout_s);
    ELSIF s.run_after > w.now THEN
        v_kind := 'timer';
        v_until := s.run_after;
    ELSIF s.kind = 'sleep' THEN
        v_kind := 'timer';
        v_until := w.now + make_interval(secs => s.sleep_s);
    ELSIF s.kind = 'signal' THEN
        v_kind := 'signal';
        v_until := w.now + make_interval(secs => s.wait_timeout_s);
        w.woken := w.woken || s.id;  -- the signal may be there already
    END IF;
    IF v_kind IS NOT NULL THEN
        w := agentstate_note(w, 'step.waiting', json_build_object(
            'index', s.ordinal, 'state', 'waiting', 'wait', v_kind,
            'name', s.signal_name, 'until', agentstate_iso(v_until))::text, s.id);
        RETURN agentstate_let_wait(w, s, v_kind, coalesce(s.signal_name, ''), v_until);
    END IF;
    IF w.state = 'paused' THEN
        RETURN agentstate_hold(w, s, 'paused');
    END IF;
    IF s.limit_key IS NOT NULL THEN
        w.limits := w.limits || s.limit_key;
        RETURN agentstate_hold(w, s, 'limit');
    END IF;
    IF w.n_ready >= w.win THEN
        RETURN agentstate_hold(w, s, 'window');
    END IF;
    RETURN agentstate_put_ready(w, s);
END $$;

-- Make the next steps ready that the run's own window held back.
CREATE FUNCTION agentstate_fill_window(w agentstate_work)
RETURNS agentstate_work LANGUAGE plpgsql AS $$
DECLARE
    s agent_steps;
BEGIN
    IF w.n_held = 0 OR w.n_ready >= w.win
       OR w.state IN ('paused', 'cancelling') THEN
        RETURN w;
    END IF;
    FOR s IN
        WITH freed AS (
            DELETE FROM agent_held_steps h
             USING (SELECT c.project_id, c.run_id, c.ordinal FROM agent_held_steps c
                     WHERE c.project_id = w.project AND c.run_id = w.run
                       AND c.reason = 'window'
                     ORDER BY c.ordinal LIMIT w.win - w.n_ready) c
             WHERE h.project_id = c.project_id AND h.run_id = c.run_id
               AND h.ordinal = c.ordinal
            RETURNING h.step_id
        )
        SELECT st.* FROM freed JOIN agent_steps st ON st.id = freed.step_id
         ORDER BY st.ordinal
    LOOP
        w.n_held := w.n_held - 1;
        w := agentstate_put_ready(w, s);
    END LOOP;
    RETURN w;
END $$;
"""

FINISH = """
-- End a step, and admit those that only waited for it. Its event is noted before.
CREATE FUNCTION agentstate_finish_step(
    w agentstate_work, s agent_steps, p_state text, p_error text, p_hash bytea,
    p_result_seq bigint
) RETURNS agentstate_work LANGUAGE plpgsql AS $$
DECLARE
    d agent_steps;
BEGIN
    UPDATE agent_steps
       SET state = p_state, wait_kind = NULL, wait_until = NULL, ended_at = w.now,
           state_since = w.now, error = p_error::json, result_hash = p_hash,
           result_seq = p_result_seq
     WHERE id = s.id AND project_id = w.project;
    w := agentstate_count(w, s.state, p_state);
    IF s.failures > 0 AND s.state IN ('pending', 'in_progress', 'waiting', 'in_doubt')
    THEN
        w.n_retrying := w.n_retrying - 1;
    END IF;
    IF s.limit_key IS NOT NULL THEN
        w := agentstate_free_slot(w, s);
    END IF;
    IF p_state IN ('done', 'skipped') AND cardinality(s.dependents) > 0 THEN
        FOR d IN
            UPDATE agent_steps SET deps_left = deps_left - 1
             WHERE project_id = w.project AND run_id = w.run
               AND ordinal = ANY (s.dependents)
            RETURNING *
        LOOP
            IF d.deps_left = 0 AND d.state = 'pending'
               AND w.error IS NULL AND w.state <> 'cancelling' THEN
                w := agentstate_admit(w, d);
            END IF;
        END LOOP;
    ELSIF p_state = 'cancelled' AND cardinality(s.dependents) > 0
          AND w.error IS NULL AND w.state <> 'cancelling' THEN
        -- What depends on it can never run.
        w := agentstate_cancel_unstarted(w, s.dependents, 'depends on a cancelled step');
    END IF;
    RETURN w;
END $$;

CREATE FUNCTION agentstate_free_slot(w agentstate_work, s agent_steps)
RETURNS agentstate_work LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM agent_limit_slots l
     WHERE l.project_id = w.project AND l.key = s.limit_key AND l.step_id = s.id;
    w.limits := w.limits || s.limit_key;
    RETURN w;
END $$;

-- Cancel what is not in progress: all of the run, or with p_from the steps of these
-- numbers and all that depends on them. One event tells of all.
CREATE FUNCTION agentstate_cancel_unstarted(
    w agentstate_work, p_from integer[], p_reason text
) RETURNS agentstate_work LANGUAGE plpgsql AS $$
DECLARE
    v_ids uuid[];
    v_numbers integer[];
    v_pending integer;
    v_waiting integer;
    v_in_doubt integer;
    v_retrying integer;
    v_limits text[];
    v_gone integer;
BEGIN
    -- An effect in doubt is settled before its run fails, not forgotten; only a run
    -- that is cancelled as a whole ends such a step, which keeps its mark.
    WITH RECURSIVE reach AS (
        SELECT unnest(p_from) AS ordinal
        UNION
        SELECT unnest(st.dependents) FROM reach
          JOIN agent_steps st ON st.project_id = w.project AND st.run_id = w.run
                             AND st.ordinal = reach.ordinal
    ), chosen AS (
        SELECT st.id, st.ordinal, st.state, st.failures, st.limit_key
          FROM agent_steps st
         WHERE st.project_id = w.project AND st.run_id = w.run
           AND (st.state IN ('pending', 'waiting')
                OR st.state = 'in_doubt' AND w.state = 'cancelling')
           AND (p_from IS NULL OR st.ordinal IN (SELECT ordinal FROM reach))
    )
    SELECT array_agg(id ORDER BY ordinal), array_agg(ordinal ORDER BY ordinal),
           count(*) FILTER (WHERE state = 'pending'),
           count(*) FILTER (WHERE state = 'waiting'),
           count(*) FILTER (WHERE state = 'in_doubt'),
           count(*) FILTER (WHERE failures > 0),
           array_agg(DISTINCT limit_key) FILTER (WHERE limit_key IS NOT NULL)
      INTO v_ids, v_numbers, v_pending, v_waiting, v_in_doubt, v_retrying, v_limits
      FROM chosen;
    IF v_ids IS NULL THEN
        RETURN w;
    END IF;
    -- In the order of the flow, so that a step on its way forward is always met.
    DELETE FROM agent_held_steps h
     WHERE h.project_id = w.project AND h.run_id = w.run AND h.ordinal = ANY (v_numbers);
    GET DIAGNOSTICS v_gone = ROW_COUNT;
    w.n_held := w.n_held - v_gone;
    DELETE FROM agent_timers t
     WHERE t.project_id = w.project AND t.run_id = w.run AND t.step_id = ANY (v_ids);
    DELETE FROM agent_step_waits x
     WHERE x.project_id = w.project AND x.step_id = ANY (v_ids);
    DELETE FROM agent_ready_steps q
     WHERE q.project_id = w.project AND q.run_id = w.run AND q.step_id = ANY (v_ids);
    GET DIAGNOSTICS v_gone = ROW_COUNT;
    w.n_ready := w.n_ready - v_gone;
    IF v_limits IS NOT NULL THEN
        DELETE FROM agent_limit_slots l
         WHERE l.project_id = w.project AND l.key = ANY (v_limits)
           AND l.step_id = ANY (v_ids);
        w.limits := w.limits || v_limits;
    END IF;
    UPDATE agent_steps st
       SET state = 'cancelled', wait_kind = NULL, wait_until = NULL, ended_at = w.now,
           state_since = w.now
     WHERE st.project_id = w.project AND st.run_id = w.run
       AND st.ordinal = ANY (v_numbers);
    w.n_pending := w.n_pending - v_pending;
    w.n_waiting := w.n_waiting - v_waiting;
    w.n_in_doubt := w.n_in_doubt - v_in_doubt;
    w.n_retrying := w.n_retrying - v_retrying;
    w.n_cancelled := w.n_cancelled + cardinality(v_ids);
    RETURN agentstate_note(w, 'run.steps_cancelled', json_build_object(
        'state', 'cancelled', 'indexes', v_numbers, 'reason', p_reason)::text, NULL);
END $$;

-- The run is going to fail: nothing new is begun; what is in progress may finish.
CREATE FUNCTION agentstate_doom(w agentstate_work, p_error text, p_reason text)
RETURNS agentstate_work LANGUAGE plpgsql AS $$
BEGIN
    IF w.error IS NOT NULL OR w.state = 'cancelling' THEN
        RETURN w;
    END IF;
    w.error := p_error;
    w.reason := p_reason;
    w := agentstate_note(w, 'run.failing', '{"error":' || p_error || ',"reason":'
        || to_json(p_reason) || '}', NULL);
    RETURN agentstate_cancel_unstarted(w, NULL, p_reason);
END $$;

-- A waiting step takes the signal that was sent before it began to wait.
CREATE FUNCTION agentstate_take_signal(w agentstate_work, p_step uuid)
RETURNS agentstate_work LANGUAGE plpgsql AS $$
DECLARE
    s agent_steps;
    v_signal record;
BEGIN
    SELECT * INTO s FROM agent_steps st
     WHERE st.id = p_step AND st.project_id = w.project
       AND st.state = 'waiting' AND st.wait_kind = 'signal';
    IF NOT FOUND THEN
        RETURN w;
    END IF;
    UPDATE agent_signals g SET consumed_by = p_step
     WHERE g.id = (
        SELECT c.id FROM agent_signals c
         WHERE c.project_id = w.project AND c.run_id = w.run
           AND c.name = s.signal_name AND c.consumed_by IS NULL
         ORDER BY c.id LIMIT 1)
    RETURNING g.name, g.signal_id, g.payload::text AS payload INTO v_signal;
    IF NOT FOUND THEN
        RETURN w;
    END IF;
    DELETE FROM agent_step_waits x
     WHERE x.project_id = w.project AND x.step_id = p_step;
    DELETE FROM agent_timers t
     WHERE t.project_id = w.project AND t.run_id = w.run AND t.step_id = p_step;
    w := agentstate_note(w, 'step.done', '{"index":' || s.ordinal
        || ',"state":"done","signal_id":' || to_json(v_signal.signal_id)
        || ',"result":' || coalesce(v_signal.payload, 'null') || '}', p_step);
    RETURN agentstate_finish_step(
        w, s, 'done', NULL, NULL, agentstate_next_seq(w) - 1);
END $$;
"""

CLOSE = """
-- What follows from the steps' states for the run's own.
CREATE FUNCTION agentstate_settle(w agentstate_work)
RETURNS agentstate_work LANGUAGE plpgsql AS $$
DECLARE
    v_open integer := w.n_pending + w.n_in_progress + w.n_waiting + w.n_in_doubt;
    v_new text;
BEGIN
    IF w.state IN ('succeeded', 'failed', 'cancelled') THEN
        RETURN w;
    END IF;
    IF v_open = 0 AND w.state = 'cancelling' THEN
        IF EXISTS (SELECT FROM agent_runs c
                    WHERE c.project_id = w.project AND c.parent_run_id = w.run
                      AND c.state NOT IN ('succeeded', 'failed', 'cancelled')) THEN
            RETURN w;
        END IF;
        v_new := 'cancelled';
    ELSIF v_open = 0 AND w.error IS NOT NULL THEN
        v_new := 'failed';
    ELSIF v_open = 0 AND w.step_count > 0 THEN
        v_new := CASE WHEN w.n_failed > 0 THEN 'failed'
                      WHEN w.n_cancelled > 0 THEN 'cancelled' ELSE 'succeeded' END;
    ELSIF w.state IN ('paused', 'cancelling') OR NOT w.has_begun OR w.step_count = 0
    THEN
        RETURN w;
    ELSIF w.n_ready + w.n_held + w.n_in_progress = 0 THEN
        v_new := 'waiting';
    ELSIF w.state = 'waiting' THEN
        v_new := 'running';
    ELSE
        RETURN w;
    END IF;
    IF v_new = w.state THEN
        RETURN w;
    END IF;
    w.state := v_new;
    RETURN agentstate_note(
        w,
        CASE v_new WHEN 'running' THEN 'run.resumed' ELSE 'run.' || v_new END,
        CASE v_new WHEN 'failed'
             THEN '{"state":"failed","reason":' || to_json(w.reason)
                  || ',"error":' || coalesce(w.error, 'null') || '}'
             ELSE '{"state":"' || v_new || '"}' END,
        NULL);
END $$;

-- Settle the run, write it, append its events; when it has ended, let the next run of
-- its session begin. Returns the work as it was written.
CREATE FUNCTION agentstate_close_run(w agentstate_work)
RETURNS agentstate_work LANGUAGE plpgsql AS $$
DECLARE
    v_ended boolean;
    v_none uuid[];
BEGIN
    WHILE cardinality(w.woken) > 0 LOOP
        v_none := w.woken;
        w.woken := '{}';
        FOR at IN 1 .. cardinality(v_none) LOOP
            w := agentstate_take_signal(w, v_none[at]);
        END LOOP;
    END LOOP;
    w := agentstate_fill_window(w);
    w := agentstate_settle(w);
    v_ended := w.state IN ('succeeded', 'failed', 'cancelled') AND w.state <> w.was;
    UPDATE agent_runs r
       SET state = w.state, reason = w.reason, error = w.error::json,
           has_begun = w.has_begun, step_count = w.step_count,
           n_pending = w.n_pending, n_ready = w.n_ready, n_held = w.n_held,
           n_in_progress = w.n_in_progress, n_waiting = w.n_waiting,
           n_in_doubt = w.n_in_doubt, n_done = w.n_done, n_failed = w.n_failed,
           n_skipped = w.n_skipped, n_cancelled = w.n_cancelled,
           n_retrying = w.n_retrying, tool_calls = w.tool_calls, tokens = w.tokens,
           cost = w.cost, started_at = w.started_at,
           ended_at = CASE WHEN v_ended THEN w.now
                           WHEN w.state = w.was THEN r.ended_at END,
           state_since = CASE WHEN w.state = w.was THEN r.state_since ELSE w.now END
     WHERE r.id = w.run AND r.project_id = w.project;
    IF cardinality(w.types) > 0 THEN
        w := agentstate_append_noted(w);
    END IF;
    IF v_ended THEN
        DELETE FROM agent_timers t
         WHERE t.project_id = w.project AND t.run_id = w.run;
        w.limits := w.limits || agentstate_begin_next(w.project, w.session);
    END IF;
    w.was := w.state;
    RETURN w;
END $$;

-- Append the events noted, as agentstate_append_events does it, but for what the server
-- itself has no use for: the session's lock is held, its last_seq known, and no client
-- has named an id.
CREATE FUNCTION agentstate_append_noted(w agentstate_work) RETURNS agentstate_work
LANGUAGE plpgsql AS $$
DECLARE
    v_bytes bigint;
BEGIN
    INSERT INTO agent_events (
        project_id, session_id, seq, event_id, type, payload, payload_bytes, run_id,
        step_id, actor, created_at, gen, xid
    )
    SELECT w.project, w.session, w.last_seq + n.at, agentstate_new_id(), n.type,
           n.payload::json, octet_length(n.payload), w.run, n.step, w.actor, w.now,
           agentstate_feed_generation(), pg_current_xact_id()
      FROM unnest(w.types, w.payloads, w.steps)
           WITH ORDINALITY AS n(type, payload, step, at)
     ORDER BY n.at;
    SELECT sum(octet_length(n.payload)) INTO v_bytes FROM unnest(w.payloads) n(payload);
    UPDATE agent_sessions s
       SET last_seq = s.last_seq + cardinality(w.types),
           log_bytes = s.log_bytes + v_bytes,
           updated_at = w.now,
           active_at = CASE WHEN w.now >= s.active_at + interval '1 minute'
                            THEN date_trunc('minute', w.now) ELSE s.active_at END
     WHERE s.id = w.session AND s.project_id = w.project;
    w.last_seq := w.last_seq + cardinality(w.types);
    w.types := '{}';
    w.payloads := '{}';
    w.steps := '{}';
    RETURN w;
END $$;

-- Admit all steps of a run that wait for no other. Its has_begun is set here.
CREATE FUNCTION agentstate_begin_run(w agentstate_work)
RETURNS agentstate_work LANGUAGE plpgsql AS $$
DECLARE
    s agent_steps;
BEGIN
    w.has_begun := true;
    FOR s IN
        SELECT st.* FROM agent_steps st
         WHERE st.project_id = w.project AND st.run_id = w.run
           AND st.state = 'pending' AND st.deps_left = 0
         ORDER BY st.ordinal
    LOOP
        w := agentstate_admit(w, s);
    END LOOP;
    RETURN w;
END $$;

-- Let the oldest run that stands in line in the session begin, unless one is active.
-- Returns the keys of limits that its steps count against.
CREATE FUNCTION agentstate_begin_next(p_project uuid, p_session uuid)
RETURNS text[] LANGUAGE plpgsql AS $$
DECLARE
    v_next uuid;
    w agentstate_work;
BEGIN
    PERFORM FROM agent_runs r
      WHERE r.project_id = p_project AND r.session_id = p_session AND r.has_begun
        AND r.state NOT IN ('succeeded', 'failed', 'cancelled');
    IF FOUND THEN
        RETURN '{}';
    END IF;
    SELECT r.id INTO v_next FROM agent_runs r
     WHERE r.project_id = p_project AND r.session_id = p_session
       AND r.state = 'queued' AND NOT r.has_begun
     ORDER BY r.id LIMIT 1;
    IF NOT FOUND THEN
        RETURN '{}';
    END IF;
    w := agentstate_open_run(p_project, p_session, v_next, 'system', false);
    w := agentstate_note(w, 'run.begun', '{"state":"queued"}', NULL);
    w := agentstate_begin_run(w);
    w := agentstate_close_run(w);
    RETURN w.limits;
END $$;

-- A session that is erased takes its runs with it.
CREATE FUNCTION agentstate_erase_runs() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM agent_ready_steps t USING agent_runs r
     WHERE r.project_id = OLD.project_id AND r.session_id = OLD.id
       AND t.project_id = r.project_id AND t.run_id = r.id;
    DELETE FROM agent_held_steps t USING agent_runs r
     WHERE r.project_id = OLD.project_id AND r.session_id = OLD.id
       AND t.project_id = r.project_id AND t.run_id = r.id;
    DELETE FROM agent_timers t USING agent_runs r
     WHERE r.project_id = OLD.project_id AND r.session_id = OLD.id
       AND t.project_id = r.project_id AND t.run_id = r.id;
    DELETE FROM agent_step_waits t USING agent_runs r
     WHERE r.project_id = OLD.project_id AND r.session_id = OLD.id
       AND t.project_id = r.project_id AND t.run_id = r.id;
    DELETE FROM agent_step_leases t USING agent_steps s, agent_runs r
     WHERE r.project_id = OLD.project_id AND r.session_id = OLD.id
       AND s.project_id = r.project_id AND s.run_id = r.id
       AND t.project_id = s.project_id AND t.step_id = s.id;
    DELETE FROM agent_limit_slots t USING agent_steps s, agent_runs r
     WHERE r.project_id = OLD.project_id AND r.session_id = OLD.id
       AND s.project_id = r.project_id AND s.run_id = r.id
       AND t.project_id = s.project_id AND t.key = s.limit_key AND t.step_id = s.id;
    DELETE FROM agent_step_attempts t USING agent_runs r
     WHERE r.project_id = OLD.project_id AND r.session_id = OLD.id
       AND t.project_id = r.project_id AND t.run_id = r.id;
    DELETE FROM agent_rejected_completions t USING agent_runs r
     WHERE r.project_id = OLD.project_id AND r.session_id = OLD.id
       AND t.project_id = r.project_id AND t.run_id = r.id;
    DELETE FROM agent_effects t USING agent_runs r
     WHERE r.project_id = OLD.project_id AND r.session_id = OLD.id
       AND t.project_id = r.project_id AND t.run_id = r.id;
    DELETE FROM agent_signals t USING agent_runs r
     WHERE r.project_id = OLD.project_id AND r.session_id = OLD.id
       AND t.project_id = r.project_id AND t.run_id = r.id;
    DELETE FROM agent_steps t USING agent_runs r
     WHERE r.project_id = OLD.project_id AND r.session_id = OLD.id
       AND t.project_id = r.project_id AND t.run_id = r.id;
    DELETE FROM agent_run_policies t
     WHERE t.project_id = OLD.project_id AND t.session_id = OLD.id;
    DELETE FROM agent_runs r
     WHERE r.project_id = OLD.project_id AND r.session_id = OLD.id;
    RETURN OLD;
END $$;

CREATE TRIGGER session_erases_runs BEFORE DELETE ON agent_sessions
    FOR EACH ROW EXECUTE FUNCTION agentstate_erase_runs();
"""

REVERSE = """
DROP TRIGGER session_erases_runs ON agent_sessions;
DROP FUNCTION agentstate_erase_runs(), agentstate_begin_next(uuid, uuid),
    agentstate_new_id(), agentstate_iso(timestamptz);
DROP TYPE agentstate_work CASCADE;
"""


class Migration(migrations.Migration):
    dependencies = [
        ("runs_app", "0001_initial"),
        ("sessions_app", "0003_append_events"),
    ]

    operations = [
        migrations.RunSQL(TYPES + OPEN + ADMIT + FINISH + CLOSE, REVERSE),
    ]
