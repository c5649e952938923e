"""The only writes to artifacts: each appends its event in the same transaction."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from django.db import transaction
from django.db.models import Max

from access_app.services import record_audit
from agentstate.ids import new_id
from sessions_app import event_types as types
from sessions_app.artifacts.blobs import (
    ContentGone,
    Placed,
    drop,
    hold,
    hold_more,
    place,
    release,
)
from sessions_app.artifacts.content import Content
from sessions_app.artifacts.quota import check_room_for, take_room
from sessions_app.artifacts.store import ObjectName
from sessions_app.errors import (
    ArtifactNotFound,
    SessionClosed,
    StorageUnavailable,
)
from sessions_app.models import Artifact, Session
from sessions_app.services import append_event, check_lock, get_session

TRIES = 3  # to place bytes whose blob goes away in that very moment


@dataclass(frozen=True)
class NewArtifact:
    """What an artifact is called; its name and type have been checked."""

    name: str
    media_type: str
    metadata: dict[str, Any] = field(default_factory=dict)


class Upload:
    """Bytes on their way to becoming an artifact.

    A context: what was placed in the store and not recorded is removed at its end.
    """

    def __init__(self, project_id: UUID, content: Content) -> None:
        self.project_id = project_id
        self.content = content
        self.placed: Placed | None = None

    def __enter__(self) -> "Upload":
        return self

    def __exit__(self, *exc: object) -> None:
        if self.placed is not None and self.placed.is_new:
            # Does nothing for an object that was adopted.
            drop(ObjectName(self.project_id, self.placed.object_id))

    def place(self) -> None:
        """Have the bytes in the store. Raises StorageUnavailable, and early
        StorageQuotaExceeded."""
        check_room_for(self.project_id, self.content.sha256, self.content.size)
        self.placed = place(self.project_id, self.content)


def store_artifact(
    session_id: UUID, new: NewArtifact, upload: Upload, **writer: Any
) -> Artifact:
    """Place the bytes and record them: for callers in no transaction."""
    for _ in range(TRIES):
        upload.place()
        try:
            return record_artifact(session_id, new, upload, **writer)
        except ContentGone:
            continue
    raise StorageUnavailable


@transaction.atomic
def record_artifact(
    session_id: UUID,
    new: NewArtifact,
    upload: Upload,
    *,
    actor: str,
    lock_token: UUID | None = None,
    subject: str | None = None,
) -> Artifact:
    """Record bytes that are in the store as the next version of their name.

    Raises SessionNotFound, SessionClosed, SessionLocked, LockLost, ContentGone,
    StorageQuotaExceeded.
    """
    assert upload.placed is not None
    project_id = upload.project_id
    session = get_session(project_id, session_id, subject=subject, lock=True)
    if not session.is_open:
        raise SessionClosed(session_status=session.status)
    check_lock(session, lock_token)
    if upload.placed.is_new:
        take_room(project_id, upload.content.sha256, upload.content.size)
    blob_id = hold(project_id, upload.content, upload.placed)
    return _insert(
        session,
        new,
        blob_id=blob_id,
        size=upload.content.size,
        sha256=upload.content.sha256,
        actor=actor,
    )


def _insert(
    session: Session,
    new: NewArtifact,
    *,
    blob_id: UUID,
    size: int,
    sha256: str,
    actor: str,
    source: UUID | None = None,
) -> Artifact:
    """Append artifact.created and insert the row; the session's row is locked."""
    named = Artifact.objects.seen_in(session).filter(name=new.name)
    last = named.aggregate(last=Max("version"))["last"] or 0
    artifact = Artifact(
        id=new_id(),
        project_id=session.project_id,
        session_id=session.pk,
        blob_id=blob_id,
        name=new.name,
        version=last + 1,
        media_type=new.media_type,
        size=size,
        sha256=sha256,
        metadata=new.metadata,
        actor=actor,
    )
    told = {"artifact": str(artifact.pk), **facts_of(artifact)}
    if source is not None:
        told["source"] = str(source)
    artifact.seq = append_event(
        session.project_id, session.pk, types.ARTIFACT_CREATED, told, actor=actor
    )
    artifact.save(force_insert=True)
    artifact.refresh_from_db()
    return artifact


def facts_of(artifact: Artifact) -> dict[str, Any]:
    """Return what artifact.created says of a row, and `verify_replay` compares."""
    return {
        "name": artifact.name,
        "version": artifact.version,
        "media_type": artifact.media_type,
        "size": artifact.size,
        "sha256": artifact.sha256,
        "metadata": artifact.metadata,
    }


def get_artifact(
    project_id: UUID, artifact_id: UUID, *, subject: str | None = None
) -> Artifact:
    """Return a live artifact with its session. Raises ArtifactNotFound."""
    found = Artifact.objects.in_project(project_id).live().filter(id=artifact_id)
    artifact = found.of_subject(subject).select_related("session", "blob").first()
    if artifact is None:
        raise ArtifactNotFound
    return artifact


@transaction.atomic
def delete_artifact(
    project_id: UUID,
    artifact_id: UUID,
    *,
    actor: str,
    reason: str = "",
    lock_token: UUID | None = None,
    subject: str | None = None,
) -> None:
    """Delete an artifact; its bytes go with the last artifact that holds them.

    Raises ArtifactNotFound, also for one that was deleted before.
    """
    found = get_artifact(project_id, artifact_id, subject=subject)
    session = get_session(project_id, found.session_id, lock=True)
    check_lock(session, lock_token)
    artifact = get_artifact(project_id, artifact_id, subject=subject)
    delete_all([artifact], actor=actor, reason=reason)
    # Not its name: that may be personal.
    about = {"session": str(session.pk), "version": artifact.version}
    record_audit(
        project_id,
        actor,
        "artifact.deleted",
        f"artifact:{artifact_id}",
        before=about,
        reason=reason,
    )


def delete_all(artifacts: Sequence[Artifact], *, actor: str, reason: str = "") -> None:
    """Delete live artifacts of one project, whose sessions are locked."""
    if not artifacts:
        return
    project_id = artifacts[0].project_id
    for artifact in artifacts:
        seq = append_event(
            project_id,
            artifact.session_id,
            types.ARTIFACT_DELETED,
            {"artifact": str(artifact.pk), "reason": reason},
            actor=actor,
        )
        Artifact.objects.in_project(project_id).filter(id=artifact.pk).update(
            blob=None, deleted_seq=seq
        )
    release(project_id, (a.blob_id for a in artifacts if a.blob_id))


def copy_artifacts(
    source: Session, names: Collection[str], target: Session, *, actor: str
) -> list[Artifact]:
    """Give a session artifacts of another: the bytes are shared, not copied.

    `names` are ids, or names, whose newest version is meant. What `source` does not
    have is left out. Both sessions are of one project; `target` is locked.
    """
    found = artifacts_named(source, names)
    held = hold_more(source.project_id, [a.blob_id for a in found if a.blob_id])
    return [
        _insert(
            target,
            NewArtifact(a.name, a.media_type, a.metadata),
            blob_id=a.blob_id,
            size=a.size,
            sha256=a.sha256,
            actor=actor,
            source=a.pk,
        )
        for a in found
        if a.blob_id in held
    ]


def artifacts_named(session: Session, names: Collection[str]) -> list[Artifact]:
    """The live artifacts of a session with these ids or names, newest of a name."""
    live = Artifact.objects.seen_in(session).live()
    ids = [UUID(name) for name in names if _is_id(name)]
    by_id = {str(a.pk): a for a in live.filter(id__in=ids)}
    by_name = {a.name: a for a in live.filter(name__in=names).order_by("version")}
    found = [by_id.get(name.lower()) or by_name.get(name) for name in names]
    return list(dict.fromkeys(a for a in found if a is not None))


def _is_id(name: str) -> bool:
    try:
        return str(UUID(name)) == name.lower()
    except ValueError:
        return False
