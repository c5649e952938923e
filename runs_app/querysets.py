"""Every reusable read of runs and steps, chainable."""

from typing import TYPE_CHECKING, Self
from uuid import UUID

from django.db import models

if TYPE_CHECKING:
    # Named in strings, where ruff does not look.
    from runs_app.models import Run, Step  # noqa: F401

ENDED = ("succeeded", "failed", "cancelled")


class RunQuerySet(models.QuerySet["Run"]):
    def in_project(self, project_id: UUID) -> Self:
        return self.filter(project_id=project_id)

    def visible_to(self, subject: str | None, session_id: UUID | None) -> Self:
        """Narrow to what a key bound to a subject or a session may see."""
        if session_id is not None:
            self = self.filter(session_id=session_id)
        if subject is not None:
            self = self.filter(session__subject=subject)
        return self

    def active(self) -> Self:
        return self.exclude(state__in=ENDED)

    def with_labels(self, labels: dict[str, str]) -> Self:
        return self.filter(labels__contains=labels) if labels else self

    def retrying(self) -> Self:
        """Runs with a step that waits for its next attempt, or is at it."""
        return self.filter(n_retrying__gt=0)


class StepQuerySet(models.QuerySet["Step"]):
    def of_run(self, project_id: UUID, run_id: UUID) -> Self:
        return self.filter(project_id=project_id, run_id=run_id)
