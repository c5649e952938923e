"""How much happens in a project, by the hour: what charts are drawn from."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import NamedTuple
from uuid import UUID

from django.db import connection
from django.utils import timezone

from agentstate.clock import db_now
from sessions_app.forms import Span

HOUR = timedelta(hours=1)
# A transaction may commit somewhat after the time that its events bear.
SETTLED = timedelta(minutes=2)
KEPT_MOST = 20_000  # counts of a process, the oldest go first
_kept: dict[tuple["Wish", datetime], int] = {}


class Hour(NamedTuple):
    """One hour of the reader's clock, and the events in it."""

    begin: datetime
    events: int


@dataclass(frozen=True)
class Wish:
    """What is counted; hours of it that are over are kept, since they stay as they are.

    Erasing leaves the rows of a log in their place, so it changes no count either.
    """

    project_id: UUID
    types: tuple[str, ...]
    agent: str


def events_by_hour(
    project_id: UUID, span: Span, *, types: tuple[str, ...] = (), agent: str = ""
) -> list[Hour]:
    """Count the events of each hour of `span`, the empty ones too, oldest first.

    Hours begin where the reader's do (half past in India); the hour that a clock turned
    back goes through twice is two hours, told apart by their offsets.
    """
    wish = Wish(project_id, types, agent)
    hours = _hours(span)
    settled = db_now() - SETTLED
    kept = [
        at for at in hours if at >= span.begin and at + HOUR <= min(span.end, settled)
    ]
    known = {at: count for at in kept if (count := _kept.get((wish, at))) is not None}
    unknown = [at for at in hours if at not in known]
    for first, last in _stretches(unknown):
        begin, end = max(first, span.begin), min(last + HOUR, span.end)
        found = _count(wish, begin, end)
        known |= {at: found.get(at, 0) for at in unknown if first <= at <= last}
    for at in kept:
        _keep((wish, at), known[at])
    return [Hour(at, known[at]) for at in hours]


def _keep(key: tuple[Wish, datetime], count: int) -> None:
    if key not in _kept and len(_kept) >= KEPT_MOST:
        with suppress(KeyError, RuntimeError):  # another thread was at it
            del _kept[next(iter(_kept))]
    _kept[key] = count


def _stretches(hours: list[datetime]) -> Iterator[tuple[datetime, datetime]]:
    """First and last of hours that follow one another without a hole."""
    first = last = None
    for at in hours:
        if first is None or last is None:
            first = at
        elif at != last + HOUR:
            yield first, last
            first = at
        last = at
    if first is not None and last is not None:
        yield first, last


def _count(wish: Wish, begin: datetime, end: datetime) -> dict[datetime, int]:
    with connection.cursor() as cursor:
        cursor.execute(
            BY_HOUR,
            {
                "project": wish.project_id,
                "begin": begin,
                "end": end,
                "zone": timezone.get_current_timezone_name(),
                "types": list(wish.types),
                "agent": wish.agent,
            },
        )
        return dict(cursor.fetchall())


def _hours(span: Span) -> list[datetime]:
    local = timezone.localtime(span.begin)
    into_hour = timedelta(
        minutes=local.minute, seconds=local.second, microseconds=local.microsecond
    )
    at = span.begin.astimezone(UTC) - into_hour
    hours = []
    while at < span.end:
        hours.append(at)
        at += HOUR
    return hours


BY_HOUR = """
SELECT date_trunc('hour', e.created_at, %(zone)s), count(*)
FROM agent_events e
WHERE e.project_id = %(project)s
  AND e.created_at >= %(begin)s AND e.created_at < %(end)s
  AND (%(types)s::text[] = '{}' OR e.type = ANY(%(types)s::text[]))
  AND (%(agent)s = '' OR EXISTS (
        SELECT FROM agent_sessions s WHERE s.id = e.session_id
           AND s.project_id = e.project_id AND s.agent = %(agent)s))
GROUP BY 1
"""
