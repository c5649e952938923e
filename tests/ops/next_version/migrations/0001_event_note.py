from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("sessions_app", "0009_event_run_begins")]

    operations = [
        migrations.RunSQL(
            "ALTER TABLE agent_events ADD COLUMN note text",
            "ALTER TABLE agent_events DROP COLUMN note",
        )
    ]
