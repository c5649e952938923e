from django.db import migrations

FORWARD = """
-- Append a batch to a session's log in one round trip. Answers by `outcome`:
--   appended           seqs[i] is the number of event i; last_seq that of the newest
--   replay             info is the stored answer to this Idempotency-Key
--   not_found, busy, reused, session_closed, session_locked, lock_lost, seq_conflict,
--   event_id_reused    nothing was written; info says more
-- The caller has checked types and payloads. Arrays are parallel, one item an event;
-- those about tool calls are null when the batch has none.
CREATE FUNCTION agentstate_append_events(
    p_project uuid,
    p_session uuid,
    p_event_ids uuid[],
    p_from_client boolean[],
    p_types text[],
    p_payloads text[],
    p_runs uuid[],
    p_steps uuid[],
    p_occurred timestamptz[],
    p_call_ids text[],
    p_call_names text[],
    p_call_awaiting text[],
    p_synthetic boolean[],
    p_actor text,
    p_by_server boolean,
    p_expected bigint,
    p_lock uuid,
    p_subject text,
    p_caller uuid,
    p_scope_hash bytea,
    p_fingerprint bytea,
    p_lock_number bigint,
    p_keep_hours integer,
    OUT outcome text,
    OUT last_seq bigint,
    OUT seqs bigint[],
    OUT info json
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_now timestamptz := agentstate_now();
    v_status text;
    v_last bigint;
    v_lineage jsonb;
    v_lock_until timestamptz;
    v_lock_token uuid;
    v_begun record;
    v_bytes bigint := 0;
    v_count integer := cardinality(p_types);
    v_next bigint;
    v_reused integer[] := '{}';
    found_event record;
BEGIN
    IF p_scope_hash IS NOT NULL THEN
        -- Seen first, so that a caller who may not see the session learns nothing;
        -- not locked, so that a repeat need not wait for the request it repeats.
        PERFORM FROM agent_sessions s
          WHERE s.id = p_session AND s.project_id = p_project
            AND (p_subject IS NULL OR s.subject = p_subject);
        IF NOT FOUND THEN
            outcome := 'not_found';
            RETURN;
        END IF;
        SELECT * INTO v_begun FROM access_begin_idempotent(
            p_project, p_caller, p_scope_hash, p_fingerprint, p_lock_number);
        IF v_begun.outcome <> 'run' THEN
            outcome := v_begun.outcome;
            info := v_begun.body::json;
            RETURN;
        END IF;
    END IF;

    -- The row lock hands out the numbers. A Postgres sequence is not in commit order,
    -- and a reader following it would skip a late committer for good.
    SELECT s.status, s.last_seq, s.lineage, s.lock_until, s.lock_token
      INTO v_status, v_last, v_lineage, v_lock_until, v_lock_token
      FROM agent_sessions s
     WHERE s.id = p_session AND s.project_id = p_project
       AND (p_subject IS NULL OR s.subject = p_subject)
       FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        outcome := 'not_found';
        RETURN;
    END IF;

    seqs := array_fill(NULL::bigint, ARRAY[v_count]);
    IF true = ANY (p_from_client) THEN
        FOR found_event IN
            WITH segments AS (
                SELECT p_session AS session_id, 9223372036854775807 AS upto
                UNION ALL
                SELECT (part ->> 0)::uuid, (part ->> 1)::bigint
                  FROM jsonb_array_elements(v_lineage) part
            )
            SELECT given.at::integer AS at, e.seq,
                   e.type = p_types[given.at]
                   AND e.payload::text = p_payloads[given.at] AS same
              FROM unnest(p_event_ids) WITH ORDINALITY AS given(id, at)
              JOIN segments ON p_from_client[given.at]
              JOIN agent_events e
                ON e.project_id = p_project AND e.session_id = segments.session_id
               AND e.event_id = given.id AND e.seq <= segments.upto
        LOOP
            seqs[found_event.at] := found_event.seq;
            IF NOT found_event.same THEN
                v_reused := v_reused || (found_event.at - 1);
            END IF;
        END LOOP;
        IF cardinality(v_reused) > 0 THEN
            outcome := 'event_id_reused';
            info := to_json(v_reused);
            RETURN;
        END IF;
    END IF;

    IF array_position(seqs, NULL) IS NOT NULL THEN
        last_seq := v_last;
        IF NOT p_by_server THEN
            IF v_status <> 'open' THEN
                outcome := 'session_closed';
                info := json_build_object('status', v_status);
                RETURN;
            END IF;
            IF p_lock IS NOT NULL AND (
                v_lock_token IS DISTINCT FROM p_lock OR v_lock_until <= v_now
            ) THEN
                outcome := 'lock_lost';
                RETURN;
            END IF;
            IF p_lock IS NULL AND v_lock_until > v_now THEN
                outcome := 'session_locked';
                info := json_build_object('lock_until', v_lock_until);
                RETURN;
            END IF;
        END IF;
        IF p_expected IS NOT NULL AND p_expected <> v_last THEN
            outcome := 'seq_conflict';
            RETURN;
        END IF;

        v_next := v_last;
        FOR at IN 1 .. v_count LOOP
            IF seqs[at] IS NULL THEN
                v_next := v_next + 1;
                v_bytes := v_bytes + octet_length(p_payloads[at]);
                IF p_call_ids[at] IS NOT NULL THEN
                    IF p_types[at] = 'tool.call' THEN
                        INSERT INTO agent_tool_calls (
                            project_id, session_id, call_seq, tool_call_id, name,
                            awaiting, result_synthetic
                        ) VALUES (
                            p_project, p_session, v_next, p_call_ids[at],
                            p_call_names[at], p_call_awaiting[at], false
                        );
                    ELSE
                        -- Ids repeat: a result answers the latest open call of its
                        -- id, or replaces a stand-in if none is open.
                        UPDATE agent_tool_calls
                           SET result_seq = v_next, result_synthetic = p_synthetic[at]
                         WHERE id = (
                            SELECT c.id FROM agent_tool_calls c
                             WHERE c.project_id = p_project
                               AND c.session_id = p_session
                               AND c.tool_call_id = p_call_ids[at]
                               AND (c.result_seq IS NULL OR c.result_synthetic)
                               AND (c.result_seq IS NULL OR NOT p_synthetic[at])
                             ORDER BY c.result_seq IS NOT NULL, c.call_seq DESC
                             LIMIT 1
                         );
                    END IF;
                END IF;
                seqs[at] := -v_next;  -- negative: to be inserted below
            END IF;
        END LOOP;

        INSERT INTO agent_events (
            project_id, session_id, seq, event_id, type, payload, payload_bytes,
            run_id, step_id, actor, occurred_at, created_at, gen, xid
        )
        SELECT p_project, p_session, -seqs[n.at], n.id, n.type, n.payload::json,
               octet_length(n.payload), n.run, n.step, p_actor, n.occurred, v_now,
               agentstate_feed_generation(), pg_current_xact_id()
          FROM unnest(p_event_ids, p_types, p_payloads, p_runs, p_steps, p_occurred)
               WITH ORDINALITY AS n(id, type, payload, run, step, occurred, at)
         WHERE seqs[n.at] < 0
         ORDER BY n.at;

        UPDATE agent_sessions s
           SET last_seq = v_next,
               log_bytes = s.log_bytes + v_bytes,
               updated_at = v_now,
               active_at = CASE WHEN v_now >= s.active_at + interval '1 minute'
                                THEN date_trunc('minute', v_now)
                                ELSE s.active_at END
         WHERE s.id = p_session AND s.project_id = p_project;

        FOR at IN 1 .. v_count LOOP
            seqs[at] := abs(seqs[at]);
        END LOOP;
    END IF;

    outcome := 'appended';
    SELECT max(n) INTO last_seq FROM unnest(seqs) AS n;
    IF p_scope_hash IS NOT NULL THEN
        PERFORM access_store_answer(
            p_project, p_caller, p_scope_hash, p_fingerprint, p_session, 201::smallint,
            '{}', (
                SELECT json_build_object(
                    'events', json_agg(
                        json_build_object('id', p_event_ids[n.at], 'seq', n.seq)
                        ORDER BY n.at),
                    'last_seq', last_seq)::text
                  FROM unnest(seqs) WITH ORDINALITY AS n(seq, at)
            ), p_keep_hours);
    END IF;
END $$;
"""

SIGNATURE = """agentstate_append_events(
    uuid, uuid, uuid[], boolean[], text[], text[], uuid[], uuid[], timestamptz[],
    text[], text[], text[], boolean[], text, boolean, bigint, uuid, text, uuid, bytea,
    bytea, bigint, integer
)"""

GENERATION = """
CREATE FUNCTION agentstate_feed_generation() RETURNS smallint
LANGUAGE sql STABLE AS $$
    SELECT gen FROM agent_feed_generations ORDER BY gen DESC LIMIT 1
$$;
"""


class Migration(migrations.Migration):
    dependencies = [
        ("sessions_app", "0002_append_only_log"),
        ("access_app", "0003_idempotency_functions"),
    ]

    operations = [
        migrations.RunSQL(GENERATION, "DROP FUNCTION agentstate_feed_generation()"),
        migrations.RunSQL(FORWARD, f"DROP FUNCTION {SIGNATURE}"),
    ]
