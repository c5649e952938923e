"""Large payloads that lie in their rows are found by an index, the largest first."""

from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("sessions_app", "0013_move_payloads")]

    operations = [
        AddIndexConcurrently(
            model_name="event",
            index=models.Index(
                condition=models.Q(
                    ("blob_id__isnull", True), ("payload_bytes__gt", 65536)
                ),
                fields=["payload_bytes"],
                name="event_large_payload",
            ),
        ),
    ]
