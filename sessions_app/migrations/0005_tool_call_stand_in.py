from django.db import migrations, models

FORWARD = """
-- A real result replaces a stand-in; where the stand-in stood is kept, so that a replay
-- or a fork from between the two finds the call as it was then.
CREATE FUNCTION agentstate_keep_stand_in() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.stand_in_seq := OLD.result_seq;
    RETURN NEW;
END $$;

CREATE TRIGGER tool_call_stand_in
    BEFORE UPDATE ON agent_tool_calls FOR EACH ROW
    WHEN (OLD.result_synthetic AND NOT NEW.result_synthetic)
    EXECUTE FUNCTION agentstate_keep_stand_in();
"""

REVERSE = """
DROP TRIGGER tool_call_stand_in ON agent_tool_calls;
DROP FUNCTION agentstate_keep_stand_in();
"""


class Migration(migrations.Migration):
    dependencies = [("sessions_app", "0004_write_state")]

    operations = [
        migrations.AddField(
            "toolcall", "stand_in_seq", models.BigIntegerField(null=True)
        ),
        migrations.RunSQL(FORWARD, REVERSE),
    ]
