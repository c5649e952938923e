"""What the models cannot say: the subjects' versions, and that no change is silent."""

from django.db import migrations

FORWARD = """
-- One sequence for all subjects: a version is never used twice, not even by a subject
-- that was forgotten and began anew, so that nothing read before can pass for new.
CREATE SEQUENCE agent_memory_versions;

-- A fact never changes without its version, and no version is without its revision:
-- whatever code, shell or script does it.
CREATE FUNCTION memory_refuse_silent_change() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.version <> OLD.version + 1 AND (
        NEW.fact, NEW.key, NEW.kind, NEW.status, NEW.confidence, NEW.pinned,
        NEW.metadata::text, NEW.valid_from, NEW.valid_to, NEW.expires_at,
        NEW.superseded_by, NEW.conflicts_with, NEW.note, NEW.settled_by, NEW.subject,
        NEW.source_kind, NEW.version
    ) IS DISTINCT FROM (
        OLD.fact, OLD.key, OLD.kind, OLD.status, OLD.confidence, OLD.pinned,
        OLD.metadata::text, OLD.valid_from, OLD.valid_to, OLD.expires_at,
        OLD.superseded_by, OLD.conflicts_with, OLD.note, OLD.settled_by, OLD.subject,
        OLD.source_kind, OLD.version
    ) THEN
        RAISE EXCEPTION 'agent_memory: a change needs the next version and a revision'
            USING ERRCODE = 'restrict_violation';
    END IF;
    RETURN NEW;
END $$;

CREATE TRIGGER memory_no_silent_change
    BEFORE UPDATE ON agent_memory
    FOR EACH ROW EXECUTE FUNCTION memory_refuse_silent_change();

CREATE FUNCTION memory_require_revision() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    IF NOT EXISTS (
        SELECT FROM agent_memory_revisions r
         WHERE r.project_id = NEW.project_id AND r.memory_id = NEW.id
           AND r.version = NEW.version
    ) AND EXISTS (
        SELECT FROM agent_memory m
         WHERE m.project_id = NEW.project_id AND m.id = NEW.id
           AND m.version = NEW.version
    ) THEN
        RAISE EXCEPTION 'agent_memory: version % has no revision', NEW.version
            USING ERRCODE = 'restrict_violation';
    END IF;
    RETURN NULL;
END $$;

CREATE CONSTRAINT TRIGGER memory_has_revision
    AFTER INSERT OR UPDATE OF version ON agent_memory
    DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION memory_require_revision();
"""

REVERSE = """
DROP TRIGGER memory_has_revision ON agent_memory;
DROP FUNCTION memory_require_revision();
DROP TRIGGER memory_no_silent_change ON agent_memory;
DROP FUNCTION memory_refuse_silent_change();
DROP SEQUENCE agent_memory_versions;
"""

# For the search over a whole project; a subject is searched exactly. Half precision: as
# good for ranking, at half the size. Other models' indexes are made when they are
# complete (manage.py reembed).
INDEX = """
CREATE INDEX memory_vectors_packaged ON agent_memory_embeddings
    USING hnsw ((embedding::halfvec(256)) halfvec_cosine_ops)
    WHERE is_current AND model = 'potion-base-8M'
"""


class Migration(migrations.Migration):
    dependencies = [("memory_app", "0001_initial")]

    operations = [
        migrations.RunSQL(FORWARD, REVERSE),
        migrations.RunSQL(INDEX, "DROP INDEX memory_vectors_packaged"),
    ]
