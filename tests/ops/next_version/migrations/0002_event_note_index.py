from django.db import migrations


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("next_version", "0001_event_note")]

    operations = [
        migrations.RunSQL(
            'CREATE INDEX CONCURRENTLY "event_note" ON agent_events (project_id, note)',
            'DROP INDEX CONCURRENTLY "event_note"',
        )
    ]
