"""The run under way at some seq is found by an index; made beside running appends."""

from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("sessions_app", "0008_event_created")]

    operations = [
        AddIndexConcurrently(
            model_name="event",
            index=models.Index(
                condition=models.Q(("type__in", ("run.created", "run.begun"))),
                fields=["project", "session", "seq"],
                name="event_run_begins",
            ),
        ),
    ]
