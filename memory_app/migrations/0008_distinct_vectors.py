"""Each vector stands once in the index, however many facts have it.

What many people say alike has one vector. In a graph of neighbours (HNSW) thousands of
equal points have no neighbours but one another, and a search that gets in there does
not get out. So the first fact of a project with a vector stands for all that have it;
when it goes, the trigger lets another take its place. Two that were written at the same
moment may both stand, which does no harm.

All of it can be done again, so that the migration may be stopped anywhere.
"""

from django.db import connection, migrations, models
from django.db.models import Q

BATCH = 5_000

TRIGGERS = """
CREATE OR REPLACE FUNCTION memory_vector_key(embedding vector) RETURNS bigint
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$
    SELECT hashtextextended(md5(vector_send(embedding)), 0)
$$;

CREATE OR REPLACE FUNCTION memory_stand_for_vector() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    NEW.vector_key := memory_vector_key(NEW.embedding);
    NEW.stands_for_vector := NEW.is_current AND NOT EXISTS (
        SELECT FROM agent_memory_embeddings e
         WHERE e.project_id = NEW.project_id AND e.model = NEW.model
           AND e.vector_key = NEW.vector_key AND e.stands_for_vector AND e.is_current
           AND e.memory_id <> NEW.memory_id
    );
    RETURN NEW;
END $$;

CREATE OR REPLACE TRIGGER memory_vector_written
    BEFORE INSERT OR UPDATE OF embedding, is_current, model ON agent_memory_embeddings
    FOR EACH ROW EXECUTE FUNCTION memory_stand_for_vector();

CREATE OR REPLACE FUNCTION memory_pass_vector_on() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'UPDATE' AND NEW.stands_for_vector
       AND NEW.vector_key = OLD.vector_key AND NEW.model = OLD.model THEN
        RETURN NULL;
    END IF;
    UPDATE agent_memory_embeddings SET stands_for_vector = true
     WHERE id = (
        SELECT e.id FROM agent_memory_embeddings e
         WHERE e.project_id = OLD.project_id AND e.model = OLD.model
           AND e.vector_key = OLD.vector_key AND e.is_current AND e.id <> OLD.id
         ORDER BY e.id LIMIT 1 FOR UPDATE SKIP LOCKED
    );
    RETURN NULL;
END $$;

CREATE OR REPLACE TRIGGER memory_vector_gone
    AFTER DELETE OR UPDATE OF embedding, is_current, model ON agent_memory_embeddings
    FOR EACH ROW WHEN (OLD.stands_for_vector)
    EXECUTE FUNCTION memory_pass_vector_on();
"""
REVERSE = """
DROP TRIGGER memory_vector_gone ON agent_memory_embeddings;
DROP TRIGGER memory_vector_written ON agent_memory_embeddings;
DROP FUNCTION memory_pass_vector_on();
DROP FUNCTION memory_stand_for_vector();
DROP FUNCTION memory_vector_key(vector);
"""
KEY_INDEX = """
CREATE INDEX CONCURRENTLY IF NOT EXISTS memory_vector_key
    ON agent_memory_embeddings (project_id, model, vector_key, stands_for_vector)
    WHERE is_current
"""
INDEX = """
CREATE INDEX CONCURRENTLY IF NOT EXISTS memory_vectors_distinct
    ON agent_memory_embeddings
    USING hnsw ((embedding::halfvec(256)) halfvec_cosine_ops)
    WHERE stands_for_vector AND model = 'potion-base-8M'
"""


def fill_in(apps, schema_editor):
    """Have the trigger look at what was written before it, a batch at a time."""
    after = 0
    while True:
        with connection.cursor() as cursor:
            cursor.execute(
                "WITH batch AS (SELECT id FROM agent_memory_embeddings"
                "  WHERE id > %s AND vector_key IS NULL ORDER BY id LIMIT %s),"
                " done AS (UPDATE agent_memory_embeddings e"
                "  SET is_current = e.is_current FROM batch WHERE e.id = batch.id"
                "  RETURNING e.id)"
                " SELECT max(id) FROM done",
                [after, BATCH],
            )
            [last] = cursor.fetchone()
        if last is None:
            return
        after = last


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("memory_app", "0007_vector_key")]

    operations = [
        migrations.SeparateDatabaseAndState(
            database_operations=[
                migrations.RunSQL(
                    KEY_INDEX, "DROP INDEX CONCURRENTLY IF EXISTS memory_vector_key"
                )
            ],
            state_operations=[
                migrations.AddIndex(
                    model_name="factembedding",
                    index=models.Index(
                        fields=["project", "model", "vector_key", "stands_for_vector"],
                        name="memory_vector_key",
                        condition=Q(is_current=True),
                    ),
                )
            ],
        ),
        migrations.RunSQL(TRIGGERS, REVERSE),
        # The version before searches exactly without it, only slower. First, because
        # every row is written anew, and would be put into it anew.
        migrations.RunSQL(
            "DROP INDEX CONCURRENTLY IF EXISTS memory_vectors_packaged",
            migrations.RunSQL.noop,
        ),
        migrations.RunPython(fill_in, migrations.RunPython.noop),
        migrations.RunSQL(
            INDEX, "DROP INDEX CONCURRENTLY IF EXISTS memory_vectors_distinct"
        ),
    ]
