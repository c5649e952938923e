"""An index of child runs under way, made beside running work."""

from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models
from django.db.models import Q

OPEN = ("queued", "running", "waiting", "paused", "cancelling")


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("runs_app", "0005_handoffs")]

    operations = [
        AddIndexConcurrently(
            model_name="run",
            index=models.Index(
                fields=["project", "parent_run_id"],
                name="run_open_child",
                condition=Q(parent_run_id__isnull=False) & Q(state__in=OPEN),
            ),
        ),
    ]
