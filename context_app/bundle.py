"""What a handoff carries: gathered as values, within a budget.

The taking agent reads these and nothing else of the giving session. The task comes
first and whole; what does not fit is named, with where it lies.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from agentstate import codec
from context_app.errors import BundleTooSmall
from context_app.reading import LogReader
from context_app.shorten import Shortener
from context_app.tokens import Counter, count_value
from context_app.units import Message, Unit
from memory_app.models import Fact
from memory_app.recall.search import Query, recall
from sessions_app.errors import (
    EntryExpired,
    EntryNotFound,
    WorkingMemoryUnavailable,
)
from sessions_app.models import Artifact, Session
from sessions_app.working_memory import Scope, get_entry

BUDGET_TOKENS = 4000
FACTS_MAX = 20  # that are looked for when the caller names none
ITEM_TOKENS = 4  # what an item costs around its text
EVENTS_READ = 200

type Item = tuple[dict[str, Any], str]  # a value, and where it lies


@dataclass
class Bundle:
    """A bundle in the making: `room` is what is left of its tokens."""

    count: Counter
    room: int
    left_out: list[dict[str, Any]] = field(default_factory=list)

    def fitting(self, kind: str, items: Iterable[Item]) -> list[dict[str, Any]]:
        """Return the items that fit, in order; name the others."""
        found = []
        for value, where in items:
            cost = count_value(value, self.count) + ITEM_TOKENS
            if cost <= self.room:
                self.room -= cost
                found.append(value)
            else:
                told = {"kind": kind, "reference": where, "tokens": cost}
                self.left_out.append(told)
        return found


def gather_bundle(
    session: Session, offered: dict[str, Any], count: Counter
) -> dict[str, Any]:
    """Return `{task, relevant_facts, limits, …}` of a handoff as it was offered.

    It is as the session is now, up to `last_seq`. Raises BundleTooSmall if the task
    alone does not fit.
    """
    wanted = offered["context"]
    budget = wanted.get("budget_tokens", BUDGET_TOKENS)
    bundle = Bundle(count, budget - check_task(offered["task"], budget, count))
    limits = {
        name: value
        for name, value in offered["constraints"].items()
        if value is not None and value is not False
    }
    inline = bundle.fitting("inline", _inline(wanted))
    facts = bundle.fitting("fact", _facts(session, offered["task"], wanted))
    state = bundle.fitting("state", _state(session, wanted))
    memory = bundle.fitting("working_memory", _working_memory(session, wanted))
    artifacts = bundle.fitting("artifact", _artifacts(session, offered))
    newest_first = bundle.fitting("event", _events(session, wanted, count))
    return {
        "task": offered["task"],
        "relevant_facts": facts,
        "limits": limits,
        "inline": inline[0]["value"] if inline else None,
        "state": {item["key"]: item["value"] for item in state},
        "working_memory": {item["key"]: item["value"] for item in memory},
        "events": sorted(newest_first, key=lambda item: item["seqs"][:1]),
        "artifacts": artifacts,
        "last_seq": session.last_seq,
        "budget_tokens": budget,
        "tokens": budget - bundle.room,
        "left_out": bundle.left_out,
    }


def check_task(task: str, budget: int, count: Counter) -> int:
    """Return the task's tokens. Raises BundleTooSmall."""
    tokens = count(task) + ITEM_TOKENS
    if tokens > budget:
        raise BundleTooSmall(
            f"context.budget_tokens: the task alone has {tokens} tokens",
            least_tokens=tokens,
            errors=[
                {
                    "path": "context.budget_tokens",
                    "code": "budget_too_small",
                    "detail": f"must be at least {tokens} for this task",
                }
            ],
        )
    return tokens


def _inline(wanted: dict[str, Any]) -> Iterator[Item]:
    if wanted.get("inline") is not None:
        yield {"value": wanted["inline"]}, "context.inline of the handoff"


def _facts(session: Session, task: str, wanted: dict[str, Any]) -> Iterator[Item]:
    """The facts named; or those that fit `recall`; each where memory has it."""
    named = [UUID(fact_id) for fact_id in wanted.get("facts", [])]
    for fact in facts_named(session, named):
        yield {"id": str(fact.id), "fact": fact.fact}, f"/api/v1/memory/{fact.id}"
    if query := wanted.get("recall"):
        for told in suggested_facts(session, query, FACTS_MAX):
            if UUID(told["id"]) not in named:
                value = {"id": told["id"], "fact": told["fact"]}
                yield value, f"/api/v1/memory/{told['id']}"


def facts_named(session: Session, ids: list[UUID]) -> list[Fact]:
    """The facts of these ids about the session's subject, in the order of `ids`."""
    facts = {
        fact.id: fact
        for fact in Fact.objects.in_project(session.project_id)
        .about(session.subject)
        .live()
        .filter(id__in=ids)
    }
    return [facts[fact_id] for fact_id in ids if fact_id in facts]


def suggested_facts(session: Session, task: str, limit: int) -> list[dict[str, Any]]:
    """The facts about the session's subject that fit a task best."""
    if not session.subject:
        return []
    found = recall(session.project_id, session.subject, Query(task, limit))
    return [
        {
            "id": str(hit.fact.id),
            "fact": hit.fact.fact,
            "kind": hit.fact.kind,
            "why": hit.why["summary"],
        }
        for hit in found.hits
    ]


def _state(session: Session, wanted: dict[str, Any]) -> Iterator[Item]:
    for key in wanted.get("state_keys", []):
        if key in session.state:
            value = {"key": key, "value": session.state[key]}
            yield value, f"/api/v1/sessions/{session.pk}/state"


def _working_memory(session: Session, wanted: dict[str, Any]) -> Iterator[Item]:
    scope = Scope(session.project_id, session.pk, session.last_seq)
    for key in wanted.get("working_memory", []):
        try:
            text = get_entry(scope, key).value_text
        except (EntryExpired, EntryNotFound, WorkingMemoryUnavailable):
            continue
        where = f"/api/v1/sessions/{session.pk}/working-memory/{key}"
        yield {"key": key, "value": codec.loads(text)}, where


def _artifacts(session: Session, offered: dict[str, Any]) -> Iterator[Item]:
    """The artifacts that the taking session was given, by their ids there."""
    given = [UUID(artifact_id) for artifact_id in offered.get("artifacts", [])]
    live = Artifact.objects.in_project(session.project_id).live().filter(id__in=given)
    for artifact in live.order_by("seq"):
        value = {
            "id": str(artifact.pk),
            "name": artifact.name,
            "media_type": artifact.media_type,
            "size": artifact.size,
            "sha256": artifact.sha256,
        }
        yield value, f"/api/v1/artifacts/{artifact.pk}"


def _events(session: Session, wanted: dict[str, Any], count: Counter) -> Iterator[Item]:
    """Messages and calls, the newest first, as neutral messages."""
    for unit in _units(session, wanted):
        messages: list[Message] = unit.messages(Shortener(count))
        for message in reversed(messages):
            shown = {n: v for n, v in message.items() if n != "call_seq"}
            where = (
                f"/api/v1/sessions/{session.pk}/events"
                f"?after_seq={unit.first_seq - 1}&before_seq={unit.last_seq + 1}"
            )
            yield shown, where


def _units(session: Session, wanted: dict[str, Any]) -> list[Unit]:
    reader = LogReader(session, session.last_seq)
    last = wanted.get("last_events", 0)
    found: list[Unit] = []
    if last:
        units, _ = reader.read_back(0, EVENTS_READ, _has(last))
        found = units[-last:]
    seqs = set(wanted.get("events", []))
    named = seqs - {seq for unit in found for seq in unit.seqs}
    found += reader.units_at(named) if named else []
    return sorted(found, key=lambda unit: -unit.first_seq)


def _has(count: int) -> Callable[[list[Unit]], bool]:
    return lambda units: len(units) >= count


def prompt_text(bundle: dict[str, Any]) -> str:
    """The bundle in words, as the taking agent's first message."""
    parts = [bundle["task"]]
    if bundle["relevant_facts"]:
        facts = [f"- {item['fact']}" for item in bundle["relevant_facts"]]
        parts.append("\n".join(["## What is known", *facts]))
    for name, title in (
        ("inline", "Given with the task"),
        ("state", "State"),
        ("working_memory", "Working memory"),
        ("artifacts", "Files, to be read by their id"),
        ("limits", "Limits"),
    ):
        if bundle[name]:
            parts.append(f"## {title}\n{codec.dumps(bundle[name])}")
    if bundle["events"]:
        lines = [_line(message) for message in bundle["events"]]
        parts.append("\n".join(["## From the conversation before", *lines]))
    return "\n\n".join(parts)


def _line(message: Message) -> str:
    content = message["content"]
    text = content if isinstance(content, str) else codec.dumps(content)
    called = [
        f"{call['name']}({codec.dumps(call['arguments'])})"
        for call in message.get("tool_calls", [])
    ]
    shown = "; ".join([*([text] if content is not None else []), *called])
    return f"- {message['role']}: {shown}"
