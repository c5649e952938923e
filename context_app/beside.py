"""What a model is told beside the conversation: facts, plan, working memory.

Each becomes a section of the note that stands before the conversation. Lines are cut
from a section's end when it is longer than its share of the budget.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from django.db.models import Q

from memory_app.models import Fact, Kind
from memory_app.recall.search import Query, recall
from runs_app.models import Run, Step
from runs_app.states import RUN_ENDED
from sessions_app.errors import (
    EntryExpired,
    EntryNotFound,
    WorkingMemoryUnavailable,
)
from sessions_app.models import Session
from sessions_app.working_memory import Scope, get_entry

RECALL_LIMIT = 20
PLAN_STEPS_MAX = 50


@dataclass
class Section:
    """Lines under a title. `must`: never shortened, never left out."""

    name: str
    title: str
    lines: list[str]
    must: bool = False
    share: float = 0.2  # of the budget, at most
    told: list[Any] = field(default_factory=list)  # what the manifest says, by line

    def text(self, count: int | None = None) -> str:
        lines = self.lines if count is None else self.lines[:count]
        return "\n".join([f"## {self.title}", *lines])


def lasting_facts(session: Session) -> Section | None:
    """What is pinned about the session's subject, and what was corrected."""
    if not session.subject:
        return None
    facts = (
        Fact.objects.in_project(session.project_id)
        .about(session.subject)
        .live()
        .filter(Q(pinned=True) | Q(kind=Kind.CORRECTION))
        .order_by("id")
        .only("id", "fact", "pinned", "kind")
    )
    return _facts_section(
        "pinned_facts", "Known for certain", facts, "pinned or corrected", must=True
    )


def recalled_facts(session: Session, query: str, known: set[str]) -> Section | None:
    """The facts that fit `query` best, without those that stand there already."""
    if not session.subject:
        return None
    found = recall(session.project_id, session.subject, Query(query, RECALL_LIMIT))
    hits = [hit for hit in found.hits if str(hit.fact.id) not in known]
    if not hits:
        return None
    return Section(
        "recalled_facts",
        "Remembered",
        [f"- {hit.fact.fact}" for hit in hits],
        told=[
            {"id": str(hit.fact.id), "why": hit.why["summary"], "pinned": False}
            for hit in hits
        ],
    )


def _facts_section(
    name: str, title: str, facts: Iterable[Fact], why: str, *, must: bool
) -> Section | None:
    found = list(facts)
    if not found:
        return None
    return Section(
        name,
        title,
        [f"- {fact.fact}" for fact in found],
        must=must,
        told=[
            {"id": str(fact.id), "why": why, "pinned": fact.pinned} for fact in found
        ],
    )


def plan_progress(session: Session) -> Section | None:
    """The steps of the newest run under way, and how far each is."""
    runs = Run.objects.filter(project_id=session.project_id, session_id=session.pk)
    run = runs.exclude(state__in=RUN_ENDED).order_by("-id").first()
    if run is None:
        return None
    steps = Step.objects.filter(project_id=session.project_id, run_id=run.id).order_by(
        "index"
    )[: PLAN_STEPS_MAX + 1]
    lines = [_step_line(step) for step in steps]
    if len(lines) > PLAN_STEPS_MAX:
        lines[-1] = f"… {run.step_count - PLAN_STEPS_MAX} more steps"
    return Section(
        "plan", f"Plan ({run.state})", lines, share=0.1, told=[{"run": str(run.id)}]
    )


def _step_line(step: Step) -> str:
    name = step.name or step.tool or step.kind
    return f"{step.index}. [{step.state}] {name}"


def working_memory(session: Session, keys: Iterable[str]) -> Section | None:
    """The entries asked for; one that has expired is named as such."""
    scope = Scope(session.project_id, session.pk, session.last_seq)
    found = [(key, *_entry(scope, key)) for key in keys]
    if not found:
        return None
    return Section(
        "working_memory",
        "Working memory",
        [f"- {key}: {shown}" for key, _, shown in found],
        told=[{"key": key, "status": status} for key, status, _ in found],
    )


def _entry(scope: Scope, key: str) -> tuple[str, str]:
    try:
        return "present", get_entry(scope, key).value_text
    except EntryExpired:
        return "expired", "(expired)"
    except EntryNotFound:
        return "absent", "(not set)"
    except WorkingMemoryUnavailable:
        return "unavailable", "(not reachable now)"
