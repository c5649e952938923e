"""What a worker says and asks in one call, many steps in one statement.

A life of a step, its completion and the claim of the next, was two transactions with
nineteen statements, each begun anew for every step of a list: what that cost went to
beginning them, to the checks of a table, which each statement reads again, and to
handing the run from function to function. Now the steps of a run go through four
statements however many they are, and a run that is gone on with is loaded and written
once.
"""

import re
from importlib import import_module

from django.db import migrations

# `IS NOT DISTINCT FROM` is `=` that no index is used for. Rows that are known by their
# id are to be found by it: a plan that was made when the tables were empty took an index
# that begins with the project for as good, and read all of it until they were analysed.
CLOSE = """
-- A run whose session's lock is held, and that has been at p_last_seq. No row if there
-- is no such run. Plain SQL, so that the caller's statement takes it in.
CREATE FUNCTION agentstate_run_work(
    p_project uuid, p_session uuid, p_run uuid, p_actor text, p_last_seq bigint,
    p_now timestamptz
) RETURNS SETOF agentstate_work LANGUAGE sql STABLE AS $$
    SELECT r.project_id, r.session_id, r.id, p_actor, p_now, agentstate_iso(p_now),
           p_last_seq, r.state, r.state, r.reason, r.error::text,
           r.has_begun, r.agent, r.rank, r.window, r.step_count,
           r.n_pending, r.n_ready, r.n_held, r.n_in_progress, r.n_waiting,
           r.n_in_doubt, r.n_done, r.n_failed, r.n_skipped, r.n_cancelled,
           r.n_retrying, r.tool_calls, r.tokens, r.cost, r.started_at,
           r.parent_run_id, r.max_tool_calls, r.max_tokens, r.max_cost, r.deadline_at,
           r.tool_allowlist, '{}'::text[], '{}'::text[], '{}'::uuid[], '{}'::uuid[],
           '{}'::text[]
      FROM agent_runs r
     WHERE r.id = p_run AND r.project_id IS NOT DISTINCT FROM p_project
       AND r.session_id IS NOT DISTINCT FROM p_session
$$;

CREATE OR REPLACE FUNCTION agentstate_load_run(
    p_project uuid, p_session uuid, p_run uuid, p_actor text, p_last_seq bigint
) RETURNS agentstate_work LANGUAGE plpgsql AS $$
DECLARE
    v_now timestamptz := agentstate_now();
    w agentstate_work;
BEGIN
    SELECT * INTO w FROM agentstate_run_work(
        p_project, p_session, p_run, p_actor, p_last_seq, v_now);
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
         WHERE s.id = p_session AND s.project_id IS NOT DISTINCT FROM p_project
           FOR NO KEY UPDATE SKIP LOCKED;
    ELSE
        SELECT s.last_seq INTO v_last_seq FROM agent_sessions s
         WHERE s.id = p_session AND s.project_id IS NOT DISTINCT FROM p_project
           FOR NO KEY UPDATE;
    END IF;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    -- In a statement of its own: one that waits for a lock sees other rows as of before.
    RETURN agentstate_load_run(p_project, p_session, p_run, p_actor, v_last_seq);
END $$;

-- What follows for the run from what its steps have come to: signals that are there
-- already are taken, the window is filled, its state is settled. In memory, but for the
-- steps.
CREATE FUNCTION agentstate_settle_work(w agentstate_work)
RETURNS agentstate_work LANGUAGE plpgsql AS $$
DECLARE
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
    RETURN w;
END $$;

-- Write a settled run, append its events; when it has ended, let the next run of its
-- session begin. The session's lock is held, so its last_seq is known, and no client
-- has named an id: the append needs no more. The work is used up by it.
CREATE FUNCTION agentstate_write_work(w agentstate_work)
RETURNS agentstate_work LANGUAGE plpgsql AS $$
DECLARE
    v_ended boolean := w.state <> w.was
                       AND w.state IN ('succeeded', 'failed', 'cancelled');
BEGIN
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
         WHERE r.id = w.run AND r.project_id IS NOT DISTINCT FROM w.project
    ), log AS (
        INSERT INTO agent_events (
            project_id, session_id, seq, event_id, type, payload, payload_bytes,
            run_id, step_id, actor, created_at, gen, xid)
        SELECT w.project, w.session, w.last_seq + n.at,
               -- To make a new id costs more than the rest of a row: one is enough
               -- for the call, but for its last part.
               (left((SELECT agentstate_new_id()::text), 24)
                || lpad(to_hex((random() * 281474976710655)::bigint), 12, '0'))::uuid,
               n.type,
               n.payload::json, octet_length(n.payload), w.run, n.step, w.actor, w.now,
               (SELECT g.gen FROM agent_feed_generations g ORDER BY g.gen DESC LIMIT 1),
               pg_current_xact_id()
          FROM unnest(w.types, w.payloads, w.steps)
               WITH ORDINALITY AS n(type, payload, step, at)
    )
    UPDATE agent_sessions s
       SET last_seq = s.last_seq + cardinality(w.types),
           log_bytes = s.log_bytes + octet_length(array_to_string(w.payloads, '')),
           updated_at = w.now,
           active_at = CASE WHEN w.now >= s.active_at + interval '1 minute'
                            THEN date_trunc('minute', w.now) ELSE s.active_at END
     WHERE s.id = w.session AND s.project_id IS NOT DISTINCT FROM w.project
       AND cardinality(w.types) > 0;
    IF v_ended THEN
        DELETE FROM agent_timers t
         WHERE t.project_id = w.project AND t.run_id = w.run;
        w.limits := w.limits || agentstate_begin_next(w.project, w.session);
    END IF;
    RETURN w;
END $$;

-- Settle the run and write it. The work that is returned tells how it is now, and no
-- more: it is used up.
CREATE OR REPLACE FUNCTION agentstate_close_run(w agentstate_work)
RETURNS agentstate_work LANGUAGE plpgsql AS $$
BEGIN
    RETURN agentstate_write_work(agentstate_settle_work(w));
END $$;
"""

FINISH = """
-- Admit those of the steps of these numbers that waited for one step more, which is done.
CREATE FUNCTION agentstate_free_dependents(w agentstate_work, p_dependents integer[])
RETURNS agentstate_work LANGUAGE plpgsql AS $$
DECLARE
    d agent_steps;
BEGIN
    FOR d IN
        UPDATE agent_steps SET deps_left = deps_left - 1
         WHERE project_id = w.project AND run_id = w.run
           AND ordinal = ANY (p_dependents)
        RETURNING *
    LOOP
        IF d.deps_left = 0 AND d.state = 'pending'
           AND w.error IS NULL AND w.state <> 'cancelling' THEN
            w := agentstate_admit(w, d);
        END IF;
    END LOOP;
    RETURN w;
END $$;

-- End a step, and admit those that only waited for it. Its event is noted before.
CREATE OR REPLACE FUNCTION agentstate_finish_step(
    w agentstate_work, s agent_steps, p_state text, p_error text, p_hash bytea,
    p_result_seq bigint
) RETURNS agentstate_work LANGUAGE plpgsql AS $$
BEGIN
    UPDATE agent_steps
       SET state = p_state, wait_kind = NULL, wait_until = NULL, ended_at = w.now,
           state_since = w.now, error = p_error::json, result_hash = p_hash,
           result_seq = p_result_seq
     WHERE id = s.id AND project_id IS NOT DISTINCT FROM w.project;
    w := agentstate_count(w, s.state, p_state);
    IF s.failures > 0 AND s.state IN ('pending', 'in_progress', 'waiting', 'in_doubt')
    THEN
        w.n_retrying := w.n_retrying - 1;
    END IF;
    IF s.limit_key IS NOT NULL THEN
        w := agentstate_free_slot(w, s);
    END IF;
    IF p_state IN ('done', 'skipped') AND cardinality(s.dependents) > 0 THEN
        w := agentstate_free_dependents(w, s.dependents);
    ELSIF p_state = 'cancelled' AND cardinality(s.dependents) > 0
          AND w.error IS NULL AND w.state <> 'cancelling' THEN
        -- What depends on it can never run.
        w := agentstate_cancel_unstarted(w, s.dependents, 'depends on a cancelled step');
    END IF;
    RETURN w;
END $$;
"""

# The head of a queue, after the place looked at last.
READY = """SELECT r FROM agent_ready_steps r
                     WHERE r.project_id = p_project AND {queue}
                       AND (r.rank, r.id) > (v_rank, v_place)
                       AND r.session_id <> ALL (v_busy)
                       AND (p_session IS NULL OR r.session_id = p_session)
                       AND (p_subject IS NULL OR EXISTS (
                            SELECT FROM agent_sessions x WHERE x.id = r.session_id
                               AND x.project_id IS NOT DISTINCT FROM p_project
                           AND x.subject IS NOT DISTINCT FROM p_subject))
                     ORDER BY r.rank, r.id LIMIT v_need"""
OF_AGENTS = "(p_agents IS NULL OR r.agent = ANY (p_agents))"
OF_TOOLS = "(p_tools IS NULL OR r.tool = ANY (p_tools))"
QUEUES = {
    "by_run": f"r.run_id = p_run AND {OF_TOOLS} AND {OF_AGENTS}",
    "by_tool": f"r.tool = p_tools[1] AND {OF_AGENTS}",
    "by_agent": "r.agent = p_agents[1]",
    "by_none": "true",
    "by_each_tool": f"p_tools IS NOT NULL AND r.tool = t.name AND {OF_AGENTS}",
    "by_each_agent": "p_tools IS NULL AND r.agent = t.name",
}

TURN = """
-- A worker's turn: what it says of the steps it had, then what it wants to have.
--
-- Ends attempts, item by item: complete, fail or release. An item that is refused
-- changes nothing, but what it brought is kept. Arrays are parallel, one entry an item.
--
-- Then claims up to p_max ready steps (none by 0): of a run, of some tools, of some
-- agents, or any. A claim never waits for a lock: a session that another holds is
-- passed over, and counted in `skipped`. `claimed` holds one JSON object a step, by
-- priority and age. `parents` are runs with a child that has ended, `limits` keys with
-- room to look at; if there are any of what has ended, nothing is claimed, since they
-- are to be followed up before.
--
-- What is null is nothing; but `outcomes` and `states`, of items that are all completed.
CREATE FUNCTION agentstate_take_turn(
    p_project uuid, p_actor text, p_session uuid, p_subject text,
    p_worker text, p_max integer, p_lease_s double precision,
    p_run uuid, p_tools text[], p_agents text[],
    p_call text DEFAULT NULL, p_steps uuid[] DEFAULT NULL,
    p_tokens bigint[] DEFAULT NULL, p_payloads text[] DEFAULT NULL,
    p_hashes bytea[] DEFAULT NULL, p_codes text[] DEFAULT NULL,
    p_retries boolean[] DEFAULT NULL, p_delays double precision[] DEFAULT NULL,
    p_unknowns boolean[] DEFAULT NULL, p_used_tokens bigint[] DEFAULT NULL,
    p_costs numeric[] DEFAULT NULL, p_reporter text DEFAULT NULL,
    OUT outcomes text[], OUT states text[], OUT runs uuid[], OUT run_states text[],
    OUT claimed text[], OUT skipped integer, OUT parents uuid[], OUT limits text[]
) LANGUAGE plpgsql
  SET enable_seqscan = off SET enable_bitmapscan = off
  SET enable_hashjoin = off SET enable_mergejoin = off
  SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    -- An expression of PL/pgSQL is prepared anew in each transaction, which costs more
    -- than to add a column to a statement: so few of them, and no idle values.
    w agentstate_work;  -- the run that is open
    v_is_changed boolean;  -- and not yet written
    v_is_odd boolean;  -- not each item was completed
    v_last_seq bigint;
    v_clock timestamptz;
    v_order integer[];
    v_sessions uuid[];
    v_runs uuid[];
    v_parts integer[];
    v_states text[];
    v_at integer := 1;
    v_from integer;
    v_to integer;
    v_item integer;
    v_ids uuid[];
    v_done integer[];
    v_followed uuid[];
    v_keys text[];
    v_dependents integer[];
    s agent_steps;
    l agent_step_leases;

    c agent_ready_steps;
    v_need integer := p_max;
    v_is_crowded boolean;  -- the session's lock had to be waited for
    v_may_stay boolean;
    v_stay_rank integer;  -- set: look at the run that is open, there
    v_is_own boolean;  -- that was looked at
    v_last agent_ready_steps;
    v_ready agent_ready_steps[];
    v_found integer;
    v_rank integer := -2147483648;
    v_place bigint := 0;
    v_busy uuid[] := '{}';
    v_heads bigint[];
    v_take bigint[];
    v_tools text[];
    v_ranks integer[];
    v_places bigint[];
    v_timed uuid[];
    v_is_limited boolean;
BEGIN
    IF cardinality(p_steps) = 1 THEN
        SELECT '{1}', ARRAY[st.session_id], ARRAY[st.run_id], '{0}'
          INTO v_order, v_sessions, v_runs, v_parts
          FROM agent_steps st
         WHERE st.id = p_steps[1] AND st.project_id IS NOT DISTINCT FROM p_project
           AND (p_session IS NULL OR st.session_id = p_session)
           AND (p_subject IS NULL OR EXISTS (
                SELECT FROM agent_sessions x WHERE x.id = st.session_id
                   AND x.project_id IS NOT DISTINCT FROM p_project
                           AND x.subject IS NOT DISTINCT FROM p_subject));
    ELSIF p_steps IS NOT NULL THEN
        -- In the order in which heartbeats lock leases, so that no two calls ever wait
        -- for each other. A part is what one statement may end: the steps of a run up
        -- to one that others depend on.
        SELECT array_agg(i.at), array_agg(i.session_id), array_agg(i.run_id),
               array_agg(i.part)
          INTO v_order, v_sessions, v_runs, v_parts
          FROM (SELECT u.at::integer, st.session_id, st.run_id,
                       count(*) FILTER (WHERE cardinality(st.dependents) > 0) OVER (
                           ORDER BY st.session_id, st.run_id, st.id
                           ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS part
                  FROM unnest(p_steps) WITH ORDINALITY AS u(step, at)
                  JOIN agent_steps st ON st.id = u.step
                   AND st.project_id IS NOT DISTINCT FROM p_project
                 WHERE (p_session IS NULL OR st.session_id = p_session)
                   AND (p_subject IS NULL OR EXISTS (
                        SELECT FROM agent_sessions x WHERE x.id = st.session_id
                           AND x.project_id IS NOT DISTINCT FROM p_project
                           AND x.subject IS NOT DISTINCT FROM p_subject))
                 ORDER BY st.session_id, st.run_id, st.id) i;
    END IF;
    WHILE v_at <= cardinality(v_order) LOOP
        v_from := v_at;
        SELECT x.last_seq INTO v_last_seq FROM agent_sessions x
         WHERE x.id = v_sessions[v_at] AND x.project_id IS NOT DISTINCT FROM p_project
           FOR NO KEY UPDATE SKIP LOCKED;
        IF v_last_seq IS NULL THEN
            v_is_crowded := p_run IS NULL;
            SELECT x.last_seq INTO v_last_seq FROM agent_sessions x
             WHERE x.id = v_sessions[v_at]
               AND x.project_id IS NOT DISTINCT FROM p_project
               FOR NO KEY UPDATE;
        END IF;
        -- In a statement of its own: one that waits for a lock sees rows as of before.
        v_clock := agentstate_now();
        SELECT * INTO w FROM agentstate_run_work(
            p_project, v_sessions[v_at], v_runs[v_at], p_actor, v_last_seq, v_clock);
        IF w.run IS NULL THEN
            v_at := v_at + 1;  -- erased meanwhile
            v_is_odd := true;
            v_states := v_states || NULL::text;
            CONTINUE;
        END IF;
        WHILE v_runs[v_at] = w.run LOOP
            v_to := v_at + 1;
            v_done := NULL;
            IF p_call = 'complete' THEN
                WHILE v_runs[v_to] = w.run AND v_parts[v_to] = v_parts[v_at] LOOP
                    v_to := v_to + 1;
                END LOOP;
                v_ids := CASE WHEN v_to = v_at + 1 THEN ARRAY[p_steps[v_order[v_at]]]
                         ELSE ARRAY(SELECT p_steps[o.at] FROM unnest(
                              v_order[v_at:v_to - 1]) AS o(at)) END;
                WITH gone AS (
                    -- By the index, and so in the order of the ids.
                    DELETE FROM agent_step_leases t
                     WHERE t.project_id = p_project AND t.step_id = ANY (v_ids)
                       AND p_tokens[array_position(p_steps, t.step_id)]
                           = agentstate_token(t.step_id, t.fence)
                    RETURNING t.step_id, t.fence, t.attempt, t.worker, t.claimed_at
                ), item AS (
                    SELECT g.*, row_number() OVER () AS n,
                           array_position(p_steps, g.step_id) AS at
                      FROM gone g
                ), attempt AS (
                    INSERT INTO agent_step_attempts (
                        project_id, session_id, run_id, step_id, fence, attempt, worker,
                        outcome, started_at, ended_at)
                    SELECT p_project, w.session, w.run, i.step_id, i.fence, i.attempt,
                           i.worker, 'done', i.claimed_at, w.now
                      FROM item i
                ), done AS (
                    UPDATE agent_steps st
                       SET state = 'done', ended_at = w.now, state_since = w.now,
                           error = NULL, result_hash = p_hashes[i.at],
                           result_seq = w.last_seq + cardinality(w.types) + i.n
                      FROM item i
                     WHERE st.id = i.step_id
                       AND st.project_id IS NOT DISTINCT FROM p_project
                    RETURNING i.at, i.n, i.fence, st.id, st.ordinal, st.failures,
                              st.limit_key, cardinality(st.dependents) > 0 AS is_followed
                )
                SELECT array_agg(d.at),
                       array_agg(d.id) FILTER (WHERE d.is_followed),
                       array_agg(d.limit_key) FILTER (WHERE d.limit_key IS NOT NULL),
                       w.types || array_agg('step.done'::text),
                       w.payloads || array_agg(
                           '{"at":"' || w.at || '","index":' || d.ordinal
                           || ',"state":"done","token":' || d.fence
                           || CASE WHEN p_used_tokens[d.at] IS NULL THEN ''
                                   ELSE ',"tokens":' || p_used_tokens[d.at] END
                           || CASE WHEN p_costs[d.at] IS NULL THEN ''
                                   ELSE ',"cost":' || p_costs[d.at] END
                           || ',"result":' || p_payloads[d.at] || '}'),
                       w.steps || array_agg(d.id),
                       w.n_in_progress - count(*), w.n_done + count(*),
                       w.n_retrying - count(*) FILTER (WHERE d.failures > 0),
                       w.tokens + coalesce(sum(p_used_tokens[d.at]), 0),
                       w.cost + coalesce(sum(p_costs[d.at]), 0)
                  INTO v_done, v_followed, v_keys, w.types, w.payloads, w.steps,
                       w.n_in_progress, w.n_done, w.n_retrying, w.tokens, w.cost
                  FROM (SELECT * FROM done ORDER BY n) d;
                IF v_done IS NOT NULL THEN
                    v_is_changed := true;
                    IF v_keys IS NOT NULL THEN
                        DELETE FROM agent_limit_slots t
                         WHERE t.project_id = p_project AND t.key = ANY (v_keys)
                           AND t.step_id = ANY (v_ids);
                        w.limits := w.limits || v_keys;
                    END IF;
                    IF v_followed IS NOT NULL THEN
                        FOR at IN 1 .. cardinality(v_followed) LOOP
                            SELECT st.dependents INTO v_dependents FROM agent_steps st
                             WHERE st.id = v_followed[at]
                               AND st.project_id IS NOT DISTINCT FROM p_project;
                            w := agentstate_free_dependents(w, v_dependents);
                        END LOOP;
                    END IF;
                END IF;
            END IF;
            IF cardinality(v_done) IS DISTINCT FROM v_to - v_at THEN
                v_is_odd := true;
                FOREACH v_item IN ARRAY v_order[v_at:v_to - 1] LOOP
                    CONTINUE WHEN v_item = ANY (v_done);
                    SELECT * INTO s FROM agent_steps st
                     WHERE st.id = p_steps[v_item]
                       AND st.project_id IS NOT DISTINCT FROM p_project;
                    l := NULL;
                    IF p_call <> 'complete' AND p_tokens[v_item]
                       = agentstate_token(s.id, p_tokens[v_item] >> 20) THEN
                        DELETE FROM agent_step_leases t
                         WHERE t.project_id = p_project AND t.step_id = s.id
                           AND t.fence = p_tokens[v_item] >> 20
                        RETURNING * INTO l;
                    END IF;
                    IF l.step_id IS NULL THEN
                        outcomes[v_item] := agentstate_refuse_ending(
                            s, p_call, p_tokens[v_item], p_payloads[v_item],
                            p_hashes[v_item], p_reporter, p_actor);
                    ELSE
                        v_is_changed := true;
                        w := agentstate_end_attempt(
                            w, s, l, p_call, p_payloads[v_item], p_hashes[v_item],
                            p_codes[v_item], p_retries[v_item], p_delays[v_item],
                            coalesce(p_unknowns[v_item], false),
                            p_used_tokens[v_item], p_costs[v_item]);
                    END IF;
                END LOOP;
            END IF;
            v_at := v_to;
        END LOOP;
        IF v_is_changed AND (cardinality(w.woken) > 0 OR w.n_held > 0
            OR w.state <> 'running' OR w.n_ready + w.n_in_progress = 0) THEN
            w := agentstate_settle_work(w);
        END IF;
        v_states := v_states || array_fill(w.state, ARRAY[v_at - v_from]);
        -- The last of the runs is kept open, to be gone on with; not if nothing is
        -- claimed, because one before has ended, or freed a slot.
        IF v_is_changed AND (p_max = 0 OR v_at <= cardinality(v_order) OR v_is_odd
            OR limits <> '{}' OR parents <> '{}'
            OR w.limits <> '{}' OR w.state <> w.was) THEN
            w := agentstate_write_work(w);
            limits := limits || w.limits;
            parents := parents || agentstate_parent_of(w);
            v_is_changed := false;
            w := NULL;
        END IF;
    END LOOP;
    IF p_call <> 'complete' OR cardinality(v_order) IS DISTINCT FROM cardinality(p_steps)
    THEN
        v_is_odd := true;
    END IF;
    IF v_is_odd THEN
        -- What was done to one item may have changed another.
        SELECT array_agg(coalesce(outcomes[i.at], CASE WHEN i.state IS NULL
                   THEN 'not_found' ELSE 'ok' END) ORDER BY i.at),
               array_agg(i.state ORDER BY i.at), array_agg(i.run_id ORDER BY i.at),
               array_agg(i.run_state ORDER BY i.at)
          INTO outcomes, states, runs, run_states
          FROM (SELECT g.at, st.state, st.run_id, r.state AS run_state
                  FROM generate_series(1, cardinality(p_steps)) AS g(at)
                  LEFT JOIN LATERAL (
                        SELECT q.state, q.run_id FROM agent_steps q
                         WHERE q.id = p_steps[g.at] AND g.at = ANY (v_order)
                           AND q.project_id IS NOT DISTINCT FROM p_project
                         LIMIT 1) st ON true
                  LEFT JOIN agent_runs r ON r.id = st.run_id) i;
    ELSIF cardinality(v_order) = 1 THEN
        runs := v_runs;
        run_states := v_states;
    ELSIF v_order IS NOT NULL THEN
        SELECT array_agg(i.run ORDER BY i.at), array_agg(i.state ORDER BY i.at)
          INTO runs, run_states
          FROM unnest(v_order, v_runs, v_states) AS i(at, run, state);
    END IF;
    IF p_max = 0 OR limits <> '{}' OR parents <> '{}' THEN
        RETURN;
    END IF;

    v_may_stay := w.state = 'running' AND p_run IS NULL;
    IF v_is_crowded THEN
        -- Others are at this session: leave it to them, as if it were locked, unless
        -- there is nothing else. All that one session's workers do is done in turn.
        v_busy := v_sessions[v_at - 1:v_at - 1];
        v_may_stay := false;
    END IF;
    FOR round IN 1 .. 20 LOOP
        IF v_stay_rank IS NOT NULL THEN
            v_ready := ARRAY(
                SELECT r FROM agent_ready_steps r
                 WHERE r.project_id = p_project AND r.run_id = w.run
                   AND r.rank = v_stay_rank AND {of_tools} AND {of_agents}
                 ORDER BY r.rank, r.id LIMIT v_need);
            v_stay_rank := NULL;
            v_is_own := true;
        ELSIF p_run IS NOT NULL THEN
            v_ready := ARRAY({by_run});
        ELSIF cardinality(p_tools) = 1 THEN
            v_ready := ARRAY({by_tool});
        ELSIF p_tools IS NULL AND cardinality(p_agents) = 1 THEN
            v_ready := ARRAY({by_agent});
        ELSIF p_tools IS NULL AND p_agents IS NULL THEN
            v_ready := ARRAY({by_none});
        ELSE
            -- The head of each tool's, or agent's, own queue, and of these the best.
            v_ready := ARRAY(
                SELECT q.r
                  FROM (SELECT DISTINCT unnest(coalesce(p_tools, p_agents))) AS t(name)
                 CROSS JOIN LATERAL (
                    ({by_each_tool})
                    UNION ALL
                    ({by_each_agent})) q
                 ORDER BY (q.r).rank, (q.r).id LIMIT v_need);
        END IF;
        v_found := cardinality(v_ready);
        IF v_found = 0 THEN
            IF v_is_crowded AND claimed IS NULL THEN
                v_is_crowded := false;
                v_busy := '{}';
                v_rank := -2147483648;
                v_place := 0;
                CONTINUE;
            END IF;
            EXIT WHEN v_is_own IS NULL;
            v_is_own := NULL;
            CONTINUE;
        ELSIF v_found > 1 THEN
            v_last := v_ready[v_found];
            v_ready := ARRAY(SELECT q FROM unnest(v_ready) q
                             ORDER BY q.session_id, q.run_id, q.rank, q.id);
        END IF;
        v_at := 1;
        WHILE v_at <= v_found LOOP
            c := v_ready[v_at];
            v_heads := ARRAY[c.id];
            v_tools := ARRAY[c.tool];
            v_at := v_at + 1;
            WHILE v_at <= v_found AND v_ready[v_at].run_id = c.run_id LOOP
                v_heads := v_heads || v_ready[v_at].id;
                v_tools := v_tools || v_ready[v_at].tool;
                v_at := v_at + 1;
            END LOOP;
            CONTINUE WHEN c.session_id = ANY (v_busy);
            IF w.run IS DISTINCT FROM c.run_id THEN
                IF v_is_changed AND w.session = c.session_id THEN
                    w := agentstate_close_run(w);
                    limits := limits || w.limits;
                    parents := parents || agentstate_parent_of(w);
                    v_is_changed := false;
                    w := NULL;
                END IF;
                SELECT x.last_seq INTO v_last_seq FROM agent_sessions x
                 WHERE x.id = c.session_id
                   AND x.project_id IS NOT DISTINCT FROM p_project
                   FOR NO KEY UPDATE SKIP LOCKED;
                IF v_last_seq IS NULL THEN
                    skipped := coalesce(skipped, 0) + 1;
                    v_busy := v_busy || c.session_id;
                    -- Go on where the worker is, rather than look through all that
                    -- others are at. But not always, since what is older waits.
                    IF v_may_stay AND w.n_ready > 0 AND random() < 0.9 THEN
                        v_stay_rank := c.rank;
                    END IF;
                    v_may_stay := false;
                    CONTINUE;
                END IF;
                IF v_is_changed THEN
                    w := agentstate_close_run(w);
                    limits := limits || w.limits;
                    parents := parents || agentstate_parent_of(w);
                    v_is_changed := false;
                END IF;
                v_clock := agentstate_now();
                SELECT * INTO w FROM agentstate_run_work(
                    p_project, c.session_id, c.run_id, p_actor, v_last_seq, v_clock);
            END IF;
            IF w.error IS NOT NULL OR w.state NOT IN ('queued', 'running', 'waiting')
               OR w.state IS NULL THEN
                v_busy := v_busy || c.session_id;
                CONTINUE;
            END IF;
            v_is_limited := num_nonnulls(w.max_tool_calls, w.max_tokens, w.max_cost,
                                         w.deadline_at, w.allowlist, w.parent) > 0;
            v_to := 1;
            WHILE v_to <= cardinality(v_heads) LOOP
                IF v_is_limited THEN
                    w := agentstate_check_budget(w, v_tools[v_to]);
                    IF w.error IS NOT NULL THEN
                        v_is_changed := true;
                        v_busy := v_busy || c.session_id;
                        EXIT;
                    END IF;
                    v_take := v_heads[v_to:v_to];
                    v_to := v_to + 1;
                ELSE
                    v_take := v_heads;
                    v_to := NULL;
                END IF;
                IF (w.state <> 'running' OR w.started_at IS NULL) AND EXISTS (
                    SELECT FROM agent_ready_steps q WHERE q.id = ANY (v_take)) THEN
                    w := agentstate_note(
                        w, CASE WHEN w.started_at IS NULL THEN 'run.started'
                                ELSE 'run.resumed' END, '{"state":"running"}', NULL);
                    w.state := 'running';
                    w.started_at := coalesce(w.started_at, w.now);
                END IF;
                -- The ready rows go, the leases come, and the log says so. One that is
                -- not there any more was claimed by another before the session was ours.
                WITH gone AS (
                    DELETE FROM agent_ready_steps q WHERE q.id = ANY (v_take)
                    RETURNING q.id, q.rank, q.step_id
                ), step AS (
                    UPDATE agent_steps st
                       SET state = 'in_progress', claims = st.claims + 1,
                           attempt = st.attempt + 1, worker = p_worker,
                           started_at = w.now, state_since = w.now
                      FROM gone g
                     WHERE st.id = g.step_id
                       AND st.project_id IS NOT DISTINCT FROM p_project
                    RETURNING g.rank AS of_rank, g.id AS place, st.id, st.ordinal,
                              st.name, st.tool, st.args, st.effect, st.attempt,
                              st.failures, st.lost, st.claims, st.previous,
                              st.timeout_s, st.start_timeout_s, st.limit_key
                ), lease AS (
                    INSERT INTO agent_step_leases (
                        project_id, session_id, run_id, step_id, fence, attempt, worker,
                        claimed_at, lease_s, lease_until, ends_at, limit_key)
                    SELECT p_project, w.session, w.run, t.id, t.claims, t.attempt,
                           p_worker, w.now, p_lease_s,
                           w.now + make_interval(secs => p_lease_s),
                           w.now + make_interval(secs => t.timeout_s), t.limit_key
                      FROM step t
                )
                SELECT v_ranks || array_agg(t.of_rank),
                       v_places || array_agg(t.place),
                       array_agg(t.id) FILTER (WHERE t.start_timeout_s IS NOT NULL),
                       claimed || array_agg(json_build_object(
                           'step', t.id, 'run', w.run, 'session', w.session,
                           'index', t.ordinal, 'name', t.name, 'agent', w.agent,
                           'tool', t.tool, 'args', t.args, 'effect', t.effect,
                           'attempt', t.attempt, 'failures', t.failures,
                           'lost', t.lost,
                           'lease_token', agentstate_token(t.id, t.claims),
                           'lease_s', p_lease_s, 'lease_until', agentstate_iso(
                               w.now + make_interval(secs => p_lease_s)),
                           'timeout_at', agentstate_iso(
                               w.now + make_interval(secs => t.timeout_s)),
                           'idempotency_key', w.run || ':' || t.id,
                           'previous', t.previous)::text),
                       w.types || array_agg('step.started'::text),
                       w.payloads || array_agg(json_build_object(
                           'at', w.at, 'index', t.ordinal, 'state', 'in_progress',
                           'attempt', t.attempt, 'token', t.claims, 'worker', p_worker,
                           'key', w.run || ':' || t.id)::text),
                       w.steps || array_agg(t.id),
                       w.n_ready - count(*), w.n_pending - count(*),
                       w.n_in_progress + count(*), w.tool_calls + count(*)
                  INTO v_ranks, v_places, v_timed, claimed, w.types,
                       w.payloads, w.steps, w.n_ready, w.n_pending, w.n_in_progress,
                       w.tool_calls
                  FROM (SELECT * FROM step ORDER BY of_rank, place) t;
                v_is_changed := true;
                IF v_timed IS NOT NULL THEN
                    DELETE FROM agent_timers t
                     WHERE t.project_id = p_project AND t.run_id = w.run
                       AND t.step_id = ANY (v_timed) AND t.kind = 'start';
                END IF;
            END LOOP;
        END LOOP;
        v_need := p_max - coalesce(cardinality(claimed), 0);
        EXIT WHEN v_need = 0;
        IF v_is_own THEN
            v_is_own := NULL;
        ELSIF v_found > 1 THEN
            v_rank := v_last.rank;
            v_place := v_last.id;
        ELSE
            v_rank := c.rank;
            v_place := c.id;
        END IF;
    END LOOP;
    IF v_is_changed THEN
        w := agentstate_close_run(w);
        limits := limits || w.limits;
        parents := parents || agentstate_parent_of(w);
    END IF;
    IF cardinality(claimed) > 1 THEN
        claimed := ARRAY(
            SELECT o.shown FROM unnest(claimed, v_ranks, v_places) AS o(shown, rank, id)
             ORDER BY o.rank, o.id);
    END IF;
END $$;
"""
for name, queue in QUEUES.items():
    TURN = TURN.replace(f"{{{name}}}", READY.replace("{queue}", queue))
TURN = TURN.replace("{of_tools}", OF_TOOLS).replace("{of_agents}", OF_AGENTS)

BEFORE = """
-- For servers of the version before, which call these.
CREATE OR REPLACE FUNCTION agentstate_claim_steps(
    p_project uuid, p_worker text, p_max integer, p_lease_s double precision,
    p_run uuid, p_tools text[], p_agents text[], p_actor text,
    p_session uuid, p_subject text,
    OUT claimed json[], OUT skipped integer, OUT parents uuid[], OUT limits text[]
) LANGUAGE sql AS $$
    SELECT coalesce(t.claimed, '{}')::json[], coalesce(t.skipped, 0),
           coalesce(t.parents, '{}'), coalesce(t.limits, '{}')
      FROM agentstate_take_turn(
          p_project, p_actor, p_session, p_subject, p_worker, p_max, p_lease_s, p_run,
          p_tools, p_agents) t
$$;

CREATE OR REPLACE FUNCTION agentstate_end_attempts(
    p_project uuid, p_call text, p_steps uuid[], p_tokens bigint[], p_payloads text[],
    p_hashes bytea[], p_codes text[], p_retries boolean[],
    p_delays double precision[], p_unknowns boolean[], p_used_tokens bigint[],
    p_costs numeric[], p_worker text, p_actor text, p_session uuid, p_subject text,
    OUT outcomes text[], OUT states text[], OUT runs uuid[], OUT run_states text[],
    OUT parents uuid[], OUT limits text[]
) LANGUAGE sql AS $$
    SELECT coalesce(t.outcomes, array_fill('ok'::text, ARRAY[cardinality(p_steps)])),
           coalesce(t.states, array_fill('done'::text, ARRAY[cardinality(p_steps)])),
           t.runs, t.run_states, coalesce(t.parents, '{}'), coalesce(t.limits, '{}')
      FROM agentstate_take_turn(
          p_project, p_actor, p_session, p_subject, NULL, 0, NULL, NULL, NULL, NULL,
          p_call, p_steps, p_tokens, p_payloads, p_hashes, p_codes, p_retries,
          p_delays, p_unknowns, p_used_tokens, p_costs, p_worker) t
$$;

-- Called no more since 0007.
DROP FUNCTION agentstate_start_attempt(
    agentstate_work, agent_ready_steps, text, double precision);
DROP FUNCTION agentstate_append_noted(agentstate_work);
"""

moves = import_module("runs_app.migrations.0002_moves")
hot_calls = import_module("runs_app.migrations.0003_hot_calls")
fewer = import_module("runs_app.migrations.0007_fewer_statements")


def as_it_was(sql: str, name: str) -> str:
    """The statement of an earlier migration that makes this function."""
    begin = sql.index(f"FUNCTION {name}(")
    end = sql.index("END $$;", begin) + len("END $$;")
    return f"CREATE OR REPLACE {sql[begin:end]}\n"


def by_its_id(sql: str) -> str:
    """Have a step found by its id alone."""
    found, count = re.subn(
        r"(\bid = [\w.]+\s+AND (?:st\.)?project_id) = (w\.project|p_project)",
        r"\1 IS NOT DISTINCT FROM \2",
        sql,
    )
    assert count
    return found


BEFORE_BY_ID = [
    as_it_was(moves.ADMIT, "agentstate_let_wait"),
    as_it_was(hot_calls.END, "agentstate_end_attempt"),
    as_it_was(hot_calls.HEARTBEAT, "agentstate_heartbeat"),
    as_it_was(hot_calls.SWEEP, "agentstate_expire_lease"),
    as_it_was(hot_calls.SWEEP, "agentstate_back_to_pending"),
]
# What is replaced loses the settings of its function.
SETTINGS = """
ALTER FUNCTION agentstate_heartbeat SET enable_seqscan = off;
ALTER FUNCTION agentstate_heartbeat SET plan_cache_mode = force_generic_plan;
ALTER FUNCTION agentstate_expire_lease SET enable_seqscan = off;
"""
BY_ID = "".join(map(by_its_id, BEFORE_BY_ID)) + SETTINGS
REVERSE = (
    "".join(BEFORE_BY_ID)
    + SETTINGS
    + as_it_was(hot_calls.CLAIM, "agentstate_start_attempt")
    + as_it_was(moves.CLOSE, "agentstate_append_noted")
    + as_it_was(moves.FINISH, "agentstate_finish_step")
    + as_it_was(fewer.OPEN, "agentstate_load_run")
    + as_it_was(fewer.OPEN, "agentstate_open_run")
    + as_it_was(fewer.CLOSE, "agentstate_close_run")
    + as_it_was(fewer.CLAIM, "agentstate_claim_steps")
    + as_it_was(fewer.END, "agentstate_end_attempts")
    + """
DROP FUNCTION agentstate_take_turn(
    uuid, text, uuid, text, text, integer, double precision, uuid, text[], text[],
    text, uuid[], bigint[], text[], bytea[], text[], boolean[], double precision[],
    boolean[], bigint[], numeric[], text);
DROP FUNCTION agentstate_settle_work(agentstate_work),
    agentstate_write_work(agentstate_work),
    agentstate_free_dependents(agentstate_work, integer[]),
    agentstate_run_work(uuid, uuid, uuid, text, bigint, timestamptz);
"""
)


class Migration(migrations.Migration):
    dependencies = [("runs_app", "0013_names")]

    operations = [migrations.RunSQL(CLOSE + FINISH + TURN + BY_ID + BEFORE, REVERSE)]
