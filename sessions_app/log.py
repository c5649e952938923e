"""Reading a session's log, whichever sessions' rows it is made of.

A fork does not copy its parent's events: its log is a list of segments, each the rows
of one session up to some seq. For a session that is no fork that is one segment.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple
from uuid import UUID

from django.db.models import TextField
from django.db.models.functions import Cast

from agentstate import codec
from sessions_app.models import Event, Session
from sessions_app.payloads import holds, whole_texts
from sessions_app.querysets import EventQuerySet

# A page of events ends early once its payloads pass this, so that a thousand events of
# 32 MB each do not end up in memory together.
PAGE_BYTES = 8 * 1024 * 1024


class StoredEvent(NamedTuple):
    """One event as it lies in the log; `payload_text` is the payload's JSON text."""

    seq: int
    event_id: UUID
    type: str
    payload_text: str
    payload_bytes: int
    run_id: UUID | None
    step_id: UUID | None
    actor: str
    occurred_at: datetime | None
    created_at: datetime
    blob_id: UUID | None

    @property
    def payload(self) -> dict[str, Any]:
        """The payload, decoded anew at each look."""
        decoded: Any = codec.loads(self.payload_text, max_depth=10_000)
        assert isinstance(decoded, dict)
        return decoded


COLUMNS = (
    "seq",
    "event_id",
    "type",
    Cast("payload", TextField()),
    "payload_bytes",
    "run_id",
    "step_id",
    "actor",
    "occurred_at",
    "created_at",
    "blob_id",
)


def stored_events(
    project_id: UUID, rows: Iterable[tuple[Any, ...]]
) -> list[StoredEvent]:
    """Return rows of COLUMNS as events, payloads put back that lie in the store.

    Raises StorageUnavailable, ContentMissing.
    """
    events = [StoredEvent._make(row) for row in rows]
    if not any(event.blob_id for event in events):
        return events
    texts = whole_texts(project_id, [(e.payload_text, e.blob_id) for e in events])
    return [
        event if event.blob_id is None else event._replace(payload_text=text)
        for event, text in zip(events, texts, strict=True)
    ]


class LogPage(NamedTuple):
    """Some events in the order asked for, and whether the log goes on behind them."""

    events: list[StoredEvent]
    has_more: bool


@dataclass(frozen=True)
class Segment:
    """The rows `first_seq` to `last_seq` of one session's own events."""

    session_id: UUID
    first_seq: int
    last_seq: int

    def events(self, project_id: UUID) -> EventQuerySet:
        return Event.objects.filter(
            project_id=project_id,
            session_id=self.session_id,
            seq__gte=self.first_seq,
            seq__lte=self.last_seq,
        )


def segments_of(session: Session) -> list[Segment]:
    """Return the segments of `session`'s log, oldest first, covering 1 to last_seq."""
    segments = []
    first = 1
    for ancestor, upto in session.lineage:
        segments.append(Segment(UUID(ancestor), first, upto))
        first = upto + 1
    segments.append(Segment(session.pk, first, max(session.last_seq, first - 1)))
    return segments


def segment_at(session: Session, seq: int) -> Segment:
    """Return the segment that holds `seq`; for 0, an empty log, the first."""
    for segment in segments_of(session):
        if seq <= segment.last_seq:
            return segment
    return segments_of(session)[-1]


def read_log(
    session: Session,
    *,
    after_seq: int = 0,
    before_seq: int | None = None,
    types: Sequence[str] = (),
    contains: str = "",
    run_id: UUID | None = None,
    limit: int = 100,
    newest_first: bool = False,
) -> LogPage:
    """Return at most `limit` events with `after_seq` < seq < `before_seq`.

    Fewer may come although the log goes on, when their payloads together pass
    PAGE_BYTES. `after_seq` -1 includes the record of the session's creation, at seq 0.
    `contains` is looked for in the payload's JSON text, in any case.
    """
    found: list[StoredEvent] = []
    room = None if _fits_a_page(session) else PAGE_BYTES
    for segment in _in_reading_order(session, after_seq, newest_first):
        events = segment.events(session.project_id).filter(seq__gt=after_seq)
        if before_seq is not None:
            events = events.filter(seq__lt=before_seq)
        if types:
            events = events.of_types(types)
        if contains:
            events = events.containing(contains)
        if run_id is not None:
            events = events.filter(run_id=run_id)
        events = events.order_by("-seq" if newest_first else "seq")
        project_id, most = session.project_id, limit - len(found)
        rows, has_more = _read_rows(project_id, events, most, room)
        while contains and rows:
            last = rows[-1].seq
            rows = [row for row in rows if _holds(row, contains)]
            if rows or not has_more:
                break
            events = events.filter(**{"seq__lt" if newest_first else "seq__gt": last})
            rows, has_more = _read_rows(project_id, events, most, room)
        found += rows
        if room is not None:
            room -= sum(row.payload_bytes for row in rows)
        if has_more:
            return LogPage(found, True)
    return LogPage(found, False)


def _holds(event: StoredEvent, words: str) -> bool:
    """Of payloads in the row the database has said so already."""
    return event.blob_id is None or holds(event.payload_text, words)


def _fits_a_page(session: Session) -> bool:
    return not session.lineage and session.log_bytes <= PAGE_BYTES


def _read_rows(
    project_id: UUID, events: EventQuerySet, limit: int, room: int | None
) -> tuple[list[StoredEvent], bool]:
    """Read at most `limit` rows of at most `room` bytes, but always one.

    The sizes are read first: a row's payload is only fetched when it is shown. With
    `room` None all that match fit, and one query does.
    """
    if room is None:
        found = list(events.values_list(*COLUMNS)[: limit + 1])
        return stored_events(project_id, found[:limit]), len(found) > limit
    sizes = list(events.values_list("payload_bytes", flat=True)[: limit + 1])
    count, total = 0, 0
    for size in sizes[:limit]:
        total += size
        if total > room and count:
            break
        count += 1
    rows = events.values_list(*COLUMNS)[:count] if count else ()
    return stored_events(project_id, rows), count < len(sizes)


def read_all(session: Session, batch_size: int = 500) -> Iterator[StoredEvent]:
    """Yield the whole log from seq 1 on, in batches, each a query of its own."""
    after, more = 0, True
    while more:
        events, more = read_log(session, after_seq=after, limit=batch_size)
        yield from events
        after = events[-1].seq if events else after


def _in_reading_order(
    session: Session, after_seq: int, newest_first: bool
) -> list[Segment]:
    segments = [s for s in segments_of(session) if s.last_seq > after_seq]
    if after_seq < 0:
        # Only a session's own row 0 says how it began.
        segments.insert(0, Segment(session.pk, 0, 0))
    return segments[::-1] if newest_first else segments


def event_json(event: StoredEvent) -> dict[str, Any]:
    """Return the event as the API shows it; its payload goes out as it is stored."""
    return {
        "id": str(event.event_id),
        "seq": event.seq,
        "type": event.type,
        "payload": codec.RawJSON(event.payload_text),
        "run": str(event.run_id) if event.run_id else None,
        "step": str(event.step_id) if event.step_id else None,
        "actor": event.actor,
        "occurred_at": iso(event.occurred_at),
        "created_at": iso(event.created_at),
    }


def iso(at: datetime | None) -> str | None:
    """Return a time as UTC ISO 8601 with microseconds and Z."""
    if at is None:
        return None
    text = at.astimezone(UTC).isoformat(timespec="microseconds")
    return text.replace("+00:00", "Z")
