"""Slices of one history, imported in another order than they happened.

A log only grows at its end, so events of an earlier slice come to stand behind those of
a later one. If a session holds nothing but imported events, it is written anew in the
order that the sources give, under the same key with the same events.
"""

from collections.abc import Callable, Sequence
from uuid import UUID

from django.db import transaction

from agentstate.errors import AppError
from sessions_app.append import NewEvent
from sessions_app.facts import checked_facts
from sessions_app.log import StoredEvent, read_all, read_log
from sessions_app.models import Session
from sessions_app.services import (
    SessionFields,
    create_session,
    erase_session,
    get_session,
)

IMPORTER = "import"
REORDERED_MAX_BYTES = 64 * 1024 * 1024
CHUNK = 500


class OrderDiffers(AppError):
    """Events stand behind others that they come before in the file."""

    code, status = "order_differs", 409


@transaction.atomic
def put_in_order(
    project_id: UUID,
    session_id: UUID,
    file_order: Sequence[UUID],
    first_added: int,
    *,
    write: Callable[[Session, Sequence[NewEvent]], object],
) -> Session:
    """Write the session anew so that its events stand as in the file.

    `first_added` is the first seq of the import that went over the file; `write` is how
    an import writes events. The session gets another id. Raises OrderDiffers if it
    holds more than imported events, or too much to be moved at once.
    """
    session = get_session(project_id, session_id, lock=True)
    _check_movable(session)
    events = list(read_all(session))
    if any(event.actor != IMPORTER for event in events):
        raise OrderDiffers(f"session {session.key}: it has gone on since the import")
    fields = _first_fields(session)
    stood = [event.event_id for event in events if event.seq < first_added]
    by_id = {event.event_id: event for event in events}
    order = merged(stood, [each for each in file_order if each in by_id])
    reason = "imported again, in the order of the source"
    erase_session(project_id, session_id, actor=IMPORTER, reason=reason)
    made, _ = create_session(project_id, fields, actor=IMPORTER)
    for start in range(0, len(order), CHUNK):
        chunk = order[start : start + CHUNK]
        write(made, [_again(by_id[each]) for each in chunk])
    return made


def _first_fields(session: Session) -> SessionFields:
    """What the session was created with."""
    [created] = read_log(session, after_seq=-1, before_seq=1, limit=1).events
    return SessionFields(**checked_facts(created.payload, "payload"))


def merged(stood: Sequence[UUID], file_order: Sequence[UUID]) -> list[UUID]:
    """Return both sequences as one that keeps the order of each, as far as it can."""
    order: dict[UUID, None] = {}
    rest = iter(stood)
    known = set(stood)
    for each in file_order:
        if each in known and each not in order:
            for before in rest:
                order[before] = None
                if before == each:
                    break
        order[each] = None
    return [*order, *(each for each in stood if each not in order)]


def _check_movable(session: Session) -> None:
    if session.log_bytes > REORDERED_MAX_BYTES:
        raise OrderDiffers(f"session {session.key}: it is too large to be moved")
    forks = Session.objects.filter(project_id=session.project_id, parent=session)
    if session.lineage or forks.exists():
        raise OrderDiffers(f"session {session.key}: it has forks")


def _again(event: StoredEvent) -> NewEvent:
    return NewEvent(
        type=event.type,
        payload=event.payload,
        id=event.event_id,
        run_id=event.run_id,
        step_id=event.step_id,
        occurred_at=event.occurred_at,
    )
