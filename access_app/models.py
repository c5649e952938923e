"""Who may do what: projects, their members, their keys, and what was changed.

Also the answers already given to calls with an Idempotency-Key. The names of the
constraints are used in services to tell one refusal from another.
"""

from django.contrib.auth.models import User
from django.contrib.postgres.fields import ArrayField
from django.db import models

from access_app.querysets import (
    ApiKeyQuerySet,
    AuditQuerySet,
    MemberQuerySet,
    ProjectQuerySet,
)
from agentstate.clock import Now
from agentstate.fields import ExactJSONField
from agentstate.ids import new_id


class Project(models.Model):
    """A tenant: every other row belongs to one, and sees none of another."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    name = models.CharField(max_length=200)
    slug = models.SlugField(max_length=80, db_index=False)
    settings = ExactJSONField(default=dict)
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    objects = ProjectQuerySet.as_manager()

    class Meta:
        db_table = "access_projects"
        constraints = [
            models.UniqueConstraint(fields=["name"], name="access_project_name_uniq"),
            models.UniqueConstraint(fields=["slug"], name="access_project_slug_uniq"),
        ]

    def __str__(self) -> str:
        return self.name


class Role(models.TextChoices):
    OWNER = "owner"  # all, members and keys included
    OPERATOR = "operator"  # sessions and runs
    REVIEWER = "reviewer"  # memory: see, correct, approve, forget
    VIEWER = "viewer"  # look, change nothing


class Member(models.Model):
    """A person's role in a project."""

    project = models.ForeignKey(
        Project, models.PROTECT, related_name="members", db_index=False
    )
    user = models.ForeignKey(User, models.CASCADE, related_name="memberships")
    role = models.CharField(max_length=16, choices=Role.choices)
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    objects = MemberQuerySet.as_manager()

    class Meta:
        db_table = "access_members"
        constraints = [
            models.UniqueConstraint(
                fields=["project", "user"], name="access_member_project_user_uniq"
            ),
            models.CheckConstraint(
                condition=models.Q(role__in=Role.values), name="access_member_role_ok"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.user} is {self.role} of {self.project}"


class Identity(models.Model):
    """Who a person is at an OpenID Connect provider; see single_sign_on.py.

    Above the projects, as accounts are.
    """

    user = models.ForeignKey(User, models.CASCADE, related_name="identities")
    issuer = models.CharField(max_length=500)
    subject = models.CharField(max_length=255)
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        db_table = "access_identities"
        verbose_name_plural = "identities"
        constraints = [
            models.UniqueConstraint(
                fields=["issuer", "subject"], name="access_identity_uniq"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.user}, {self.subject} at {self.issuer}"


class SavedView(models.Model):
    """Filters of a list under a name; see saved_views.py."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    project = models.ForeignKey(
        Project, models.PROTECT, related_name="saved_views", db_index=False
    )
    # Whose it is; null: the project's, for all its members.
    user = models.ForeignKey(User, models.CASCADE, null=True, db_index=False)
    page = models.CharField(max_length=16)
    name = models.CharField(max_length=80)
    query = models.CharField(max_length=2000)  # as it stands in an address
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        db_table = "access_saved_views"
        constraints = [
            models.UniqueConstraint(
                fields=["project", "page", "user", "name"],
                name="access_saved_view_uniq",
                nulls_distinct=False,
            ),
        ]
        indexes = [
            # For the account that goes, which takes its own along.
            models.Index(fields=["user"], name="access_saved_view_user_idx"),
        ]

    def __str__(self) -> str:
        return self.name


class ApiKey(models.Model):
    """A key to a project's API. Of the key itself only a prefix and a hash are kept."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    project = models.ForeignKey(
        Project, models.PROTECT, related_name="keys", db_index=False
    )
    name = models.CharField(max_length=200, blank=True)
    prefix = models.CharField(max_length=16)
    secret_hash = models.BinaryField(max_length=32)
    scopes = ArrayField(models.CharField(max_length=32))
    # Bound to one subject or one session, the key sees nothing else.
    subject = models.CharField(max_length=255, null=True, blank=True)
    session_id = models.UUIDField(null=True, blank=True)
    # Of a handoff: the key makes no other run, and calls no other tools; null is any.
    run_id = models.UUIDField(null=True, blank=True, editable=False)
    tool_allowlist = ArrayField(
        models.TextField(), null=True, blank=True, editable=False
    )
    rate_limit_per_minute = models.PositiveIntegerField(null=True, blank=True)
    expires_at = models.DateTimeField(null=True, blank=True)
    last_used_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    created_by = models.CharField(max_length=200)

    objects = ApiKeyQuerySet.as_manager()

    class Meta:
        db_table = "access_api_keys"
        verbose_name = "API key"
        constraints = [
            # Without the project: the key is what tells the project.
            models.UniqueConstraint(fields=["prefix"], name="access_key_prefix_uniq"),
        ]
        indexes = [
            models.Index(
                fields=["project", "created_at", "id"], name="access_key_project_idx"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.name or 'key'} (as_{self.prefix}_…)"

    @property
    def is_revoked(self) -> bool:
        return self.revoked_at is not None


class IdempotencyRecord(models.Model):
    """The answer to a call that carried an Idempotency-Key, kept for a day.

    Written only in the transaction of the call's effect, by `access_app.idempotency` or
    by an SQL function of the app whose call it is. No foreign keys: it is a hot table.
    """

    pk = models.CompositePrimaryKey("project_id", "caller_key_id", "scope_hash")
    project_id = models.UUIDField()
    caller_key_id = models.UUIDField()
    scope_hash = models.BinaryField(max_length=32)  # of method, path and key
    fingerprint = models.BinaryField(max_length=32)  # of the body
    # Set where the answer may hold what is said in a session: erasing takes it along.
    session_id = models.UUIDField(null=True)
    status = models.SmallIntegerField()
    headers = ExactJSONField()
    body = models.TextField()
    created_at = models.DateTimeField(db_default=Now())
    expires_at = models.DateTimeField()

    class Meta:
        db_table = "access_idempotency"
        indexes = [
            models.Index(
                fields=["project_id", "expires_at"], name="access_idem_expires_idx"
            ),
            models.Index(
                fields=["project_id", "session_id"],
                name="access_idem_session_idx",
                condition=models.Q(session_id__isnull=False),
            ),
        ]


class AuditEntry(models.Model):
    """One change: who did what to what, and why. The table only grows."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    project = models.ForeignKey(Project, models.PROTECT, db_index=False)
    actor = models.CharField(max_length=200)  # key:PREFIX, user:NAME or system
    action = models.CharField(max_length=100)  # noun.verb: key.created
    object = models.CharField(max_length=300)  # kind:id
    before = ExactJSONField(null=True)
    after = ExactJSONField(null=True)
    reason = models.TextField(blank=True)
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    objects = AuditQuerySet.as_manager()

    class Meta:
        db_table = "access_audit"
        verbose_name_plural = "audit entries"
        indexes = [
            models.Index(
                fields=["project", "created_at", "id"], name="access_audit_project_idx"
            ),
            models.Index(
                fields=["project", "object", "created_at", "id"],
                name="access_audit_object_idx",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.actor} {self.action} {self.object}"
