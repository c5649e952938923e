"""Which vector a row has, and whether it stands for it; see 0008."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("memory_app", "0006_scoped_terms")]

    operations = [
        migrations.AddField(
            model_name="factembedding",
            name="vector_key",
            field=models.BigIntegerField(null=True),
        ),
        migrations.AddField(
            model_name="factembedding",
            name="stands_for_vector",
            field=models.BooleanField(db_default=False),
        ),
    ]
