"""Search over more facts than are held in memory: candidates first, then one ranking.

Candidates come from two indexes of the database, both of current facts alone: the words
(GIN, memory_app.recall.words) and the vectors (HNSW, with an iterative scan, so that
filters do not starve it; an exact scan where few rows pass them). All candidates are
ranked together by the scores that a subject's facts have, the words' rarity counted
over the whole project.
"""

import heapq
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

from django.db import connection, transaction

from memory_app.embedding.vectors import literal
from memory_app.models import Fact
from memory_app.recall.index import K1, B, Floats
from memory_app.recall.ranking import Weights
from memory_app.recall.tokens import query_terms
from memory_app.recall.words import READ, Candidate, Scope, holders

if TYPE_CHECKING:
    from memory_app.recall.search import Query

EXACT_ROWS = 20_000  # fewer than these are compared one by one
CANDIDATES = 200  # of the vectors, at least
ALIKE = 50  # facts with one and the same vector
EF_SEARCH = 400
MAX_SCAN_TUPLES = 200_000
USUAL_LENGTH = 12  # terms of a fact
COUNTED_AGAIN = 300.0  # seconds, after which a large project's vectors are


CURRENT_ONLY = " AND m.status = 'active'"  # as the partial index spells it


class WideHit(NamedTuple):
    fact: Fact
    score: float
    parts: dict[str, float]
    terms: list[str]


class Near(NamedTuple):
    """A fact near to the query, and its cosine to it."""

    fact: Candidate
    similarity: float


def search_wide(
    project_id: UUID,
    query: "Query",
    vector: Floats | None,
    model: str | None,
    now: datetime,
    *,
    subject: str | None = None,
) -> list[WideHit]:
    """Return the facts of the project, or of one subject, that fit the query best."""
    scope = _scope(project_id, subject, query, now)
    if not query.text.strip():
        return _newest(scope, query.limit)
    terms = query_terms(query.text, literal=query.mode == "text")
    by_words = holders(project_id, scope, terms if query.mode != "vector" else {})
    near: dict[UUID, Near] = {}
    if vector is not None and model is not None:
        wanted = max(CANDIDATES, query.limit * 4)
        near = nearest(project_id, scope, subject, vector, model, wanted)
    facts = by_words.facts | {id_: each.fact for id_, each in near.items()}
    lexical = {id_: bm25(fact, terms, by_words.idf) for id_, fact in facts.items()}
    similar = {id_: each.similarity for id_, each in near.items()}
    if vector is not None and model is not None:
        best = sorted(lexical.keys() - similar.keys(), key=lambda id_: -lexical[id_])
        similar |= _similarities(project_id, best[:wanted], vector, model)
    if query.mode == "text" or (vector is None and by_words.idf):
        facts = {id_: fact for id_, fact in facts.items() if lexical[id_] > 0}
    scored = [
        _Scored(id_, _parts(fact, lexical[id_], similar.get(id_, 0.0)))
        for id_, fact in facts.items()
    ]
    best_of_all = _fused(scored, query.limit)
    return _with_facts(project_id, best_of_all, facts, terms)


def _scope(
    project_id: UUID, subject: str | None, query: "Query", now: datetime
) -> Scope:
    at = query.as_of or now
    statuses = (
        ["active"] if query.as_of is None else ["active", "superseded", "expired"]
    )
    sql = (
        "m.project_id = %s AND m.status = ANY(%s) AND m.valid_from <= %s"
        " AND (m.valid_to IS NULL OR m.valid_to > %s)"
        " AND (m.expires_at IS NULL OR m.expires_at > %s) AND m.confidence >= %s"
    )
    if query.as_of is None:
        sql += CURRENT_ONLY
    values = [project_id, statuses, at, at, at, query.min_confidence]
    if subject is not None:
        sql += " AND m.subject = %s"
        values.append(subject)
    if query.kinds:
        sql += " AND m.kind = ANY(%s)"
        values.append(list(query.kinds))
    return Scope(sql, values)


def _newest(scope: Scope, limit: int) -> list[WideHit]:
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT m.id FROM agent_memory m WHERE {scope.sql}"
            " ORDER BY m.pinned DESC, m.id DESC LIMIT %s",
            [*scope.values, limit],
        )
        ids = [row[0] for row in cursor.fetchall()]
    facts = Fact.objects.in_bulk(ids)
    found = [facts[id_] for id_ in ids if id_ in facts]
    return [WideHit(fact, float(fact.pinned), {}, []) for fact in found]


def nearest(
    project_id: UUID,
    scope: Scope,
    subject: str | None,
    vector: Floats,
    model: str,
    limit: int,
    *,
    exact: bool | None = None,
) -> dict[UUID, Near]:
    """Return the facts nearest to `vector`.

    `exact` compares every row; None does so where they are few.
    """
    if exact is None:
        exact = _are_few(project_id, subject, model)
    kind = f"halfvec({len(vector)})"
    query = f"'{literal(vector)}'::{kind}"
    about = " AND e.subject = %s" if subject is not None else ""
    of_subject = [subject] if subject is not None else []
    if exact or CURRENT_ONLY not in scope.sql:
        # Adding zero keeps the planner from the vector index.
        statement = f"""
            SELECT {READ}, 1 - (e.embedding::{kind} <=> {query})
            FROM agent_memory_embeddings e
            JOIN agent_memory m ON m.project_id = e.project_id AND m.id = e.memory_id
            WHERE e.project_id = %s AND e.model = '{_quoted(model)}'{about}
                  AND {scope.sql}
            ORDER BY (e.embedding::{kind} <=> {query}) + 0 LIMIT %s
        """
        values = [project_id, *of_subject, *scope.values, limit]
    else:
        # The index gives each vector once, the nearest first; then come the facts that
        # have it and pass the filters. It goes on until there are enough. All of it on
        # one level: the planner does not see through a subquery that so few are wanted.
        distance = f"(v.embedding::{kind} <=> {query})"
        statement = f"""
            SELECT {READ}, 1 - {distance} FROM agent_memory_embeddings v
            CROSS JOIN LATERAL (
                SELECT m.* FROM agent_memory_embeddings e
                JOIN agent_memory m
                  ON m.project_id = e.project_id AND m.id = e.memory_id
                WHERE e.project_id = %s AND e.model = '{_quoted(model)}'
                      AND e.vector_key = v.vector_key AND e.is_current{about}
                      AND {scope.sql}
                LIMIT %s
            ) m
            WHERE v.project_id = %s AND v.model = '{_quoted(model)}'
                  AND v.stands_for_vector
            ORDER BY {distance} LIMIT %s
        """
        values = [project_id, *of_subject, *scope.values, ALIKE, project_id, limit]
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(
            "SELECT set_config('hnsw.iterative_scan', 'relaxed_order', true),"
            " set_config('hnsw.ef_search', %s, true),"
            " set_config('hnsw.max_scan_tuples', %s, true)",
            [str(max(EF_SEARCH, min(limit, 1000))), str(MAX_SCAN_TUPLES)],
        )
        cursor.execute(statement, values)
        return {
            read[0]: Near(Candidate(*read), max(0.0, float(similarity)))
            for *read, similarity in cursor.fetchall()
        }


def _quoted(model: str) -> str:
    # In the text of the statement: a partial index is not found by a parameter.
    return model.replace("'", "''").replace("%", "%%")


# When each project, subject and model was last seen to have many vectors.
_many: dict[tuple[UUID, str | None, str], float] = {}


def _are_few(project_id: UUID, subject: str | None, model: str) -> bool:
    key = (project_id, subject, model)
    if time.monotonic() - _many.get(key, -COUNTED_AGAIN) < COUNTED_AGAIN:
        return False
    about = "AND subject = %s" if subject is not None else ""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM (SELECT 1 FROM agent_memory_embeddings"
            f" WHERE project_id = %s AND model = %s {about}"
            f" LIMIT {EXACT_ROWS + 1}) found",
            [project_id, model, *([subject] if subject is not None else [])],
        )
        are_few = int(cursor.fetchone()[0]) <= EXACT_ROWS
    if not are_few:
        _many[key] = time.monotonic()
    return are_few


def _similarities(
    project_id: UUID, ids: Sequence[UUID], vector: Floats, model: str
) -> dict[UUID, float]:
    """The cosines of facts that were found by their words alone."""
    kind = f"halfvec({len(vector)})"
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT memory_id, 1 - (embedding::{kind} <=> %s::{kind})"
            " FROM agent_memory_embeddings"
            " WHERE project_id = %s AND memory_id = ANY(%s) AND model = %s",
            [literal(vector), project_id, list(ids), model],
        )
        return {id_: max(0.0, float(cosine)) for id_, cosine in cursor.fetchall()}


def bm25(
    fact: Candidate, terms: Mapping[str, float], rarity: Mapping[str, float]
) -> float:
    words = fact.terms.split(" ")
    damping = K1 * (1 - B + B * len(words) / USUAL_LENGTH)
    score = 0.0
    for term, idf in rarity.items():
        if count := words.count(term):
            score += terms[term] * idf * count * (K1 + 1) / (count + damping)
    return score


class _Scored(NamedTuple):
    id: UUID
    parts: dict[str, float]
    score: float = 0.0


def _parts(fact: Candidate, lexical: float, similarity: float) -> dict[str, float]:
    parts = {"lexical": lexical, "vector": similarity}
    if fact.is_pinned:
        parts["pinned"] = Weights().pinned
    return parts


def _fused(scored: list[_Scored], limit: int) -> list[_Scored]:
    """Add the parts up, the first two as shares of their highest; best first."""
    weights = {"lexical": Weights().lexical, "vector": Weights().vector, "pinned": 1.0}
    for name in ("lexical", "vector"):
        weights[name] /= max((each.parts[name] for each in scored), default=0) or 1
    totals = [
        (sum(weights[name] * value for name, value in each.parts.items()), each)
        for each in scored
    ]
    best = heapq.nsmallest(limit, totals, key=lambda pair: (-pair[0], pair[1].id))
    return [
        _Scored(
            each.id,
            {name: weights[name] * v for name, v in each.parts.items() if v > 0},
            total,
        )
        for total, each in best
    ]


def _with_facts(
    project_id: UUID,
    scored: list[_Scored],
    candidates: Mapping[UUID, Candidate],
    terms: Mapping[str, float],
) -> list[WideHit]:
    wanted = [each.id for each in scored]
    facts = {
        fact.id: fact
        for fact in Fact.objects.in_project(project_id)
        .filter(id__in=wanted)
        .defer("terms")
    }
    hits = []
    for each in scored:
        if each.id in facts:  # or it was forgotten this moment
            words = candidates[each.id].terms.split(" ")
            held = [term for term in terms if term in words]
            hits.append(WideHit(facts[each.id], each.score, each.parts, held))
    return hits
