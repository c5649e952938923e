"""The candidates of one search, and how well they fit as far as is known.

The scores are those that a subject's facts have, words and meaning as shares of their
highest. As some come to be known, they set a bar: what cannot get over it any more need
not be looked for, nor compared.
"""

import heapq
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

from memory_app.recall.index import K1, B
from memory_app.recall.ranking import MODES, Weights

USUAL_LENGTH = 12  # terms of a fact


class Candidate(NamedTuple):
    """A fact that may be among the best; its terms, one space between them."""

    id: UUID
    terms: str
    is_pinned: bool


class Near(NamedTuple):
    """A fact near to the query, and its cosine to it."""

    fact: Candidate
    similarity: float


@dataclass(slots=True)
class Entry:
    """A candidate and its two scores; `similarity` is None until it is compared."""

    fact: Candidate
    lexical: float = 0.0
    similarity: float | None = None
    score: float = 0.0


class Pool:
    """Gathers the candidates for `terms`, which map to their weights.

    `compare` gives the similarities of facts that were found by their words.
    """

    def __init__(self, terms: Mapping[str, float], limit: int, mode: str) -> None:
        self.compare: Callable[[list[UUID]], Mapping[UUID, float]] | None = None
        self.rarity: Mapping[str, float] = {}
        self._terms, self._limit, self._weights = terms, limit, MODES[mode]
        self._entries: dict[UUID, Entry] = {}
        self._unscored: list[Entry] = []
        self._farthest = 0.0  # the similarity that no other fact exceeds

    def add_nearest(self, found: Iterable[Near], wanted: int) -> None:
        """Add the nearest `wanted` facts; fewer, if there are no more."""
        similarities = []
        for fact, similarity in found:
            self._add(fact, similarity)
            similarities.append(similarity)
        if len(similarities) >= wanted:
            self._farthest = max(self._farthest, min(similarities))

    def add_holders(
        self, found: Iterable[Candidate], rarity: Mapping[str, float]
    ) -> float:
        """Add facts that hold words, which are that rare (idf).

        Returns the score by words that a further fact must have to be of use.
        """
        self.rarity = rarity
        for fact in found:
            if fact.id not in self._entries:
                self._add(fact, None)
        for entry in self._unscored:
            entry.lexical = bm25(entry.fact, self._terms, rarity)
        self._unscored.clear()
        # The best are compared at once: so they raise the bar for the others.
        best = heapq.nlargest(self._limit, self._entries.values(), key=_lexical)
        self._compare(best)
        return self._bar()

    def compare_rest(self) -> None:
        """Compare the others that may be among the best."""
        bar = self._bar() if self._weights.lexical else 0.0
        self._compare(
            entry
            for entry in self._entries.values()
            if entry.lexical >= bar or entry.fact.is_pinned
        )

    def drop_without_words(self) -> None:
        self._entries = {id_: e for id_, e in self._entries.items() if e.lexical}

    def best(self) -> list[Entry]:
        """The best, with their scores; ties go to the older fact."""
        self._score(self._weights)
        return heapq.nsmallest(
            self._limit,
            self._entries.values(),
            key=lambda entry: (-entry.score, entry.fact.id),
        )

    def parts(self, entry: Entry) -> dict[str, float]:
        """What each part adds to the score."""
        lexical, vector = self._scales(self._weights)
        parts = {
            "lexical": lexical * entry.lexical,
            "vector": vector * (entry.similarity or 0.0),
            "pinned": self._weights.pinned * entry.fact.is_pinned,
        }
        return {name: value for name, value in parts.items() if value > 0}

    def _add(self, fact: Candidate, similarity: float | None) -> None:
        entry = self._entries[fact.id] = Entry(fact, similarity=similarity)
        self._unscored.append(entry)

    def _compare(self, entries: Iterable[Entry]) -> None:
        unknown = [entry for entry in entries if entry.similarity is None]
        if self.compare is not None and unknown:
            known = self.compare([entry.fact.id for entry in unknown])
            for entry in unknown:
                entry.similarity = known.get(entry.fact.id, 0.0)

    def _bar(self) -> float:
        """What a fact must score by words that is not among the nearest, to be in.

        Also where words do not count in the end: what has them is near, as a rule, and
        the index of vectors does not find all that is.
        """
        weights = Weights()
        self._score(weights)
        best = heapq.nlargest(self._limit, map(_score, self._entries.values()))
        lexical, vector = self._scales(weights)
        if len(best) < self._limit or not lexical:
            return 0.0
        return (best[-1] - vector * self._farthest) / lexical

    def _score(self, weights: Weights) -> None:
        lexical, vector = self._scales(weights)
        for entry in self._entries.values():
            entry.score = (
                lexical * entry.lexical
                + vector * (entry.similarity or 0.0)
                + weights.pinned * entry.fact.is_pinned
            )

    def _scales(self, weights: Weights) -> tuple[float, float]:
        """By what to multiply: the first two parts are shares of their highest."""
        entries = self._entries.values()
        words = max(map(_lexical, entries), default=0.0)
        meaning = max((entry.similarity or 0.0 for entry in entries), default=0.0)
        return (
            weights.lexical / words if words else 0.0,
            weights.vector / meaning if meaning else 0.0,
        )


def _lexical(entry: Entry) -> float:
    return entry.lexical


def _score(entry: Entry) -> float:
    return entry.score


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
