from django.db import migrations

# Each answers by `outcome`: ok, unchanged, not_found, or wrong_state with the state
# that the run or step is in.

START = """
-- Insert the steps of a plan. p_steps is a JSON array of rows; the args, which may hold
-- what no text column can, come beside it as JSON texts.
CREATE FUNCTION agentstate_insert_steps(
    p_project uuid, p_session uuid, p_run uuid, p_steps json, p_args text[]
) RETURNS void LANGUAGE sql AS $$
    INSERT INTO agent_steps (
        id, project_id, session_id, run_id, ordinal, name, kind, tool, args,
        depends_on, dependents, deps_left, effect, requires_approval, is_approved,
        run_after, sleep_s, signal_name, wait_timeout_s, max_attempts, max_lost,
        backoff_s, backoff_factor, backoff_max_s, jitter, no_retry_on, retry_on,
        on_exhausted, timeout_s, start_timeout_s, limit_key, rank, state, attempt,
        failures, lost, claims, worker, created_at, state_since
    )
    SELECT x.id, p_project, p_session, p_run, x.index, x.name, x.kind, x.tool,
           p_args[at]::json, x.depends_on, x.dependents, x.deps_left, x.effect,
           x.requires_approval, false, x.run_after, x.sleep_s, x.signal_name,
           x.wait_timeout_s, x.max_attempts, x.max_lost, x.backoff_s,
           x.backoff_factor, x.backoff_max_s, x.jitter, x.no_retry_on, x.retry_on,
           x.on_exhausted, x.timeout_s, x.start_timeout_s, x.limit_key, x.rank,
           'pending', 0, 0, 0, 0, '', agentstate_now(), agentstate_now()
      FROM ROWS FROM (json_to_recordset(p_steps) AS (
               id uuid, index integer, name text, kind text, tool text,
               depends_on integer[], dependents integer[], deps_left integer,
               effect text, requires_approval boolean, run_after timestamptz,
               sleep_s double precision, signal_name text,
               wait_timeout_s double precision, max_attempts integer,
               max_lost integer, backoff_s double precision,
               backoff_factor double precision, backoff_max_s double precision,
               jitter double precision, no_retry_on text[], retry_on text[],
               on_exhausted text, timeout_s double precision,
               start_timeout_s double precision, limit_key text, rank integer))
           WITH ORDINALITY AS x(
               id, index, name, kind, tool, depends_on, dependents, deps_left, effect,
               requires_approval, run_after, sleep_s, signal_name, wait_timeout_s,
               max_attempts, max_lost, backoff_s, backoff_factor, backoff_max_s,
               jitter, no_retry_on, retry_on, on_exhausted, timeout_s,
               start_timeout_s, limit_key, rank, at)
$$;

-- Say that a run was created, and let it begin unless it stands behind another.
CREATE FUNCTION agentstate_start_run(
    p_project uuid, p_session uuid, p_run uuid, p_actor text, p_created text,
    p_begins boolean, OUT outcome text, OUT state text, OUT parents uuid[],
    OUT limits text[]
) LANGUAGE plpgsql AS $$
DECLARE
    w agentstate_work;
    v_deadline timestamptz;
BEGIN
    w := agentstate_open_run(p_project, p_session, p_run, p_actor, false);
    w := agentstate_note(w, 'run.created', p_created, NULL);
    SELECT count(*) FILTER (WHERE st.state = 'pending'),
           count(*) FILTER (WHERE st.state = 'done'),
           count(*) FILTER (WHERE st.state = 'skipped')
      INTO w.n_pending, w.n_done, w.n_skipped
      FROM agent_steps st WHERE st.project_id = p_project AND st.run_id = p_run;
    SELECT r.deadline_at INTO v_deadline FROM agent_runs r WHERE r.id = p_run;
    IF v_deadline IS NOT NULL THEN
        INSERT INTO agent_timers (
            project_id, session_id, run_id, step_id, kind, due_at, fence
        ) VALUES (p_project, p_session, p_run, p_run, 'deadline', v_deadline, 0);
    END IF;
    IF p_begins THEN
        w := agentstate_begin_run(w);
    END IF;
    w := agentstate_close_run(w);
    outcome := 'ok';
    state := w.state;
    parents := agentstate_parent_of(w);
    limits := w.limits;
END $$;

-- Change the plan: steps that are pending are taken out (as skipped), new ones, which
-- have been inserted, are counted and admitted. The caller holds the session's lock
-- and has compared plan_version.
CREATE FUNCTION agentstate_change_plan(
    p_project uuid, p_session uuid, p_run uuid, p_actor text, p_changed text,
    p_removed uuid[], p_added integer, OUT outcome text, OUT state text,
    OUT parents uuid[], OUT limits text[]
) LANGUAGE plpgsql AS $$
DECLARE
    w agentstate_work;
    s agent_steps;
BEGIN
    w := agentstate_open_run(p_project, p_session, p_run, p_actor, false);
    w := agentstate_note(w, 'run.plan_changed', p_changed, NULL);
    UPDATE agent_runs r SET plan_version = r.plan_version + 1 WHERE r.id = p_run;
    FOR s IN
        SELECT st.* FROM agent_steps st
         WHERE st.project_id = p_project AND st.run_id = p_run
           AND st.id = ANY (p_removed)
         ORDER BY st.ordinal
    LOOP
        w := agentstate_withdraw(w, s);
        DELETE FROM agent_step_waits x
         WHERE x.project_id = p_project AND x.step_id = s.id;
        UPDATE agent_steps st
           SET state = 'skipped', wait_kind = NULL, wait_until = NULL,
               ended_at = w.now, state_since = w.now
         WHERE st.id = s.id;
        w := agentstate_count(w, s.state, 'skipped');
        IF s.failures > 0 THEN
            w.n_retrying := w.n_retrying - 1;
        END IF;
    END LOOP;
    w.n_pending := w.n_pending + p_added;
    w.step_count := w.step_count + p_added;
    IF w.has_begun THEN
        FOR s IN
            SELECT st.* FROM agent_steps st
             WHERE st.project_id = p_project AND st.run_id = p_run
               AND st.state = 'pending' AND st.deps_left = 0
               AND st.ordinal >= w.step_count - p_added
             ORDER BY st.ordinal
        LOOP
            w := agentstate_admit(w, s);
        END LOOP;
    END IF;
    w := agentstate_close_run(w);
    outcome := 'ok';
    state := w.state;
    parents := agentstate_parent_of(w);
    limits := w.limits;
END $$;
"""

RUN_MOVES = """
CREATE FUNCTION agentstate_move_run(
    p_project uuid, p_run uuid, p_move text, p_actor text, p_reason text,
    OUT outcome text, OUT state text, OUT parents uuid[], OUT limits text[]
) LANGUAGE plpgsql AS $$
DECLARE
    v_session uuid;
    w agentstate_work;
BEGIN
    outcome := 'ok';
    parents := '{}';
    limits := '{}';
    SELECT r.session_id INTO v_session FROM agent_runs r
     WHERE r.id = p_run AND r.project_id = p_project;
    IF NOT FOUND THEN
        outcome := 'not_found';
        RETURN;
    END IF;
    w := agentstate_open_run(p_project, v_session, p_run, p_actor, false);
    state := w.state;
    IF w.state IN ('succeeded', 'failed', 'cancelled') AND p_move <> 'settle' THEN
        outcome := CASE WHEN p_move = 'cancel' AND w.state = 'cancelled'
                        THEN 'unchanged' ELSE 'wrong_state' END;
        RETURN;
    END IF;
    CASE p_move
        WHEN 'settle' THEN
            NULL;  -- a child has ended, or a cancel was cut short
        WHEN 'cancel' THEN
            IF w.state = 'cancelling' THEN
                outcome := 'unchanged';
            ELSE
                w.state := 'cancelling';
                w.reason := p_reason;
                w := agentstate_note(w, 'run.cancelling', json_build_object(
                    'state', 'cancelling', 'reason', p_reason)::text, NULL);
                w := agentstate_cancel_unstarted(w, NULL, p_reason);
            END IF;
        WHEN 'pause' THEN
            IF w.state = 'paused' THEN
                outcome := 'unchanged';
            ELSIF w.state = 'cancelling' THEN
                outcome := 'wrong_state';
            ELSE
                w := agentstate_pause(w, p_reason);
            END IF;
        WHEN 'resume' THEN
            IF w.state <> 'paused' THEN
                outcome := 'wrong_state';
            ELSE
                w := agentstate_resume(w, p_reason);
            END IF;
    END CASE;
    IF outcome = 'ok' THEN
        w := agentstate_close_run(w);
        state := w.state;
        parents := agentstate_parent_of(w);
        limits := w.limits;
    END IF;
END $$;

CREATE FUNCTION agentstate_pause(w agentstate_work, p_reason text)
RETURNS agentstate_work LANGUAGE plpgsql AS $$
DECLARE
    s agent_steps;
BEGIN
    w.state := 'paused';
    w.reason := p_reason;
    w := agentstate_note(w, 'run.paused', json_build_object(
        'state', 'paused', 'reason', p_reason)::text, NULL);
    UPDATE agent_held_steps h SET reason = 'paused'
     WHERE h.project_id = w.project AND h.run_id = w.run;
    FOR s IN
        WITH gone AS (
            DELETE FROM agent_ready_steps q
             WHERE q.project_id = w.project AND q.run_id = w.run
            RETURNING q.step_id
        )
        SELECT st.* FROM gone JOIN agent_steps st ON st.id = gone.step_id
    LOOP
        w.n_ready := w.n_ready - 1;
        IF s.limit_key IS NOT NULL THEN
            w := agentstate_free_slot(w, s);
        END IF;
        w := agentstate_hold(w, s, 'paused');
    END LOOP;
    DELETE FROM agent_timers t
     WHERE t.project_id = w.project AND t.run_id = w.run AND t.kind = 'start';
    RETURN w;
END $$;

CREATE FUNCTION agentstate_resume(w agentstate_work, p_reason text)
RETURNS agentstate_work LANGUAGE plpgsql AS $$
DECLARE
    s agent_steps;
BEGIN
    w.state := CASE WHEN w.started_at IS NULL THEN 'queued' ELSE 'running' END;
    w.reason := '';
    w := agentstate_note(w, 'run.resumed', json_build_object(
        'state', w.state, 'reason', p_reason)::text, NULL);
    FOR s IN
        WITH gone AS (
            DELETE FROM agent_held_steps h
             WHERE h.project_id = w.project AND h.run_id = w.run
            RETURNING h.step_id
        )
        SELECT st.* FROM gone JOIN agent_steps st ON st.id = gone.step_id
         ORDER BY st.ordinal
    LOOP
        w.n_held := w.n_held - 1;
        w := agentstate_admit(w, s);
    END LOOP;
    RETURN w;
END $$;

-- A failed run goes on: its failed steps, and those cancelled with them, are pending
-- again. With p_from only steps from that number on.
CREATE FUNCTION agentstate_retry_run(
    p_project uuid, p_run uuid, p_actor text, p_reason text,
    OUT outcome text, OUT state text, OUT parents uuid[], OUT limits text[]
) LANGUAGE plpgsql AS $$
DECLARE
    v_session uuid;
    w agentstate_work;
    s agent_steps;
    v_indexes integer[];
    v_busy boolean;
BEGIN
    parents := '{}';
    limits := '{}';
    SELECT r.session_id INTO v_session FROM agent_runs r
     WHERE r.id = p_run AND r.project_id = p_project;
    IF NOT FOUND THEN
        outcome := 'not_found';
        RETURN;
    END IF;
    w := agentstate_open_run(p_project, v_session, p_run, p_actor, false);
    state := w.state;
    IF w.state <> 'failed' THEN
        outcome := 'wrong_state';
        RETURN;
    END IF;
    SELECT coalesce(array_agg(st.ordinal ORDER BY st.ordinal), '{}') INTO v_indexes
      FROM agent_steps st
     WHERE st.project_id = p_project AND st.run_id = p_run
       AND st.state IN ('failed', 'cancelled');
    IF cardinality(v_indexes) = 0 THEN
        outcome := 'wrong_state';
        RETURN;
    END IF;
    w.state := 'running';
    w.error := NULL;
    w.reason := '';
    w := agentstate_note(w, 'run.retried', json_build_object(
        'state', 'running', 'indexes', v_indexes, 'reason', p_reason)::text, NULL);
    UPDATE agent_steps st
       SET failures = 0, lost = 0, deps_left = (
               SELECT count(*) FROM unnest(st.depends_on) d
                 JOIN agent_steps o ON o.project_id = p_project AND o.run_id = p_run
                                   AND o.ordinal = d
                WHERE o.state NOT IN ('done', 'skipped'))
     WHERE st.project_id = p_project AND st.run_id = p_run
       AND st.ordinal = ANY (v_indexes);
    FOR s IN
        SELECT st.* FROM agent_steps st
         WHERE st.project_id = p_project AND st.run_id = p_run
           AND st.ordinal = ANY (v_indexes)
         ORDER BY st.ordinal
    LOOP
        w := agentstate_back_to_pending(w, s);
    END LOOP;
    w := agentstate_close_run(w);
    outcome := 'ok';
    state := w.state;
    limits := w.limits;
END $$;
"""

STEP_MOVES = """
-- What a person or an agent decides about one step. p_move: approve, reject, skip,
-- cancel, retry, and for a step in doubt or on hold done, not_done, give_up. p_value is
-- JSON text: the args of approve (or null), the result of done, the error of give_up.
CREATE FUNCTION agentstate_move_step(
    p_project uuid, p_step uuid, p_move text, p_actor text, p_reason text,
    p_value text, p_hash bytea,
    OUT outcome text, OUT state text, OUT parents uuid[], OUT limits text[]
) LANGUAGE plpgsql AS $$
DECLARE
    w agentstate_work;
    s agent_steps;
BEGIN
    parents := '{}';
    limits := '{}';
    SELECT * INTO s FROM agent_steps st
     WHERE st.id = p_step AND st.project_id = p_project;
    IF NOT FOUND THEN
        outcome := 'not_found';
        RETURN;
    END IF;
    w := agentstate_open_run(p_project, s.session_id, s.run_id, p_actor, false);
    SELECT * INTO s FROM agent_steps st
     WHERE st.id = p_step AND st.project_id = p_project;
    state := s.state;
    IF NOT agentstate_may_decide(s, w.state, p_move) THEN
        outcome := CASE WHEN agentstate_is_decided(s, p_move, p_hash)
                        THEN 'unchanged' ELSE 'wrong_state' END;
        RETURN;
    END IF;
    w := agentstate_decide(w, s, p_move, p_reason, p_value, p_hash);
    w := agentstate_close_run(w);
    SELECT st.state INTO state FROM agent_steps st WHERE st.id = p_step;
    outcome := 'ok';
    parents := agentstate_parent_of(w);
    limits := w.limits;
END $$;

CREATE FUNCTION agentstate_may_decide(s agent_steps, p_run_state text, p_move text)
RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
    SELECT p_run_state NOT IN ('succeeded', 'failed', 'cancelled') AND CASE p_move
        WHEN 'approve' THEN s.state = 'waiting' AND s.wait_kind = 'approval'
        WHEN 'reject' THEN s.state = 'waiting' AND s.wait_kind = 'approval'
        WHEN 'skip' THEN s.state IN ('pending', 'waiting', 'in_doubt')
        WHEN 'cancel' THEN s.state IN ('pending', 'waiting', 'in_progress', 'in_doubt')
        WHEN 'retry' THEN s.state = 'waiting' AND s.wait_kind IN ('hold', 'retry')
        WHEN 'done' THEN s.state = 'in_doubt'
                      OR s.state = 'waiting' AND s.wait_kind IN ('hold', 'handoff')
        WHEN 'not_done' THEN s.state = 'in_doubt'
        WHEN 'give_up' THEN s.state = 'in_doubt'
                         OR s.state = 'waiting' AND s.wait_kind IN ('hold', 'handoff')
        ELSE false END
$$;

-- Whether the step is already what the move would make of it.
CREATE FUNCTION agentstate_is_decided(s agent_steps, p_move text, p_hash bytea)
RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
    SELECT coalesce(CASE p_move
        WHEN 'approve' THEN s.is_approved
        WHEN 'skip' THEN s.state = 'skipped'
        WHEN 'cancel' THEN s.state = 'cancelled'
        WHEN 'done' THEN s.state = 'done' AND s.result_hash = p_hash
        WHEN 'give_up' THEN s.state = 'failed'
        ELSE false END, false)
$$;

CREATE FUNCTION agentstate_decide(
    w agentstate_work, s agent_steps, p_move text, p_reason text, p_value text,
    p_hash bytea
) RETURNS agentstate_work LANGUAGE plpgsql AS $$
DECLARE
    v_by text := '"index":' || s.ordinal || ',"by":' || to_json(w.actor)
                 || ',"reason":' || to_json(p_reason);
    v_error text;
BEGIN
    IF p_move IN ('approve', 'retry', 'not_done') THEN
        w := agentstate_note(
            w,
            'step.' || CASE p_move WHEN 'approve' THEN 'approved'
                            WHEN 'retry' THEN 'retried' ELSE 'resolved' END,
            '{' || v_by || ',"state":"pending"'
            || CASE WHEN p_move = 'approve' AND p_value IS NOT NULL
                    THEN ',"args":' || p_value ELSE '' END
            || CASE p_move WHEN 'not_done' THEN ',"outcome":"not_done"' ELSE '' END
            || '}', s.id);
        IF s.failures > 0 AND p_move = 'retry' THEN
            w.n_retrying := w.n_retrying - 1;
        END IF;
        UPDATE agent_steps st
           SET is_approved = st.is_approved OR p_move = 'approve',
               args = CASE WHEN p_move = 'approve' AND p_value IS NOT NULL
                           THEN p_value::json ELSE st.args END,
               failures = CASE p_move WHEN 'retry' THEN 0 ELSE st.failures END,
               lost = CASE p_move WHEN 'retry' THEN 0 ELSE st.lost END,
               previous = CASE p_move WHEN 'not_done' THEN NULL ELSE st.previous END
         WHERE st.id = s.id AND st.project_id = w.project
        RETURNING * INTO s;
        IF w.error IS NULL THEN
            RETURN agentstate_back_to_pending(w, s);
        END IF;
        -- The run is failing: what is known not to have happened need not any more.
        DELETE FROM agent_step_waits x
         WHERE x.project_id = w.project AND x.step_id = s.id;
        w := agentstate_note(w, 'step.cancelled', '{"index":' || s.ordinal
            || ',"state":"cancelled","reason":"the run is failing"}', s.id);
        RETURN agentstate_finish_step(w, s, 'cancelled', s.error::text, NULL, NULL);
    END IF;

    IF s.state = 'in_progress' THEN
        w := agentstate_end_by_cancel(w, s);
    ELSIF s.state = 'pending' THEN
        w := agentstate_withdraw(w, s);
    ELSE
        DELETE FROM agent_step_waits x
         WHERE x.project_id = w.project AND x.step_id = s.id;
        DELETE FROM agent_timers t
         WHERE t.project_id = w.project AND t.run_id = w.run AND t.step_id = s.id;
    END IF;
    CASE p_move
        WHEN 'skip' THEN
            w := agentstate_note(
                w, 'step.skipped', '{' || v_by || ',"state":"skipped"}', s.id);
            RETURN agentstate_finish_step(w, s, 'skipped', NULL, NULL, NULL);
        WHEN 'cancel' THEN
            w := agentstate_note(
                w, 'step.cancelled', '{' || v_by || ',"state":"cancelled"}', s.id);
            RETURN agentstate_finish_step(w, s, 'cancelled', s.error::text, NULL, NULL);
        WHEN 'done' THEN
            w := agentstate_note(w, 'step.resolved', '{' || v_by
                || ',"state":"done","outcome":"done","result":' || p_value || '}', s.id);
            RETURN agentstate_finish_step(
                w, s, 'done', NULL, p_hash, agentstate_next_seq(w) - 1);
        ELSE
            v_error := coalesce(p_value, json_build_object('code',
                CASE p_move WHEN 'reject' THEN 'rejected' ELSE 'given_up' END,
                'message', p_reason)::text);
            w := agentstate_note(
                w,
                'step.' || CASE p_move WHEN 'reject' THEN 'rejected'
                                ELSE 'resolved' END,
                '{' || v_by || ',"state":"failed"'
                || CASE p_move WHEN 'give_up' THEN ',"outcome":"given_up"' ELSE '' END
                || ',"error":' || v_error || '}', s.id);
            w := agentstate_finish_step(w, s, 'failed', v_error, NULL, NULL);
            RETURN agentstate_doom(w, json_build_object(
                'code', 'step_failed', 'step', s.id, 'index', s.ordinal,
                'message', 'step ' || s.ordinal || ' failed',
                'cause', v_error::json)::text, 'step ' || s.ordinal || ' failed');
    END CASE;
END $$;

-- The lease of a step that is cancelled under its worker's hands.
CREATE FUNCTION agentstate_end_by_cancel(w agentstate_work, s agent_steps)
RETURNS agentstate_work LANGUAGE sql AS $$
    WITH gone AS (
        DELETE FROM agent_step_leases l
         WHERE l.project_id = w.project AND l.step_id = s.id
        RETURNING l.*
    )
    INSERT INTO agent_step_attempts (
        project_id, session_id, run_id, step_id, fence, attempt, worker, outcome,
        started_at, ended_at
    ) SELECT project_id, session_id, run_id, step_id, fence, attempt, worker,
             'cancelled', claimed_at, w.now FROM gone;
    SELECT w;
$$;
"""

SIGNALS = """
-- Keep a signal, then look who waits for it; both under the session's lock, so that a
-- wait that begins at the same moment finds it. Sent twice under one id it is one.
CREATE FUNCTION agentstate_send_signal(
    p_project uuid, p_run uuid, p_name text, p_signal_id text, p_payload text,
    p_actor text, OUT outcome text, OUT state text, OUT parents uuid[],
    OUT limits text[]
) LANGUAGE plpgsql AS $$
DECLARE
    v_session uuid;
    v_waiting uuid;
    v_known text;
    w agentstate_work;
BEGIN
    outcome := 'ok';
    parents := '{}';
    limits := '{}';
    SELECT r.session_id INTO v_session FROM agent_runs r
     WHERE r.id = p_run AND r.project_id = p_project;
    IF NOT FOUND THEN
        outcome := 'not_found';
        RETURN;
    END IF;
    w := agentstate_open_run(p_project, v_session, p_run, p_actor, false);
    state := w.state;
    SELECT g.payload::text INTO v_known FROM agent_signals g
     WHERE g.project_id = p_project AND g.run_id = p_run AND g.name = p_name
       AND g.signal_id = p_signal_id;
    IF FOUND THEN
        outcome := CASE WHEN v_known = p_payload THEN 'unchanged' ELSE 'reused' END;
        RETURN;
    END IF;
    IF w.state IN ('succeeded', 'failed', 'cancelled', 'cancelling') THEN
        outcome := 'wrong_state';
        RETURN;
    END IF;
    INSERT INTO agent_signals (
        id, project_id, session_id, run_id, name, signal_id, payload, sender,
        received_at
    ) VALUES (agentstate_new_id(), p_project, v_session, p_run, p_name, p_signal_id,
              p_payload::json, p_actor, w.now);
    w := agentstate_note(w, 'run.signalled', '{"name":' || to_json(p_name)
        || ',"signal_id":' || to_json(p_signal_id) || ',"payload":' || p_payload || '}',
        NULL);
    SELECT x.step_id INTO v_waiting FROM agent_step_waits x
     WHERE x.project_id = p_project AND x.run_id = p_run AND x.name = p_name
       AND x.kind = 'signal'
     ORDER BY x.since, x.step_id LIMIT 1;
    IF FOUND THEN
        w := agentstate_take_signal(w, v_waiting);
    END IF;
    w := agentstate_close_run(w);
    state := w.state;
    parents := agentstate_parent_of(w);
    limits := w.limits;
END $$;
"""

REVERSE = """
DROP FUNCTION agentstate_send_signal(uuid, uuid, text, text, text, text);
DROP FUNCTION agentstate_move_step(uuid, uuid, text, text, text, text, bytea);
DROP FUNCTION agentstate_may_decide(agent_steps, text, text);
DROP FUNCTION agentstate_is_decided(agent_steps, text, bytea);
DROP FUNCTION agentstate_retry_run(uuid, uuid, text, text);
DROP FUNCTION agentstate_move_run(uuid, uuid, text, text, text);
DROP FUNCTION agentstate_change_plan(
    uuid, uuid, uuid, text, text, uuid[], integer);
DROP FUNCTION agentstate_start_run(uuid, uuid, uuid, text, text, boolean);
DROP FUNCTION agentstate_insert_steps(uuid, uuid, uuid, json, text[]);
"""

# As in 0003: no plan that was made for empty tables.
INDEXED = """
ALTER FUNCTION agentstate_start_run SET enable_seqscan = off;
ALTER FUNCTION agentstate_change_plan SET enable_seqscan = off;
ALTER FUNCTION agentstate_move_run SET enable_seqscan = off;
ALTER FUNCTION agentstate_retry_run SET enable_seqscan = off;
ALTER FUNCTION agentstate_move_step SET enable_seqscan = off;
ALTER FUNCTION agentstate_send_signal SET enable_seqscan = off;
"""


class Migration(migrations.Migration):
    dependencies = [("runs_app", "0003_hot_calls")]

    operations = [
        migrations.RunSQL(START + RUN_MOVES + STEP_MOVES + SIGNALS + INDEXED, REVERSE)
    ]
