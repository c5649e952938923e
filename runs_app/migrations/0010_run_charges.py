"""What the runs below a run have used of its budget."""

from decimal import Decimal

from django.db import migrations, models


def amount() -> models.BigIntegerField:
    return models.BigIntegerField(default=0, db_default=0)


def money() -> models.DecimalField:
    return models.DecimalField(
        max_digits=20, decimal_places=6, default=0, db_default=Decimal(0)
    )


class Migration(migrations.Migration):
    dependencies = [("runs_app", "0009_key_index")]

    operations = [
        migrations.AddField("run", "below_tool_calls", amount()),
        migrations.AddField("run", "below_tokens", amount()),
        migrations.AddField("run", "below_cost", money()),
        migrations.AddField("run", "charged_tool_calls", amount()),
        migrations.AddField("run", "charged_tokens", amount()),
        migrations.AddField("run", "charged_cost", money()),
        migrations.AddField(
            "run", "is_charged", models.BooleanField(default=False, db_default=False)
        ),
    ]
