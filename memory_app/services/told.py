"""What is to be remembered, and what became of it."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from memory_app.models import Fact, Kind, SourceKind

# What may be told, by a call or in a file.
FACT_MAX, NAME_MAX, NOTE_MAX = 10_000, 500, 1000  # characters
METADATA_MAX_BYTES = 16 * 1024  # as JSON


@dataclass(frozen=True)
class NewFact:
    """A fact to remember. `session` and `seqs` say where it was said.

    `said_at` is when (the event's own time); `valid_from` since when it holds, if that
    is another time. `key` None: derived from the wording where that is certain.
    """

    subject: str
    fact: str
    key: str | None = None
    kind: str = Kind.OTHER
    source_kind: str = SourceKind.USER
    session: str = ""
    agent: str = ""  # that talked there
    seqs: tuple[int, ...] = ()
    confidence: float | None = None
    pinned: bool = False
    metadata: dict[str, Any] = field(default_factory=dict)
    said_at: datetime | None = None
    valid_from: datetime | None = None
    valid_to: datetime | None = None
    expires_at: datetime | None = None
    note: str = ""
    wants_review: bool = False  # whatever the policy says
    settled: bool = False  # by who remembers it, as a correction is


class Remembered(NamedTuple):
    """The fact, and what became of it.

    `outcome`: created; seen (it was known); outdated (something newer is known);
    review (a person decides).
    """

    fact: Fact
    outcome: str
    superseded: UUID | None = None

    @property
    def is_new(self) -> bool:
        return self.outcome != "seen"
