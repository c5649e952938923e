"""A run by its key, found without its session and without reading the project."""

from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models
from django.db.models import Q


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("runs_app", "0008_root_index")]

    operations = [
        AddIndexConcurrently(
            model_name="run",
            index=models.Index(
                fields=["project", "key", "id"],
                name="run_key",
                condition=Q(key__isnull=False),
            ),
        ),
    ]
