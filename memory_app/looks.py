"""Who looked at a person's memory, or took it along: entries of the audit log."""

from collections.abc import Iterable
from datetime import timedelta
from uuid import UUID

from access_app.models import AuditEntry
from access_app.services import record_audit, record_audits
from agentstate.clock import Now
from memory_app.forgetting.log import pseudonym

EVERY = timedelta(minutes=15)
VIEWED = "subject.viewed"


def note_look(project_id: UUID, subject: str, actor: str) -> None:
    """Record that `actor` sees what is known of `subject`; a reload adds nothing."""
    note_looks(project_id, {subject}, actor)


def note_looks(project_id: UUID, subjects: Iterable[str], actor: str) -> None:
    """The same for several, in one query if all have been noted, in two otherwise."""
    about = {pseudonym(project_id, subject) for subject in subjects}
    if not about:
        return
    entries = AuditEntry.objects.in_project(project_id)
    recent = entries.filter(
        object__in=about, actor=actor, action=VIEWED, created_at__gte=Now() - EVERY
    )
    noted = set(recent.values_list("object", flat=True))
    record_audits(project_id, actor, VIEWED, sorted(about - noted))


def note_export(
    project_id: UUID, subject: str, form: str, actor: str, reason: str
) -> None:
    """Record that `actor` took along what is known of `subject`, as csv or json."""
    record_audit(
        project_id,
        actor,
        "subject.exported",
        pseudonym(project_id, subject),
        after={"format": form},
        reason=reason,
    )
