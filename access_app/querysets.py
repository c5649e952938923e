"""Every reusable read of access_app."""

from typing import TYPE_CHECKING, Self
from uuid import UUID

from django.contrib.auth.models import User
from django.db.models import BooleanField, Case, Q, QuerySet, Value, When

from agentstate.clock import Now

if TYPE_CHECKING:
    # Named in strings below, where ruff does not look.
    from access_app.models import ApiKey, AuditEntry, Member, Project  # noqa: F401


class ProjectQuerySet(QuerySet["Project"]):
    def visible_to(self, user: User) -> Self:
        """The projects that `user` is a member of; a superuser sees all."""
        if user.is_superuser:
            return self
        return self.filter(members__user=user)

    def owned_by(self, user: User) -> Self:
        """The projects whose members and keys `user` may change."""
        if user.is_superuser:
            return self
        return self.filter(members__user=user, members__role="owner")


class MemberQuerySet(QuerySet["Member"]):
    def in_project(self, project_id: UUID) -> Self:
        return self.filter(project_id=project_id).select_related("user")

    def owners(self) -> Self:
        return self.filter(role="owner")


class ApiKeyQuerySet(QuerySet["ApiKey"]):
    def in_project(self, project_id: UUID) -> Self:
        return self.filter(project_id=project_id)

    def usable(self) -> Self:
        """Keys that are neither revoked nor, by the database's clock, expired."""
        lasting = Q(expires_at=None) | Q(expires_at__gt=Now())
        return self.filter(lasting, revoked_at=None)

    def with_validity(self) -> Self:
        """Add `is_expired`, by the database's clock."""
        expired = When(expires_at__lte=Now(), then=Value(True))
        return self.annotate(
            is_expired=Case(expired, default=Value(False), output_field=BooleanField())
        )


class AuditQuerySet(QuerySet["AuditEntry"]):
    def in_project(self, project_id: UUID) -> Self:
        return self.filter(project_id=project_id)
