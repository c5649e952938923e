"""Bytes kept once in a project, counted by those that hold them.

An upload goes to the store first, outside of any transaction, under a name of its own
that is noted as stray. The transaction that records it makes a blob of that, or counts
one more reference on the blob that holds the same bytes. When the last reference goes,
the object is stray again. Strays that are due are removed at once after the commit, or
by a job if that failed or the process died.
"""

import logging
from collections import Counter
from collections.abc import Iterable
from datetime import timedelta
from typing import NamedTuple
from uuid import UUID

from django.db import connection, transaction
from django.db.models import F

from agentstate.clock import Now, db_now
from agentstate.ids import new_id
from sessions_app.artifacts.content import Content
from sessions_app.artifacts.store import ObjectName, configured_store, reaching
from sessions_app.errors import ContentMissing, StorageUnavailable
from sessions_app.models import Blob, StrayObject

logger = logging.getLogger(__name__)

# Longer than any upload from here to the store takes.
UPLOAD_TIME = timedelta(hours=6)
SWEPT = 500  # strays that one sweep looks at


class Placed(NamedTuple):
    """Where the store has an upload's bytes.

    `is_new`: an object of this upload's own. `instead_of` is an object that should have
    held them and is not there.
    """

    object_id: UUID
    is_new: bool
    instead_of: UUID | None = None


class ContentGone(Exception):
    """The blob that held the same bytes went meanwhile: place them anew."""


def place(project_id: UUID, content: Content) -> Placed:
    """Have the bytes in the store. Not in a transaction: this may take a while.

    Raises StorageUnavailable.
    """
    store = configured_store()
    known = Blob.objects.filter(project_id=project_id, sha256=content.sha256).first()
    instead_of = None
    if known is not None:
        name = ObjectName(project_id, known.object_id)
        with reaching(store, "look"):
            size = store.object_size(name.path)
        if size == content.size:
            return Placed(known.object_id, is_new=False)
        logger.error("an object is missing in the store: stored again")
        instead_of = known.object_id
    name = ObjectName(project_id, new_id())
    StrayObject.objects.create(
        id=name.object_id, project_id=project_id, due_at=db_now() + UPLOAD_TIME
    )
    try:
        with reaching(store, "put"):
            content.file.seek(0)
            store.put(name.path, content.file)
            size = store.object_size(name.path)
        if size != content.size:
            logger.error("the store kept %s bytes of %s", size, content.size)
            raise StorageUnavailable
    except BaseException:
        drop(name)
        raise
    return Placed(name.object_id, True, instead_of)


def drop(name: ObjectName) -> None:
    """Remove the object of an upload that came to nothing."""
    due = StrayObject.objects.filter(project_id=name.project_id, id=name.object_id)
    if due.update(due_at=db_now()):
        _remove_now([name.object_id])


def hold(project_id: UUID, content: Content, placed: Placed) -> UUID:
    """Count one reference to placed bytes and return their blob.

    In the caller's transaction. Raises ContentGone, StorageUnavailable.
    """
    if not placed.is_new:
        return _hold_known(project_id, placed.object_id)
    with connection.cursor() as cursor:
        cursor.execute(
            """
            INSERT INTO agent_blobs
                   (id, project_id, sha256, size, object_id, refs, created_at)
            VALUES (%s, %s, %s, %s, %s, 1, agentstate_now())
            ON CONFLICT (project_id, sha256) DO UPDATE SET
                   refs = agent_blobs.refs + 1,
                   object_id = CASE WHEN agent_blobs.object_id = %s
                                    THEN excluded.object_id
                                    ELSE agent_blobs.object_id END
            RETURNING id, object_id
            """,
            [
                new_id(),
                project_id,
                content.sha256,
                content.size,
                placed.object_id,
                placed.instead_of,
            ],
        )
        blob_id, object_id = cursor.fetchone()
    if object_id == placed.object_id:
        _adopt(project_id, object_id)
        if placed.instead_of:
            _make_stray(project_id, [placed.instead_of])
    return UUID(str(blob_id))


def _hold_known(project_id: UUID, object_id: UUID) -> UUID:
    blobs = Blob.objects.filter(project_id=project_id, object_id=object_id)
    blob = blobs.select_for_update(no_key=True).first()
    if blob is None:
        raise ContentGone
    blobs.filter(pk=blob.pk).update(refs=F("refs") + 1)
    return blob.pk


def _adopt(project_id: UUID, object_id: UUID) -> None:
    """The object is stray no longer; unless the sweep was faster, after hours."""
    strays = StrayObject.objects.filter(project_id=project_id, id=object_id)
    if not strays.delete()[0]:
        raise StorageUnavailable


def hold_more(project_id: UUID, blob_ids: Iterable[UUID]) -> set[UUID]:
    """Count one more reference for each time one is named; return those still there."""
    counts = Counter(blob_ids)
    found = _locked(project_id, counts)
    for blob in found:
        blob.refs += counts[blob.pk]
        blob.save(update_fields=["refs"])
    return {blob.pk for blob in found}


def release(project_id: UUID, blob_ids: Iterable[UUID]) -> None:
    """Count one reference less to each; what nobody holds is removed after the commit.

    In the caller's transaction, once for all its blobs: they are locked in order.
    """
    counts = Counter(blob_ids)
    unheld = []
    for blob in _locked(project_id, counts):
        blob.refs -= counts[blob.pk]
        if blob.refs > 0:
            blob.save(update_fields=["refs"])
        else:
            unheld.append(blob.object_id)
            blob.delete()
    _make_stray(project_id, unheld)


def _locked(project_id: UUID, blob_ids: Iterable[UUID]) -> list[Blob]:
    """Lock the blobs that are there, in the order in which all lock several."""
    ids = list(blob_ids)
    if not ids:
        return []
    blobs = Blob.objects.filter(project_id=project_id, id__in=ids)
    return list(blobs.order_by("sha256").select_for_update())


def _make_stray(project_id: UUID, object_ids: list[UUID]) -> None:
    if not object_ids:
        return
    now = db_now()
    StrayObject.objects.bulk_create(
        StrayObject(id=object_id, project_id=project_id, due_at=now)
        for object_id in object_ids
    )
    transaction.on_commit(lambda: _remove_now(object_ids))


def _remove_now(object_ids: list[UUID]) -> None:
    try:
        for object_id in object_ids:
            _remove_next(object_id)
    except (StorageUnavailable, ContentMissing):
        pass  # logged; the job tries again


def remove_strays(limit: int = SWEPT) -> int:
    """Remove the objects that are due; return how many. Raises StorageUnavailable."""
    removed = 0
    while removed < limit and _remove_next():
        removed += 1
    return removed


@transaction.atomic
def _remove_next(object_id: UUID | None = None) -> bool:
    """Remove one object that is due. Its row is locked: nobody adopts it meanwhile."""
    due = StrayObject.objects.filter(due_at__lte=Now())
    if object_id is not None:
        due = due.filter(id=object_id)
    stray = due.order_by("due_at").select_for_update(skip_locked=True).first()
    if stray is None:
        return False
    store = configured_store()
    with reaching(store, "remove"):
        store.remove(ObjectName(stray.project_id, stray.pk).path)
    stray.delete()
    return True
