"""What the calls on long-term memory return."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from agentstate_client.models import Record, _time


@dataclass(frozen=True, kw_only=True)
class Fact(Record):
    """One thing remembered about a subject; `version` is what a change names."""

    id: str
    subject: str = ""
    fact: str = ""
    key: str = ""
    kind: str = "other"
    status: str = "active"
    version: int = 1
    source: dict[str, Any] = field(default_factory=dict)
    seen_count: int = 1
    confidence: Any = 1.0
    pinned: bool = False
    metadata: dict[str, Any] = field(default_factory=dict)
    valid_from: datetime | None = _time()
    valid_to: datetime | None = _time()
    created_at: datetime | None = _time()
    updated_at: datetime | None = _time()

    def __str__(self) -> str:
        return self.fact


@dataclass(frozen=True, kw_only=True)
class Remembered(Fact):
    """A fact just remembered. `outcome`: created, seen, outdated or review."""

    outcome: str = "created"
    superseded: str | None = None


@dataclass(frozen=True, kw_only=True)
class RecalledFact(Fact):
    """A fact that was found: how well it fits, and why."""

    score: Any = 0.0
    why: dict[str, Any] = field(default_factory=dict)
    similar: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Revision(Record):
    """One change of a fact: the fields that it changed, before and after."""

    version: int
    action: str = ""
    changes: dict[str, list[Any]] = field(default_factory=dict)
    actor: str = ""
    reason: str = ""
    created_at: datetime | None = _time()


@dataclass(frozen=True, kw_only=True)
class ForgetReceipt(Record):
    """What was forgotten, by place. `receipt` is None for a dry run."""

    receipt: str | None
    scope: str = ""
    forgotten: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    kept: list[dict[str, str]] = field(default_factory=list)
