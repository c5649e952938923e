"""Search over more facts than are held in memory: candidates first, then one ranking.

Candidates come from two indexes of the database, both of current facts alone: the
vectors (HNSW, with an iterative scan, so that filters do not starve it; an exact scan
where few rows pass them) and the words (GIN, memory_app.recall.words). Both are asked
whatever the mode: a graph of neighbours does not lead to every group of facts that lies
apart, and what is near to a query has words of it, as a rule. All candidates are ranked
together (memory_app.recall.pool), the words' rarity counted over the whole project.

For a time asked about, past facts come in too, by indexes of their own.
"""

import heapq
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from django.db import connection, transaction

from memory_app.embedding.vectors import literal
from memory_app.models import Fact
from memory_app.recall.index import Floats
from memory_app.recall.pool import Candidate, Near, Pool
from memory_app.recall.tokens import query_terms
from memory_app.recall.words import READ, Scope, look_up_words

if TYPE_CHECKING:
    from memory_app.recall.search import Query

EXACT_ROWS = 20_000  # fewer than these are compared one by one
CANDIDATES = 100  # of the vectors, at least
ALIKE = 50  # facts with one and the same vector
EF_SEARCH = 150  # with the index of migration 0010
MAX_SCAN_TUPLES = 200_000
COUNTED_AGAIN = 300.0  # seconds, after which a large project's vectors are


# As the partial indexes spell it.
CURRENT = "m.status = 'active'"
PAST = "m.status IN ('superseded', 'expired')"


class WideHit(NamedTuple):
    fact: Fact
    score: float
    parts: dict[str, float]
    terms: list[str]


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
    scopes = _scopes(project_id, subject, query, now)
    if not query.text.strip():
        return _newest(scopes, query.limit)
    terms = query_terms(query.text, literal=query.mode == "text")
    # What cannot be compared is ranked by its words, whatever was asked for.
    pool = Pool(terms, query.limit, query.mode if vector is not None else "text")
    if vector is not None and model is not None:
        wanted = max(CANDIDATES, query.limit * 4)
        for scope in scopes:
            found = nearest(project_id, scope, subject, vector, model, wanted)
            pool.add_nearest(found, wanted)
        pool.compare = partial(_similarities, project_id, vector, model)
    look_up_words(project_id, scopes, terms, pool.add_holders)
    pool.compare_rest()
    if vector is None:
        pool.drop_without_words()
    return _with_facts(project_id, pool, terms)


def _scopes(
    project_id: UUID, subject: str | None, query: "Query", now: datetime
) -> list[Scope]:
    """The facts to look among: current ones, and for a time asked about past ones too.

    One by one, because each kind has indexes of its own.
    """
    at = query.as_of or now
    sql = (
        "m.project_id = %s AND m.valid_from <= %s"
        " AND (m.valid_to IS NULL OR m.valid_to > %s)"
        " AND (m.expires_at IS NULL OR m.expires_at > %s) AND m.confidence >= %s"
    )
    values: list[Any] = [project_id, at, at, at, query.min_confidence]
    if subject is not None:
        sql += " AND m.subject = %s"
        values.append(subject)
    if query.kinds:
        sql += " AND m.kind = ANY(%s)"
        values.append(list(query.kinds))
    kinds = (CURRENT,) if query.as_of is None else (CURRENT, PAST)
    return [Scope(f"{kind} AND {sql}", values, kind == PAST) for kind in kinds]


def _newest(scopes: Sequence[Scope], limit: int) -> list[WideHit]:
    """What is pinned, then what is newest; each read from the end of an index."""
    rows: list[tuple[bool, UUID]] = []
    with connection.cursor() as cursor:
        for scope in scopes:
            for pinned in ("m.pinned", "NOT m.pinned"):
                cursor.execute(
                    f"SELECT m.pinned, m.id FROM agent_memory m"
                    f" WHERE {pinned} AND {scope.sql} ORDER BY m.id DESC LIMIT %s",
                    [*scope.values, limit],
                )
                rows += cursor.fetchall()
    ids = [id_ for _, id_ in heapq.nlargest(limit, rows)]
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
) -> list[Near]:
    """Return the facts nearest to `vector`.

    `exact` compares every row; None does so where they are few. Past ones have no
    index of their vectors: all are compared.
    """
    if exact is None:
        exact = scope.is_past or _are_few(project_id, subject, model)
    kind = f"halfvec({len(vector)})"
    query = f"'{literal(vector)}'::{kind}"
    about = " AND e.subject = %s" if subject is not None else ""
    of_subject = [subject] if subject is not None else []
    if exact:
        current = "NOT e.is_current" if scope.is_past else "e.is_current"
        # Adding zero keeps the planner from the vector index.
        statement = f"""
            SELECT {READ}, 1 - (e.embedding::{kind} <=> {query})
            FROM agent_memory_embeddings e
            JOIN agent_memory m ON m.project_id = e.project_id AND m.id = e.memory_id
            WHERE e.project_id = %s AND e.model = '{_quoted(model)}'{about}
                  AND {current} AND {scope.sql}
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
        return [
            Near(Candidate(*read), max(0.0, float(similarity)))
            for *read, similarity in cursor.fetchall()
        ]


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
    project_id: UUID, vector: Floats, model: str, ids: list[UUID]
) -> dict[UUID, float]:
    """The cosines of facts that were found by their words alone."""
    kind = f"halfvec({len(vector)})"
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT memory_id, 1 - (embedding::{kind} <=> %s::{kind})"
            " FROM agent_memory_embeddings"
            " WHERE project_id = %s AND memory_id = ANY(%s) AND model = %s",
            [literal(vector), project_id, ids, model],
        )
        return {id_: max(0.0, float(cosine)) for id_, cosine in cursor.fetchall()}


def _with_facts(
    project_id: UUID, pool: Pool, terms: Mapping[str, float]
) -> list[WideHit]:
    best = pool.best()
    facts = {
        fact.id: fact
        for fact in Fact.objects.in_project(project_id)
        .filter(id__in=[entry.fact.id for entry in best])
        .defer("terms")
    }
    hits = []
    for entry in best:
        if entry.fact.id in facts:  # or it was forgotten this moment
            words = entry.fact.terms.split(" ")
            held = [term for term in terms if term in words]
            fact = facts[entry.fact.id]
            hits.append(WideHit(fact, entry.score, pool.parts(entry), held))
    return hits
