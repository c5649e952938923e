"""Every reusable read of facts and promotions, chainable."""

from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Self
from uuid import UUID

from django.db import connection
from django.db.models import Q, QuerySet

from agentstate.clock import Now
from sessions_app.models import Session

if TYPE_CHECKING:
    # Named in strings, where ruff does not look.
    from memory_app.models import Fact, Promotion  # noqa: F401


COUNTED = 1000


class FactQuerySet(QuerySet["Fact"]):
    def in_project(self, project_id: UUID) -> Self:
        return self.filter(project_id=project_id)

    def about(self, subject: str) -> Self:
        return self.filter(subject=subject)

    def visible_to(self, subject: str | None) -> Self:
        """Narrow to what a key bound to a subject may see."""
        return self if subject is None else self.filter(subject=subject)

    def current(self) -> Self:
        """Facts that stand, or wait for a person."""
        return self.filter(status__in=("proposed", "active"))

    def live(self, at: datetime | None = None) -> Self:
        """Active facts that hold now: begun, not ended, not expired."""
        now = at or Now()
        return self.filter(
            Q(valid_to=None) | Q(valid_to__gt=now),
            Q(expires_at=None) | Q(expires_at__gt=now),
            status="active",
            valid_from__lte=now,
        )

    def containing(self, text: str) -> Self:
        """Facts whose text contains `text`, in any case; it holds no wildcards."""
        return self.filter(fact__icontains=text)

    def count_by_subject(
        self, project_id: UUID, subjects: Iterable[str]
    ) -> dict[str, int]:
        """How many active facts each of the subjects has, up to COUNTED each."""
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT wanted.subject, (SELECT count(*) FROM (SELECT FROM agent_memory"
                " WHERE project_id = %s AND subject = wanted.subject"
                " AND status = 'active' LIMIT %s) AS some_facts)"
                " FROM unnest(%s::text[]) AS wanted(subject)",
                [project_id, COUNTED, list(subjects)],
            )
            return dict(cursor.fetchall())


class PromotionQuerySet(QuerySet["Promotion"]):
    def in_project(self, project_id: UUID) -> Self:
        return self.filter(project_id=project_id)

    def visible_to(self, subject: str | None) -> Self:
        """Narrow to the sessions of a key's own subject."""
        if subject is None:
            return self
        own = Session.objects.filter(subject=subject).values("id")
        return self.filter(session_id__in=own)

    def due(self) -> Self:
        """Those to run now: new, due for another attempt, or left by a dead worker."""
        return self.filter(
            Q(status="pending")
            | Q(status="failed", next_attempt_at__lte=Now())
            | Q(status="running", lease_until__lte=Now())
        )
