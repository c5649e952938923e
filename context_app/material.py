"""Everything that may go into a context, read before anything is chosen."""

from collections.abc import Callable
from dataclasses import dataclass

from context_app.beside import Section
from context_app.compaction.active import Active, active_summaries
from context_app.errors import SeqNotShown
from context_app.reading import LogReader
from context_app.units import CallState, Unit
from sessions_app.models import Session

KEPT_MAX = 300  # events kept by compactions that a context reads, the newest of them


@dataclass
class Material:
    """What was read of a log. `timeline` are the units behind `start_seq`, as far back
    as there could be room for; `is_complete` if that is all of them."""

    reader: LogReader
    active: Active
    instructions: list[Unit]
    timeline: list[Unit]
    is_complete: bool
    start_seq: int
    needed: list[Unit]  # asked for, or waiting for a human
    kept: list[Unit]  # by a compaction
    late: list[Unit]  # called before the timeline begins, answered in it
    open_calls: list[CallState]
    sections: list[Section]
    kept_unread: list[int]  # kept by a compaction too, but too many to be read

    @property
    def unread(self) -> tuple[int, int] | None:
        """The part of the log that was not read since there is no room for it."""
        if self.is_complete:
            return None
        first = self.start_seq + 1
        lowest = min(
            (unit.first_seq for unit in self.timeline), default=self.reader.at_seq + 1
        )
        return (first, lowest - 1) if first < lowest else None


def gather(
    session: Session,
    at_seq: int,
    keep: frozenset[int],
    sections: list[Section],
    page_size: int,
    is_enough: Callable[[list[Unit]], bool],
) -> Material:
    """Read a log for a context. Raises SeqNotShown for a `keep` that is no message."""
    reader = LogReader(session, at_seq)
    leading = reader.leading_system()
    active = active_summaries(session, at_seq)
    open_calls = reader.open_calls()
    start = max([active.up_to_seq, *(event.seq for event in leading)])
    timeline, is_complete = reader.read_back(start, page_size, is_enough)
    lowest = timeline[0].first_seq if timeline and not is_complete else start + 1
    waiting = {call.call_seq for call in open_calls if call.awaiting}
    all_kept = sorted(s for summary in active.summaries for s in summary.keep)
    kept = set(all_kept[-KEPT_MAX:])
    here = {event.seq for event in leading} | _seqs(timeline)
    apart = _apart(
        reader.units_at((keep | waiting | kept | reader.late_calls(lowest)) - here),
        here,
    )
    _check_shown(set(keep) - here - _seqs(apart))
    needed = [u for u in [*timeline, *apart] if (keep | waiting) & set(u.seqs)]
    rest = [unit for unit in apart if unit not in needed]
    return Material(
        reader,
        active,
        [Unit(said=event) for event in leading],
        timeline,
        is_complete,
        start,
        needed,
        kept=[unit for unit in rest if kept & set(unit.seqs)],
        late=[unit for unit in rest if not kept & set(unit.seqs)],
        open_calls=open_calls,
        sections=sections,
        kept_unread=[seq for seq in all_kept[:-KEPT_MAX] if seq not in here],
    )


def _seqs(units: list[Unit]) -> set[int]:
    return {seq for unit in units for seq in unit.seqs}


def _apart(units: list[Unit], here: set[int]) -> list[Unit]:
    """Drop from units what another unit shows: a summary may end between two calls."""
    apart = [
        Unit(
            unit.said,
            unit.thoughts,
            [call for call in unit.calls if call.event.seq not in here],
        )
        for unit in units
    ]
    return [unit for unit in apart if unit.seqs and unit.first_seq not in here]


def _check_shown(missing: set[int]) -> None:
    if not missing:
        return
    raise SeqNotShown(
        f"keep: there is no message or tool call at {min(missing)}",
        errors=[
            {
                "path": "keep",
                "code": "seq_not_found",
                "detail": f"{seq} is no message or tool call of this session",
            }
            for seq in sorted(missing)
        ],
    )
