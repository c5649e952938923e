"""The runs below a run whose use is not charged to it yet: few, and asked for often."""

from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models
from django.db.models import Q


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("runs_app", "0010_run_charges")]

    operations = [
        AddIndexConcurrently(
            model_name="run",
            index=models.Index(
                fields=["project", "parent_run_id"],
                name="run_uncharged",
                condition=Q(parent_run_id__isnull=False) & Q(is_charged=False),
            ),
        ),
    ]
