"""Importing transcripts: lines of a file into sessions, through the services.

Lines of one session are written together, each batch in one transaction. A line that
is refused is told by its number and leaves no trace; the rest goes on.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO
from uuid import UUID

from django.db import transaction

from agentstate.errors import AppError
from sessions_app import event_types as types
from sessions_app.append import NewEvent, append_events
from sessions_app.log import Segment, segments_of
from sessions_app.models import Session
from sessions_app.reordering import IMPORTER, put_in_order
from sessions_app.services import (
    create_session,
    get_session,
    replay_session_event,
)
from sessions_app.state import replay_state_event
from sessions_app.transcripts.reading import IMPORTED_KEY, IMPORTED_TYPE, Source, Unit

BATCH_EVENTS = 500
PLACES_KEPT = 10_000  # sessions whose place in the file is remembered


@dataclass
class Counts:
    """What an import has come to."""

    sessions_made: int = 0
    sessions_known: int = 0
    events_added: int = 0
    events_known: int = 0
    refused: int = 0


@dataclass
class _Place:
    """How far a file has come in a session's log."""

    session_id: UUID
    last: int = 0  # the seq of the file's event before
    first_added: int | None = None  # the first seq that this import has added


class Import:
    """One run over one file.

    `refused(line, error)` is told of each bad line, `moved()` of each batch done.
    """

    def __init__(
        self,
        source: Source,
        refused: Callable[[int, AppError], None],
        *,
        moved: Callable[[], None] = lambda: None,
        dry_run: bool = False,
    ) -> None:
        self.source = source
        self.project_id = source.project.id
        self.counts = Counts()
        self._tell = refused
        self._moved = moved
        self._dry_run = dry_run
        self._places: OrderedDict[UUID | str, _Place] = OrderedDict()
        self._turned: dict[str, _Place] = {}

    def run(self, file: BinaryIO) -> Counts:
        """Import all of `file`. It must be seekable: order may need a second look."""
        for batch in _batches(self.source.units(file, self._refuse)):
            self._take(batch)
            self._moved()
        if self._turned:
            file.seek(0)
            self._put_in_order(file)
        return self.counts

    def _refuse(self, line: int, error: AppError) -> None:
        self.counts.refused += 1
        self._tell(line, error)

    def _take(self, batch: list[Unit]) -> None:
        try:
            self._store(batch)
        except AppError as exc:
            if len(batch) == 1:
                self._refuse(batch[0].line, exc)
                return
            for unit in batch:
                self._take([unit])

    def _store(self, batch: list[Unit]) -> None:
        if self._dry_run:
            self._foresee(batch)
            return
        events = [event for unit in batch for event in unit.events]
        with transaction.atomic():
            session, made = self._session(batch[0])
            session = get_session(self.project_id, session.pk, lock=True)
            writer = _Writer(session)
            seqs = writer.write(events)
        # Told only once it is committed: a batch that is refused comes again in parts.
        added = [seq for seq in seqs if seq > session.last_seq]
        self.counts.events_added += len(added)
        self.counts.events_known += len(seqs) - len(added)
        self._note_place(batch[0].key, session, seqs, added, made)

    def _session(self, unit: Unit) -> tuple[Session, bool]:
        sessions = Session.objects.in_project(self.project_id)
        for key in (f"{IMPORTED_KEY}{unit.key}"[:255], unit.key):
            if found := sessions.filter(key=key).first():
                return found, False
        return create_session(self.project_id, unit.fields, actor=IMPORTER)

    def _note_place(
        self, key: str, session: Session, seqs: list[int], added: list[int], made: bool
    ) -> None:
        place = self._places.get(session.pk)
        if place is None:
            place = self._places[session.pk] = _Place(session.pk)
            self.counts.sessions_made += made
            self.counts.sessions_known += not made
        self._places.move_to_end(session.pk)
        if len(self._places) > PLACES_KEPT:
            self._places.popitem(last=False)
        if added and place.first_added is None:
            place.first_added = added[0]
        for seq in seqs:
            first = place.first_added
            if first is not None and seq < first <= place.last:
                self._turned[key] = place
            place.last = seq

    def _foresee(self, batch: list[Unit]) -> None:
        """Count what would be stored, and store nothing."""
        unit = batch[0]
        session = (
            Session.objects.in_project(self.project_id)
            .filter(key__in=(unit.key, f"{IMPORTED_KEY}{unit.key}"[:255]))
            .first()
        )
        ids = [event.id for each in batch for event in each.events if event.id]
        known = len(known_seqs(session, ids)) if session else 0
        self.counts.events_added += len(ids) - known
        self.counts.events_known += known
        name = unit.key.removeprefix(IMPORTED_KEY)
        if name not in self._places:
            self._places[name] = _Place(UUID(int=0))
            self.counts.sessions_made += session is None
            self.counts.sessions_known += session is not None
            if len(self._places) > PLACES_KEPT:
                self._places.popitem(last=False)

    def _put_in_order(self, file: BinaryIO) -> None:
        """Let events that were added late stand where the file has them."""
        orders: dict[str, list[UUID]] = {key: [] for key in self._turned}
        last_line: dict[str, int] = {}
        for unit in self.source.units(file, lambda line, error: None):
            if unit.key in orders:
                orders[unit.key] += [e.id for e in unit.events if e.id]
                last_line[unit.key] = unit.line
        for key, place in self._turned.items():
            assert place.first_added is not None
            try:
                put_in_order(
                    self.project_id,
                    place.session_id,
                    orders[key],
                    place.first_added,
                    write=lambda session, events: _Writer(session).write(events),
                )
            except AppError as exc:
                self._refuse(last_line[key], exc)


class _Writer:
    """Writes events to one session, whose row the caller has locked."""

    def __init__(self, session: Session) -> None:
        self.session = session

    def write(self, events: Sequence[NewEvent]) -> list[int]:
        """Return the seq of each event, whether it is new or was there."""
        seqs: list[int] = []
        for group in _alike(events):
            kind = group[0].type
            if kind == types.STATE_CHANGED:
                seqs.append(self._change_state(group[0]))
            elif kind.startswith("session."):
                seqs.append(
                    replay_session_event(
                        self.session.project_id,
                        self.session.pk,
                        group[0],
                        actor=IMPORTER,
                    )
                )
            else:
                seqs += self._append(group, by_server=kind.startswith(IMPORTED_TYPE))
        return seqs

    def _append(self, events: list[NewEvent], *, by_server: bool) -> list[int]:
        return append_events(
            self.session.project_id,
            self.session.pk,
            events,
            actor=IMPORTER,
            by_server=by_server,
        ).seqs

    def _change_state(self, event: NewEvent) -> int:
        if event.id and known_seqs(self.session, [event.id]):
            return self._append([event], by_server=True)[0]
        project_id, session_id = self.session.project_id, self.session.pk
        replay_state_event(project_id, session_id, event, actor=IMPORTER)
        return get_session(project_id, session_id).last_seq


def known_seqs(session: Session, ids: list[UUID]) -> dict[UUID, int]:
    """Return the numbers of those of `ids` that are in the session's log."""
    *shared, own = segments_of(session)
    # To the end of the log as it is now, not as it was when the row was read.
    own = Segment(own.session_id, own.first_seq, 2**62)
    known: dict[UUID, int] = {}
    for segment in (*shared, own):
        found = segment.events(session.project_id).filter(event_id__in=ids)
        known |= dict(found.values_list("event_id", "seq"))
    return known


def _batches(units: Iterator[Unit]) -> Iterator[list[Unit]]:
    """Lines that follow each other in one session, together; a conversation alone."""
    batch: list[Unit] = []
    for unit in units:
        if batch and (
            unit.is_conversation
            or batch[0].is_conversation
            or unit.key != batch[0].key
            or unit.fields != batch[0].fields
            or len(batch) >= BATCH_EVENTS
        ):
            yield batch
            batch = []
        batch.append(unit)
    if batch:
        yield batch


def _alike(events: Sequence[NewEvent]) -> Iterator[list[NewEvent]]:
    """Runs of events that one append can take: no id twice, none that changes rows."""
    group: list[NewEvent] = []
    ids: set[UUID | None] = set()
    way: tuple[bool, bool] | None = None
    for event in events:
        applies = event.type == types.STATE_CHANGED or event.type.startswith("session.")
        way_now = (applies, event.type.startswith(IMPORTED_TYPE))
        full = len(group) >= BATCH_EVENTS or event.id in ids
        if group and (applies or way_now != way or full):
            yield group
            group, ids = [], set()
        group.append(event)
        ids.add(event.id)
        way = way_now
    if group:
        yield group
