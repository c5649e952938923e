from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("sessions_app", "0006_redact_events")]

    operations = [
        migrations.AddIndex(
            "event",
            models.Index(
                condition=models.Q(type__in=("context.compacted", "context.restored")),
                fields=["project", "session", "seq"],
                name="event_context",
            ),
        ),
    ]
