"""Which of a query's common words to look up together, the most telling first.

A fact is worth what the words it holds are worth. Combinations of words are gone
through from the most to the least worth; each is covered by a lookup of itself or of a
part of it that few facts hold, for then all of them have been seen. So most lookups
answer for many combinations at once.
"""

from collections.abc import Mapping

WORDS = 6  # of the common ones, the rarest; there are 63 combinations of six
LOOKUPS = 12  # in all; each costs a little, also where nothing is found
SHORT = 1.1  # what a short text makes of its words' worth; one of usual length, 1


class Together:
    """Plans the lookups of one query. Combinations are bits: word i is 1 << i.

    `counts` says how many of `total` facts hold each word, `taken` how many facts one
    lookup returns at most.
    """

    def __init__(
        self,
        counts: Mapping[str, float],
        worth: Mapping[str, float],
        total: float,
        taken: int,
    ) -> None:
        self._words = sorted(counts, key=lambda word: counts[word])[:WORDS]
        self._shares = [counts[word] / total for word in self._words]
        self._total, self._taken = total, taken
        values = [worth[word] for word in self._words]
        by_worth = [
            (sum(v for i, v in enumerate(values) if mask >> i & 1), mask)
            for mask in range(1, 1 << len(self._words))
        ]
        self._order = sorted(by_worth, key=lambda pair: -pair[0])
        self._complete: list[int] = []  # all their facts have been found
        self._sampled: set[int] = set()  # they have more than one lookup gives
        self._left = LOOKUPS

    def next(self, bar: float, many: int) -> list[list[str]]:
        """Return the next lookups, those that may bring a score of at least `bar`."""
        chosen: list[int] = []
        for worth, mask in self._order:
            if worth * SHORT < bar or len(chosen) == min(many, self._left):
                break
            if mask in self._sampled:
                continue
            # As if these were complete: if one is not, the next call asks for more.
            if any(part & mask == part for part in (*self._complete, *chosen)):
                continue
            chosen.append(self._part_for(mask))
        self._left -= len(chosen)
        return [self._named(mask) for mask in chosen]

    def looked_up(self, words: list[str], found: int) -> None:
        mask = sum(1 << self._words.index(word) for word in words)
        if found < self._taken:
            self._complete.append(mask)
        else:
            self._sampled.add(mask)

    def _part_for(self, mask: int) -> int:
        """The fewest of its words, the rarest, that few facts should hold together."""
        part, expected = 0, self._total
        for i, share in enumerate(self._shares):
            if mask >> i & 1:
                part |= 1 << i
                expected *= share
                if expected < self._taken / 2 and part not in self._sampled:
                    # Words that go together more than by chance: all of them, then.
                    met = any(each & mask == each for each in self._sampled)
                    return mask if met else part
        return mask

    def _named(self, mask: int) -> list[str]:
        return [word for i, word in enumerate(self._words) if mask >> i & 1]
