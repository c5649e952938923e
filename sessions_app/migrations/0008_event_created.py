"""A small index by time, for the pages' days and charts; made beside running appends."""

from django.contrib.postgres.indexes import BrinIndex
from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("sessions_app", "0007_context_index")]

    operations = [
        AddIndexConcurrently(
            model_name="event",
            index=BrinIndex(
                autosummarize=True,
                fields=["project", "created_at"],
                name="event_created",
                pages_per_range=32,
            ),
        ),
    ]
