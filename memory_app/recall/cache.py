"""The indexes that a process keeps: read when first asked, brought up to date after.

Every recall asks for the subject's version. What changed since the index was read is
read then, so a fact is found by the very next call, in whichever process; and what was
forgotten makes the whole index be read anew. No text stays here, only terms.
"""

import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from django.conf import settings
from django.db import connection

from memory_app.embedding.embedders import configured_model
from memory_app.embedding.vectors import from_binary
from memory_app.models import EmbeddingModel
from memory_app.recall.index import FAR_FUTURE, Row, SubjectIndex
from memory_app.text import speaker_of

# Larger subjects are searched in the database (memory_app.recall.wide).
SUBJECT_FACTS = 25_000
DEAD_SHARE = 0.3  # of an index; beyond it, it is read anew
SPEAKER_LENGTH = 50


class SubjectState(NamedTuple):
    """A subject's versions, and the database's time."""

    version: int
    erased_version: int
    now: datetime


class _Entry:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.index: SubjectIndex | None = None
        self.model: str | None = None


_entries: "OrderedDict[tuple[str, UUID, str], _Entry]" = OrderedDict()
_entries_lock = threading.Lock()


@dataclass(frozen=True)
class Opened:
    """An index that is up to date, held by this thread; None if the subject is large.

    `model` is the one whose vectors it holds.
    """

    index: SubjectIndex | None
    model: str | None


@contextmanager
def open_index(project_id: UUID, subject: str, state: SubjectState) -> Iterator[Opened]:
    """Give the subject's index, up to date and to this thread alone."""
    entry = _entry(project_id, subject)
    with entry.lock:
        _refresh(entry, project_id, subject, state)
        yield Opened(entry.index, entry.model)
    _evict()


def last_model(project_id: UUID, subject: str) -> str | None:
    """Guess the model whose vectors the subject's index has, without waiting for it."""
    with _entries_lock:
        entry = _entries.get((_database(), project_id, subject))
    if entry is None or entry.index is None:
        return configured_model()
    return entry.model


def read_state(project_id: UUID, subject: str) -> SubjectState:
    """Return the subject's versions; 0 for a subject of whom nothing is known."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT s.version, s.erased_version, n.now"
            " FROM (SELECT agentstate_now() AS now) n"
            " LEFT JOIN agent_memory_subjects s"
            " ON s.project_id = %s AND s.subject = %s",
            [project_id, subject],
        )
        version, erased, now = cursor.fetchone()
    if version is None:
        forget_index(project_id, subject)
    return SubjectState(version or 0, erased or 0, now)


def forget_index(project_id: UUID, subject: str) -> None:
    with _entries_lock:
        _entries.pop((_database(), project_id, subject), None)


def forget_indexes() -> None:
    """Drop all that this process has read."""
    with _entries_lock:
        _entries.clear()


def _entry(project_id: UUID, subject: str) -> _Entry:
    key = (_database(), project_id, subject)
    with _entries_lock:
        entry = _entries.setdefault(key, _Entry())
        _entries.move_to_end(key)
    return entry


def _database() -> str:
    return str(connection.settings_dict["NAME"])


def _evict() -> None:
    """Drop the indexes not used for longest, until the others fit."""
    with _entries_lock:
        kept = 0
        for key in reversed(list(_entries)):
            index = _entries[key].index
            kept += len(index) if index is not None else 0
            if kept > settings.RECALL_CACHE_FACTS and key != next(reversed(_entries)):
                del _entries[key]


def _refresh(
    entry: _Entry, project_id: UUID, subject: str, state: SubjectState
) -> None:
    index = entry.index
    if index is not None and index.version > state.version:
        # Another thread was faster: it has read what this one has not seen. If not
        # even now, the database has gone back in time.
        state = read_state(project_id, subject)
    if index is not None and index.version == state.version:
        return
    model = _model_of(project_id, subject)
    if (
        index is None
        or entry.model != model
        or index.version < state.erased_version
        or index.version > state.version
        or index.dead > DEAD_SHARE * len(index)
    ):
        entry.index = index = None
    since = index.version if index is not None else -1
    rows = _read_rows(project_id, subject, model, since)
    if rows is None:
        entry.index = None
        return
    if index is None:
        index = SubjectIndex(_length_of_vectors(rows))
    elif not index.dimensions and _length_of_vectors(rows):
        # It was read before there was any vector.
        entry.index = None
        return _refresh(entry, project_id, subject, state)
    index.put(rows)
    index.version = state.version
    entry.index, entry.model = index, model


def _length_of_vectors(rows: list[Row]) -> int:
    return next((len(row.vector) for row in rows if row.vector is not None), 0)


def _model_of(project_id: UUID, subject: str) -> str | None:
    """The model to search by: the configured one, or an older one that has more."""
    wanted = configured_model()
    models = EmbeddingModel.objects.filter(project_id=project_id)
    known = list(models.values_list("model", flat=True)[:2])
    if len(known) < 2:  # as long as the model has not been changed
        return known[0] if known else wanted
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT model, count(*) FROM agent_memory_embeddings"
            " WHERE project_id = %s AND subject = %s GROUP BY model",
            [project_id, subject],
        )
        counts: dict[str, int] = dict(cursor.fetchall())
    if not counts or counts.get(wanted or "", 0) == max(counts.values()):
        return wanted
    return max(counts, key=lambda model: counts[model])


READ = f"""
SELECT m.id, m.terms, left(m.fact, {SPEAKER_LENGTH}), m.status, m.kind, m.pinned,
       m.confidence, extract(epoch FROM m.valid_from)::float8,
       extract(epoch FROM m.valid_to)::float8, extract(epoch FROM m.expires_at)::float8,
       extract(epoch FROM m.created_at)::float8, m.source_session, m.source_seqs[1],
       m.duplicate_of, vector_send(e.embedding)
FROM agent_memory m
LEFT JOIN agent_memory_embeddings e
  ON e.project_id = m.project_id AND e.memory_id = m.id AND e.model = %s
WHERE m.project_id = %s AND m.subject = %s AND m.subject_version > %s
ORDER BY m.id LIMIT {SUBJECT_FACTS + 1}
"""


def _read_rows(
    project_id: UUID, subject: str, model: str | None, since: int
) -> list[Row] | None:
    """Read the facts changed after version `since`; None if they are too many."""
    with connection.cursor() as cursor:
        cursor.execute(READ, [model or "", project_id, subject, since])
        found = cursor.fetchall()
    if len(found) > SUBJECT_FACTS:
        return None
    return [read_row(values) for values in found]


def read_row(values: tuple[Any, ...]) -> Row:
    (
        id_,
        terms,
        beginning,
        status,
        kind,
        pinned,
        confidence,
        begins,
        ends,
        expires,
        created,
        session,
        seq,
        twin,
        vector,
    ) = values
    if not session and abs(begins - created) > 1:
        # Dated by who told it: what has one date was told together.
        session = f"at {begins}"
    return Row(
        id=id_,
        terms=terms,
        speaker=speaker_of(beginning),
        vector=None if vector is None else from_binary(vector),
        status=status,
        kind=kind,
        pinned=pinned,
        confidence=confidence,
        valid_from=begins,
        valid_to=FAR_FUTURE if ends is None else ends,
        expires=FAR_FUTURE if expires is None else expires,
        created=created,
        session=session,
        place=float(seq or 0),
        twin=twin,
    )
