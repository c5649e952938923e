"""Idempotent calls, one round trip to begin and one to store the answer."""

from django.db import migrations

# Looks before it locks, so that two replays do not hinder each other, and again after,
# for an answer that was committed in between (each statement has its own snapshot).
CREATE_BEGIN = """
CREATE FUNCTION access_begin_idempotent(
  p_project uuid, p_caller uuid, p_scope bytea, p_fingerprint bytea, p_lock bigint,
  OUT outcome text, OUT status smallint, OUT headers json, OUT body text
)
LANGUAGE plpgsql AS $$
DECLARE
  is_locked boolean := false;
  stored access_idempotency;
BEGIN
  LOOP
    SELECT * INTO stored FROM access_idempotency r
     WHERE r.project_id = p_project AND r.caller_key_id = p_caller
       AND r.scope_hash = p_scope AND r.expires_at > agentstate_now();
    IF FOUND THEN
      IF stored.fingerprint <> p_fingerprint THEN
        outcome := 'reused';
      ELSE
        outcome := 'replay';
        status := stored.status;
        headers := stored.headers;
        body := stored.body;
      END IF;
      RETURN;
    END IF;
    IF is_locked THEN
      outcome := 'run';
      RETURN;
    END IF;
    IF NOT pg_try_advisory_xact_lock(p_lock) THEN
      outcome := 'busy';
      RETURN;
    END IF;
    is_locked := true;
  END LOOP;
END
$$
"""

# What is already there under this key has expired: nothing else gets past the lock.
CREATE_STORE = """
CREATE FUNCTION access_store_answer(
  p_project uuid, p_caller uuid, p_scope bytea, p_fingerprint bytea, p_session uuid,
  p_status smallint, p_headers json, p_body text, p_hours integer
)
RETURNS void
LANGUAGE sql AS $$
  INSERT INTO access_idempotency AS r (
    project_id, caller_key_id, scope_hash, fingerprint, session_id,
    status, headers, body, created_at, expires_at
  ) VALUES (
    p_project, p_caller, p_scope, p_fingerprint, p_session,
    p_status, p_headers, p_body, agentstate_now(),
    agentstate_now() + make_interval(hours => p_hours)
  )
  ON CONFLICT (project_id, caller_key_id, scope_hash) DO UPDATE SET
    fingerprint = excluded.fingerprint, session_id = excluded.session_id,
    status = excluded.status, headers = excluded.headers, body = excluded.body,
    created_at = excluded.created_at, expires_at = excluded.expires_at
$$
"""


class Migration(migrations.Migration):
    dependencies = [("access_app", "0002_append_only_audit")]

    operations = [
        migrations.RunSQL(
            CREATE_BEGIN,
            "DROP FUNCTION access_begin_idempotent(uuid, uuid, bytea, bytea, bigint)",
        ),
        migrations.RunSQL(
            CREATE_STORE,
            "DROP FUNCTION access_store_answer(uuid, uuid, bytea, bytea, uuid,"
            " smallint, json, text, integer)",
        ),
    ]
