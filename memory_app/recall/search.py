"""Recall: what is known about a subject, best first, each hit with its reason."""

import logging
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from agentstate.errors import AppError
from memory_app.embedding.embedders import configured_model, embed_texts
from memory_app.embedding.reembed import serving_model
from memory_app.models import Fact
from memory_app.recall.cache import last_model, open_index, read_state
from memory_app.recall.index import Floats, SubjectIndex
from memory_app.recall.ranking import Filters, Ranked, Weights, newest, rank
from memory_app.recall.wide import search_wide

logger = logging.getLogger(__name__)

TEXT, VECTOR, HYBRID = "text", "vector", "hybrid"


class Query(NamedTuple):
    """What is looked for. An empty `text` asks for what is pinned and most recent."""

    text: str = ""
    limit: int = 20
    mode: str = HYBRID
    as_of: datetime | None = None
    kinds: tuple[str, ...] = ()
    min_confidence: float = 0.0


class Hit(NamedTuple):
    """A fact that was found, and why. `similar` say the same in other words."""

    fact: Fact
    score: float
    why: dict[str, Any]
    similar: list[Fact]


class Recall(NamedTuple):
    """The hits, and how they were found; `degraded` says what could not be used."""

    hits: list[Hit]
    mode: str
    model: str | None
    degraded: str = ""


def recall(
    project_id: UUID,
    subject: str,
    query: Query,
    *,
    weights: Weights | None = None,
) -> Recall:
    """Return the facts about `subject` that fit `query` best.

    All filters apply before anything is ranked. The project and the subject are
    filtered here and nowhere else, whatever the mode.
    """
    state = read_state(project_id, subject)
    if not state.version:
        return Recall([], query.mode, configured_model())
    at = (query.as_of or state.now).timestamp()
    filters = Filters(at, query.as_of is not None, query.kinds, query.min_confidence)
    # Embedded before the index is held: a remote embedder must not delay the others
    # who ask about this subject.
    model = last_model(project_id, subject)
    while True:
        vector, degraded = query_vector(query, model)
        with open_index(project_id, subject, state) as opened:
            index = opened.index
            if index is None:
                break
            if opened.model == model:
                vector, degraded = comparable(vector, degraded, index.dimensions)
                ranked = _rank(index, query, vector, filters, weights)
                found = _named(index, ranked)
                degraded = degraded or _missing_vectors(index, vector)
                break
        model = opened.model
    if index is None:
        return _recall_wide(project_id, query, state.now, subject)
    return Recall(_hits(project_id, subject, found), query.mode, model, degraded)


def _rank(
    index: SubjectIndex,
    query: Query,
    vector: Floats | None,
    filters: Filters,
    weights: Weights | None,
) -> list[Ranked]:
    if not query.text.strip():
        return newest(index, filters, query.limit)
    return rank(
        index,
        query.text,
        vector,
        filters,
        query.limit,
        mode=query.mode,
        weights=weights,
    )


def query_vector(query: Query, model: str | None) -> tuple[Floats | None, str]:
    """Return the query's vector, or None and why there is none."""
    if query.mode == TEXT or not query.text.strip():
        return None, ""
    if model is None:
        return None, "no embedder is set; found by words alone"
    try:
        return embed_texts(model, [query.text])[0], ""
    except AppError as exc:
        logger.warning("query not embedded", extra={"model": model})
        return None, f"found by words alone: {exc.detail}"


def comparable(
    vector: Floats | None, degraded: str, dimensions: int
) -> tuple[Floats | None, str]:
    """Give the vector up, with the reason, if those stored have another length.

    `dimensions` is 0 where none is stored.
    """
    if vector is None or dimensions in (0, len(vector)):
        return vector, degraded
    return None, (
        f"found by words alone: the embedder's vectors have another length "
        f"({len(vector)}) than those stored ({dimensions})"
    )


def _missing_vectors(index: SubjectIndex, vector: Floats | None) -> str:
    if vector is None:
        return ""
    missing = int((index.alive & ~index.has_vector).sum())
    return (
        f"{missing} facts have no vector yet and are found by words" if missing else ""
    )


class _Found(NamedTuple):
    id: UUID
    ranked: Ranked
    similar: list[UUID]


def _named(index: SubjectIndex, ranked: list[Ranked]) -> list[_Found]:
    """Turn rows into ids while the index is held: it may change right after."""
    return [
        _Found(index.ids[each.row], each, [index.ids[row] for row in each.similar])
        for each in ranked
    ]


def _hits(project_id: UUID, subject: str, found: list[_Found]) -> list[Hit]:
    wanted = {each.id for each in found} | {id for each in found for id in each.similar}
    facts = {
        fact.id: fact
        for fact in Fact.objects.in_project(project_id)
        .about(subject)
        .filter(id__in=wanted)
        .defer("terms")
    }
    return [
        Hit(
            facts[each.id],
            each.ranked.score,
            why(each.ranked.parts, each.ranked.terms),
            [facts[id] for id in each.similar if id in facts],
        )
        for each in found
        if each.id in facts  # forgotten this moment
    ]


def why(parts: dict[str, float], terms: list[str]) -> dict[str, Any]:
    """Say why a fact was found: what each part added, and in a few words."""
    return {
        "parts": {name: round(value, 4) for name, value in parts.items()},
        "terms": terms,
        "summary": _summary(parts, terms),
    }


REASONS = {
    "vector": "means something similar",
    "neighbour": "stands beside a fact that matches",
    "session": "comes from a session about this",
    "speaker": "was said by whom the query names",
    "pinned": "is pinned",
}


def _summary(parts: dict[str, float], terms: list[str]) -> str:
    reasons = [f"has {', '.join(terms)}"] if terms else []
    named = [name for name in REASONS if parts.get(name, 0) >= 0.05]
    reasons += [REASONS[name] for name in sorted(named, key=lambda n: -parts[n])]
    return "; ".join(reasons) or "is among the most recent"


def _recall_wide(
    project_id: UUID, query: Query, now: datetime, subject: str | None
) -> Recall:
    model, dimensions = serving_model(project_id)
    vector, degraded = query_vector(query, model)
    vector, degraded = comparable(vector, degraded, dimensions)
    found = search_wide(project_id, query, vector, model, now, subject=subject)
    hits = [
        Hit(each.fact, each.score, why(each.parts, each.terms), []) for each in found
    ]
    return Recall(hits, query.mode, model, degraded)


def search(project_id: UUID, query: Query, *, subject: str | None = None) -> Recall:
    """Search the facts of all subjects of a project, or of one, in the database."""
    now = read_state(project_id, subject or "").now
    return _recall_wide(project_id, query, now, subject)
