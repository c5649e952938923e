"""The facts of one subject, laid out for scoring: exact, in memory, without their text.

An index holds terms, vectors and the columns that filters look at. It is scored whole
for each query: at ten thousand facts that is a few milliseconds, and no candidate is
ever lost before the filters have been applied.
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

type Floats = NDArray[np.float32]
type Ints = NDArray[np.int64]
type Mask = NDArray[np.bool_]

K1 = 1.2
B = 0.5
GROW = 256  # rows
OWN_WEIGHT = 2.0  # of a fact's own meaning, beside 1 of each neighbour
FAR_FUTURE = 1e18


@dataclass(slots=True)
class Row:
    """What an index keeps of a fact. Times are seconds since 1970."""

    id: UUID
    terms: list[str]
    speaker: str  # who says it, where the text begins with "NAME: "; folded
    vector: Floats | None
    status: str
    kind: str
    pinned: bool
    confidence: float
    valid_from: float
    valid_to: float
    expires: float
    created: float
    session: str  # what was told together; empty if unknown
    place: float  # where in the session
    twin: UUID | None = None  # the fact that says the same in other words


COLUMNS = ("valid_from", "valid_to", "expires", "created", "place", "confidence")


@dataclass(slots=True)
class Postings:
    """Which rows hold a term, and how often."""

    rows: list[int] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    _arrays: tuple[Ints, Floats] | None = None

    def add(self, row: int, count: int) -> None:
        self.rows.append(row)
        self.counts.append(count)
        self._arrays = None

    def holds(self, row: int) -> bool:
        # Rows are only ever added at the end, so they are in order.
        at = bisect_left(self.rows, row)
        return at < len(self.rows) and self.rows[at] == row

    @property
    def arrays(self) -> tuple[Ints, Floats]:
        if self._arrays is None:
            self._arrays = (
                np.array(self.rows, dtype=np.int64),
                np.array(self.counts, dtype=np.float32),
            )
        return self._arrays


class SubjectIndex:
    """The facts of one subject. A changed fact gets a new row; the old one is dead.

    `dimensions` is the length of its vectors; 0 if no fact has one.
    """

    def __init__(self, dimensions: int) -> None:
        self.dimensions = dimensions
        self.version = 0
        self.ids: list[UUID] = []
        self.row_of: dict[UUID, int] = {}
        self.names: dict[str, int] = {}  # of statuses and kinds, as numbers
        self.sessions: dict[str, int] = {}  # as numbers
        self.twins: list[UUID] = []
        self.has_twins = False
        self.speakers: dict[str, list[int]] = {}
        self.postings: dict[str, Postings] = {}
        self._size = 0
        self._numbers = {name: np.zeros(GROW) for name in COLUMNS}
        self._alive: Mask = np.zeros(GROW, dtype=np.bool_)
        self._pinned: Mask = np.zeros(GROW, dtype=np.bool_)
        self._statuses = np.zeros(GROW, dtype=np.int16)
        self._kinds = np.zeros(GROW, dtype=np.int16)
        self._sessions: Ints = np.full(GROW, -1, dtype=np.int64)
        self._has_vector: Mask = np.zeros(GROW, dtype=np.bool_)
        self._lengths: Floats = np.zeros(GROW, dtype=np.float32)
        self._vectors: Floats = np.zeros((GROW, dimensions), dtype=np.float32)
        self._layout: Layout | None = None

    def __len__(self) -> int:
        return self._size

    @property
    def dead(self) -> int:
        return self._size - len(self.row_of)

    def column(self, name: str) -> NDArray[np.float64]:
        return self._numbers[name][: self._size]

    @property
    def alive(self) -> Mask:
        return self._alive[: self._size]

    @property
    def pinned(self) -> Mask:
        return self._pinned[: self._size]

    @property
    def session_of(self) -> Ints:
        """The number of each row's session; -1 without one."""
        return self._sessions[: self._size]

    @property
    def has_vector(self) -> Mask:
        return self._has_vector[: self._size]

    @property
    def lengths(self) -> Floats:
        return self._lengths[: self._size]

    @property
    def vectors(self) -> Floats:
        return self._vectors[: self._size]

    def put(self, rows: Iterable[Row]) -> None:
        """Add facts, or replace those that are here."""
        for row in rows:
            self.drop(row.id)
            self._append(row)
        self._layout = None

    def drop(self, id: UUID) -> None:
        at = self.row_of.pop(id, None)
        if at is not None:
            self._alive[at] = False
            self._layout = None

    def _append(self, row: Row) -> None:
        at = self._size
        if at == len(self._alive):
            self._grow()
        self._size += 1
        self.ids.append(row.id)
        self.row_of[row.id] = at
        self._statuses[at] = self.names.setdefault(row.status, len(self.names))
        self._kinds[at] = self.names.setdefault(row.kind, len(self.names))
        if row.session:
            number = self.sessions.setdefault(row.session, len(self.sessions))
            self._sessions[at] = number
        self.twins.append(row.twin or row.id)
        self.has_twins |= row.twin is not None
        if row.speaker:
            self.speakers.setdefault(row.speaker, []).append(at)
        for name in COLUMNS:
            self._numbers[name][at] = getattr(row, name)
        self._alive[at] = True
        self._pinned[at] = row.pinned
        self._lengths[at] = len(row.terms)
        if row.vector is not None and len(row.vector) == self.dimensions:
            self._vectors[at] = row.vector
            self._has_vector[at] = True
        for term, count in _counted(row.terms).items():
            self.postings.setdefault(term, Postings()).add(at, count)

    def _grow(self) -> None:
        more = max(GROW, self._size)
        self._numbers = {
            name: np.concatenate([values, np.zeros(more)])
            for name, values in self._numbers.items()
        }
        flags = np.zeros(more, dtype=np.bool_)
        self._alive = np.concatenate([self._alive, flags])
        self._pinned = np.concatenate([self._pinned, flags])
        self._has_vector = np.concatenate([self._has_vector, flags])
        codes = np.zeros(more, dtype=np.int16)
        self._statuses = np.concatenate([self._statuses, codes])
        self._kinds = np.concatenate([self._kinds, codes])
        none = np.full(more, -1, dtype=np.int64)
        self._sessions = np.concatenate([self._sessions, none])
        self._lengths = np.concatenate([self._lengths, np.zeros(more, np.float32)])
        room = np.zeros((more, self.dimensions), dtype=np.float32)
        self._vectors = np.concatenate([self._vectors, room])

    def statuses_in(self, wanted: Iterable[str]) -> Mask:
        return self._is_one_of(self._statuses, wanted)

    def kinds_in(self, wanted: Iterable[str]) -> Mask:
        return self._is_one_of(self._kinds, wanted)

    def _is_one_of(self, codes: NDArray[np.int16], wanted: Iterable[str]) -> Mask:
        accepted = [self.names[name] for name in wanted if name in self.names]
        found: Mask = np.isin(codes[: self._size], accepted)
        return found

    @property
    def layout(self) -> "Layout":
        if self._layout is None:
            self._layout = Layout.of(self)
        return self._layout

    def bm25(self, terms: Mapping[str, float], mask: Mask) -> Floats:
        """Score every row; idf and mean length are those of the rows in `mask`."""
        scores = np.zeros(self._size, dtype=np.float32)
        total = int(mask.sum())
        if not total:
            return scores
        lengths = self.lengths
        mean = float(lengths[mask].mean()) or 1.0
        damping = K1 * (1 - B + B * lengths / mean)
        for term, weight in terms.items():
            postings = self.postings.get(term)
            if postings is None:
                continue
            rows, counts = postings.arrays
            kept = mask[rows]
            rows, counts = rows[kept], counts[kept]
            if not len(rows):
                continue
            gain = counts * (K1 + 1) / (counts + damping[rows])
            scores[rows] += weight * idf(len(rows), total) * gain
        return scores

    def session_bm25(self, terms: Mapping[str, float], mask: Mask) -> Floats:
        """Score each row's whole session as one text; 0 without a session."""
        scores = np.zeros(self._size, dtype=np.float32)
        layout = self.layout
        groups = layout.group
        inside = mask & (groups >= 0)
        if not layout.groups or not inside.any():
            return scores
        lengths = np.bincount(
            groups[inside], weights=self.lengths[inside], minlength=layout.groups
        )
        filled = lengths > 0
        total = int(filled.sum())
        damping = K1 * (1 - B + B * lengths / (lengths[filled].mean() or 1.0))
        sums = np.zeros(layout.groups)
        for term, weight in terms.items():
            postings = self.postings.get(term)
            if postings is None:
                continue
            rows, counts = postings.arrays
            kept = inside[rows]
            if not kept.any():
                continue
            found = np.bincount(
                groups[rows[kept]], weights=counts[kept], minlength=layout.groups
            )
            gain = found * (K1 + 1) / (found + damping)
            sums += weight * idf(int((found > 0).sum()), total) * gain
        scores[inside] = sums[groups[inside]]
        return scores

    def matching(self, terms: Iterable[str], row: int) -> list[str]:
        """Which of `terms` the row holds."""
        return [
            term
            for term in terms
            if (found := self.postings.get(term)) and found.holds(row)
        ]


@dataclass(slots=True)
class Layout:
    """The order in which facts were told, session by session.

    `order` lists the live rows so that a fact stands beside its neighbours; `group` is
    the number of each row's session, -1 without one; `same_as_next[i]` says whether the
    i-th and the one after it were told together.
    """

    order: Ints
    group: Ints
    groups: int
    same_as_next: Mask

    @classmethod
    def of(cls, index: SubjectIndex) -> "Layout":
        rows = np.flatnonzero(index.alive)
        group = np.where(index.alive, index.session_of, -1)
        created, place = index.column("created"), index.column("place")
        order = rows[np.lexsort((rows, created[rows], place[rows], group[rows]))]
        told = group[order]
        # Without a session nothing says that facts belong together: what an import
        # writes down side by side are strangers.
        return cls(
            order, group, len(index.sessions), (told[:-1] == told[1:]) & (told[1:] >= 0)
        )

    def best_neighbour(self, scores: Floats) -> Floats:
        """Return for each row the higher score of the facts before and after it."""
        told = scores[self.order]
        best = np.zeros_like(told)
        near = self.same_as_next
        best[1:] = np.where(near, told[:-1], 0)
        best[:-1] = np.maximum(best[:-1], np.where(near, told[1:], 0))
        return self._back(best, len(scores))

    def smoothed(self, scores: Floats, reach: int = 2) -> Floats:
        """Return for each row the mean of itself and up to `reach` on each side."""
        told = scores[self.order]
        total, count = told * OWN_WEIGHT, np.full_like(told, OWN_WEIGHT)
        linked = self.same_as_next.copy()
        for step in range(1, reach + 1):
            if step >= len(told):
                break
            if step > 1:
                linked = linked[:-1] & self.same_as_next[step - 1 :]
            total[step:] += np.where(linked, told[:-step], 0)
            count[step:] += linked
            total[:-step] += np.where(linked, told[step:], 0)
            count[:-step] += linked
        return self._back(total / count, len(scores))

    def _back(self, told: Floats, size: int) -> Floats:
        scores = np.zeros(size, dtype=np.float32)
        scores[self.order] = told
        return scores


def idf(holding: int, total: int) -> float:
    """How telling a term is that `holding` of `total` texts have."""
    return float(np.log(1 + (total - holding + 0.5) / (holding + 0.5)))


def _counted(terms: list[str]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for term in terms:
        counts[term] = counts.get(term, 0) + 1
    return counts
