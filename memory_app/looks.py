"""Who looked at a person's memory, or took it along: entries of the audit log."""

from datetime import timedelta
from uuid import UUID

from access_app.models import AuditEntry
from access_app.services import record_audit
from agentstate.clock import Now
from memory_app.forgetting.log import pseudonym

EVERY = timedelta(minutes=15)
VIEWED = "subject.viewed"


def note_look(project_id: UUID, subject: str, actor: str) -> None:
    """Record that `actor` sees what is known of `subject`; a reload adds nothing."""
    about = pseudonym(project_id, subject)
    entries = AuditEntry.objects.in_project(project_id)
    recent = entries.filter(
        object=about, actor=actor, action=VIEWED, created_at__gte=Now() - EVERY
    )
    if not recent.exists():
        record_audit(project_id, actor, VIEWED, about)


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
