"""Which facts of a whole project hold the words of a query, without reading them all.

A word that few facts have is looked up as it is. Of words that many have, only facts
with several of them can be among the best, so these are looked up together: the index
(GIN) intersects long lists quickly, where reading all that have one would take longer
than the whole search may. How common a word is, the statistics of that index tell.

What is known already sets a bar: combinations whose facts could not reach the best any
more are not looked up (memory_app.recall.together).
"""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple
from uuid import UUID

from django.db import connection

from memory_app.recall.index import idf
from memory_app.recall.pool import Candidate
from memory_app.recall.together import Together

TAKEN = 250  # facts with one word, or with one combination of words
AT_ONCE = 2  # combinations in one statement: what it finds may make the next needless
# What is read of a fact along with its id. No term has a space in it.
READ = "m.id, array_to_string(m.terms, ' '), m.pinned"
KEYS = "memory_term_keys(m.project_id, m.terms)"
STATISTICS_SECONDS = 60.0  # before they are read again; ANALYZE is as rare


class Scope(NamedTuple):
    """The condition that every statement on facts carries, and its values."""

    sql: str
    values: list[Any]
    is_past: bool = False


class Frequencies(NamedTuple):
    """How many facts have each of the common words; `below`: that any other has."""

    total: float
    common: dict[str, float]
    below: float


def look_up_words(
    project_id: UUID,
    scopes: Sequence[Scope],
    terms: Mapping[str, float],
    take: Callable[[Sequence[Candidate], Mapping[str, float]], float],
) -> None:
    """Find the facts that may be the best for `terms`, which map to their weights.

    `take` is given what has been found since it was last called, and how rare each word
    is (idf); it returns the score that a further fact must have to be of use.
    """
    if not terms:
        return
    keys = _keys(project_id, list(terms))
    known = _frequencies(project_id, keys)
    rare = [term for term in terms if term not in known.common]
    found = _look_up(scopes, [[keys[term]] for term in rare])
    counts = dict(known.common)
    for term, facts in zip(rare, found, strict=True):
        few = len(facts) < TAKEN
        counts[term] = len(facts) if few else max(TAKEN, known.below / 2)
    total = max(known.total, *counts.values())
    rarity = {term: idf(round(counts[term]), round(total)) for term in terms}
    bar = take([fact for facts in found for fact in facts], rarity)
    common = {term: count for term, count in counts.items() if count >= TAKEN}
    worth = {term: terms[term] * rarity[term] for term in common}
    together = Together(common, worth, total, TAKEN)
    while asked := together.next(bar, AT_ONCE):
        found = _look_up(scopes, [[keys[term] for term in each] for each in asked])
        for chosen, facts in zip(asked, found, strict=True):
            together.looked_up(chosen, len(facts))
        bar = take([fact for facts in found for fact in facts], rarity)


def _keys(project_id: UUID, terms: list[str]) -> dict[str, int]:
    """What the index has for each term."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT term, (memory_term_keys(%s, ARRAY[term]))[1]"
            " FROM unnest(%s::text[]) AS term",
            [project_id, terms],
        )
        return dict(cursor.fetchall())


def _look_up(
    scopes: Sequence[Scope], asked: Sequence[Collection[int]]
) -> list[list[Candidate]]:
    """Return for each list of keys the facts that hold all of it.

    TAKEN at most of each scope.
    """
    found: list[list[Candidate]] = [[] for _ in asked]
    if not asked:
        return found
    lists = ", ".join(
        f"({number}, '{{{','.join(map(str, keys))}}}'::bigint[])"
        for number, keys in enumerate(asked)
    )
    with connection.cursor() as cursor:
        for scope in scopes:
            # Each list by itself: all are planned once, and each stops at TAKEN.
            cursor.execute(
                "SELECT asked.number, m.*"
                f" FROM (VALUES {lists}) AS asked (number, keys)"
                f" CROSS JOIN LATERAL (SELECT {READ} FROM agent_memory m"
                f" WHERE {scope.sql} AND {KEYS} @> asked.keys LIMIT {TAKEN}) m",
                scope.values,
            )
            for number, *read in cursor.fetchall():
                found[number].append(Candidate(*read))
    return found


class _Statistics(NamedTuple):
    """What ANALYZE has found: facts in all, and shares of them."""

    facts: float
    keys: dict[int, float]  # of the common ones
    projects: dict[UUID, float]  # of the large ones


_statistics: dict[str, tuple[float, _Statistics]] = {}  # by database, with the time


def _frequencies(project_id: UUID, keys: Mapping[str, int]) -> Frequencies:
    """How common the terms are; before ANALYZE has told, every word counts as rare."""
    database = str(connection.settings_dict["NAME"])
    read_at, known = _statistics.get(database, (0.0, None))
    if known is None or time.monotonic() - read_at > STATISTICS_SECONDS:
        known = _read_statistics()
        _statistics[database] = time.monotonic(), known
    return Frequencies(
        known.facts * known.projects.get(project_id, 0.0),
        {
            term: known.facts * known.keys[key]
            for term, key in keys.items()
            if key in known.keys
        },
        known.facts * min(known.keys.values(), default=0.0),
    )


def _read_statistics() -> _Statistics:
    with connection.cursor() as cursor:
        cursor.execute(
            """
            SELECT (SELECT greatest(reltuples, 0) FROM pg_class
                     WHERE oid = 'agent_memory'::regclass),
                   common.most_common_elems::text::bigint[],
                   common.most_common_elem_freqs,
                   projects.most_common_vals::text::uuid[],
                   projects.most_common_freqs
            FROM (SELECT 1) one
            LEFT JOIN pg_stats common ON common.schemaname = current_schema()
             AND common.tablename = 'memory_scoped_terms'
            LEFT JOIN pg_stats projects ON projects.schemaname = current_schema()
             AND projects.tablename = 'agent_memory'
             AND projects.attname = 'project_id'
            """
        )
        facts, keys, key_shares, projects, project_shares = cursor.fetchone()
    # Three more shares follow those of the keys: the least, the greatest, that of NULL.
    return _Statistics(
        float(facts),
        dict(zip(keys or [], (key_shares or [])[: len(keys or [])], strict=True)),
        dict(zip(projects or [], project_shares or [], strict=True)),
    )
