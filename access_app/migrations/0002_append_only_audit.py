"""The audit log only grows: the database refuses every other change of it."""

from django.db import migrations

# What a name in pg_proc calls, not a setting, opens the way: a setting can be set by
# anybody, while the call stack says which function is really running.
CREATE_GUARD = r"""
CREATE FUNCTION access_audit_guard() RETURNS trigger
LANGUAGE plpgsql AS $$
DECLARE
  stack text;
BEGIN
  GET DIAGNOSTICS stack = PG_CONTEXT;
  IF TG_OP = 'UPDATE'
     AND stack ~ '(^|\n)[^\n"]*[^\n".]\yagentstate_redact_audit\(uuid' THEN
    RETURN NEW;
  END IF;
  RAISE EXCEPTION 'access_audit is append-only: % is refused', TG_OP
    USING ERRCODE = 'restrict_violation';
END
$$;

CREATE TRIGGER access_audit_append_only
  BEFORE UPDATE OR DELETE ON access_audit
  FOR EACH ROW EXECUTE FUNCTION access_audit_guard();

CREATE TRIGGER access_audit_no_truncate
  BEFORE TRUNCATE ON access_audit
  FOR EACH STATEMENT EXECUTE FUNCTION access_audit_guard();
"""

# Personal text leaves an entry; who did what to what, and when, stays.
CREATE_REDACT = """
CREATE FUNCTION agentstate_redact_audit(p_project uuid, p_entries uuid[])
RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
  redacted bigint;
BEGIN
  UPDATE access_audit SET before = NULL, after = NULL, reason = ''
   WHERE project_id = p_project AND id = ANY(p_entries);
  GET DIAGNOSTICS redacted = ROW_COUNT;
  RETURN redacted;
END
$$
"""


class Migration(migrations.Migration):
    dependencies = [("access_app", "0001_initial")]

    operations = [
        migrations.RunSQL(
            CREATE_GUARD,
            "DROP TRIGGER access_audit_no_truncate ON access_audit;"
            "DROP TRIGGER access_audit_append_only ON access_audit;"
            "DROP FUNCTION access_audit_guard()",
        ),
        migrations.RunSQL(
            CREATE_REDACT, "DROP FUNCTION agentstate_redact_audit(uuid, uuid[])"
        ),
    ]
