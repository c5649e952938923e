from django.db import migrations

CLAIM = """
-- Claim up to p_max ready steps: of a run, of some tools, of some agents, or any. Never
-- waits for a lock: a ready row or a session that another holds is passed over, and
-- counted in `skipped`. `claimed` holds one JSON object a step, by priority and age.
-- `parents` are runs with a child that has ended, `limits` keys with room to look at.
CREATE FUNCTION agentstate_claim_steps(
    p_project uuid, p_worker text, p_max integer, p_lease_s double precision,
    p_run uuid, p_tools text[], p_agents text[], p_actor text,
    p_session uuid, p_subject text,
    OUT claimed json[], OUT skipped integer, OUT parents uuid[], OUT limits text[]
) LANGUAGE plpgsql AS $$
DECLARE
    v_rank integer := -2147483648;
    v_id bigint := 0;
    v_need integer;
    v_ids bigint[];
    v_locked agent_ready_steps[];
    c agent_ready_steps;
    w agentstate_work;
    v_is_open boolean := false;
    v_busy uuid;
    v_started record;
    v_ranks integer[] := '{}';
    v_places bigint[] := '{}';
BEGIN
    claimed := '{}';
    skipped := 0;
    parents := '{}';
    limits := '{}';
    FOR round IN 1 .. 50 LOOP
        v_need := p_max - cardinality(claimed);
        EXIT WHEN v_need = 0;
        v_ids := NULL;
        IF p_run IS NOT NULL THEN
            SELECT array_agg(q) INTO v_locked FROM (
                SELECT r.* FROM agent_ready_steps r
                 WHERE r.project_id = p_project AND r.run_id = p_run
                   AND (r.rank, r.id) > (v_rank, v_id)
                   AND (p_tools IS NULL OR r.tool = ANY (p_tools))
                   AND (p_agents IS NULL OR r.agent = ANY (p_agents))
                   AND (p_session IS NULL OR r.session_id = p_session)
                 ORDER BY r.rank, r.id LIMIT v_need FOR UPDATE SKIP LOCKED) q;
        ELSIF cardinality(p_tools) = 1 THEN
            SELECT array_agg(q) INTO v_locked FROM (
                SELECT r.* FROM agent_ready_steps r
                 WHERE r.project_id = p_project AND r.tool = p_tools[1]
                   AND (r.rank, r.id) > (v_rank, v_id)
                   AND (p_agents IS NULL OR r.agent = ANY (p_agents))
                   AND (p_session IS NULL OR r.session_id = p_session)
                 ORDER BY r.rank, r.id LIMIT v_need FOR UPDATE SKIP LOCKED) q;
        ELSIF p_tools IS NULL AND cardinality(p_agents) = 1 THEN
            SELECT array_agg(q) INTO v_locked FROM (
                SELECT r.* FROM agent_ready_steps r
                 WHERE r.project_id = p_project AND r.agent = p_agents[1]
                   AND (r.rank, r.id) > (v_rank, v_id)
                   AND (p_session IS NULL OR r.session_id = p_session)
                 ORDER BY r.rank, r.id LIMIT v_need FOR UPDATE SKIP LOCKED) q;
        ELSIF p_tools IS NULL AND p_agents IS NULL THEN
            SELECT array_agg(q) INTO v_locked FROM (
                SELECT r.* FROM agent_ready_steps r
                 WHERE r.project_id = p_project AND (r.rank, r.id) > (v_rank, v_id)
                   AND (p_session IS NULL OR r.session_id = p_session)
                 ORDER BY r.rank, r.id LIMIT v_need FOR UPDATE SKIP LOCKED) q;
        ELSE
            -- The head of each tool's, or agent's, own queue; the best of them are
            -- locked, and only those.
            SELECT array_agg(q.id ORDER BY q.rank, q.id) INTO v_ids FROM (
                SELECT x.rank, x.id FROM unnest(coalesce(p_tools, p_agents)) AS t(name)
                 CROSS JOIN LATERAL (
                    (SELECT r.rank, r.id FROM agent_ready_steps r
                      WHERE p_tools IS NOT NULL
                        AND r.project_id = p_project AND r.tool = t.name
                        AND (r.rank, r.id) > (v_rank, v_id)
                        AND (p_agents IS NULL OR r.agent = ANY (p_agents))
                        AND (p_session IS NULL OR r.session_id = p_session)
                      ORDER BY r.rank, r.id LIMIT v_need)
                    UNION ALL
                    (SELECT r.rank, r.id FROM agent_ready_steps r
                      WHERE p_tools IS NULL
                        AND r.project_id = p_project AND r.agent = t.name
                        AND (r.rank, r.id) > (v_rank, v_id)
                        AND (p_session IS NULL OR r.session_id = p_session)
                      ORDER BY r.rank, r.id LIMIT v_need)) x
                 ORDER BY x.rank, x.id LIMIT v_need) q;
            EXIT WHEN v_ids IS NULL;
            SELECT array_agg(q) INTO v_locked FROM (
                SELECT r.* FROM agent_ready_steps r WHERE r.id = ANY (v_ids)
                 ORDER BY r.rank, r.id FOR UPDATE SKIP LOCKED) q;
            IF v_locked IS NULL THEN
                skipped := skipped + cardinality(v_ids);
                SELECT r.rank, r.id INTO v_rank, v_id FROM agent_ready_steps r
                 WHERE r.id = v_ids[cardinality(v_ids)];
                EXIT WHEN NOT FOUND;
                CONTINUE;
            END IF;
        END IF;
        EXIT WHEN v_locked IS NULL;
        v_rank := v_locked[cardinality(v_locked)].rank;
        v_id := v_locked[cardinality(v_locked)].id;
        FOR c IN
            SELECT q.* FROM unnest(v_locked) q
             ORDER BY q.session_id, q.run_id, q.rank, q.id
        LOOP
            IF v_is_open AND w.run <> c.run_id THEN
                w := agentstate_close_run(w);
                limits := limits || w.limits;
                parents := parents || agentstate_parent_of(w);
                v_is_open := false;
            END IF;
            CONTINUE WHEN c.session_id = v_busy;
            IF p_subject IS NOT NULL THEN
                PERFORM FROM agent_sessions s
                  WHERE s.id = c.session_id AND s.project_id = p_project
                    AND s.subject = p_subject;
                CONTINUE WHEN NOT FOUND;
            END IF;
            IF NOT v_is_open THEN
                w := agentstate_open_run(
                    p_project, c.session_id, c.run_id, p_actor, true);
                IF w.run IS NULL THEN
                    v_busy := c.session_id;
                    skipped := skipped + 1;
                    CONTINUE;
                END IF;
                v_is_open := true;
            END IF;
            CONTINUE WHEN w.state NOT IN ('queued', 'running', 'waiting');
            w := agentstate_check_budget(w, c.tool);
            CONTINUE WHEN w.error IS NOT NULL;
            SELECT * INTO v_started
              FROM agentstate_start_attempt(w, c, p_worker, p_lease_s);
            w := v_started.work;
            claimed := claimed || v_started.shown;
            v_ranks := v_ranks || c.rank;
            v_places := v_places || c.id;
        END LOOP;
    END LOOP;
    IF v_is_open THEN
        w := agentstate_close_run(w);
        limits := limits || w.limits;
        parents := parents || agentstate_parent_of(w);
    END IF;
    IF cardinality(claimed) > 1 THEN
        SELECT array_agg(o.shown ORDER BY o.rank, o.id) INTO claimed
          FROM unnest(claimed, v_ranks, v_places) AS o(shown, rank, id);
    END IF;
END $$;

CREATE FUNCTION agentstate_parent_of(w agentstate_work) RETURNS uuid[]
LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN w.parent IS NOT NULL
                 AND w.state IN ('succeeded', 'failed', 'cancelled')
                THEN ARRAY[w.parent] ELSE '{}'::uuid[] END
$$;

-- Doom a run whose budget the next attempt would break.
CREATE FUNCTION agentstate_check_budget(w agentstate_work, p_tool text)
RETURNS agentstate_work LANGUAGE plpgsql AS $$
DECLARE
    v_code text;
    v_detail text;
BEGIN
    IF w.tool_calls >= w.max_tool_calls THEN
        v_code := 'max_tool_calls';
        v_detail := 'the run has made all ' || w.max_tool_calls || ' of its tool calls';
    ELSIF w.tokens >= w.max_tokens THEN
        v_code := 'max_tokens';
        v_detail := w.tokens || ' tokens are used; the run may use ' || w.max_tokens;
    ELSIF w.cost >= w.max_cost THEN
        v_code := 'max_cost';
        v_detail := w.cost || ' is spent; the run may spend ' || w.max_cost;
    ELSIF w.deadline_at <= w.now THEN
        v_code := 'deadline';
        v_detail := 'the deadline of the run has passed';
    ELSIF w.allowlist IS NOT NULL AND NOT p_tool = ANY (w.allowlist) THEN
        v_code := 'tool_not_allowed';
        v_detail := 'the tool ' || p_tool || ' is not in the allowlist of the run';
    ELSE
        RETURN w;
    END IF;
    RETURN agentstate_doom(w, json_build_object(
        'code', 'budget_exceeded', 'budget', v_code, 'message', v_detail)::text,
        'budget_exceeded: ' || v_code);
END $$;

-- One claim: the ready row goes, the lease comes, and the log says so.
CREATE FUNCTION agentstate_start_attempt(
    w agentstate_work, c agent_ready_steps, p_worker text, p_lease_s double precision,
    OUT work agentstate_work, OUT shown json
) LANGUAGE plpgsql AS $$
DECLARE
    s agent_steps;
    v_until timestamptz := w.now + make_interval(secs => p_lease_s);
    v_ends timestamptz;
BEGIN
    DELETE FROM agent_ready_steps q WHERE q.id = c.id;
    UPDATE agent_steps st
       SET state = 'in_progress', claims = st.claims + 1, attempt = st.attempt + 1,
           worker = p_worker, started_at = w.now, state_since = w.now
     WHERE st.id = c.step_id AND st.project_id = w.project
    RETURNING * INTO s;
    v_ends := w.now + make_interval(secs => s.timeout_s);
    INSERT INTO agent_step_leases (
        project_id, session_id, run_id, step_id, fence, attempt, worker, claimed_at,
        lease_s, lease_until, ends_at, limit_key
    ) VALUES (w.project, w.session, w.run, s.id, s.claims, s.attempt, p_worker, w.now,
              p_lease_s, v_until, v_ends, s.limit_key);
    IF s.start_timeout_s IS NOT NULL THEN
        DELETE FROM agent_timers t
         WHERE t.project_id = w.project AND t.run_id = w.run AND t.step_id = s.id
           AND t.kind = 'start';
    END IF;
    w.n_ready := w.n_ready - 1;
    w.n_pending := w.n_pending - 1;
    w.n_in_progress := w.n_in_progress + 1;
    w.tool_calls := w.tool_calls + 1;
    IF w.started_at IS NULL THEN
        w.started_at := w.now;
        w := agentstate_note(w, 'run.started', '{"state":"running"}', NULL);
        w.state := 'running';
    ELSIF w.state <> 'running' THEN
        w.state := 'running';
        w := agentstate_note(w, 'run.resumed', '{"state":"running"}', NULL);
    END IF;
    w := agentstate_note(w, 'step.started', json_build_object(
        'index', s.ordinal, 'state', 'in_progress', 'attempt', s.attempt,
        'token', s.claims, 'worker', p_worker,
        'key', w.run || ':' || s.id)::text, s.id);
    work := w;
    shown := json_build_object(
        'step', s.id, 'run', w.run, 'session', w.session, 'index', s.ordinal,
        'name', s.name, 'agent', w.agent, 'tool', s.tool, 'args', s.args,
        'effect', s.effect, 'attempt', s.attempt, 'failures', s.failures,
        'lost', s.lost, 'lease_token', agentstate_token(s.id, s.claims),
        'lease_s', p_lease_s, 'lease_until', agentstate_iso(v_until),
        'timeout_at', agentstate_iso(v_ends),
        'idempotency_key', w.run || ':' || s.id, 'previous', s.previous);
END $$;

-- What a worker proves its claim with: the fence, and in the last 20 bits a part of
-- the step's id, so that the token of another step is not taken for this one's.
CREATE FUNCTION agentstate_token(p_step uuid, p_fence bigint) RETURNS bigint
LANGUAGE sql IMMUTABLE AS $$
    SELECT (p_fence << 20) + ('x' || right(p_step::text, 5))::bit(20)::integer
$$;
"""

END = """
-- An attempt is over: p_call says how (complete, fail, release, lost, timeout). The
-- lease `l` is gone already. p_payload is the result's or the error's JSON text.
CREATE FUNCTION agentstate_end_attempt(
    w agentstate_work, s agent_steps, l agent_step_leases, p_call text,
    p_payload text, p_hash bytea, p_code text, p_retry boolean,
    p_delay double precision, p_unknown boolean, p_tokens bigint, p_cost numeric
) RETURNS agentstate_work LANGUAGE plpgsql AS $$
DECLARE
    v_silent boolean := p_call IN ('lost', 'timeout') OR p_unknown;
    v_counts boolean := p_call IN ('fail', 'timeout');
    v_error text := CASE WHEN p_call IN ('fail', 'timeout', 'lost')
                         THEN p_payload END;
    v_state text;
    v_wait text;
    v_until timestamptz;
    v_delay double precision;
    v_used boolean := s.failures > 0;
BEGIN
    INSERT INTO agent_step_attempts (
        project_id, session_id, run_id, step_id, fence, attempt, worker, outcome,
        error, started_at, ended_at
    ) VALUES (
        w.project, w.session, w.run, s.id, l.fence, l.attempt, l.worker,
        CASE p_call WHEN 'complete' THEN 'done' WHEN 'fail' THEN 'failed'
             WHEN 'release' THEN 'released' WHEN 'timeout' THEN 'timed_out'
             ELSE p_call END,
        v_error::json, l.claimed_at, w.now);
    w.tokens := w.tokens + coalesce(p_tokens, 0);
    w.cost := w.cost + coalesce(p_cost, 0);
    IF p_call = 'complete' THEN
        w := agentstate_note(w, 'step.done',
            '{"index":' || s.ordinal || ',"state":"done","token":' || l.fence
            || CASE WHEN p_tokens IS NULL THEN '' ELSE ',"tokens":' || p_tokens END
            || CASE WHEN p_cost IS NULL THEN '' ELSE ',"cost":' || p_cost END
            || ',"result":' || p_payload || '}', s.id);
        RETURN agentstate_finish_step(
            w, s, 'done', NULL, p_hash, agentstate_next_seq(w) - 1);
    END IF;

    IF v_counts THEN
        s.failures := s.failures + 1;
    ELSIF p_call = 'lost' THEN
        s.lost := s.lost + 1;
    END IF;
    s.previous := CASE WHEN v_silent THEN 'unknown' END;
    IF w.state = 'cancelling' THEN
        v_state := 'cancelled';
    ELSIF v_silent AND s.effect = 'once' THEN
        v_state := 'in_doubt';
    ELSIF w.error IS NOT NULL THEN
        v_state := CASE WHEN v_counts THEN 'failed' ELSE 'cancelled' END;
    ELSIF p_call = 'release' THEN
        v_delay := coalesce(p_delay, 0);
        v_state := CASE WHEN v_delay > 0 THEN 'waiting' ELSE 'pending' END;
        v_wait := CASE WHEN v_delay > 0 THEN 'timer' END;
    ELSIF p_call = 'lost' AND s.lost < s.max_lost THEN
        v_state := 'pending';
    ELSIF v_counts AND s.failures < s.max_attempts AND coalesce(
        p_retry,
        NOT p_code = ANY (s.no_retry_on)
        AND (s.retry_on IS NULL OR p_code = ANY (s.retry_on)))
    THEN
        v_delay := coalesce(p_delay, agentstate_backoff(s));
        v_state := CASE WHEN v_delay > 0 THEN 'waiting' ELSE 'pending' END;
        v_wait := CASE WHEN v_delay > 0 THEN 'retry' END;
    ELSIF s.on_exhausted = 'hold' THEN
        v_state := 'waiting';
        v_wait := 'hold';
    ELSE
        v_state := 'failed';
    END IF;
    v_until := w.now + make_interval(secs => CASE WHEN v_delay > 0 THEN v_delay END);

    w := agentstate_note(
        w,
        'step.' || CASE p_call WHEN 'fail' THEN 'failed' WHEN 'release' THEN 'released'
                        WHEN 'timeout' THEN 'timed_out' ELSE p_call END,
        '{"index":' || s.ordinal || ',"state":"' || v_state
        || '","token":' || l.fence || ',"failures":' || s.failures
        || ',"lost":' || s.lost
        || CASE WHEN v_silent THEN ',"previous":"unknown"' ELSE '' END
        || CASE WHEN v_wait IS NULL THEN '' ELSE ',"wait":"' || v_wait || '"' END
        || CASE WHEN v_until IS NULL THEN ''
                ELSE ',"until":"' || agentstate_iso(v_until) || '"' END
        || CASE WHEN p_tokens IS NULL THEN '' ELSE ',"tokens":' || p_tokens END
        || CASE WHEN p_cost IS NULL THEN '' ELSE ',"cost":' || p_cost END
        || CASE WHEN v_error IS NULL THEN '' ELSE ',"error":' || v_error END
        || '}', s.id);
    UPDATE agent_steps st
       SET failures = s.failures, lost = s.lost, previous = s.previous,
           error = v_error::json
     WHERE st.id = s.id AND st.project_id = w.project;
    IF s.failures > 0 AND NOT v_used THEN
        w.n_retrying := w.n_retrying + 1;
    END IF;

    IF v_state IN ('cancelled', 'failed') THEN
        w := agentstate_finish_step(w, s, v_state, v_error, NULL, NULL);
        IF v_state = 'failed' THEN
            w := agentstate_doom(w, json_build_object(
                'code', 'step_failed', 'step', s.id, 'index', s.ordinal,
                'message', 'step ' || s.ordinal || ' failed',
                'cause', v_error::json)::text, 'step ' || s.ordinal || ' failed');
        END IF;
        RETURN w;
    END IF;
    IF s.limit_key IS NOT NULL THEN
        w := agentstate_free_slot(w, s);
    END IF;
    IF v_state = 'in_doubt' THEN
        UPDATE agent_steps st SET state = 'in_doubt', state_since = w.now
         WHERE st.id = s.id AND st.project_id = w.project;
        INSERT INTO agent_step_waits (
            project_id, session_id, run_id, step_id, kind, name, since
        ) VALUES (w.project, w.session, w.run, s.id, 'in_doubt', '', w.now);
        RETURN agentstate_count(w, s.state, 'in_doubt');
    ELSIF v_state = 'waiting' THEN
        RETURN agentstate_let_wait(w, s, v_wait, '', v_until);
    END IF;
    UPDATE agent_steps st SET state = 'pending', state_since = w.now
     WHERE st.id = s.id AND st.project_id = w.project;
    w := agentstate_count(w, s.state, 'pending');
    s.state := 'pending';
    RETURN agentstate_admit(w, s);
END $$;

-- Seconds until the next attempt. By logarithms: a power of a hundred would overflow.
CREATE FUNCTION agentstate_backoff(s agent_steps) RETURNS double precision
LANGUAGE sql VOLATILE AS $$
    SELECT CASE WHEN s.backoff_s <= 0 THEN 0 ELSE
        exp(least(ln(s.backoff_max_s),
                  ln(s.backoff_s) + (s.failures - 1) * ln(s.backoff_factor)))
        * (1 - s.jitter * random()) END
$$;

-- End attempts, item by item: complete, fail or release. An item that is refused
-- changes nothing, but what it brought is kept. Arrays are parallel, one entry an item.
CREATE FUNCTION agentstate_end_attempts(
    p_project uuid, p_call text, p_steps uuid[], p_tokens bigint[], p_payloads text[],
    p_hashes bytea[], p_codes text[], p_retries boolean[],
    p_delays double precision[], p_unknowns boolean[], p_used_tokens bigint[],
    p_costs numeric[], p_worker text, p_actor text, p_session uuid, p_subject text,
    OUT outcomes text[], OUT states text[], OUT runs uuid[], OUT run_states text[],
    OUT parents uuid[], OUT limits text[]
) LANGUAGE plpgsql AS $$
DECLARE
    w agentstate_work;
    v_is_open boolean := false;
    i record;
    s agent_steps;
    l agent_step_leases;
    v_fence bigint;
    v_outcome text;
    v_sessions uuid[];
BEGIN
    outcomes := array_fill('not_found'::text, ARRAY[cardinality(p_steps)]);
    parents := '{}';
    limits := '{}';
    -- All sessions first and in order, so that two batches never wait for each other.
    SELECT array_agg(DISTINCT st.session_id) INTO v_sessions FROM agent_steps st
     WHERE st.id = ANY (p_steps) AND st.project_id = p_project;
    PERFORM FROM agent_sessions x
      WHERE x.id = ANY (v_sessions) AND x.project_id = p_project
      ORDER BY x.id FOR NO KEY UPDATE;
    IF p_session IS NOT NULL OR p_subject IS NOT NULL THEN
        SELECT array_agg(x.id) INTO v_sessions FROM agent_sessions x
         WHERE x.id = ANY (v_sessions) AND x.project_id = p_project
           AND (p_session IS NULL OR x.id = p_session)
           AND (p_subject IS NULL OR x.subject = p_subject);
    END IF;
    FOR i IN
        SELECT array_position(p_steps, st.id) AS at, st.id, st.session_id, st.run_id,
               p_tokens[array_position(p_steps, st.id)] AS token
          FROM agent_steps st
         WHERE st.id = ANY (p_steps) AND st.project_id = p_project
           AND st.session_id = ANY (v_sessions)
         ORDER BY st.session_id, st.run_id, st.id
    LOOP
        v_fence := i.token >> 20;
        IF v_is_open AND w.run <> i.run_id THEN
            w := agentstate_close_run(w);
            limits := limits || w.limits;
            parents := parents || agentstate_parent_of(w);
            v_is_open := false;
        END IF;
        SELECT * INTO s FROM agent_steps st
         WHERE st.id = i.id AND st.project_id = p_project;
        v_outcome := 'lease_lost';
        IF i.token = agentstate_token(i.id, v_fence) THEN
            DELETE FROM agent_step_leases x
             WHERE x.project_id = p_project AND x.step_id = i.id AND x.fence = v_fence
            RETURNING * INTO l;
            IF FOUND THEN
                v_outcome := 'ok';
            ELSIF s.state = 'done' AND s.claims = v_fence THEN
                v_outcome := CASE WHEN p_call = 'complete'
                                   AND s.result_hash = p_hashes[i.at]
                                  THEN 'repeated' ELSE 'already_finished' END;
            END IF;
        END IF;
        IF v_outcome = 'lease_lost' AND s.state = 'cancelled' THEN
            v_outcome := 'cancelled';
        END IF;
        outcomes[i.at] := v_outcome;
        IF v_outcome = 'ok' THEN
            IF NOT v_is_open THEN
                w := agentstate_open_run(
                    p_project, i.session_id, i.run_id, p_actor, false);
                v_is_open := true;
            END IF;
            w := agentstate_end_attempt(
                w, s, l, p_call, p_payloads[i.at], p_hashes[i.at], p_codes[i.at],
                p_retries[i.at], p_delays[i.at], coalesce(p_unknowns[i.at], false),
                p_used_tokens[i.at], p_costs[i.at]);
        ELSIF v_outcome <> 'repeated' AND p_call IN ('complete', 'fail') THEN
            INSERT INTO agent_rejected_completions (
                id, project_id, session_id, run_id, step_id, lease_token, worker, call,
                code, body, actor
            ) VALUES (
                agentstate_new_id(), p_project, i.session_id, i.run_id, i.id, i.token,
                coalesce(p_worker, (
                    SELECT a.worker FROM agent_step_attempts a
                     WHERE a.project_id = p_project AND a.step_id = i.id
                       AND a.fence = v_fence), ''),
                p_call, v_outcome, p_payloads[i.at]::json, p_actor);
        END IF;
    END LOOP;
    IF v_is_open THEN
        w := agentstate_close_run(w);
        limits := limits || w.limits;
        parents := parents || agentstate_parent_of(w);
    END IF;
    states := array_fill(NULL::text, ARRAY[cardinality(p_steps)]);
    runs := array_fill(NULL::uuid, ARRAY[cardinality(p_steps)]);
    run_states := states;
    FOR i IN
        SELECT array_position(p_steps, st.id) AS at, st.state, st.run_id, (
                   SELECT r.state FROM agent_runs r WHERE r.id = st.run_id) AS run_state
          FROM agent_steps st
         WHERE st.id = ANY (p_steps) AND st.project_id = p_project
           AND st.session_id = ANY (v_sessions)
    LOOP
        states[i.at] := i.state;
        runs[i.at] := i.run_id;
        run_states[i.at] := i.run_state;
    END LOOP;
END $$;
"""

HEARTBEAT = """
-- Extend leases, item by item. Writes no event and takes no session's lock.
CREATE FUNCTION agentstate_heartbeat(
    p_project uuid, p_steps uuid[], p_tokens bigint[], p_lease_s double precision[],
    p_session uuid, p_subject text
) RETURNS TABLE (
    at integer, outcome text, lease_until timestamptz, run_id uuid, run_state text,
    stop boolean
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_now timestamptz := agentstate_now();
BEGIN
    RETURN QUERY
    WITH given AS (
        SELECT g.at::integer AS at, g.step, g.token, g.lease_s
          FROM unnest(p_steps, p_tokens, p_lease_s)
               WITH ORDINALITY AS g(step, token, lease_s, at)
    ), locked AS (
        -- In the order of the other calls, so that none waits for the other.
        SELECT g.at, l.step_id
          FROM given g
          JOIN agent_step_leases l
            ON l.project_id = p_project AND l.step_id = g.step
           AND l.fence = g.token >> 20
           AND g.token = agentstate_token(g.step, l.fence)
          JOIN agent_sessions x ON x.id = l.session_id
           AND (p_session IS NULL OR x.id = p_session)
           AND (p_subject IS NULL OR x.subject = p_subject)
         WHERE l.ends_at IS NULL OR l.ends_at > v_now
         ORDER BY l.session_id, l.run_id, l.step_id
           FOR UPDATE OF l
    ), extended AS (
        UPDATE agent_step_leases l
           SET lease_s = coalesce(g.lease_s, l.lease_s),
               lease_until = v_now
                   + make_interval(secs => coalesce(g.lease_s, l.lease_s))
          FROM locked JOIN given g ON g.at = locked.at
         WHERE l.project_id = p_project AND l.step_id = locked.step_id
        RETURNING g.at, l.lease_until
    )
    SELECT g.at,
           CASE WHEN e.at IS NOT NULL THEN 'ok'
                WHEN st.id IS NULL THEN 'not_found'
                WHEN st.state = 'cancelled' THEN 'cancelled'
                WHEN st.state = 'done' AND st.claims = g.token >> 20
                     AND g.token = agentstate_token(st.id, st.claims)
                THEN 'already_finished'
                ELSE 'lease_lost' END,
           e.lease_until, r.id, r.state,
           coalesce(r.state = 'cancelling' OR r.error IS NOT NULL, false)
      FROM given g
      LEFT JOIN extended e ON e.at = g.at
      LEFT JOIN (agent_steps st JOIN agent_sessions x ON x.id = st.session_id
                   AND (p_session IS NULL OR x.id = p_session)
                   AND (p_subject IS NULL OR x.subject = p_subject))
        ON st.id = g.step AND st.project_id = p_project
      LEFT JOIN agent_runs r ON r.id = st.run_id
     ORDER BY g.at;
END $$;
"""

SWEEP = """
-- A lease whose time is up, if it still is: the attempt ended without a word, or took
-- longer than the step allows. True if something was done.
CREATE FUNCTION agentstate_expire_lease(
    p_project uuid, p_session uuid, p_run uuid, p_step uuid, p_fence bigint,
    OUT is_expired boolean, OUT parents uuid[], OUT limits text[]
) LANGUAGE plpgsql AS $$
DECLARE
    w agentstate_work;
    s agent_steps;
    l agent_step_leases;
    v_late boolean;
BEGIN
    is_expired := false;
    parents := '{}';
    limits := '{}';
    w := agentstate_open_run(p_project, p_session, p_run, 'system', false);
    IF w.run IS NULL THEN
        RETURN;
    END IF;
    DELETE FROM agent_step_leases x
     WHERE x.project_id = p_project AND x.step_id = p_step AND x.fence = p_fence
       AND (x.lease_until <= w.now OR x.ends_at <= w.now)
    RETURNING * INTO l;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    SELECT * INTO s FROM agent_steps st
     WHERE st.id = p_step AND st.project_id = p_project;
    v_late := l.ends_at <= w.now;
    w := agentstate_end_attempt(
        w, s, l, CASE WHEN v_late THEN 'timeout' ELSE 'lost' END,
        CASE WHEN v_late
             THEN json_build_object('code', 'timeout', 'message',
                  'the attempt took longer than ' || s.timeout_s || ' s')::text
             ELSE json_build_object('code', 'lost', 'message',
                  'the worker ' || l.worker || ' was not heard of again')::text END,
        NULL, CASE WHEN v_late THEN 'timeout' ELSE 'lost' END,
        NULL, NULL, false, NULL, NULL);
    w := agentstate_close_run(w);
    is_expired := true;
    parents := agentstate_parent_of(w);
    limits := w.limits;
END $$;

-- A timer that is due, if it still is.
CREATE FUNCTION agentstate_fire_timer(
    p_project uuid, p_session uuid, p_run uuid, p_step uuid, p_kind text,
    OUT is_fired boolean, OUT parents uuid[], OUT limits text[]
) LANGUAGE plpgsql AS $$
DECLARE
    w agentstate_work;
    s agent_steps;
    t agent_timers;
    v_gone integer;
    v_error text;
BEGIN
    is_fired := false;
    parents := '{}';
    limits := '{}';
    w := agentstate_open_run(p_project, p_session, p_run, 'system', false);
    IF w.run IS NULL THEN
        RETURN;
    END IF;
    DELETE FROM agent_timers x
     WHERE x.project_id = p_project AND x.run_id = p_run AND x.step_id = p_step
       AND x.kind = p_kind AND x.due_at <= w.now
    RETURNING * INTO t;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    is_fired := true;
    IF p_kind = 'deadline' THEN
        w := agentstate_doom(w, json_build_object(
            'code', 'budget_exceeded', 'budget', 'deadline',
            'message', 'the deadline of the run has passed')::text,
            'budget_exceeded: deadline');
        -- What is in progress is over too, once its workers have had a heartbeat.
        UPDATE agent_step_leases x SET ends_at = w.now
         WHERE x.project_id = p_project AND x.step_id IN (
               SELECT st.id FROM agent_steps st
                WHERE st.project_id = p_project AND st.run_id = p_run
                  AND st.state = 'in_progress');
    ELSE
        SELECT * INTO s FROM agent_steps st
         WHERE st.id = p_step AND st.project_id = p_project;
        IF s.claims = t.fence THEN
            w := agentstate_time_is_up(w, s, p_kind);
        END IF;
    END IF;
    w := agentstate_close_run(w);
    parents := agentstate_parent_of(w);
    limits := w.limits;
END $$;

CREATE FUNCTION agentstate_time_is_up(w agentstate_work, s agent_steps, p_kind text)
RETURNS agentstate_work LANGUAGE plpgsql AS $$
DECLARE
    v_code text;
    v_error text;
BEGIN
    IF p_kind = 'wait' AND s.state = 'waiting' AND s.wait_kind IN ('timer', 'retry')
    THEN
        IF s.kind = 'sleep' AND (s.run_after IS NULL OR s.run_after <= s.state_since)
        THEN
            w := agentstate_note(w, 'step.done', '{"index":' || s.ordinal
                || ',"state":"done","result":null}', s.id);
            RETURN agentstate_finish_step(
                w, s, 'done', NULL, NULL, agentstate_next_seq(w) - 1);
        END IF;
        w := agentstate_note(w, 'step.resumed', json_build_object(
            'index', s.ordinal, 'state', 'pending')::text, s.id);
        RETURN agentstate_back_to_pending(w, s);
    ELSIF p_kind = 'wait' AND s.state = 'waiting' THEN
        v_code := s.wait_kind || '_timeout';
    ELSIF p_kind = 'start' AND s.state = 'pending' THEN
        v_code := 'start_timeout';
        w := agentstate_withdraw(w, s);
    ELSE
        RETURN w;
    END IF;
    DELETE FROM agent_step_waits x
     WHERE x.project_id = w.project AND x.step_id = s.id;
    v_error := json_build_object('code', v_code, 'message',
        CASE v_code WHEN 'start_timeout' THEN 'no worker claimed the step in time'
             ELSE 'nothing came in time' END)::text;
    IF v_code = 'start_timeout' AND s.on_exhausted = 'hold' THEN
        w := agentstate_note(w, 'step.waiting', json_build_object(
            'index', s.ordinal, 'state', 'waiting', 'wait', 'hold',
            'error', v_error::json)::text, s.id);
        UPDATE agent_steps st SET error = v_error::json
         WHERE st.id = s.id AND st.project_id = w.project;
        RETURN agentstate_let_wait(w, s, 'hold', '', NULL);
    END IF;
    w := agentstate_note(w, 'step.failed', '{"index":' || s.ordinal
        || ',"state":"failed","error":' || v_error || '}', s.id);
    w := agentstate_finish_step(w, s, 'failed', v_error, NULL, NULL);
    RETURN agentstate_doom(w, json_build_object(
        'code', 'step_failed', 'step', s.id, 'index', s.ordinal,
        'message', 'step ' || s.ordinal || ' failed',
        'cause', v_error::json)::text, 'step ' || s.ordinal || ' failed');
END $$;

-- A waiting, failed, cancelled or doubtful step may be tried again.
CREATE FUNCTION agentstate_back_to_pending(w agentstate_work, s agent_steps)
RETURNS agentstate_work LANGUAGE plpgsql AS $$
BEGIN
    UPDATE agent_steps st
       SET state = 'pending', wait_kind = NULL, wait_until = NULL, ended_at = NULL,
           state_since = w.now
     WHERE st.id = s.id AND st.project_id = w.project;
    DELETE FROM agent_step_waits x
     WHERE x.project_id = w.project AND x.step_id = s.id;
    DELETE FROM agent_timers x
     WHERE x.project_id = w.project AND x.run_id = w.run AND x.step_id = s.id;
    w := agentstate_count(w, s.state, 'pending');
    s.state := 'pending';
    IF s.deps_left > 0 THEN
        RETURN w;
    END IF;
    RETURN agentstate_admit(w, s);
END $$;

-- Take a pending step out of the ready or the held ones.
CREATE FUNCTION agentstate_withdraw(w agentstate_work, s agent_steps)
RETURNS agentstate_work LANGUAGE plpgsql AS $$
DECLARE
    v_gone integer;
BEGIN
    DELETE FROM agent_held_steps h
     WHERE h.project_id = w.project AND h.run_id = w.run AND h.ordinal = s.ordinal;
    GET DIAGNOSTICS v_gone = ROW_COUNT;
    w.n_held := w.n_held - v_gone;
    DELETE FROM agent_timers t
     WHERE t.project_id = w.project AND t.run_id = w.run AND t.step_id = s.id;
    DELETE FROM agent_ready_steps q
     WHERE q.project_id = w.project AND q.run_id = w.run AND q.step_id = s.id;
    GET DIAGNOSTICS v_gone = ROW_COUNT;
    w.n_ready := w.n_ready - v_gone;
    IF s.limit_key IS NOT NULL THEN
        w := agentstate_free_slot(w, s);
    END IF;
    RETURN w;
END $$;
"""

PROMOTE = """
-- Make ready what a limit of this key has room for. Only one at a time does this for a
-- key; it takes no other lock that it would have to wait for. Returns how many.
CREATE FUNCTION agentstate_promote_limited(p_project uuid, p_key text)
RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    lim agent_limits;
    h agent_held_steps;
    w agentstate_work;
    s agent_steps;
    v_now timestamptz := agentstate_now();
    v_room integer := 1000;
    v_tokens double precision;
    v_done integer := 0;
BEGIN
    SELECT * INTO lim FROM agent_limits x
     WHERE x.project_id = p_project AND x.key = p_key FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        PERFORM FROM agent_limits x WHERE x.project_id = p_project AND x.key = p_key;
        IF FOUND THEN
            RETURN 0;  -- another is at it
        END IF;
    END IF;
    IF lim.max_concurrent IS NOT NULL THEN
        SELECT lim.max_concurrent - count(*) INTO v_room FROM agent_limit_slots l
         WHERE l.project_id = p_project AND l.key = p_key;
    END IF;
    IF lim.rate IS NOT NULL THEN
        v_tokens := least(lim.rate, lim.tokens + greatest(0, extract(
            epoch FROM v_now - lim.refilled_at)) * lim.rate / lim.per_s);
        v_room := least(v_room, floor(v_tokens));
    END IF;
    FOR h IN
        SELECT x.* FROM agent_held_steps x
         WHERE x.project_id = p_project AND x.limit_key = p_key AND x.reason = 'limit'
         ORDER BY x.rank, x.since, x.ordinal LIMIT greatest(v_room, 0)
    LOOP
        w := agentstate_open_run(p_project, h.session_id, h.run_id, 'system', true);
        CONTINUE WHEN w.run IS NULL OR w.state IN ('paused', 'cancelling')
                   OR w.n_ready >= w.win;
        DELETE FROM agent_held_steps x
         WHERE x.project_id = p_project AND x.run_id = h.run_id
           AND x.ordinal = h.ordinal AND x.reason = 'limit';
        CONTINUE WHEN NOT FOUND;
        SELECT * INTO s FROM agent_steps st
         WHERE st.id = h.step_id AND st.project_id = p_project;
        w.n_held := w.n_held - 1;
        IF lim.id IS NOT NULL THEN
            INSERT INTO agent_limit_slots (project_id, key, step_id, run_id, taken_at)
            VALUES (p_project, p_key, h.step_id, h.run_id, v_now)
            ON CONFLICT DO NOTHING;
        END IF;
        w := agentstate_put_ready(w, s);
        w := agentstate_close_run(w);
        v_done := v_done + 1;
    END LOOP;
    IF lim.rate IS NOT NULL THEN
        UPDATE agent_limits x SET tokens = v_tokens - v_done, refilled_at = v_now
         WHERE x.id = lim.id;
    END IF;
    RETURN v_done;
END $$;
"""

# A plan is kept as long as its connection, and these tables begin empty: what was right
# for ten rows would be kept for ten thousand. Every statement here has its index.
INDEXED = """
ALTER FUNCTION agentstate_claim_steps SET enable_seqscan = off;
ALTER FUNCTION agentstate_end_attempts SET enable_seqscan = off;
ALTER FUNCTION agentstate_heartbeat SET enable_seqscan = off;
ALTER FUNCTION agentstate_expire_lease SET enable_seqscan = off;
ALTER FUNCTION agentstate_fire_timer SET enable_seqscan = off;
ALTER FUNCTION agentstate_promote_limited SET enable_seqscan = off;
"""


class Migration(migrations.Migration):
    dependencies = [("runs_app", "0002_moves")]

    operations = [
        migrations.RunSQL(
            CLAIM + END + HEARTBEAT + SWEEP + PROMOTE + INDEXED,
            """
            DROP FUNCTION agentstate_promote_limited(uuid, text);
            DROP FUNCTION agentstate_fire_timer(uuid, uuid, uuid, uuid, text);
            DROP FUNCTION agentstate_expire_lease(uuid, uuid, uuid, uuid, bigint);
            DROP FUNCTION agentstate_heartbeat(
                uuid, uuid[], bigint[], double precision[], uuid, text);
            DROP FUNCTION agentstate_end_attempts(
                uuid, text, uuid[], bigint[], text[], bytea[], text[], boolean[],
                double precision[], boolean[], bigint[], numeric[], text, text, uuid,
                text);
            DROP FUNCTION agentstate_backoff(agent_steps);
            DROP FUNCTION agentstate_token(uuid, bigint);
            DROP FUNCTION agentstate_claim_steps(
                uuid, text, integer, double precision, uuid, text[], text[], text,
                uuid, text);
            """,
        )
    ]
