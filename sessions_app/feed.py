"""The project's feed: every committed event once, in one order, none missed.

The order is (gen, xid, id): the generation of the cluster, the transaction that wrote
the event, the place in it. A position is handed out only when no transaction that could
still write below it is running (`pg_snapshot_xmin`): a reader that followed `id` alone
would skip whoever commits late.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple
from uuid import UUID

from django.db import connection, transaction

from agentstate.api.pagination import decode_cursor, encode_cursor
from sessions_app.log import StoredEvent, stored_events

SCOPE = "feed"
# A page with filters looks at no more rows than this; then it hands out the place it
# has come to, so that rare events do not cost a read of the whole log.
SCAN_ROWS = 5000


class Position(NamedTuple):
    """A place in the feed; events behind it are read next."""

    gen: int
    xid: int
    id: int


START = Position(0, 0, 0)


class FeedEvent(NamedTuple):
    """An event with the session it belongs to and its place in the feed."""

    session_id: UUID
    agent: str
    position: Position
    event: StoredEvent


class FeedPage(NamedTuple):
    """Some events, the position to go on from, and whether to go on at once."""

    events: list[FeedEvent]
    position: Position
    has_more: bool


class FeedFilter(NamedTuple):
    """What of the feed is wanted; empty means everything. Subject is the key's own."""

    types: Sequence[str] = ()
    agent: str | None = None
    session_id: UUID | None = None
    subject: str | None = None


def encode_position(position: Position) -> str:
    return encode_cursor(SCOPE, list(position))


def decode_position(cursor: str) -> Position:
    """Read a cursor of the feed. Raises BadCursor."""
    return Position(*(int(part) for part in decode_cursor(SCOPE, cursor, 3)))


def end_of_feed(project_id: UUID) -> Position:
    """Return the place behind the newest event that may be shown."""
    with connection.cursor() as cursor:
        cursor.execute(
            f"""
            SELECT gen, xid::text::bigint, id FROM agent_events
            WHERE project_id = %s AND {SETTLED}
            ORDER BY gen DESC, xid DESC, id DESC LIMIT 1
            """,
            [project_id],
        )
        row = cursor.fetchone()
    return Position(*row) if row else START


def read_feed(
    project_id: UUID, after: Position, wanted: FeedFilter, limit: int
) -> FeedPage:
    """Return up to `limit` settled events behind `after`, in the feed's order."""
    where, values = _conditions(wanted)
    with connection.cursor() as cursor:
        cursor.execute(
            READ.format(where=where),
            [project_id, *after, SCAN_ROWS, *values, limit],
        )
        rows = cursor.fetchall()
    if not rows:
        return FeedPage([], after, False)
    # The last row is no event: it says how far the scan has come.
    *found, scanned = rows
    count = scanned[5]
    stored = stored_events(project_id, (row[5:] for row in found))
    events = [_feed_event(*pair) for pair in zip(found, stored, strict=True)]
    reached = Position(*scanned[:3])
    if len(events) == limit:
        place = events[-1].position
        return FeedPage(events, place, place < reached or count == SCAN_ROWS)
    return FeedPage(events, reached, count == SCAN_ROWS)


# Rows of earlier generations were all committed before this cluster began.
SETTLED = """
    (gen < agentstate_feed_generation()
     OR xid < pg_snapshot_xmin(pg_current_snapshot()))
"""

READ = f"""
SELECT * FROM (
WITH seen AS MATERIALIZED (
    SELECT gen, xid, id, project_id, session_id, type FROM agent_events
    WHERE project_id = %s AND (gen, xid, id) > (%s, %s::text::xid8, %s) AND {SETTLED}
    ORDER BY gen, xid, id LIMIT %s
), matching AS (
    SELECT seen.gen, seen.xid, seen.id, seen.project_id, s.agent FROM seen
    JOIN agent_sessions s
      ON s.project_id = seen.project_id AND s.id = seen.session_id
    WHERE true {{where}}
    ORDER BY seen.gen, seen.xid, seen.id LIMIT %s
)
SELECT m.gen, m.xid::text::bigint AS xid, m.id, m.agent, e.session_id,
       e.seq, e.event_id, e.type, e.payload::text, e.payload_bytes, e.run_id,
       e.step_id, e.actor, e.occurred_at, e.created_at, e.blob_id
FROM matching m
JOIN agent_events e ON e.project_id = m.project_id AND e.id = m.id
UNION ALL
(SELECT gen, xid::text::bigint, id, NULL, NULL, (SELECT count(*) FROM seen),
        NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
 FROM seen ORDER BY seen.gen DESC, seen.xid DESC, seen.id DESC LIMIT 1)
) AS page ORDER BY session_id IS NULL, gen, xid, id
"""


def _conditions(wanted: FeedFilter) -> tuple[str, list[Any]]:
    where = ""
    values: list[Any] = []
    if wanted.types:
        exact = [name for name in wanted.types if not name.endswith(".*")]
        families = [f"{name[:-2]}." for name in wanted.types if name.endswith(".*")]
        where += """
            AND (seen.type = ANY(%s)
                 OR EXISTS (SELECT FROM unnest(%s::text[]) f
                            WHERE starts_with(seen.type, f)))
        """
        values += [exact, families]
    if wanted.agent is not None:
        where += " AND s.agent = %s"
        values.append(wanted.agent)
    if wanted.session_id is not None:
        where += " AND seen.session_id = %s"
        values.append(wanted.session_id)
    if wanted.subject is not None:
        where += " AND s.subject = %s"
        values.append(wanted.subject)
    return where, values


def _feed_event(row: tuple[Any, ...], event: StoredEvent) -> FeedEvent:
    gen, xid, id_, agent, session_id = row[:5]
    return FeedEvent(session_id, agent, Position(gen, xid, id_), event)


def begin_generation() -> None:
    """Begin a new generation if the log lives in another history than before.

    That is another cluster (a dump restored), or another timeline of the same one (a
    recovery to a point in time). Transaction ids begin anew there; without this new
    events would sort among the old. Runs after every migrate and at each `serve`.
    """
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(GENERATION)
        newest, here = cursor.fetchone()
        if newest == here:
            return
        # Whoever appends now has numbered its events as of the old generation: they
        # end before the new one is seen.
        cursor.execute("LOCK TABLE agent_events IN SHARE ROW EXCLUSIVE MODE")
        cursor.execute(
            """
            INSERT INTO agent_feed_generations (gen, cluster, created_at)
            SELECT coalesce(max(gen), 0) + 1, %s, agentstate_now()
            FROM agent_feed_generations
            ON CONFLICT DO NOTHING
            """,
            [here],
        )


# The cluster's identifier and, from the name of its log's file, its timeline.
GENERATION = """
    SELECT (SELECT cluster FROM agent_feed_generations ORDER BY gen DESC LIMIT 1),
           system_identifier::text || '/'
               || left(pg_walfile_name(pg_current_wal_lsn()), 8)
    FROM pg_control_system()
"""
