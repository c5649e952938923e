"""How facts of one subject are ranked for a query: scaled scores, added up.

Each part is scaled to its highest value for the query, so that parts of different
nature can be added. The weights are of the kind of thing each part is, not of any data:
words first; meaning nearly as much; what stands beside a fact, and the session it comes
from, in part, because talk answers talk.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

import numpy as np

from memory_app.recall.index import Floats, Ints, Mask, SubjectIndex
from memory_app.recall.tokens import fact_terms, query_terms

RECENCY_HALF_LIFE = 90 * 86400.0  # seconds


@dataclass(frozen=True)
class Weights:
    """What each part may add at most."""

    lexical: float = 1.0
    neighbour: float = 0.3  # the words of the fact before or after
    vector: float = 0.8  # meaning, averaged with what stands beside
    session: float = 0.3  # the words of the whole session
    speaker: float = 0.15  # the query names who said it
    recency: float = 0.05
    pinned: float = 0.25


MODES = {
    "hybrid": Weights(),
    "text": Weights(neighbour=0, vector=0, session=0, speaker=0),
    "vector": Weights(lexical=0, neighbour=0, session=0, speaker=0),
}


class Filters(NamedTuple):
    """What may be found at all. `at` is now, or the time asked about, in seconds."""

    at: float
    is_past: bool = False  # asked about a time: what was superseded since counts too
    kinds: tuple[str, ...] = ()
    min_confidence: float = 0.0


class Ranked(NamedTuple):
    """One row that was found, its score, and what each part added to it.

    `similar` are further rows that say the same in other words.
    """

    row: int
    score: float
    parts: dict[str, float]
    terms: list[str]
    similar: list[int]


def mask_of(index: SubjectIndex, filters: Filters) -> Mask:
    """Return which rows may be found: before any ranking, so that none is starved."""
    statuses = ("active", "superseded", "expired") if filters.is_past else ("active",)
    mask: Mask = index.alive & index.statuses_in(statuses)
    mask &= index.column("valid_from") <= filters.at
    mask &= index.column("valid_to") > filters.at
    mask &= index.column("expires") > filters.at
    if filters.kinds:
        mask &= index.kinds_in(filters.kinds)
    if filters.min_confidence:
        mask &= index.column("confidence") >= filters.min_confidence
    return mask


def rank(
    index: SubjectIndex,
    query: str,
    vector: Floats | None,
    filters: Filters,
    limit: int,
    *,
    mode: str = "hybrid",
    weights: Weights | None = None,
) -> list[Ranked]:
    """Return the best `limit` rows, best first; ties go to the newer fact.

    In text mode only rows that hold one of the query's terms; otherwise as many as
    there are, so that a subject with few facts is told whole.
    """
    mask = mask_of(index, filters)
    if not mask.any():
        return []
    weights = weights or MODES[mode]
    terms = query_terms(query, literal=mode == "text")
    parts = score_parts(index, query, terms, vector, mask, filters.at, weights)
    if mode == "text":
        mask &= parts["lexical"] > 0
    total = np.zeros(len(index), dtype=np.float32)
    for values in parts.values():
        total += values
    return [
        Ranked(
            row,
            float(total[row]),
            {name: float(part[row]) for name, part in parts.items() if part[row] > 0},
            index.matching(terms, row),
            similar,
        )
        for row, similar in _best(total, index, mask, limit)
    ]


def newest(index: SubjectIndex, filters: Filters, limit: int) -> list[Ranked]:
    """Without a query: what is pinned, then what is most recent."""
    mask = mask_of(index, filters)
    if not mask.any():
        return []
    rows = np.flatnonzero(mask)
    keys = (rows, index.column("created")[rows], index.column("valid_from")[rows])
    order = np.lexsort((*keys, index.pinned[rows]))[::-1]
    return [
        Ranked(row, float(index.pinned[row]), {}, [], similar)
        for row, similar in _one_of_each(index, rows[order], limit)
    ]


def score_parts(
    index: SubjectIndex,
    query: str,
    terms: Mapping[str, float],
    vector: Floats | None,
    mask: Mask,
    at: float,
    weights: Weights,
) -> dict[str, Floats]:
    layout = index.layout
    lexical = scaled(index.bm25(terms, mask), mask)
    parts = {"lexical": weights.lexical * lexical}
    if weights.neighbour:
        parts["neighbour"] = weights.neighbour * layout.best_neighbour(lexical)
    if weights.vector and vector is not None:
        similar = scaled(_similarity(index, vector, mask), mask)
        if weights.neighbour:
            similar = scaled(layout.smoothed(similar), mask)
        parts["vector"] = weights.vector * similar
    if weights.session:
        session = scaled(index.session_bm25(terms, mask), mask)
        parts["session"] = weights.session * session
    if weights.speaker:
        parts["speaker"] = weights.speaker * _named_speaker(index, query)
    age = np.maximum(0, at - index.column("valid_from"))
    parts["recency"] = (weights.recency * 0.5 ** (age / RECENCY_HALF_LIFE)).astype(
        np.float32
    )
    parts["pinned"] = (weights.pinned * index.pinned).astype(np.float32)
    return parts


def _similarity(index: SubjectIndex, vector: Floats, mask: Mask) -> Floats:
    if not index.dimensions:  # none of the facts has a vector yet
        return np.zeros(len(index), dtype=np.float32)
    cosine = index.vectors @ vector
    return np.where(mask & index.has_vector, np.maximum(cosine, 0), 0)


def _named_speaker(index: SubjectIndex, query: str) -> Floats:
    named = np.zeros(len(index), dtype=np.float32)
    wanted = set(fact_terms(query))
    for speaker, rows in index.speakers.items():
        if wanted.intersection(fact_terms(speaker)):
            named[rows] = 1
    return named


def scaled(scores: Floats, mask: Mask) -> Floats:
    """Return the scores of `mask` as shares of the highest; all others zero."""
    top = float(scores[mask].max()) if mask.any() else 0.0
    if top <= 0:
        return np.zeros_like(scores)
    return np.where(mask, scores / top, 0).astype(np.float32)


def _best(
    total: Floats, index: SubjectIndex, mask: Mask, limit: int
) -> list[tuple[int, list[int]]]:
    rows = np.flatnonzero(mask)
    if len(rows) > limit and not index.has_twins:
        # Everything that ties with the last one stays, so that age can decide.
        cut = np.partition(total[rows], len(rows) - limit)[len(rows) - limit]
        rows = rows[total[rows] >= cut]
    order = np.lexsort((-rows, -index.column("created")[rows], -total[rows]))
    return _one_of_each(index, rows[order], limit)


def _one_of_each(
    index: SubjectIndex, rows: Ints, limit: int
) -> list[tuple[int, list[int]]]:
    """Return the first `limit` rows that say different things, each with its twins."""
    if not index.has_twins:
        return [(int(row), []) for row in rows[:limit]]
    found: dict[UUID, tuple[int, list[int]]] = {}
    for row in map(int, rows):
        twin = index.twins[row]
        if twin in found:
            found[twin][1].append(row)
        elif len(found) < limit:
            found[twin] = (row, [])
    return list(found.values())
