"""Search through the events of a project, newest first, a bounded stretch at a time.

There is no index of the words in payloads: an append would pay for it. A search reads
the newest events back to a fixed number, says how far it came, and goes on from there
when it is asked to.
"""

from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from django.db import connection

from agentstate import codec
from sessions_app.feed import Position, decode_position, encode_position
from sessions_app.forms import SearchFilters
from sessions_app.models import Event
from sessions_app.outline import COLUMNS, OutlineEvent
from sessions_app.payloads import holds, stored_texts

SHOWN = 50
READ_PAYLOADS = 5000  # events whose payloads one search looks into
READ_ROWS = 50_000  # events that a filter by type or agent looks at


class FoundEvent(NamedTuple):
    session_id: UUID
    event: OutlineEvent


class Found(NamedTuple):
    """`next` is where to go on, None when all was read; `read_back_to` how far."""

    events: list[FoundEvent]
    next: str | None
    read_back_to: datetime | None


def search_events(project_id: UUID, filters: SearchFilters) -> Found:
    """Return the newest events of the filter, or of the stretch behind its `before`."""
    words = filters.value("q")
    most = READ_PAYLOADS if words else READ_ROWS
    narrow, values = _narrow(filters)
    match, match_values = _match(filters)
    with connection.cursor() as cursor:
        cursor.execute(
            SEARCH.format(narrow=narrow, match=match),
            [project_id, *values, most, *match_values, SHOWN],
        )
        rows = cursor.fetchall()
    if not rows:
        return Found([], None, None)
    *found, (*place, _, count, back_to) = rows
    if len(found) == SHOWN:
        last = Position(*found[-1][:3])
        shown = _load(project_id, found, words)
        return Found(shown, encode_position(last), back_to)
    following = encode_position(Position(*place)) if count == most else None
    return Found(_load(project_id, found, words), following, back_to)


def _narrow(filters: SearchFilters) -> tuple[str, list[Any]]:
    """Conditions of the stretch that is read, which an index can answer."""
    where, values = "", list[Any]()
    if before := filters.value("before"):
        where += " AND (gen, xid, id) < (%s, %s::text::xid8, %s)"
        values += decode_position(before)
    if span := filters.span():
        where += " AND created_at >= %s AND created_at < %s"
        values += [span.begin, span.end]
    return where, values


def _match(filters: SearchFilters) -> tuple[str, list[Any]]:
    where, values = "", list[Any]()
    if name := filters.value("type"):
        family = name.endswith(".*")
        where += " AND starts_with(e.type, %s)" if family else " AND e.type = %s"
        values.append(name[:-1] if family else name)
    if agent := filters.value("agent"):
        where += " AND s.agent = %s"
        values.append(agent)
    if words := filters.value("q"):
        where += " AND (e.payload::text ILIKE %s OR e.blob_id IS NOT NULL)"
        values.append(f"%{_like(codec.dumps(words)[1:-1])}%")
    return where, values


def _like(text: str) -> str:
    for sign in ("\\", "%", "_"):
        text = text.replace(sign, f"\\{sign}")
    return text


# The last row is no event: it says how far was read.
SEARCH = """
SELECT * FROM (
WITH seen AS MATERIALIZED (
    SELECT gen, xid, id, created_at FROM agent_events
    WHERE project_id = %s {narrow}
    ORDER BY gen DESC, xid DESC, id DESC LIMIT %s
)
(SELECT e.gen, e.xid::text::bigint AS xid, e.id, true AS is_event, 0::bigint AS count,
        e.created_at
 FROM seen JOIN agent_events e ON e.id = seen.id
 JOIN agent_sessions s ON s.id = e.session_id
 WHERE true {match}
 ORDER BY seen.gen DESC, seen.xid DESC, seen.id DESC LIMIT %s)
UNION ALL
(SELECT gen, xid::text::bigint, id, false, (SELECT count(*) FROM seen), created_at
 FROM seen ORDER BY seen.gen, seen.xid, seen.id LIMIT 1)
) AS page ORDER BY is_event DESC, gen DESC, xid DESC, id DESC
"""


def _load(project_id: UUID, found: list[Any], words: str | None) -> list[FoundEvent]:
    """Load the events; of those in the store only what holds the words."""
    ids = [row[2] for row in found]
    rows = Event.objects.filter(project_id=project_id, id__in=ids).order_by(
        "-gen", "-xid", "-id"
    )
    loaded = list(rows.values_list("session_id", "blob_id", *COLUMNS))
    blob_ids = {row[1] for row in loaded if row[1]} if words else set()
    texts = stored_texts(project_id, blob_ids)
    return [
        FoundEvent(session_id, OutlineEvent._make(rest))
        for session_id, blob_id, *rest in loaded
        if blob_id not in blob_ids or holds(texts.get(blob_id, ""), words or "")
    ]
