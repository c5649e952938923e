"""How many bytes a project has in the store, counted where blobs come and go."""

import django.db.models.deletion
from django.db import migrations, models

# Appended, never updated: to count, nobody waits for a lock, so a transaction that
# holds sessions cannot meet another here. Sums are folded by those who ask for room.
COUNT = """
CREATE FUNCTION agentstate_count_bytes() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO agent_stored_bytes (project_id, bytes)
    SELECT b.project_id,
           sum(b.size) * CASE TG_OP WHEN 'DELETE' THEN -1 ELSE 1 END
      FROM changed b GROUP BY b.project_id;
    RETURN NULL;
END $$;

-- What is there is counted while nobody adds to it.
LOCK TABLE agent_blobs IN SHARE ROW EXCLUSIVE MODE;
INSERT INTO agent_stored_bytes (project_id, bytes)
SELECT project_id, sum(size) FROM agent_blobs GROUP BY project_id;

CREATE TRIGGER blob_bytes_added AFTER INSERT ON agent_blobs
    REFERENCING NEW TABLE AS changed
    FOR EACH STATEMENT EXECUTE FUNCTION agentstate_count_bytes();
CREATE TRIGGER blob_bytes_removed AFTER DELETE ON agent_blobs
    REFERENCING OLD TABLE AS changed
    FOR EACH STATEMENT EXECUTE FUNCTION agentstate_count_bytes();
"""
BACK = """
DROP TRIGGER blob_bytes_added ON agent_blobs;
DROP TRIGGER blob_bytes_removed ON agent_blobs;
DROP FUNCTION agentstate_count_bytes();
DELETE FROM agent_stored_bytes;
"""


class Migration(migrations.Migration):
    dependencies = [
        ("access_app", "0001_initial"),
        ("sessions_app", "0014_large_payload_index"),
    ]

    operations = [
        migrations.CreateModel(
            name="StoredBytes",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("bytes", models.BigIntegerField()),
                (
                    "project",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        related_name="+",
                        to="access_app.project",
                    ),
                ),
            ],
            options={"db_table": "agent_stored_bytes"},
        ),
        migrations.AddIndex(
            "storedbytes",
            models.Index(fields=["project"], name="stored_bytes_project"),
        ),
        migrations.RunSQL(COUNT, BACK),
    ]
