"""What a session's log says its artifacts must be, for `verify_replay`."""

from collections.abc import Iterator
from typing import Any
from uuid import UUID

from sessions_app import event_types as types
from sessions_app.artifacts.services import facts_of
from sessions_app.log import read_log, segments_of
from sessions_app.models import Artifact, Blob, Event, Session
from sessions_app.payloads import blobs_of
from sessions_app.projection import NOTHING, Difference, compare

NAMES = ("name", "version", "media_type", "size", "sha256", "metadata")


def artifact_differences(session: Session) -> Iterator[Difference]:
    """Compare a session's own artifacts with its log, and their bytes' references."""
    told = _told(session)
    rows = Artifact.objects.in_project(session.project_id).filter(session_id=session.pk)
    for row in rows.order_by("seq"):
        log = told.pop(str(row.pk), NOTHING)
        shown = facts_of(row) | {"seq": row.seq, "deleted_seq": row.deleted_seq}
        yield from compare(session.pk, f"artifacts/{row.pk}", log, shown)
        if row.blob_id is not None:
            yield from _blob_differences(row, row.blob_id)
    for blob_id in set(blobs_of(session.project_id, [session.pk])):
        yield from _count_differences(session, blob_id)
    for artifact_id, log in told.items():
        yield Difference(session.pk, f"artifacts/{artifact_id}", log, NOTHING)


def _told(session: Session) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    # What a fork shares with its parent tells of the parent's artifacts.
    after, more = segments_of(session)[-1].first_seq - 1, True
    while more:
        events, more = read_log(
            session,
            after_seq=after,
            types=[types.ARTIFACT_CREATED, types.ARTIFACT_DELETED],
            limit=500,
        )
        for event in events:
            after, payload = event.seq, event.payload
            if event.type == types.ARTIFACT_CREATED:
                facts = {name: payload.get(name) for name in NAMES}
                places = {"seq": event.seq, "deleted_seq": None}
                found[str(payload.get("artifact"))] = facts | places
            elif (deleted := found.get(str(payload.get("artifact")))) is not None:
                deleted["deleted_seq"] = event.seq
    return found


def _count_differences(session: Session, blob_id: UUID) -> Iterator[Difference]:
    """A blob counts the artifacts and the events that hold it."""
    project_id = session.project_id
    blob = Blob.objects.filter(project_id=project_id, id=blob_id).first()
    artifacts = Artifact.objects.in_project(project_id).live().filter(blob_id=blob_id)
    events = Event.objects.filter(project_id=project_id, blob_id=blob_id)
    held = artifacts.count() + events.count()
    yield from compare(
        session.pk, f"blobs/{blob_id}/refs", held, blob.refs if blob else NOTHING
    )


def _blob_differences(row: Artifact, blob_id: UUID) -> Iterator[Difference]:
    """The bytes are those that the row tells of, and are counted as often as held."""
    path = f"artifacts/{row.pk}/blob"
    blob = Blob.objects.filter(project_id=row.project_id, id=blob_id).first()
    if blob is None:
        yield Difference(row.session_id, path, row.sha256, NOTHING)
        return
    yield from _count_differences(row.session, blob_id)
    yield from compare(row.session_id, f"{path}/size", row.size, blob.size)
    if row.sha256:  # blank in what was forgotten
        yield from compare(row.session_id, f"{path}/sha256", row.sha256, blob.sha256)
