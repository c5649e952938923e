"""What the calls on handoffs return."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from agentstate_client.models import Record, _time

PROMPT_MEMBERS = ("task", "relevant_facts", "limits")


@dataclass(frozen=True, kw_only=True)
class Handoff(Record):
    """Work that a run gave to another agent; `bundle` is there once it is accepted."""

    id: str
    status: str = "offered"
    agent: str = ""
    task: str = ""
    depth: int = 1
    run: str = ""
    step: str = ""
    session: str = ""
    child_session: str = ""
    child_run: str = ""
    constraints: dict[str, Any] = field(default_factory=dict)
    on_failure: str = "fail"
    accepted_by: str | None = None
    bundle: dict[str, Any] | None = None
    result: dict[str, Any] | None = None
    reason: str | None = None
    expires_at: datetime | None = _time()
    created_at: datetime | None = _time()

    @property
    def is_open(self) -> bool:
        return self.status in ("offered", "accepted")

    @property
    def prompt_context(self) -> dict[str, Any]:
        """`{task, relevant_facts, limits}` of an accepted handoff."""
        bundle = self.bundle or {}
        return {name: bundle.get(name) for name in PROMPT_MEMBERS}


@dataclass(frozen=True, kw_only=True)
class Offered(Handoff):
    """A handoff just made. `token` is the other agent's key, told this once."""

    token: str = field(default="", repr=False)


@dataclass(frozen=True, kw_only=True)
class SuggestedFact(Record):
    """A fact that matters for a task, and why."""

    id: str
    fact: str = ""
    kind: str = "other"
    why: str = ""
