"""Reading a log for a context: newest first, by index, no more than fits.

Nothing here depends on the length of the log. Calls and results find each other through
the projection `agent_tool_calls`, which the append keeps.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from uuid import UUID

from django.db.models import Q

from context_app.units import CallState, Unit, units_of
from sessions_app import event_types as types
from sessions_app.log import (
    COLUMNS,
    StoredEvent,
    read_log,
    segments_of,
    stored_events,
)
from sessions_app.models import Session, ToolCall

PAGES_MAX = 50  # of a log in which nothing is worth showing
LEADING_MAX = 8  # system messages at the log's beginning that count as instructions
AROUND = 64  # events on each side of a call in which its parallel calls are looked for
OPEN_CALLS_MAX = 200


@dataclass
class LogReader:
    """One session's log up to `at_seq`, and what has been read of it so far."""

    session: Session
    at_seq: int
    events: dict[int, StoredEvent] = field(default_factory=dict)
    states: dict[int, CallState] = field(default_factory=dict)
    # Result seq to call seq, of what was read.
    answers: dict[int, int] = field(default_factory=dict)

    def leading_system(self) -> list[StoredEvent]:
        """Return the system messages that the conversation begins with."""
        page = read_log(
            self.session,
            before_seq=self.at_seq + 1,
            types=types.CONVERSATION_TYPES,
            limit=LEADING_MAX,
        )
        leading: list[StoredEvent] = []
        for event in page.events:
            if event.type != types.MESSAGE_SYSTEM:
                break
            leading.append(event)
        self._keep(leading)
        return leading

    def read_back(
        self, after_seq: int, page_size: int, is_enough: Callable[[list[Unit]], bool]
    ) -> tuple[list[Unit], bool]:
        """Read units newest first down to `after_seq`, until `is_enough` of them.

        Returns them oldest first, and whether `after_seq` was reached.
        """
        buffer: list[StoredEvent] = []
        for _ in range(PAGES_MAX):
            page = read_log(
                self.session,
                after_seq=after_seq,
                before_seq=buffer[0].seq if buffer else self.at_seq + 1,
                types=types.CONVERSATION_TYPES,
                limit=page_size,
                newest_first=True,
            )
            buffer = [*page.events[::-1], *buffer]
            self._keep(page.events)
            self._pair(page.events)
            units = self._units(_whole_groups(buffer, page.has_more))
            if not page.has_more:
                return units, True
            if is_enough(units):
                return units, False
        return units, False

    def units_at(self, seqs: Iterable[int]) -> list[Unit]:
        """Return the units that hold these seqs, a result's being that of its call."""
        wanted = set(seqs)
        self._fetch({seq for seq in wanted if seq not in self.events})
        results = {
            s
            for s in wanted
            if s in self.events and self.events[s].type == types.TOOL_RESULT
        }
        self._pair([self.events[s] for s in results if s not in self.answers])
        calls = {self.answers[s] for s in results if s in self.answers}
        wanted |= calls
        found = self._around(wanted - results)
        self._keep(found)
        self._pair(found)
        missing = {
            state.result_seq
            for state in self.states.values()
            if state.result_seq is not None and state.result_seq not in self.events
        }
        self._fetch(missing)
        units = self._units(found)
        return [unit for unit in units if wanted & set(unit.seqs)]

    def late_calls(self, below_seq: int) -> set[int]:
        """Calls below a seq whose result was read: it came late."""
        return {call for call in self.answers.values() if call < below_seq}

    def open_calls(self) -> list[CallState]:
        """Return calls without a result, those that wait for a human first, newest
        first; at most OPEN_CALLS_MAX."""
        rows = (
            ToolCall.objects.filter(
                Q(result_seq=None) | Q(result_seq__gt=self.at_seq),
                project_id=self.session.project_id,
                session_id=self._owner,
                call_seq__lte=self.at_seq,
            )
            .exclude(stand_in_seq__lte=self.at_seq)
            .order_by("-awaiting", "-call_seq")[:OPEN_CALLS_MAX]
        )
        return [_state(row, self.at_seq) for row in rows]

    @property
    def _owner(self) -> UUID:
        """The session whose segment holds `at_seq`: it knows all that was open then."""
        return self._owners()[-1][0]

    def _owners(self) -> list[tuple[UUID, int]]:
        """The sessions whose rows are read, oldest first, and up to which seq."""
        segments = segments_of(self.session)
        owners = [
            (s.session_id, min(s.last_seq, self.at_seq))
            for s in segments
            if s.first_seq <= self.at_seq
        ]
        return owners or [(segments[0].session_id, self.at_seq)]

    def _units(self, events: list[StoredEvent]) -> list[Unit]:
        return units_of(events, self.states, self.events.get)

    def _keep(self, events: Iterable[StoredEvent]) -> None:
        self.events |= {event.seq: event for event in events}

    def _pair(self, events: list[StoredEvent]) -> None:
        """Learn the calls made and answered in these events."""
        calls = [e.seq for e in events if e.type == types.TOOL_CALL]
        results = [e.seq for e in events if e.type == types.TOOL_RESULT]
        if not calls and not results:
            return
        owners = self._owners()
        order = {owner: at for at, (owner, _) in enumerate(owners)}
        rows = ToolCall.objects.filter(
            Q(call_seq__in=calls) | Q(result_seq__in=results),
            project_id=self.session.project_id,
            session_id__in=list(order),
        )
        # A fork was given the calls that were open when it began: its row is the newer.
        for row in sorted(rows, key=lambda row: order[row.session_id]):
            limit = owners[order[row.session_id]][1]
            if row.call_seq <= limit:
                self._learn(_state(row, limit))

    def _learn(self, state: CallState) -> None:
        before = self.states.get(state.call_seq)
        if before is not None and before.result_seq is not None:
            self.answers.pop(before.result_seq, None)
        self.states[state.call_seq] = state
        if state.result_seq is not None:
            self.answers[state.result_seq] = state.call_seq

    def _fetch(self, seqs: set[int]) -> None:
        if seqs:
            self._keep(self._select(Q(seq__in=seqs)))

    def _around(self, seqs: set[int]) -> list[StoredEvent]:
        if not seqs:
            return []
        near = Q()
        for low, high in _merged(sorted(seqs)):
            near |= Q(seq__range=(low, high))
        return self._select(near)

    def _select(self, condition: Q) -> list[StoredEvent]:
        found: list[StoredEvent] = []
        for segment in segments_of(self.session):
            if segment.first_seq > self.at_seq or segment.last_seq < segment.first_seq:
                continue
            rows = segment.events(self.session.project_id).filter(
                condition, seq__lte=self.at_seq, type__in=types.CONVERSATION_TYPES
            )
            found += stored_events(
                self.session.project_id, rows.order_by("seq").values_list(*COLUMNS)
            )
        return found


def _merged(seqs: list[int]) -> list[tuple[int, int]]:
    """The ranges around each of `seqs`, those that touch made one."""
    ranges: list[tuple[int, int]] = []
    for seq in seqs:
        low, high = seq - AROUND, seq + AROUND
        if ranges and low <= ranges[-1][1]:
            ranges[-1] = (ranges[-1][0], high)
        else:
            ranges.append((low, high))
    return ranges


def _whole_groups(events: list[StoredEvent], has_more: bool) -> list[StoredEvent]:
    """Leave out what may be the rest of a unit that begins further back."""
    if not has_more:
        return events
    inner = (types.TOOL_CALL, types.REASONING)
    for at, event in enumerate(events):
        follows_thoughts = at == 0 or events[at - 1].type == types.REASONING
        if event.type in inner or (
            event.type == types.MESSAGE_ASSISTANT and follows_thoughts
        ):
            continue
        return events[at:]
    return []


def _state(row: ToolCall, limit: int) -> CallState:
    """The call as it was at `limit`: a stand-in counts until a real result is there."""
    result = row.result_seq
    if result is not None and result > limit:
        result = row.stand_in_seq
        if result is not None and result > limit:
            result = None
    return CallState(row.call_seq, row.tool_call_id, row.name, row.awaiting, result)
