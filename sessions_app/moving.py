"""Moving large payloads from their rows into the store, after the fact.

What the server writes inside larger transactions (states, results, plans, handoffs,
imports) is in its row at first. A sweep places it in the store, outside of any
transaction, and then turns the row into the stub, if it is still the same.
"""

import time
from typing import Any, NamedTuple
from uuid import UUID

from django.conf import settings
from django.db import connection, transaction
from django.db.models import TextField
from django.db.models.functions import Cast

from agentstate import codec
from sessions_app import event_types as types
from sessions_app.artifacts.blobs import ContentGone, Placed, drop, hold, place
from sessions_app.artifacts.content import Content
from sessions_app.artifacts.store import ObjectName
from sessions_app.errors import ContentMissing, StorageUnavailable
from sessions_app.models import MOVED_ABOVE_BYTES, Event, Session
from sessions_app.payloads import content_of, stub_of
from sessions_app.querysets import EventQuerySet

SWEPT = 500  # events that one sweep looks at
SWEEP_SECONDS = 30.0  # and how long it goes on, so that other jobs have their turn

# Members of a payload that its stub keeps, since they are read under a row's lock.
KEPT = {types.STATE_CHANGED: "version", types.HANDOFF_OFFERED: "on_failure"}


class _Large(NamedTuple):
    """An event whose payload is to be moved."""

    id: int
    project_id: UUID
    session_id: UUID


def move_large_payloads(limit: int = SWEPT, *, project_id: UUID | None = None) -> int:
    """Move at most `limit` payloads, the largest first; return how many.

    Ends early, and quietly, when the store is away. Of one project, or of all.
    """
    events = _large_events()
    if project_id is not None:
        events = events.filter(project_id=project_id)
    found = events.values_list("id", "project_id", "session_id")[:limit]
    moved, ends_at = 0, time.monotonic() + SWEEP_SECONDS
    try:
        for row in found:
            moved += _move(_Large._make(row))
            if time.monotonic() > ends_at:
                break
    except (StorageUnavailable, ContentMissing):
        pass  # logged where it failed; again with the next sweep
    return moved


def _large_events() -> EventQuerySet:
    above = max(settings.PAYLOAD_INLINE_BYTES, MOVED_ABOVE_BYTES)
    return Event.objects.to_be_moved(above)


def _move(event: _Large) -> bool:
    """Move one; False if it is not there any more, or changed meanwhile."""
    still = _large_events().filter(project_id=event.project_id, id=event.id)
    found = still.values_list("type", Cast("payload", TextField())).first()
    if found is None:
        return False
    type_, text = found
    content = content_of(text)
    stub = stub_of(content, text, **_kept(type_, text))
    placed = place(event.project_id, content)
    try:
        return _swap(event, content, stub, placed)
    except ContentGone:
        return False  # the next sweep finds it as it is then
    finally:
        if placed.is_new:  # does nothing for one that was adopted
            drop(ObjectName(event.project_id, placed.object_id))


def _kept(type_: str, text: str) -> dict[str, Any]:
    if (name := KEPT.get(type_)) is None:
        return {}
    payload: Any = codec.loads(text, max_depth=10_000)
    return {name: payload[name]} if name in payload else {}


@transaction.atomic
def _swap(event: _Large, content: Content, stub: str, placed: Placed) -> bool:
    # The session first, as everywhere: then its blobs.
    session = Session.objects.select_for_update(no_key=True).filter(
        project_id=event.project_id, id=event.session_id
    )
    if not session.values_list("id", flat=True).first():
        return False
    blob_id = hold(event.project_id, content, placed)
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT agentstate_move_payload(%s, %s, %s, %s, %s, %s)",
            [
                event.project_id,
                event.session_id,
                event.id,
                content.sha256,
                stub,
                blob_id,
            ],
        )
        is_moved: bool = cursor.fetchone()[0]
    if not is_moved:
        transaction.set_rollback(True)
    return is_moved
