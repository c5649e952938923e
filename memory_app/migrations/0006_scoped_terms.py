"""Terms by project, for the search over a whole one; made beside running work.

An index of terms alone is read through the facts of all other projects that have the
term. Hashes, because numbers are compared faster and take less room; a hash that two
terms share only offers a fact that is then scored by its terms.
"""

from django.contrib.postgres.operations import RemoveIndexConcurrently
from django.db import migrations

FUNCTION = """
CREATE OR REPLACE FUNCTION memory_term_keys(project uuid, terms text[]) RETURNS bigint[]
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT coalesce(
        array_agg(DISTINCT hashtextextended(term, uuid_hash_extended(project, 0))),
        '{}'
    )
    FROM unnest(terms) AS term
$$;
"""

INDEX = """
CREATE INDEX CONCURRENTLY IF NOT EXISTS memory_scoped_terms ON agent_memory
    USING gin (memory_term_keys(project_id, terms)) WHERE status = 'active'
"""
# How common a term is comes from the statistics: more of them than Postgres' usual.
STATISTICS = """
ALTER INDEX memory_scoped_terms ALTER COLUMN 1 SET STATISTICS 500
"""


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("memory_app", "0005_fact_source_agent")]

    operations = [
        migrations.RunSQL(FUNCTION, "DROP FUNCTION memory_term_keys(uuid, text[])"),
        migrations.RunSQL(
            [INDEX, STATISTICS],
            "DROP INDEX CONCURRENTLY IF EXISTS memory_scoped_terms",
        ),
        # The version before searches on without it, only slower.
        RemoveIndexConcurrently(model_name="fact", name="memory_terms"),
    ]
