"""Which facts of a whole project hold the words of a query, without reading them all.

A word that few facts have is looked up as it is. Of words that many have, only facts
with several of them can be among the best, so these are looked up together: the index
(GIN) intersects long lists quickly, where reading all that have one would take longer
than the whole search may. How common a word is, the statistics of that index tell.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any, NamedTuple
from uuid import UUID

from django.db import connection

from memory_app.recall.index import idf

TAKEN = 250  # facts with one word, or with one combination of words
ENOUGH = 500  # facts in all
LOOKED_UP = 6  # of the common words, the rarest
COMBINATIONS = 12  # of them; each costs a little, also where nothing has it
# What is read of a fact along with its id. No term has a space in it.
READ = "m.id, array_to_string(m.terms, ' '), m.pinned"
KEYS = "memory_term_keys(m.project_id, m.terms)"


class Scope(NamedTuple):
    """The condition that every statement on facts carries, and its values."""

    sql: str
    values: list[Any]


class Candidate(NamedTuple):
    """A fact that may be among the best; its terms, one space between them."""

    id: UUID
    terms: str
    is_pinned: bool


class Holders(NamedTuple):
    """Facts that hold words of the query, and how rare each word is (idf)."""

    facts: dict[UUID, Candidate]
    idf: dict[str, float]


class Frequencies(NamedTuple):
    """How many facts have each of the common words; `below`: that any other has."""

    total: float
    common: dict[str, float]
    below: float


def holders(project_id: UUID, scope: Scope, terms: Mapping[str, float]) -> Holders:
    """Return the facts that may be the best for `terms`, which map to their weights."""
    if not terms:
        return Holders({}, {})
    known = _frequencies(project_id, list(terms))
    rare = [(term,) for term in terms if term not in known.common]
    found = _look_up(project_id, scope, rare, TAKEN * len(rare))
    counts = dict(known.common)
    for [term], facts in zip(rare, found, strict=True):
        few = len(facts) < TAKEN
        counts[term] = len(facts) if few else max(TAKEN, known.below / 2)
    total = max(known.total, *counts.values())
    rarity = {term: idf(round(counts[term]), round(total)) for term in terms}
    common = {term: count for term, count in counts.items() if count >= TAKEN}
    worth = {term: terms[term] * rarity[term] for term in common}
    enough = ENOUGH - sum(count for count in counts.values() if count < TAKEN)
    together = list(_combinations(common, worth, total))
    if enough > 0:
        found += _look_up(project_id, scope, together, round(enough))
    return Holders({fact.id: fact for facts in found for fact in facts}, rarity)


def _frequencies(project_id: UUID, terms: Collection[str]) -> Frequencies:
    """Read what ANALYZE has found; before it has, every word counts as rare."""
    with connection.cursor() as cursor:
        cursor.execute(
            """
            WITH facts AS (
                SELECT greatest(reltuples, 0) AS n FROM pg_class
                WHERE oid = 'agent_memory'::regclass
            ), common AS (
                SELECT unnest(most_common_elems::text::bigint[]) AS key,
                       -- Three more follow: the least, the greatest, that of NULL.
                       unnest(most_common_elem_freqs[
                           :cardinality(most_common_elem_freqs) - 3]) AS share
                FROM pg_stats WHERE schemaname = current_schema()
                 AND tablename = 'memory_scoped_terms'
            ), projects AS (
                SELECT unnest(most_common_vals::text::uuid[]) AS id,
                       unnest(most_common_freqs) AS share
                FROM pg_stats WHERE schemaname = current_schema()
                 AND tablename = 'agent_memory' AND attname = 'project_id'
            )
            SELECT term, n * common.share, n * (SELECT min(share) FROM common),
                   n * (SELECT share FROM projects WHERE id = %s)
            FROM facts, unnest(%s::text[]) AS term
            LEFT JOIN common ON key = (memory_term_keys(%s, ARRAY[term]))[1]
            """,
            [project_id, list(terms), project_id],
        )
        rows = cursor.fetchall()
    common = {term: float(count) for term, count, *_ in rows if count is not None}
    _, _, below, total = rows[0]
    return Frequencies(float(total or 0), common, float(below or 0))


def _combinations(
    counts: Mapping[str, float], worth: Mapping[str, float], total: float
) -> Iterator[tuple[str, ...]]:
    """Yield which of the common words to look up together, the best first."""
    rarest = sorted(counts, key=lambda term: counts[term])[:LOOKED_UP]
    together = [
        chosen
        for size in range(len(rarest), 0, -1)
        for chosen in combinations(rarest, size)
    ]
    together.sort(key=lambda chosen: -sum(worth[term] for term in chosen))
    complete: list[set[str]] = []
    yielded = 0
    for chosen in together:
        if any(each <= set(chosen) for each in complete):
            continue
        expected = total
        for term in chosen:
            expected *= counts[term] / total
        if expected < TAKEN / 4:
            complete.append(set(chosen))  # with whatever else its facts hold
        yield chosen
        yielded += 1
        if yielded == COMBINATIONS:
            return


def _look_up(
    project_id: UUID, scope: Scope, asked: Sequence[tuple[str, ...]], enough: int
) -> list[list[Candidate]]:
    """Return for each combination the facts that hold all of it, TAKEN at most.

    The later ones are not even begun once `enough` have been found.
    """
    if not asked:
        return []
    parts: list[str] = []
    values: list[Any] = []
    for number, terms in enumerate(asked):
        parts.append(
            f"(SELECT {number}, {READ} FROM agent_memory m WHERE {scope.sql} AND"
            f" {KEYS} @> memory_term_keys(%s, %s::text[]) LIMIT {TAKEN})"
        )
        values += [*scope.values, project_id, list(terms)]
    found: list[list[Candidate]] = [[] for _ in asked]
    with connection.cursor() as cursor:
        union = " UNION ALL ".join(parts)
        cursor.execute(f"SELECT * FROM ({union}) found LIMIT {enough}", values)
        for number, *read in cursor.fetchall():
            found[number].append(Candidate(*read))
    return found
