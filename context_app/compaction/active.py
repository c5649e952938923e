"""Which summaries stand for which part of a log, as the log itself tells it.

The newest `context.*` event names all summaries in force: finding them is two reads by
index, however many there have been.
"""

from dataclasses import dataclass
from typing import Any

from sessions_app import event_types as types
from sessions_app.log import (
    COLUMNS,
    StoredEvent,
    read_log,
    segments_of,
    stored_events,
)
from sessions_app.models import Session


@dataclass(frozen=True)
class Summary:
    """A summary in force: it stands for `from_seq` to `up_to_seq` without `keep`."""

    seq: int
    from_seq: int
    up_to_seq: int
    text: str
    keep: tuple[int, ...]
    replaces: tuple[int, ...]
    payload: dict[str, Any]

    def covers(self, seq: int) -> bool:
        return self.from_seq <= seq <= self.up_to_seq and seq not in self.keep


@dataclass(frozen=True)
class Active:
    """The summaries in force at some seq, oldest first; they cover 1 to `up_to_seq`.

    `changed_at` is the seq of the newest `context.*` event, 0 if there is none.
    """

    summaries: tuple[Summary, ...] = ()
    changed_at: int = 0

    @property
    def up_to_seq(self) -> int:
        return self.summaries[-1].up_to_seq if self.summaries else 0

    @property
    def seqs(self) -> list[int]:
        return [summary.seq for summary in self.summaries]


def active_summaries(session: Session, at_seq: int) -> Active:
    page = read_log(
        session,
        before_seq=at_seq + 1,
        types=types.CONTEXT_TYPES,
        limit=1,
        newest_first=True,
    )
    if not page.events:
        return Active()
    newest = page.events[0]
    named = _seqs(newest.payload.get("active"))
    known = {newest.seq: newest}
    known |= {e.seq: e for e in _read(session, [s for s in named if s != newest.seq])}
    found = [_summary(known[seq]) for seq in named if seq in known]
    return Active(tuple(s for s in found if s is not None), newest.seq)


def last_change(session: Session) -> int:
    """What `active_summaries` tells as `changed_at`, without reading any payload."""
    for segment in reversed(segments_of(session)):
        events = segment.events(session.project_id).of_types(types.CONTEXT_TYPES)
        seq = events.order_by("-seq").values_list("seq", flat=True).first()
        if seq is not None:
            return seq
    return 0


def _read(session: Session, seqs: list[int]) -> list[StoredEvent]:
    if not seqs:
        return []
    found: list[StoredEvent] = []
    for segment in segments_of(session):
        rows = (
            segment.events(session.project_id)
            .filter(seq__in=seqs, type=types.CONTEXT_COMPACTED)
            .order_by("seq")
        )
        found += stored_events(session.project_id, rows.values_list(*COLUMNS))
    return found


def _summary(event: StoredEvent) -> Summary | None:
    """The summary that an event holds; None if it was blanked, to forget a subject."""
    payload = event.payload
    text, reach = (
        payload.get("summary"),
        (payload.get("from_seq"), payload.get("up_to_seq")),
    )
    if (
        not isinstance(text, str)
        or not text
        or not all(isinstance(s, int) for s in reach)
    ):
        return None
    return Summary(
        event.seq,
        payload["from_seq"],
        payload["up_to_seq"],
        text,
        tuple(_seqs(payload.get("keep"))),
        tuple(_seqs(payload.get("replaces"))),
        payload,
    )


def _seqs(value: Any) -> list[int]:
    return [s for s in value if isinstance(s, int)] if isinstance(value, list) else []
