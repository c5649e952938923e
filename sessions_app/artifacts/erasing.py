"""What becomes of artifacts when their session is erased. In its transaction."""

from collections.abc import Iterable
from uuid import UUID

from sessions_app import event_types as types
from sessions_app.append import NewEvent, append_events
from sessions_app.artifacts.blobs import release
from sessions_app.models import Artifact, Session
from sessions_app.payloads import blobs_of


def erase_artifacts(project_id: UUID, session_ids: Iterable[UUID]) -> int:
    """Erase the rows of sessions that are being erased; return how many were live.

    What their events have in the store is let go as well: those rows go next.
    """
    ids = list(session_ids)
    rows = Artifact.objects.in_project(project_id).filter(session_id__in=ids)
    blobs = [b for b in rows.values_list("blob_id", flat=True) if b]
    rows.delete()
    release(project_id, [*blobs, *blobs_of(project_id, ids)])
    return len(blobs)


def pass_on_artifacts(session: Session, heir: UUID, upto: int, *, actor: str) -> None:
    """Give a fork the artifacts of the log that it takes over from an erased parent.

    The fork's log says of each that the parent deleted later that it is gone.
    """
    rows = Artifact.objects.in_project(session.project_id).filter(
        session_id=session.pk, seq__lte=upto
    )
    gone = list(rows.filter(deleted_seq__gt=upto).values_list("id", flat=True))
    rows.update(session_id=heir)
    for artifact_id in gone:
        told = {"artifact": str(artifact_id), "reason": "deleted in the parent"}
        appended = append_events(
            session.project_id,
            heir,
            [NewEvent(types.ARTIFACT_DELETED, told)],
            actor=actor,
            by_server=True,
        )
        Artifact.objects.in_project(session.project_id).filter(id=artifact_id).update(
            deleted_seq=appended.last_seq
        )
