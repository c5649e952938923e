"""Sessions, their append-only log, and what is derived from it."""

from django.contrib.postgres.indexes import BrinIndex, GinIndex, OpClass
from django.db import models
from django.db.models import Q

from access_app.models import Project
from agentstate.clock import Now
from agentstate.fields import ExactJSONField, Xid8Field, plain_link
from agentstate.ids import new_id
from sessions_app.event_types import (
    CONTEXT_TYPES,
    CONVERSATION_TYPES,
    RUN_BEGINNINGS,
)
from sessions_app.querysets import (
    SEARCH_TEXT,
    ArtifactQuerySet,
    EventQuerySet,
    SessionQuerySet,
)

# Of a payload that lies in its row: larger ones are found by an index, to be moved.
MOVED_ABOVE_BYTES = 64 * 1024


class SessionStatus(models.TextChoices):
    OPEN = "open"
    CLOSED = "closed"
    ARCHIVED = "archived"


class Session(models.Model):
    """One conversation of an agent: its log's head, and its state.

    No index covers what an append changes (last_seq, updated_at), so that an append
    rewrites no index. `lineage` is empty except in forks: there it lists
    `[session_id, upto_seq]` from the oldest ancestor on, whose rows are the beginning
    of this log (see sessions_app.log).
    """

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    project = models.ForeignKey(
        Project, on_delete=models.CASCADE, related_name="+", db_index=False
    )
    key = models.TextField(null=True)
    agent = models.TextField(default="", blank=True)
    subject = models.TextField(default="", blank=True)
    title = models.TextField(default="", blank=True)
    status = models.TextField(choices=SessionStatus.choices, default=SessionStatus.OPEN)
    labels = models.JSONField(default=dict, blank=True)
    metadata = ExactJSONField(default=dict)
    state = ExactJSONField(default=dict)
    version = models.BigIntegerField(default=0)
    last_seq = models.BigIntegerField(default=0)
    log_bytes = models.BigIntegerField(default=0)
    parent = models.ForeignKey(
        "self",
        null=True,
        on_delete=models.DO_NOTHING,
        related_name="forks",
        db_constraint=False,
        db_index=False,
    )
    forked_from_seq = models.BigIntegerField(null=True)
    lineage = models.JSONField(default=list)
    snapshot_version = models.BigIntegerField(default=0)
    patch_bytes = models.BigIntegerField(default=0)
    lock_fence = models.BigIntegerField(default=0)
    lock_token = models.UUIDField(null=True)
    lock_holder = models.TextField(default="", blank=True)
    lock_until = models.DateTimeField(null=True)
    created_at = models.DateTimeField(db_default=Now())
    updated_at = models.DateTimeField(db_default=Now())
    active_at = models.DateTimeField(db_default=Now())
    closed_at = models.DateTimeField(null=True)
    expires_at = models.DateTimeField(null=True)

    objects = SessionQuerySet.as_manager()

    class Meta:
        db_table = "agent_sessions"
        constraints = [
            models.UniqueConstraint(
                fields=["project", "key"], name="session_project_key_uniq"
            ),
            models.CheckConstraint(
                condition=Q(status__in=SessionStatus.values), name="session_status"
            ),
            models.CheckConstraint(
                condition=Q(last_seq__gte=0) & Q(version__gte=0),
                name="session_counters",
            ),
            models.CheckConstraint(
                condition=Q(parent=None, forked_from_seq=None)
                | Q(parent__isnull=False, forked_from_seq__isnull=False),
                name="session_fork_whole",
            ),
        ]
        indexes = [
            models.Index(fields=["project", "id"], name="session_project_id"),
            models.Index(fields=["project", "agent", "id"], name="session_agent"),
            models.Index(fields=["project", "subject", "id"], name="session_subject"),
            models.Index(fields=["project", "status", "id"], name="session_status_id"),
            models.Index(fields=["project", "active_at"], name="session_active"),
            models.Index(
                fields=["project", "parent"],
                name="session_parent",
                condition=Q(parent__isnull=False),
            ),
            models.Index(
                fields=["expires_at"],
                name="session_expires",
                condition=Q(expires_at__isnull=False, status="open"),
            ),
            GinIndex(
                OpClass(SEARCH_TEXT, name="gin_trgm_ops"),
                name="session_search_trgm",
            ),
            GinIndex(
                fields=["labels"], name="session_labels", opclasses=["jsonb_path_ops"]
            ),
        ]

    def __str__(self) -> str:
        return self.title or self.key or str(self.id)

    @property
    def is_open(self) -> bool:
        return self.status == SessionStatus.OPEN


class Event(models.Model):
    """One record of a session's log. Rows are never changed; a trigger refuses it.

    `id` is the feed position: with `gen` and `xid` it orders the project's feed (see
    sessions_app.feed). `seq` 0 is `session.created`; what happens then runs 1, 2, 3.
    Session, run and step are plain ids: a foreign key would cost each append a lock.
    """

    id = models.BigAutoField(primary_key=True)
    project = plain_link(Project)
    session = plain_link(Session, related_name="events")
    seq = models.BigIntegerField()
    event_id = models.UUIDField()
    type = models.TextField()
    payload = ExactJSONField()
    payload_bytes = models.IntegerField()
    # Set: the payload lies in the store, and `payload` is a stub (see payloads.py).
    blob_id = models.UUIDField(null=True)
    run_id = models.UUIDField(null=True)
    step_id = models.UUIDField(null=True)
    actor = models.TextField()
    occurred_at = models.DateTimeField(null=True)
    created_at = models.DateTimeField(db_default=Now())
    gen = models.SmallIntegerField()
    xid = Xid8Field()

    objects = EventQuerySet.as_manager()

    class Meta:
        db_table = "agent_events"
        constraints = [
            models.UniqueConstraint(
                fields=["project", "session", "seq"], name="event_session_seq_uniq"
            ),
            models.UniqueConstraint(
                fields=["project", "session", "event_id"], name="event_session_id_uniq"
            ),
            models.CheckConstraint(condition=Q(seq__gte=0), name="event_seq"),
        ]
        indexes = [
            models.Index(fields=["project", "gen", "xid", "id"], name="event_feed"),
            models.Index(
                fields=["project", "session", "seq"],
                name="event_state_changes",
                condition=Q(type="state.changed"),
            ),
            # What a replay shows is read by this, however much else the log holds.
            models.Index(
                fields=["project", "session", "seq"],
                name="event_conversation",
                condition=Q(type__in=CONVERSATION_TYPES),
            ),
            # The summaries in force: one event names them all.
            models.Index(
                fields=["project", "session", "seq"],
                name="event_context",
                condition=Q(type__in=CONTEXT_TYPES),
            ),
            # The run that was under way at some seq.
            models.Index(
                fields=["project", "session", "seq"],
                name="event_run_begins",
                condition=Q(type__in=RUN_BEGINNINGS),
            ),
            models.Index(
                fields=["project", "session", "blob_id"],
                name="event_blob",
                condition=Q(blob_id__isnull=False),
            ),
            # What is to move to the store; see sessions_app.moving.
            models.Index(
                fields=["payload_bytes"],
                name="event_large_payload",
                condition=Q(blob_id__isnull=True, payload_bytes__gt=MOVED_ABOVE_BYTES),
            ),
            # For days and charts: rows lie in the order of time, so this stays tiny,
            # and an append does not touch it.
            BrinIndex(
                fields=["project", "created_at"],
                name="event_created",
                pages_per_range=32,
                autosummarize=True,
            ),
            models.Index(
                fields=["project", "run_id", "id"],
                name="event_run",
                condition=Q(run_id__isnull=False),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.session_id} #{self.seq} {self.type}"


class ToolCall(models.Model):
    """A projection of the log: each tool call, and the result that closed it.

    `result_synthetic`: that result is a stand-in, which a real one may still replace;
    `stand_in_seq` is then kept (by a trigger), so that the past stays as it was.
    """

    project = plain_link(Project)
    session = plain_link(Session, related_name="tool_calls")
    call_seq = models.BigIntegerField()
    tool_call_id = models.TextField()
    name = models.TextField()
    awaiting = models.TextField(default="")
    result_seq = models.BigIntegerField(null=True)
    result_synthetic = models.BooleanField(default=False)
    stand_in_seq = models.BigIntegerField(null=True)

    class Meta:
        db_table = "agent_tool_calls"
        constraints = [
            models.UniqueConstraint(
                fields=["project", "session", "call_seq"], name="tool_call_seq_uniq"
            ),
            models.CheckConstraint(
                condition=Q(result_seq=None) | Q(result_seq__gt=models.F("call_seq")),
                name="tool_call_result_after",
            ),
        ]
        indexes = [
            models.Index(
                fields=["project", "session", "tool_call_id", "call_seq"],
                name="tool_call_open",
                condition=Q(result_seq=None) | Q(result_synthetic=True),
            ),
            models.Index(
                fields=["project", "session", "result_seq"], name="tool_call_result"
            ),
        ]


class Snapshot(models.Model):
    """The state as it was after event `seq`, so that a replay need not start at 1."""

    project = plain_link(Project)
    session = plain_link(Session, related_name="snapshots")
    seq = models.BigIntegerField()
    version = models.BigIntegerField()
    state = ExactJSONField()
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        db_table = "agent_snapshots"
        constraints = [
            models.UniqueConstraint(
                fields=["project", "session", "seq"], name="snapshot_seq_uniq"
            )
        ]


class Blob(models.Model):
    """Stored bytes, kept once in a project however many artifacts hold them.

    `refs` is how many do; the row goes with the last. `object_id` names the object in
    the store: made anew for each upload, so that removing one object can never meet a
    new upload of the same bytes.
    """

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    project = models.ForeignKey(
        Project, on_delete=models.CASCADE, related_name="+", db_index=False
    )
    sha256 = models.TextField()
    size = models.BigIntegerField()
    object_id = models.UUIDField()
    refs = models.IntegerField(default=1)
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        db_table = "agent_blobs"
        constraints = [
            models.UniqueConstraint(
                fields=["project", "sha256"], name="blob_sha256_uniq"
            ),
            models.CheckConstraint(condition=Q(refs__gte=0), name="blob_refs"),
        ]


class Artifact(models.Model):
    """A projection of the log: a named file of a session, and where its bytes lie.

    Each upload under a name is a version of its own. A deleted one keeps its row,
    without its bytes, since the log tells of it: `deleted_seq` is the event that did.
    """

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    project = models.ForeignKey(
        Project, on_delete=models.CASCADE, related_name="+", db_index=False
    )
    session = plain_link(Session, related_name="artifacts")
    blob = models.ForeignKey(
        Blob, null=True, on_delete=models.PROTECT, related_name="+", db_index=False
    )
    seq = models.BigIntegerField()
    name = models.TextField()
    version = models.IntegerField()
    media_type = models.TextField()
    size = models.BigIntegerField()
    sha256 = models.TextField()
    metadata = ExactJSONField(default=dict)
    actor = models.TextField()
    created_at = models.DateTimeField(db_default=Now())
    deleted_seq = models.BigIntegerField(null=True)

    objects = ArtifactQuerySet.as_manager()

    class Meta:
        db_table = "agent_artifacts"
        constraints = [
            models.UniqueConstraint(
                fields=["project", "session", "name", "version"],
                condition=Q(deleted_seq=None),
                name="artifact_version_uniq",
            ),
            models.UniqueConstraint(
                fields=["project", "session", "seq"], name="artifact_seq_uniq"
            ),
            models.CheckConstraint(
                condition=Q(blob__isnull=False, deleted_seq=None)
                | Q(blob=None, deleted_seq__isnull=False),
                name="artifact_has_bytes",
            ),
        ]
        indexes = [
            models.Index(
                fields=["project", "id"],
                condition=Q(deleted_seq=None),
                name="artifact_project_id",
            ),
            models.Index(
                fields=["project", "session", "name", "version"],
                name="artifact_name",
            ),
            models.Index(
                fields=["project", "blob"],
                condition=Q(deleted_seq=None),
                name="artifact_blob",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.name} ({self.version})"


class StrayObject(models.Model):
    """An object of the store that no blob names: being uploaded, or to be removed.

    Written before an upload begins, so that one that dies leaves nothing for good.
    """

    id = models.UUIDField(primary_key=True, editable=False)
    project = models.ForeignKey(
        Project, on_delete=models.CASCADE, related_name="+", db_index=False
    )
    due_at = models.DateTimeField()

    class Meta:
        db_table = "agent_stray_objects"
        indexes = [models.Index(fields=["due_at"], name="stray_object_due")]


class StoredBytes(models.Model):
    """What a project's blobs came to, in parts; a trigger adds one for each change."""

    id = models.BigAutoField(primary_key=True)
    project = plain_link(Project)
    bytes = models.BigIntegerField()

    class Meta:
        db_table = "agent_stored_bytes"
        indexes = [models.Index(fields=["project"], name="stored_bytes_project")]


class FeedGeneration(models.Model):
    """A database cluster, and a timeline of it, that the log has lived in.

    Transaction ids order the feed, and what was restored counts them anew: rows written
    there belong to the next generation, so that every cursor stays true.
    """

    gen = models.SmallIntegerField(primary_key=True)
    cluster = models.TextField()
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        db_table = "agent_feed_generations"
