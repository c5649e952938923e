"""Indexes of what is past, and of what is pinned, for the search over a whole project.

Past facts are few beside the current ones, and so are these indexes. Made beside running
work; the version before searches on without them.
"""

from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models
from django.db.models import Q

TERMS = """
CREATE INDEX CONCURRENTLY IF NOT EXISTS memory_past_terms ON agent_memory
    USING gin (memory_term_keys(project_id, terms))
    WHERE status IN ('superseded', 'expired')
"""


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("memory_app", "0008_distinct_vectors")]

    operations = [
        migrations.RunSQL(
            TERMS, "DROP INDEX CONCURRENTLY IF EXISTS memory_past_terms"
        ),
        AddIndexConcurrently(
            model_name="factembedding",
            index=models.Index(
                fields=["project", "model", "subject"],
                name="memory_vectors_past",
                condition=Q(is_current=False),
            ),
        ),
        AddIndexConcurrently(
            model_name="fact",
            index=models.Index(
                fields=["project", "id"],
                name="memory_pinned",
                condition=Q(pinned=True),
            ),
        ),
    ]
