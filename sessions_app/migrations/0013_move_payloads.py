"""Large payloads that were appended within the row can move to the store later."""

from importlib import import_module

from django.db import migrations

stored_payloads = import_module("sessions_app.migrations.0011_stored_payloads").FORWARD
TRIGGER_BEFORE = stored_payloads[: stored_payloads.index("-- Say of events")]
REDACT_BEFORE = stored_payloads[stored_payloads.index("-- As before;") :]

# One function more may change the log.
TRIGGER = TRIGGER_BEFORE.replace("store_payloads", "store_payloads|move_payload")

# The version is read from the text: ->> refuses a payload that holds U+0000, so that
# nothing could be forgotten in a session whose state ever held it.
REDACT = REDACT_BEFORE.replace(
    "(e.payload ->> 'version')::bigint",
    """substring(left(e.payload::text, 40)
                                            from '^[{]"version":([0-9]+)')::bigint""",
)

MOVE = """
-- Put a stub in the place of a payload that lies in the store by now, as p_blob. Its
-- size, and what the session's row counts of it, stay. False if the event is not there
-- with this very text: redacted, erased, passed on or moved meanwhile. The caller has
-- locked the session's row.
CREATE FUNCTION agentstate_move_payload(
    p_project uuid, p_session uuid, p_id bigint, p_sha256 text, p_stub text, p_blob uuid
) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    UPDATE agent_events e
       SET payload = p_stub::json, blob_id = p_blob
     WHERE e.id = p_id AND e.project_id = p_project AND e.session_id = p_session
       AND e.blob_id IS NULL
       AND encode(sha256(convert_to(e.payload::text, 'UTF8')), 'hex') = p_sha256;
    RETURN FOUND;
END $$;
"""

BACK = """
DROP FUNCTION agentstate_move_payload(uuid, uuid, bigint, text, text, uuid);
"""


class Migration(migrations.Migration):
    dependencies = [("sessions_app", "0012_stored_payload_index")]

    operations = [
        migrations.RunSQL(TRIGGER, TRIGGER_BEFORE),
        migrations.RunSQL(REDACT, REDACT_BEFORE),
        migrations.RunSQL(MOVE, BACK),
    ]
