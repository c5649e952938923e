"""Search over more facts than are held in memory: candidates first, then one ranking.

Candidates come from two indexes of the database, both of current facts alone: the
words (GIN) and the vectors (HNSW, with an iterative scan, so that filters do not starve
it; an exact scan where few rows pass them). They are ranked together by the same scores
as a subject's facts, with the words' rarity counted over the whole.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from django.db import connection, transaction

from memory_app.embedding.vectors import literal
from memory_app.models import Fact
from memory_app.recall.index import K1, B, Floats, idf
from memory_app.recall.ranking import Weights
from memory_app.recall.tokens import query_terms

if TYPE_CHECKING:
    from memory_app.recall.search import Query

EXACT_ROWS = 20_000  # fewer than these are compared one by one
CANDIDATES = 200  # of each index, at least
COUNTED = 5_000  # a word in more facts than this counts as that frequent
EF_SEARCH = 200
MAX_SCAN_TUPLES = 200_000


CURRENT_ONLY = " AND m.status = 'active'"  # as the partial index spells it


class WideHit(NamedTuple):
    fact: Fact
    score: float
    parts: dict[str, float]
    terms: list[str]


class Scope(NamedTuple):
    """The condition that every statement here carries, and its values."""

    sql: str
    values: list[Any]


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
    wanted = max(CANDIDATES, query.limit * 4)
    counts = _holding(scope, terms) if query.mode != "vector" else {}
    similar: dict[UUID, float] = {}
    if vector is not None and model is not None:
        similar = nearest(project_id, scope, subject, vector, model, wanted)
    ids = {*similar, *_holders(scope, counts, wanted)}
    facts = list(Fact.objects.in_project(project_id).filter(id__in=ids))
    total = _estimated_total(counts, len(facts))
    hits = [_scored(fact, terms, counts, similar, total) for fact in facts]
    if query.mode == "text":
        hits = [hit for hit in hits if hit.terms]
    return _fused(hits, query.limit)


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


def _holding(scope: Scope, terms: Mapping[str, float]) -> dict[str, int]:
    """In how many facts each term is, counted up to COUNTED."""
    counts = {}
    with connection.cursor() as cursor:
        for term in terms:
            cursor.execute(
                "SELECT count(*) FROM (SELECT 1 FROM agent_memory m"
                f" WHERE {scope.sql} AND m.terms @> ARRAY[%s] LIMIT {COUNTED}) found",
                [*scope.values, term],
            )
            counts[term] = int(cursor.fetchone()[0])
    return {term: count for term, count in counts.items() if count}


def _holders(scope: Scope, counts: Mapping[str, int], wanted: int) -> set[UUID]:
    """The facts with the rarest of the terms, and those with most of them together."""
    found: set[UUID] = set()
    if not counts:
        return found
    rarest = sorted(counts, key=lambda term: counts[term])
    with connection.cursor() as cursor:
        for several in range(len(rarest), 0, -1):
            # All of the rarest n words, then fewer: what holds most comes first.
            found |= _with_all(cursor, scope, rarest[:several], wanted)
            if len(found) >= wanted * 3:
                return found
        for term in rarest[1:]:
            if len(found) >= wanted * 5:
                break
            found |= _with_all(cursor, scope, [term], wanted * 2)
    return found


def _with_all(cursor: Any, scope: Scope, terms: Sequence[str], limit: int) -> set[UUID]:
    cursor.execute(
        f"SELECT m.id FROM agent_memory m WHERE {scope.sql} AND m.terms @> %s::text[]"
        " LIMIT %s",
        [*scope.values, list(terms), limit * 2],
    )
    return {row[0] for row in cursor.fetchall()}


def nearest(
    project_id: UUID,
    scope: Scope,
    subject: str | None,
    vector: Floats,
    model: str,
    limit: int,
    *,
    exact: bool | None = None,
) -> dict[UUID, float]:
    """Return the ids nearest to `vector` with their cosine similarity.

    `exact` compares every row; None does so where they are few.
    """
    if exact is None:
        exact = _are_few(project_id, subject, model)
    size = len(vector)
    kind = f"halfvec({size})"
    distance = f"(e.embedding::{kind} <=> %s::{kind})"
    about = "AND e.subject = %s" if subject is not None else ""
    current = "e.is_current" if CURRENT_ONLY in scope.sql else "true"
    if exact:
        # Adding zero keeps the planner from the vector index.
        distance = f"({distance} + 0)"
    statement = f"""
        SELECT m.id, 1 - {distance} FROM agent_memory_embeddings e
        JOIN agent_memory m ON m.project_id = e.project_id AND m.id = e.memory_id
        WHERE e.project_id = %s AND e.model = '{_quoted(model)}' AND {current}
              {about} AND {scope.sql}
        ORDER BY {distance} LIMIT %s
    """
    text = literal(vector)
    reach = [project_id, *([subject] if subject is not None else []), *scope.values]
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL hnsw.iterative_scan = relaxed_order")
        cursor.execute(f"SET LOCAL hnsw.ef_search = {max(EF_SEARCH, min(limit, 1000))}")
        cursor.execute(f"SET LOCAL hnsw.max_scan_tuples = {MAX_SCAN_TUPLES}")
        cursor.execute(statement, [text, *reach, text, limit])
        return {id_: float(similarity) for id_, similarity in cursor.fetchall()}


def _quoted(model: str) -> str:
    # In the text of the statement: a partial index is not found by a parameter.
    return model.replace("'", "''").replace("%", "%%")


def _are_few(project_id: UUID, subject: str | None, model: str) -> bool:
    about = "AND subject = %s" if subject is not None else ""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM (SELECT 1 FROM agent_memory_embeddings"
            f" WHERE project_id = %s AND model = %s {about}"
            f" LIMIT {EXACT_ROWS + 1}) found",
            [project_id, model, *([subject] if subject is not None else [])],
        )
        return int(cursor.fetchone()[0]) <= EXACT_ROWS


def _estimated_total(counts: Mapping[str, int], found: int) -> int:
    return max([COUNTED * 2, found, *counts.values()])


def _scored(
    fact: Fact,
    terms: Mapping[str, float],
    counts: Mapping[str, int],
    similar: Mapping[UUID, float],
    total: int,
) -> WideHit:
    held = [term for term in terms if term in fact.terms]
    damping = K1 * (1 - B + B * len(fact.terms) / 12)
    lexical = 0.0
    for term in held:
        count = fact.terms.count(term)
        gain = count * (K1 + 1) / (count + damping)
        lexical += terms[term] * idf(counts.get(term, 1), total) * gain
    parts = {"lexical": lexical, "vector": max(0.0, similar.get(fact.id, 0.0))}
    if fact.pinned:
        parts["pinned"] = Weights().pinned
    return WideHit(fact, 0.0, parts, held)


def _fused(hits: list[WideHit], limit: int) -> list[WideHit]:
    weights = {"lexical": Weights().lexical, "vector": Weights().vector, "pinned": 1.0}
    top = {
        name: max((hit.parts.get(name, 0.0) for hit in hits), default=0.0) or 1.0
        for name in ("lexical", "vector")
    }
    fused = []
    for hit in hits:
        parts = {
            name: weights[name] * value / top.get(name, 1.0)
            for name, value in hit.parts.items()
            if value > 0
        }
        fused.append(hit._replace(score=sum(parts.values()), parts=parts))
    fused.sort(key=lambda hit: (-hit.score, str(hit.fact.id)))
    return fused[:limit]
