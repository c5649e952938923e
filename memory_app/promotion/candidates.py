"""What an extractor proposes, before anything is remembered."""

from collections.abc import Callable
from dataclasses import dataclass

from memory_app.policy import Policy
from memory_app.promotion.reading import Utterance


@dataclass(frozen=True)
class Candidate:
    """A fact that may be worth keeping, with the events that support it.

    `key` None: derived from the wording. `source_kind` is user for what was plainly
    said, agent for what was concluded. `wants_review`: a person looks at it first.
    """

    text: str
    seqs: tuple[int, ...]
    kind: str = "other"
    key: str | None = None
    source_kind: str = "user"
    confidence: float = 1.0
    wants_review: bool = False


@dataclass(frozen=True)
class Extraction:
    """The candidates, and what was left out and why."""

    candidates: list[Candidate]
    notes: tuple[str, ...] = ()


type Extractor = Callable[[list[Utterance], Policy], Extraction]
