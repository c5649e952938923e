"""How much happens in a project, by the hour: what charts are drawn from."""

from datetime import UTC, datetime, timedelta
from typing import NamedTuple
from uuid import UUID

from django.db import connection
from django.utils import timezone

from sessions_app.forms import Span

HOUR = timedelta(hours=1)


class Hour(NamedTuple):
    """One hour of the reader's clock, and the events in it."""

    begin: datetime
    events: int


def events_by_hour(
    project_id: UUID, span: Span, *, types: tuple[str, ...] = (), agent: str = ""
) -> list[Hour]:
    """Count the events of each hour of `span`, the empty ones too, oldest first.

    Hours begin where the reader's do (half past in India); the hour that a clock turned
    back goes through twice is two hours, told apart by their offsets.
    """
    zone = timezone.get_current_timezone_name()
    with connection.cursor() as cursor:
        cursor.execute(
            BY_HOUR,
            {
                "project": project_id,
                "begin": span.begin,
                "end": span.end,
                "zone": zone,
                "types": list(types),
                "agent": agent,
            },
        )
        counts = dict(cursor.fetchall())
    return [Hour(at, counts.get(at, 0)) for at in _hours(span)]


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
