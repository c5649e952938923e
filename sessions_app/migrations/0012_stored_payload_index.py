"""Which events hold a blob is found by an index; made beside running appends."""

from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("sessions_app", "0011_stored_payloads")]

    operations = [
        AddIndexConcurrently(
            model_name="event",
            index=models.Index(
                condition=models.Q(("blob_id__isnull", False)),
                fields=["project", "session", "blob_id"],
                name="event_blob",
            ),
        ),
    ]
