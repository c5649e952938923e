"""A graph of vectors with more links, made with more care, so that a search finds more.

Facts of one kind are near to one another and far from the rest. With the usual number of
links a search among a million did not get to many such groups, however long it looked.

The old index serves until the new one is there. The version before uses either.
"""

from django.db import migrations

INDEX = """
CREATE INDEX CONCURRENTLY IF NOT EXISTS memory_vectors_linked
    ON agent_memory_embeddings
    USING hnsw ((embedding::halfvec(256)) halfvec_cosine_ops)
    WITH (m = 24, ef_construction = 200)
    WHERE stands_for_vector AND model = 'potion-base-8M'
"""
OLD = """
CREATE INDEX CONCURRENTLY IF NOT EXISTS memory_vectors_distinct
    ON agent_memory_embeddings
    USING hnsw ((embedding::halfvec(256)) halfvec_cosine_ops)
    WHERE stands_for_vector AND model = 'potion-base-8M'
"""


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("memory_app", "0009_past_facts")]

    operations = [
        migrations.RunSQL(
            INDEX, "DROP INDEX CONCURRENTLY IF EXISTS memory_vectors_linked"
        ),
        migrations.RunSQL(
            "DROP INDEX CONCURRENTLY IF EXISTS memory_vectors_distinct", OLD
        ),
    ]
