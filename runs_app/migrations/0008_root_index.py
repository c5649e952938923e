"""The runs below a run, found without reading all of the project."""

from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models
from django.db.models import Q


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("runs_app", "0007_fewer_statements")]

    operations = [
        AddIndexConcurrently(
            model_name="run",
            index=models.Index(
                fields=["project", "root_run_id", "id"],
                name="run_root",
                condition=Q(root_run_id__isnull=False),
            ),
        ),
    ]
