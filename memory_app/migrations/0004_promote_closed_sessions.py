"""A session that closes is read for facts: noted in the very transaction that closes it.

However it is closed, it is by a session.closed event; so the event notes it, and
nothing below memory_app has to know of memory.
"""

from django.db import migrations

FORWARD = """
CREATE FUNCTION memory_note_closed_session() RETURNS trigger
LANGUAGE plpgsql AS $$
DECLARE
    -- A UUIDv7, also on a Postgres that has no function for it.
    v_id uuid := encode(set_bit(set_bit(overlay(uuid_send(gen_random_uuid()) placing
        substring(int8send((extract(epoch FROM clock_timestamp()) * 1000)::bigint)
                  FROM 3) FROM 1 FOR 6), 52, 1), 53, 1), 'hex')::uuid;
BEGIN
    INSERT INTO agent_memory_promotions (
        id, project_id, session_id, closed_seq, status, extractor, attempts, error,
        result, created_at
    ) VALUES (
        v_id, NEW.project_id, NEW.session_id, NEW.seq, 'pending', '', 0, '', '{}',
        agentstate_now()
    ) ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    -- So that it is done at once; the sweep of every minute finds it all the same.
    BEGIN
        PERFORM procrastinate_defer_jobs_v1(ARRAY[ROW(
            'default', 'memory_app.promote_session', 0, NULL, NULL,
            jsonb_build_object('promotion_id', v_id::text), NULL
        )::procrastinate_job_to_defer_v1]);
    EXCEPTION WHEN undefined_function OR undefined_object THEN
        NULL;
    END;
    RETURN NULL;
END $$;

CREATE TRIGGER memory_session_closed
    AFTER INSERT ON agent_events
    FOR EACH ROW WHEN (NEW.type = 'session.closed')
    EXECUTE FUNCTION memory_note_closed_session();
"""

REVERSE = """
DROP TRIGGER memory_session_closed ON agent_events;
DROP FUNCTION memory_note_closed_session();
"""


class Migration(migrations.Migration):
    dependencies = [
        ("memory_app", "0003_receipt_reason"),
        ("sessions_app", "0006_redact_events"),
        ("procrastinate", "__latest__"),
    ]

    operations = [migrations.RunSQL(FORWARD, REVERSE)]
