"""What is remembered about a subject, where it came from, and how it changed."""

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import Q
from pgvector.django import VectorField

from access_app.models import Project
from agentstate.clock import Now
from agentstate.fields import ExactJSONField, plain_link
from agentstate.ids import new_id
from memory_app.querysets import FactQuerySet, PromotionQuerySet


class Kind(models.TextChoices):
    PREFERENCE = "preference"
    DECISION = "decision"
    CORRECTION = "correction"
    PROFILE = "profile"
    OTHER = "other"


class Status(models.TextChoices):
    PROPOSED = "proposed"  # waits for a person
    ACTIVE = "active"
    SUPERSEDED = "superseded"  # was true; another fact has taken its place
    REJECTED = "rejected"  # a person said no
    EXPIRED = "expired"


# A text stands once among these; the others are history.
CURRENT = (Status.PROPOSED, Status.ACTIVE)


class SourceKind(models.TextChoices):
    USER = "user"  # the subject said so
    AGENT = "agent"  # an agent inferred it
    STAFF = "staff"  # a person of the project entered or corrected it


def _project() -> "models.ForeignKey[Project, Project]":
    return models.ForeignKey(Project, models.CASCADE, related_name="+", db_index=False)


class Subject(models.Model):
    """Whom facts are about. Its row lock puts the writes to one subject in a row.

    `version` grows with every write, `erased_version` with every deletion: what has
    been read at one version is brought up to date by reading what came after it.
    """

    project = _project()
    subject = models.TextField()
    version = models.BigIntegerField()
    erased_version = models.BigIntegerField(default=0)

    class Meta:
        db_table = "agent_memory_subjects"
        constraints = [
            models.UniqueConstraint(
                fields=["project", "subject"], name="memory_subject_uniq"
            )
        ]

    def __str__(self) -> str:
        return self.subject


class Fact(models.Model):
    """One thing remembered about a subject. Written by memory_app.services alone.

    `key` names what the fact answers ("address"): two facts of one key contradict each
    other. `content_hash` is of the text as it is compared, `signature` of the words in
    it whatever their order. `terms` is what the text is found by.
    """

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    project = _project()
    subject = models.TextField()
    fact = models.TextField()
    key = models.TextField(default="", blank=True)
    kind = models.TextField(choices=Kind.choices, default=Kind.OTHER)
    status = models.TextField(choices=Status.choices, default=Status.ACTIVE)
    source_kind = models.TextField(choices=SourceKind.choices, default=SourceKind.USER)
    source_session = models.TextField(default="", blank=True)
    # A default of the database's own: the version before does not know the column.
    source_agent = models.TextField(default="", db_default="", blank=True)
    source_seqs = ArrayField(models.BigIntegerField(), default=list, blank=True)
    seen_count = models.IntegerField(default=1)
    last_seen_at = models.DateTimeField(db_default=Now())
    confidence = models.FloatField(default=1.0)
    pinned = models.BooleanField(default=False)
    metadata = ExactJSONField(default=dict)
    valid_from = models.DateTimeField()
    valid_to = models.DateTimeField(null=True, blank=True)
    expires_at = models.DateTimeField(null=True, blank=True)
    superseded_by = models.UUIDField(null=True, blank=True)
    duplicate_of = models.UUIDField(null=True, blank=True)
    conflicts_with = models.UUIDField(null=True, blank=True)
    note = models.TextField(default="", blank=True)
    version = models.BigIntegerField(default=1)
    # Set while the value is one that a person of the project entered.
    settled_by = models.TextField(default="", blank=True)
    settled_at = models.DateTimeField(null=True, blank=True)
    content_hash = models.BinaryField(max_length=32)
    signature = models.BinaryField(max_length=32)
    terms = ArrayField(models.TextField(), default=list)
    embedding_error = models.TextField(default="", blank=True)
    subject_version = models.BigIntegerField()
    created_by = models.TextField()
    created_at = models.DateTimeField(db_default=Now())
    updated_at = models.DateTimeField(db_default=Now())

    objects = FactQuerySet.as_manager()

    class Meta:
        db_table = "agent_memory"
        constraints = [
            models.UniqueConstraint(
                fields=["project", "subject", "content_hash"],
                name="memory_text_uniq",
                condition=Q(status__in=CURRENT),
            ),
            models.CheckConstraint(
                condition=Q(status__in=Status.values), name="memory_status"
            ),
            models.CheckConstraint(
                condition=Q(kind__in=Kind.values), name="memory_kind"
            ),
            models.CheckConstraint(
                condition=Q(source_kind__in=SourceKind.values), name="memory_source"
            ),
            models.CheckConstraint(
                condition=Q(confidence__gte=0) & Q(confidence__lte=1),
                name="memory_confidence",
            ),
            models.CheckConstraint(
                condition=Q(valid_to=None) | Q(valid_to__gte=models.F("valid_from")),
                name="memory_validity",
            ),
        ]
        indexes = [
            models.Index(fields=["project", "id"], name="memory_project_id"),
            models.Index(fields=["project", "subject", "id"], name="memory_subject_id"),
            models.Index(
                fields=["project", "subject", "subject_version"],
                name="memory_subject_version",
            ),
            models.Index(
                fields=["project", "subject", "key"],
                name="memory_key",
                condition=Q(status__in=CURRENT) & ~Q(key=""),
            ),
            models.Index(
                fields=["project", "subject", "signature"],
                name="memory_signature",
                condition=Q(status__in=CURRENT),
            ),
            models.Index(
                fields=["project", "status", "id"],
                name="memory_review",
                condition=~Q(status=Status.ACTIVE),
            ),
            models.Index(
                fields=["project", "source_session"],
                name="memory_source_session",
                condition=~Q(source_session=""),
            ),
            models.Index(
                fields=["expires_at"],
                name="memory_expires",
                condition=Q(status=Status.ACTIVE, expires_at__isnull=False),
            ),
            models.Index(
                fields=["project", "id"],
                name="memory_unembedded",
                condition=~Q(embedding_error=""),
            ),
            models.Index(
                fields=["project", "id"], name="memory_pinned", condition=Q(pinned=True)
            ),
            # And over the terms of each project: memory_scoped_terms, of current facts
            # (migration 0006), and memory_past_terms (0009).
        ]

    def __str__(self) -> str:
        return self.fact if len(self.fact) < 60 else f"{self.fact[:57]}…"

    @property
    def is_current(self) -> bool:
        return self.status in CURRENT


def _memory(related_name: str) -> "models.ForeignKey[Fact, Fact]":
    # What deletes a fact deletes these rows with it, under the subject's lock.
    return plain_link(Fact, related_name=related_name)


class FactSource(models.Model):
    """One time that a fact was said: by which key, in which session, at which event."""

    project = _project()
    subject = models.TextField()
    memory = _memory("sources")
    kind = models.TextField(choices=SourceKind.choices)
    session = models.TextField(default="")
    seqs = ArrayField(models.BigIntegerField(), default=list)
    said_at = models.DateTimeField()
    actor = models.TextField()
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        db_table = "agent_memory_sources"
        constraints = [
            # Promoting a session again adds nothing.
            models.UniqueConstraint(
                fields=["project", "memory", "session", "seqs"],
                name="memory_source_uniq",
                condition=~Q(seqs=[]),
            )
        ]
        indexes = [
            models.Index(
                fields=["project", "memory", "id"], name="memory_source_memory"
            ),
        ]


class FactRevision(models.Model):
    """One change of a fact: who, when, why, and the fields that it changed.

    `changes` maps each field to its value before and after; the first revision goes
    from nothing to the whole fact.
    """

    project = _project()
    subject = models.TextField()
    memory = _memory("revisions")
    version = models.BigIntegerField()
    action = models.TextField()
    changes = ExactJSONField()
    actor = models.TextField()
    reason = models.TextField(default="", blank=True)
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        db_table = "agent_memory_revisions"
        constraints = [
            models.UniqueConstraint(
                fields=["project", "memory", "version"], name="memory_revision_uniq"
            )
        ]
        indexes = [
            models.Index(fields=["project", "subject"], name="memory_revision_subject"),
        ]

    def __str__(self) -> str:
        return f"{self.action} #{self.version}"


class FactEmbedding(models.Model):
    """The vector of a fact's text, by one model. Models are never compared.

    `is_current` repeats the fact's status, so that an index can hold current facts
    alone: a search must not spend its candidates on what is past. The two last fields
    are a trigger's: one row of a project stands for all that have its vector.
    """

    project = _project()
    subject = models.TextField()
    memory = _memory("embeddings")
    model = models.TextField()
    is_current = models.BooleanField()
    embedding = VectorField()
    created_at = models.DateTimeField(db_default=Now())
    vector_key = models.BigIntegerField(null=True)
    stands_for_vector = models.BooleanField(db_default=False)

    class Meta:
        db_table = "agent_memory_embeddings"
        constraints = [
            models.UniqueConstraint(
                fields=["project", "memory", "model"], name="memory_embedding_uniq"
            )
        ]
        indexes = [
            models.Index(
                fields=["project", "subject", "model"], name="memory_embedding_subject"
            ),
            models.Index(
                fields=["project", "model", "vector_key", "stands_for_vector"],
                name="memory_vector_key",
                condition=Q(is_current=True),
            ),
            # And memory_vectors_linked, over the vectors (migration 0010).
            models.Index(
                fields=["project", "model", "subject"],
                name="memory_vectors_past",
                condition=Q(is_current=False),
            ),
        ]


class Tombstone(models.Model):
    """What must not be learnt again: hashes of a fact that was forgotten or rejected.

    Keyed with a secret of the server, so that they tell nothing to who reads them.
    """

    project = _project()
    subject_hash = models.BinaryField(max_length=32)
    content_hash = models.BinaryField(max_length=32)
    signature = models.BinaryField(max_length=32)
    memory_id = models.UUIDField()
    cause = models.TextField()  # forgotten or rejected
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        db_table = "agent_memory_tombstones"
        constraints = [
            models.UniqueConstraint(
                fields=["project", "memory_id", "content_hash"],
                name="memory_tombstone_uniq",
            )
        ]
        indexes = [
            models.Index(
                fields=["project", "subject_hash", "content_hash"],
                name="memory_tombstone_text",
            ),
            models.Index(
                fields=["project", "subject_hash", "signature"],
                name="memory_tombstone_words",
            ),
        ]


class ForgottenSource(models.Model):
    """An event whose fact was forgotten or rejected: no fact is taken from it again."""

    project = _project()
    session = models.TextField()
    seq = models.BigIntegerField()
    kind = models.TextField()
    memory_id = models.UUIDField()
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        db_table = "agent_memory_forgotten_sources"
        constraints = [
            models.UniqueConstraint(
                fields=["project", "session", "seq", "memory_id"],
                name="memory_forgotten_source_uniq",
            )
        ]


class PromotionStatus(models.TextChoices):
    PENDING = "pending"
    RUNNING = "running"
    DONE = "done"
    SKIPPED = "skipped"
    FAILED = "failed"  # is tried again at next_attempt_at, until it has none left


class Promotion(models.Model):
    """The reading of one closed session for facts worth keeping.

    The row is made by the transaction that closes the session. Holds counts and
    reasons, never what was said.
    """

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    project = _project()
    session_id = models.UUIDField()
    closed_seq = models.BigIntegerField()
    status = models.TextField(
        choices=PromotionStatus.choices, default=PromotionStatus.PENDING
    )
    extractor = models.TextField(default="")
    attempts = models.IntegerField(default=0)
    lease_until = models.DateTimeField(null=True)
    next_attempt_at = models.DateTimeField(null=True)
    error = models.TextField(default="")
    result = ExactJSONField(default=dict)
    created_at = models.DateTimeField(db_default=Now())
    finished_at = models.DateTimeField(null=True)

    objects = PromotionQuerySet.as_manager()

    class Meta:
        db_table = "agent_memory_promotions"
        constraints = [
            models.UniqueConstraint(
                fields=["project", "session_id", "closed_seq"],
                name="memory_promotion_uniq",
            ),
            models.CheckConstraint(
                condition=Q(status__in=PromotionStatus.values),
                name="memory_promotion_status",
            ),
        ]
        indexes = [
            models.Index(fields=["project", "id"], name="memory_promotion_project"),
            models.Index(
                fields=["next_attempt_at"],
                name="memory_promotion_due",
                condition=Q(status__in=["pending", "running", "failed"]),
            ),
        ]

    def __str__(self) -> str:
        return f"of session {self.session_id}: {self.status}"


class Receipt(models.Model):
    """What was forgotten: counts by place, by whom, when and why. No personal text."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    project = _project()
    scope = models.TextField()  # fact, everywhere or subject
    subject_hash = models.BinaryField(max_length=32)
    memory_id = models.UUIDField(null=True)
    actor = models.TextField()
    reason = models.TextField(default="", blank=True)
    counts = ExactJSONField()
    kept = ExactJSONField(default=list)
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        db_table = "agent_memory_receipts"
        indexes = [
            models.Index(fields=["project", "id"], name="memory_receipt_project"),
        ]

    def __str__(self) -> str:
        return f"{self.scope} forgotten by {self.actor}"


class EmbeddingModel(models.Model):
    """How far a project's facts have been embedded by a model."""

    project = _project()
    model = models.TextField()
    dimensions = models.IntegerField(null=True)
    is_complete = models.BooleanField(default=False)
    done = models.BigIntegerField(default=0)
    failed = models.BigIntegerField(default=0)
    error = models.TextField(default="")
    updated_at = models.DateTimeField(db_default=Now())

    class Meta:
        db_table = "agent_memory_models"
        constraints = [
            models.UniqueConstraint(
                fields=["project", "model"], name="memory_model_uniq"
            )
        ]
