"""Where facts come from, in the words that were said: what support staff read."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple
from uuid import UUID

from memory_app.models import Fact, FactSource
from sessions_app.log import segment_at
from sessions_app.models import Event, Session
from sessions_app.outline import COLUMNS, OutlineEvent

SOURCES_SHOWN = 3  # a fact
WORDS_SHOWN = 5  # events of a source


class Said(NamedTuple):
    """One event that a fact was taken from, in the session that a person would open."""

    session: Session
    event: OutlineEvent


class Source(NamedTuple):
    """One time that a fact was said. `session` is None where there is no such one."""

    source: FactSource
    session: Session | None
    said: list[Said]


def sources_of(
    facts: Sequence[Fact], *, most: int = SOURCES_SHOWN
) -> dict[UUID, list[Source]]:
    """Return the newest sources of each fact, with what was said there.

    Three queries, however many facts there are.
    """
    if not facts:
        return {}
    project_id = facts[0].project_id
    rows = _newest(project_id, [fact.id for fact in facts], most)
    sessions = _sessions(project_id, {row.session for row in rows})
    said = _said(project_id, rows, sessions)
    found: dict[UUID, list[Source]] = defaultdict(list)
    for row in rows:
        session = sessions.get(row.session)
        events = [
            said[session.pk, seq]
            for seq in row.seqs[:WORDS_SHOWN]
            if session and (session.pk, seq) in said
        ]
        found[row.memory_id].append(Source(row, session, events))
    return found


def _newest(project_id: UUID, fact_ids: list[UUID], most: int) -> list[FactSource]:
    table = FactSource._meta.db_table
    return list(
        FactSource.objects.raw(
            f"SELECT s.* FROM unnest(%s::uuid[]) AS wanted(id) CROSS JOIN LATERAL ("
            f" SELECT * FROM {table} WHERE project_id = %s AND memory_id = wanted.id"
            " ORDER BY id DESC LIMIT %s) AS s",
            [fact_ids, project_id, most],
        )
    )


def _sessions(project_id: UUID, names: Iterable[str]) -> dict[str, Session]:
    """Sessions by the names that sources give them: their ids or keys."""
    wanted = [name for name in names if name]
    found: dict[str, Session] = {}
    for session in Session.objects.in_project(project_id).named(wanted).defer("state"):
        for name in (str(session.pk), session.key):
            if name:
                found[name] = session
    return found


def _said(
    project_id: UUID, rows: list[FactSource], sessions: dict[str, Session]
) -> dict[tuple[UUID, int], Said]:
    # A fork's early events are rows of its ancestors.
    wanted: dict[tuple[UUID, int], list[Session]] = defaultdict(list)
    for row in rows:
        if session := sessions.get(row.session):
            for seq in row.seqs[:WORDS_SHOWN]:
                if 0 < seq <= session.last_seq:
                    wanted[segment_at(session, seq).session_id, seq].append(session)
    events = Event.objects.filter(
        project_id=project_id,
        session_id__in={holder for holder, _ in wanted},
        seq__in={seq for _, seq in wanted},
    )
    found = {}
    for holder, *values in events.values_list("session_id", *COLUMNS):
        event = OutlineEvent._make(values)
        for session in wanted.get((holder, event.seq), ()):
            found[session.pk, event.seq] = Said(session, event)
    return found
