"""The calls of workers for less: no statement is planned twice, none is idle.

A third of what a claim or a completion cost Postgres went to planning, since a plan for
an array of one looked better than the one kept for any array; another to composite
values handed from function to function for each step. What is left is plain statements
with an index each, the events of a call in one of them.
"""

from importlib import import_module

from django.db import migrations

OPEN = """
-- Load a run whose session's lock is held. All null if there is no such run.
CREATE FUNCTION agentstate_load_run(
    p_project uuid, p_session uuid, p_run uuid, p_actor text, p_last_seq bigint
) RETURNS agentstate_work LANGUAGE plpgsql AS $$
DECLARE
    v_now timestamptz := agentstate_now();
    w agentstate_work;
BEGIN
    SELECT r.project_id, r.session_id, r.id, p_actor, v_now, agentstate_iso(v_now),
           p_last_seq, r.state, r.state, r.reason, r.error::text,
           r.has_begun, r.agent, r.rank, r.window, r.step_count,
           r.n_pending, r.n_ready, r.n_held, r.n_in_progress, r.n_waiting,
           r.n_in_doubt, r.n_done, r.n_failed, r.n_skipped, r.n_cancelled,
           r.n_retrying, r.tool_calls, r.tokens, r.cost, r.started_at,
           r.parent_run_id, r.max_tool_calls, r.max_tokens, r.max_cost, r.deadline_at,
           r.tool_allowlist, '{}', '{}', '{}', '{}', '{}'
      INTO w.project, w.session, w.run, w.actor, w.now, w.at,
           w.last_seq, w.state, w.was, w.reason, w.error,
           w.has_begun, w.agent, w.rank, w.win, w.step_count,
           w.n_pending, w.n_ready, w.n_held, w.n_in_progress, w.n_waiting,
           w.n_in_doubt, w.n_done, w.n_failed, w.n_skipped, w.n_cancelled,
           w.n_retrying, w.tool_calls, w.tokens, w.cost, w.started_at,
           w.parent, w.max_tool_calls, w.max_tokens, w.max_cost, w.deadline_at,
           w.allowlist, w.types, w.payloads, w.steps, w.woken, w.limits
      FROM agent_runs r
     WHERE r.id = p_run AND r.project_id = p_project AND r.session_id = p_session;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    RETURN w;
END $$;

CREATE OR REPLACE FUNCTION agentstate_open_run(
    p_project uuid, p_session uuid, p_run uuid, p_actor text, p_skip boolean
) RETURNS agentstate_work LANGUAGE plpgsql AS $$
DECLARE
    v_last_seq bigint;
BEGIN
    IF p_skip THEN
        SELECT s.last_seq INTO v_last_seq FROM agent_sessions s
         WHERE s.id = p_session AND s.project_id = p_project
           FOR NO KEY UPDATE SKIP LOCKED;
    ELSE
        SELECT s.last_seq INTO v_last_seq FROM agent_sessions s
         WHERE s.id = p_session AND s.project_id = p_project
           FOR NO KEY UPDATE;
    END IF;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    -- In a statement of its own: one that waits for a lock sees other rows as of before.
    RETURN agentstate_load_run(p_project, p_session, p_run, p_actor, v_last_seq);
END $$;
"""

CLOSE = """
CREATE OR REPLACE FUNCTION agentstate_fill_window(w agentstate_work)
RETURNS agentstate_work LANGUAGE plpgsql AS $$
DECLARE
    v_freed integer;
BEGIN
    IF w.n_held = 0 OR w.n_ready >= w.win
       OR w.state IN ('paused', 'cancelling') THEN
        RETURN w;
    END IF;
    WITH freed AS (
        DELETE FROM agent_held_steps h
         USING (SELECT c.project_id, c.run_id, c.ordinal FROM agent_held_steps c
                 WHERE c.project_id = w.project AND c.run_id = w.run
                   AND c.reason = 'window'
                 ORDER BY c.ordinal LIMIT w.win - w.n_ready) c
         WHERE h.project_id = c.project_id AND h.run_id = c.run_id
           AND h.ordinal = c.ordinal
        RETURNING h.step_id
    ), step AS (
        SELECT st.id, st.ordinal, st.rank, st.tool, st.start_timeout_s, st.claims
          FROM freed JOIN agent_steps st ON st.id = freed.step_id
    ), timer AS (
        INSERT INTO agent_timers (
            project_id, session_id, run_id, step_id, kind, due_at, fence)
        SELECT w.project, w.session, w.run, step.id, 'start',
               w.now + make_interval(secs => step.start_timeout_s), step.claims
          FROM step WHERE step.start_timeout_s IS NOT NULL
        ON CONFLICT (project_id, run_id, step_id, kind) DO UPDATE
            SET due_at = excluded.due_at, fence = excluded.fence
    )
    INSERT INTO agent_ready_steps (
        project_id, session_id, run_id, step_id, rank, agent, tool, since)
    SELECT w.project, w.session, w.run, step.id, step.rank, w.agent, step.tool, w.now
      FROM step ORDER BY step.ordinal;
    GET DIAGNOSTICS v_freed = ROW_COUNT;
    w.n_held := w.n_held - v_freed;
    w.n_ready := w.n_ready + v_freed;
    RETURN w;
END $$;

-- Settle the run, write it, append its events; when it has ended, let the next run of
-- its session begin. Returns the work as it was written. The session's lock is held, so
-- its last_seq is known, and no client has named an id: the append needs no more.
CREATE OR REPLACE FUNCTION agentstate_close_run(w agentstate_work)
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
    IF w.n_held > 0 THEN
        w := agentstate_fill_window(w);
    END IF;
    -- A run at work stays so while a step is ready, held or in progress.
    IF w.state <> 'running' OR w.n_ready + w.n_held + w.n_in_progress = 0 THEN
        w := agentstate_settle(w);
    END IF;
    v_ended := w.state IN ('succeeded', 'failed', 'cancelled') AND w.state <> w.was;
    -- The numbers of the log follow one another in the order of the arrays.
    WITH run AS (
        UPDATE agent_runs r
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
         WHERE r.id = w.run AND r.project_id = w.project
    ), log AS (
        INSERT INTO agent_events (
            project_id, session_id, seq, event_id, type, payload, payload_bytes,
            run_id, step_id, actor, created_at, gen, xid)
        SELECT w.project, w.session, w.last_seq + n.at, agentstate_new_id(), n.type,
               n.payload::json, octet_length(n.payload), w.run, n.step, w.actor, w.now,
               (SELECT agentstate_feed_generation()), pg_current_xact_id()
          FROM unnest(w.types, w.payloads, w.steps)
               WITH ORDINALITY AS n(type, payload, step, at)
    )
    UPDATE agent_sessions s
       SET last_seq = s.last_seq + cardinality(w.types),
           log_bytes = s.log_bytes + octet_length(array_to_string(w.payloads, '')),
           updated_at = w.now,
           active_at = CASE WHEN w.now >= s.active_at + interval '1 minute'
                            THEN date_trunc('minute', w.now) ELSE s.active_at END
     WHERE s.id = w.session AND s.project_id = w.project AND cardinality(w.types) > 0;
    w.last_seq := w.last_seq + cardinality(w.types);
    w.types := '{}';
    w.payloads := '{}';
    w.steps := '{}';
    IF v_ended THEN
        DELETE FROM agent_timers t
         WHERE t.project_id = w.project AND t.run_id = w.run;
        w.limits := w.limits || agentstate_begin_next(w.project, w.session);
    END IF;
    w.was := w.state;
    RETURN w;
END $$;
"""

# The head of a queue, locked. A session that another call holds, or whose run takes no
# claim now, is passed over in the next round.
FIND = """
            v_ready := ARRAY(
                SELECT r FROM agent_ready_steps r
                 WHERE r.project_id = p_project AND {queue}
                   AND r.session_id <> ALL (v_busy)
                   AND (p_session IS NULL OR r.session_id = p_session)
                   AND (p_subject IS NULL OR EXISTS (
                        SELECT FROM agent_sessions x WHERE x.id = r.session_id
                           AND x.project_id = p_project AND x.subject = p_subject))
                 ORDER BY r.rank, r.id LIMIT v_need FOR UPDATE SKIP LOCKED);"""
BY_RUN = """r.run_id = p_run
                   AND (p_tools IS NULL OR r.tool = ANY (p_tools))
                   AND (p_agents IS NULL OR r.agent = ANY (p_agents))"""
BY_TOOL = """r.tool = p_tools[1]
                   AND (p_agents IS NULL OR r.agent = ANY (p_agents))"""
BY_AGENT = "r.agent = p_agents[1]"
BY_ID = "r.id = ANY (v_ids)"

CLAIM = """
-- Claim up to p_max ready steps: of a run, of some tools, of some agents, or any. Never
-- waits for a lock: a ready row or a session that another holds is passed over, and
-- counted in `skipped`. `claimed` holds one JSON object a step, by priority and age.
-- `parents` are runs with a child that has ended, `limits` keys with room to look at.
CREATE OR REPLACE FUNCTION agentstate_claim_steps(
    p_project uuid, p_worker text, p_max integer, p_lease_s double precision,
    p_run uuid, p_tools text[], p_agents text[], p_actor text,
    p_session uuid, p_subject text,
    OUT claimed json[], OUT skipped integer, OUT parents uuid[], OUT limits text[]
) LANGUAGE plpgsql
  SET enable_seqscan = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_need integer := p_max;
    v_ids bigint[];
    v_ready agent_ready_steps[];
    c agent_ready_steps;
    w agentstate_work;
    s agent_steps;
    v_busy uuid[] := '{}';
    v_run uuid;  -- the run that is open
    v_error json;
    v_until timestamptz;
    v_ends timestamptz;
    v_key text;
    v_ranks integer[] := '{}';
    v_places bigint[] := '{}';
BEGIN
    claimed := '{}';
    skipped := 0;
    parents := '{}';
    limits := '{}';
    FOR round IN 1 .. 20 LOOP
        IF p_run IS NOT NULL THEN
{by_run}
        ELSIF cardinality(p_tools) = 1 THEN
{by_tool}
        ELSIF p_tools IS NULL AND cardinality(p_agents) = 1 THEN
{by_agent}
        ELSIF p_tools IS NULL AND p_agents IS NULL THEN
{by_none}
        ELSE
            -- The head of each tool's, or agent's, own queue; the best of them are
            -- locked, and only those.
            SELECT array_agg(q.id) INTO v_ids FROM (
                SELECT x.id FROM unnest(coalesce(p_tools, p_agents)) AS t(name)
                 CROSS JOIN LATERAL (
                    (SELECT r.rank, r.id FROM agent_ready_steps r
                      WHERE p_tools IS NOT NULL
                        AND r.project_id = p_project AND r.tool = t.name
                        AND (p_agents IS NULL OR r.agent = ANY (p_agents))
                        AND r.session_id <> ALL (v_busy)
                        AND (p_session IS NULL OR r.session_id = p_session)
                      ORDER BY r.rank, r.id LIMIT v_need)
                    UNION ALL
                    (SELECT r.rank, r.id FROM agent_ready_steps r
                      WHERE p_tools IS NULL
                        AND r.project_id = p_project AND r.agent = t.name
                        AND r.session_id <> ALL (v_busy)
                        AND (p_session IS NULL OR r.session_id = p_session)
                      ORDER BY r.rank, r.id LIMIT v_need)) x
                 ORDER BY x.rank, x.id LIMIT v_need) q;
            EXIT WHEN v_ids IS NULL;
{by_id}
            IF v_ready = '{}' THEN
                -- Out of reach, each of them: look beyond their sessions.
                skipped := skipped + cardinality(v_ids);
                SELECT v_busy || array_agg(DISTINCT r.session_id) INTO v_busy
                  FROM agent_ready_steps r WHERE r.id = ANY (v_ids);
                CONTINUE;
            END IF;
        END IF;
        EXIT WHEN v_ready = '{}';
        IF cardinality(v_ready) > 1 THEN
            v_ready := ARRAY(SELECT q FROM unnest(v_ready) q
                             ORDER BY q.session_id, q.run_id, q.rank, q.id);
        END IF;
        FOREACH c IN ARRAY v_ready LOOP
            IF v_run <> c.run_id THEN
                w := agentstate_close_run(w);
                limits := limits || w.limits;
                parents := parents || agentstate_parent_of(w);
                v_run := NULL;
            END IF;
            CONTINUE WHEN c.session_id = ANY (v_busy);
            IF v_run IS NULL THEN
                w := agentstate_open_run(
                    p_project, c.session_id, c.run_id, p_actor, true);
                IF w.run IS NULL OR w.error IS NOT NULL
                   OR w.state NOT IN ('queued', 'running', 'waiting') THEN
                    skipped := skipped + (w.run IS NULL)::integer;
                    v_busy := v_busy || c.session_id;
                    CONTINUE;
                END IF;
                v_run := c.run_id;
            END IF;
            w := agentstate_check_budget(w, c.tool);
            IF w.error IS NOT NULL THEN
                v_busy := v_busy || c.session_id;
                CONTINUE;
            END IF;

            -- The ready row goes, the lease comes, and the log says so.
            DELETE FROM agent_ready_steps q WHERE q.id = c.id;
            UPDATE agent_steps st
               SET state = 'in_progress', claims = st.claims + 1,
                   attempt = st.attempt + 1, worker = p_worker, started_at = w.now,
                   state_since = w.now
             WHERE st.id = c.step_id AND st.project_id = p_project
            RETURNING * INTO s;
            v_until := w.now + make_interval(secs => p_lease_s);
            v_ends := w.now + make_interval(secs => s.timeout_s);
            v_key := c.run_id || ':' || s.id;
            INSERT INTO agent_step_leases (
                project_id, session_id, run_id, step_id, fence, attempt, worker,
                claimed_at, lease_s, lease_until, ends_at, limit_key
            ) VALUES (
                p_project, c.session_id, c.run_id, s.id, s.claims, s.attempt, p_worker,
                w.now, p_lease_s, v_until, v_ends, s.limit_key);
            IF s.start_timeout_s IS NOT NULL THEN
                DELETE FROM agent_timers t
                 WHERE t.project_id = p_project AND t.run_id = c.run_id
                   AND t.step_id = s.id AND t.kind = 'start';
            END IF;
            w.n_ready := w.n_ready - 1;
            w.n_pending := w.n_pending - 1;
            w.n_in_progress := w.n_in_progress + 1;
            w.tool_calls := w.tool_calls + 1;
            IF w.state <> 'running' OR w.started_at IS NULL THEN
                w := agentstate_note(
                    w, CASE WHEN w.started_at IS NULL THEN 'run.started'
                            ELSE 'run.resumed' END, '{"state":"running"}', NULL);
                w.state := 'running';
                w.started_at := coalesce(w.started_at, w.now);
            END IF;
            w.types := w.types || 'step.started'::text;
            w.payloads := w.payloads || json_build_object(
                'at', w.at, 'index', s.ordinal, 'state', 'in_progress',
                'attempt', s.attempt, 'token', s.claims, 'worker', p_worker,
                'key', v_key)::text;
            w.steps := w.steps || s.id;
            claimed := claimed || json_build_object(
                'step', s.id, 'run', c.run_id, 'session', c.session_id,
                'index', s.ordinal, 'name', s.name, 'agent', w.agent, 'tool', s.tool,
                'args', s.args, 'effect', s.effect, 'attempt', s.attempt,
                'failures', s.failures, 'lost', s.lost,
                'lease_token', agentstate_token(s.id, s.claims),
                'lease_s', p_lease_s, 'lease_until', agentstate_iso(v_until),
                'timeout_at', agentstate_iso(v_ends), 'idempotency_key', v_key,
                'previous', s.previous);
            IF p_max > 1 THEN
                v_ranks := v_ranks || c.rank;
                v_places := v_places || c.id;
            END IF;
        END LOOP;
        v_need := p_max - cardinality(claimed);
        EXIT WHEN v_need = 0;
    END LOOP;
    IF v_run IS NOT NULL THEN
        w := agentstate_close_run(w);
        limits := limits || w.limits;
        parents := parents || agentstate_parent_of(w);
    END IF;
    IF cardinality(claimed) > 1 THEN
        SELECT array_agg(o.shown ORDER BY o.rank, o.id) INTO claimed
          FROM unnest(claimed, v_ranks, v_places) AS o(shown, rank, id);
    END IF;
END $$;
"""
QUEUES = {
    "by_run": BY_RUN,
    "by_tool": BY_TOOL,
    "by_agent": BY_AGENT,
    "by_none": "true",
    "by_id": BY_ID,
}
for name, queue in QUEUES.items():
    CLAIM = CLAIM.replace(f"{{{name}}}", FIND.replace("{queue}", queue))

END = """
-- An attempt whose lease is not there: say why, and keep what its worker brought.
CREATE FUNCTION agentstate_refuse_ending(
    s agent_steps, p_call text, p_token bigint, p_payload text, p_hash bytea,
    p_worker text, p_actor text
) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    v_fence bigint := p_token >> 20;
    v_outcome text := 'lease_lost';
BEGIN
    IF s.state = 'cancelled' THEN
        v_outcome := 'cancelled';
    ELSIF s.state = 'done' AND s.claims = v_fence
          AND p_token = agentstate_token(s.id, v_fence) THEN
        IF p_call = 'complete' AND s.result_hash = p_hash THEN
            RETURN 'repeated';
        END IF;
        v_outcome := 'already_finished';
    END IF;
    IF p_call IN ('complete', 'fail') THEN
        INSERT INTO agent_rejected_completions (
            id, project_id, session_id, run_id, step_id, lease_token, worker, call,
            code, body, actor
        ) VALUES (
            agentstate_new_id(), s.project_id, s.session_id, s.run_id, s.id, p_token,
            coalesce(p_worker, (
                SELECT a.worker FROM agent_step_attempts a
                 WHERE a.project_id = s.project_id AND a.step_id = s.id
                   AND a.fence = v_fence), ''),
            p_call, v_outcome, p_payload::json, p_actor);
    END IF;
    RETURN v_outcome;
END $$;

-- End attempts, item by item: complete, fail or release. An item that is refused
-- changes nothing, but what it brought is kept. Arrays are parallel, one entry an item.
CREATE OR REPLACE FUNCTION agentstate_end_attempts(
    p_project uuid, p_call text, p_steps uuid[], p_tokens bigint[], p_payloads text[],
    p_hashes bytea[], p_codes text[], p_retries boolean[],
    p_delays double precision[], p_unknowns boolean[], p_used_tokens bigint[],
    p_costs numeric[], p_worker text, p_actor text, p_session uuid, p_subject text,
    OUT outcomes text[], OUT states text[], OUT runs uuid[], OUT run_states text[],
    OUT parents uuid[], OUT limits text[]
) LANGUAGE plpgsql
  SET enable_seqscan = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_number integer := cardinality(p_steps);
    v_order integer[] := '{1}';
    v_is_changed boolean := false;
    v_at integer;
    w agentstate_work;
    s agent_steps;
    l agent_step_leases;
    v_now record;
BEGIN
    outcomes := array_fill('not_found'::text, ARRAY[v_number]);
    states := array_fill(NULL::text, ARRAY[v_number]);
    runs := array_fill(NULL::uuid, ARRAY[v_number]);
    run_states := states;
    parents := '{}';
    limits := '{}';
    IF v_number > 1 THEN
        -- In the order in which heartbeats lock leases, so that no two calls ever wait
        -- for each other.
        v_order := ARRAY(
            SELECT u.at FROM unnest(p_steps) WITH ORDINALITY AS u(step, at)
              JOIN agent_steps st ON st.id = u.step AND st.project_id = p_project
             ORDER BY st.session_id, st.run_id, st.id);
    END IF;
    FOREACH v_at IN ARRAY v_order LOOP
        SELECT * INTO s FROM agent_steps st
         WHERE st.id = p_steps[v_at] AND st.project_id = p_project;
        CONTINUE WHEN NOT FOUND OR s.session_id <> p_session;
        IF p_subject IS NOT NULL THEN
            PERFORM FROM agent_sessions x
              WHERE x.id = s.session_id AND x.project_id = p_project
                AND x.subject = p_subject;
            CONTINUE WHEN NOT FOUND;
        END IF;
        IF w.run IS DISTINCT FROM s.run_id THEN
            IF v_is_changed THEN
                w := agentstate_close_run(w);
                limits := limits || w.limits;
                parents := parents || agentstate_parent_of(w);
                v_is_changed := false;
            END IF;
            w := agentstate_open_run(
                p_project, s.session_id, s.run_id, p_actor, false);
            -- Again, now that nobody else can change it.
            SELECT * INTO s FROM agent_steps st
             WHERE st.id = p_steps[v_at] AND st.project_id = p_project;
        END IF;
        runs[v_at] := s.run_id;
        l := NULL;
        IF p_tokens[v_at] = agentstate_token(s.id, p_tokens[v_at] >> 20) THEN
            DELETE FROM agent_step_leases x
             WHERE x.project_id = p_project AND x.step_id = s.id
               AND x.fence = p_tokens[v_at] >> 20
            RETURNING * INTO l;
        END IF;
        IF l.step_id IS NULL THEN
            outcomes[v_at] := agentstate_refuse_ending(
                s, p_call, p_tokens[v_at], p_payloads[v_at], p_hashes[v_at], p_worker,
                p_actor);
        ELSE
            outcomes[v_at] := 'ok';
            v_is_changed := true;
            w := agentstate_end_attempt(
                w, s, l, p_call, p_payloads[v_at], p_hashes[v_at], p_codes[v_at],
                p_retries[v_at], p_delays[v_at], coalesce(p_unknowns[v_at], false),
                p_used_tokens[v_at], p_costs[v_at]);
        END IF;
    END LOOP;
    IF v_is_changed THEN
        w := agentstate_close_run(w);
        limits := limits || w.limits;
        parents := parents || agentstate_parent_of(w);
    END IF;
    FOREACH v_at IN ARRAY v_order LOOP
        SELECT st.state, r.state AS run_state INTO v_now
          FROM agent_steps st, agent_runs r
         WHERE st.id = p_steps[v_at] AND st.project_id = p_project
           AND r.id = runs[v_at];
        states[v_at] := v_now.state;
        run_states[v_at] := v_now.run_state;
    END LOOP;
END $$;

ALTER FUNCTION agentstate_heartbeat SET plan_cache_mode = force_generic_plan;
"""


# agentstate_start_attempt and agentstate_append_noted are called no more; they stay for
# a claim that has begun in the version before.
moves = import_module("runs_app.migrations.0002_moves")
hot_calls = import_module("runs_app.migrations.0003_hot_calls")
BEFORE = (
    moves.OPEN
    + moves.ADMIT
    + moves.CLOSE.partition("-- A session that is erased")[0]
    + hot_calls.CLAIM
    + hot_calls.END
).replace("CREATE FUNCTION", "CREATE OR REPLACE FUNCTION")
REVERSE = f"""
{BEFORE}
{hot_calls.INDEXED}
ALTER FUNCTION agentstate_heartbeat RESET plan_cache_mode;
DROP FUNCTION agentstate_refuse_ending(
    agent_steps, text, bigint, text, bytea, text, text);
DROP FUNCTION agentstate_load_run(uuid, uuid, uuid, text, bigint);
"""


class Migration(migrations.Migration):
    dependencies = [("runs_app", "0006_open_child_index")]

    operations = [migrations.RunSQL(OPEN + CLOSE + CLAIM + END, REVERSE)]
