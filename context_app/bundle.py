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

HEADINGS = {
    "relevant_facts": "## What is known",
    "inline": "## Given with the task",
    "state": "## State",
    "working_memory": "## Working memory",
    "artifacts": "## Files, to be read by their id",
    "limits": "## Limits",
    "events": "## From the conversation before",
}


@dataclass(frozen=True)
class Item:
    """A value that was asked for, and where it lies. `why` it is not there, else empty.

    `text` is what the prompt shows of it.
    """

    value: dict[str, Any]
    where: str
    text: str = ""
    why: str = ""


@dataclass
class Bundle:
    """A bundle in the making: `room` is what is left of its tokens."""

    count: Counter
    room: int
    left_out: list[dict[str, Any]] = field(default_factory=list)

    def fitting(
        self, kind: str, section: str, items: Iterable[Item]
    ) -> list[dict[str, Any]]:
        """Return the values that fit, in order; name the others, and why."""
        found: list[dict[str, Any]] = []
        for item in items:
            cost = 0 if item.why else self._cost(item)
            if not found:
                cost += self.count(HEADINGS[section]) + ITEM_TOKENS
            if not item.why and cost <= self.room:
                self.room -= cost
                found.append(item.value)
                continue
            self.left_out.append(
                {
                    "kind": kind,
                    "reference": item.where,
                    "tokens": 0 if item.why else cost,
                    "why": item.why or "no_room",
                }
            )
        return found

    def _cost(self, item: Item) -> int:
        """As data or as text, whichever is more."""
        shown = item.text or codec.dumps(item.value)
        return max(count_value(item.value, self.count), self.count(shown)) + ITEM_TOKENS


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
    # They hold all the same, and the handoff tells them, should they not fit.
    bundle.fitting("limits", "limits", _limits(limits))
    inline = bundle.fitting("inline", "inline", _inline(wanted))
    facts = bundle.fitting("fact", "relevant_facts", _facts(session, wanted))
    state = bundle.fitting("state", "state", _state(session, wanted))
    memory = bundle.fitting(
        "working_memory", "working_memory", _working_memory(session, wanted)
    )
    artifacts = bundle.fitting("artifact", "artifacts", _artifacts(session, offered))
    newest_first = bundle.fitting("event", "events", _events(session, wanted, count))
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


def _limits(limits: dict[str, Any]) -> Iterator[Item]:
    if limits:
        yield Item(limits, "constraints of the handoff")


def _inline(wanted: dict[str, Any]) -> Iterator[Item]:
    if wanted.get("inline") is not None:
        yield Item({"value": wanted["inline"]}, "context.inline of the handoff")


def _facts(session: Session, wanted: dict[str, Any]) -> Iterator[Item]:
    """The facts named, and those that fit `recall`; each where memory has it."""
    named = [UUID(fact_id) for fact_id in wanted.get("facts", [])]
    known = facts_named(session, named)
    for fact_id in named:
        where = f"/api/v1/memory/{fact_id}"
        if (fact := known.get(fact_id)) is None:
            yield Item({}, where, why="not_found")
        else:
            yield _fact_item(str(fact_id), fact.fact)
    if query := wanted.get("recall"):
        for told in suggested_facts(session, query, FACTS_MAX):
            if UUID(told["id"]) not in known:
                yield _fact_item(told["id"], told["fact"])


def _fact_item(fact_id: str, text: str) -> Item:
    value = {"id": fact_id, "fact": text}
    return Item(value, f"/api/v1/memory/{fact_id}", f"- {text}")


def facts_named(session: Session, ids: list[UUID]) -> dict[UUID, Fact]:
    """The live facts of these ids about the session's subject."""
    if not session.subject:
        return {}
    facts = Fact.objects.in_project(session.project_id).about(session.subject).live()
    return {fact.id: fact for fact in facts.filter(id__in=ids)}


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
    where = f"/api/v1/sessions/{session.pk}/state"
    for key in wanted.get("state_keys", []):
        if key in session.state:
            yield Item({"key": key, "value": session.state[key]}, where)
        else:
            yield Item({}, f"{where}#{key}", why="not_found")


def _working_memory(session: Session, wanted: dict[str, Any]) -> Iterator[Item]:
    scope = Scope(session.project_id, session.pk, session.last_seq)
    for key in wanted.get("working_memory", []):
        where = f"/api/v1/sessions/{session.pk}/working-memory/{key}"
        try:
            value = {"key": key, "value": codec.loads(get_entry(scope, key).value_text)}
        except EntryExpired:
            yield Item({}, where, why="expired")
        except EntryNotFound:
            yield Item({}, where, why="not_found")
        except WorkingMemoryUnavailable:
            yield Item({}, where, why="unavailable")
        else:
            yield Item(value, where)


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
        yield Item(value, f"/api/v1/artifacts/{artifact.pk}")


def _events(session: Session, wanted: dict[str, Any], count: Counter) -> Iterator[Item]:
    """Messages and calls, the newest first, as neutral messages."""
    units = _units(session, wanted)
    for unit in units:
        messages: list[Message] = unit.messages(Shortener(count))
        for message in reversed(messages):
            shown = {n: v for n, v in message.items() if n != "call_seq"}
            where = (
                f"/api/v1/sessions/{session.pk}/events"
                f"?after_seq={unit.first_seq - 1}&before_seq={unit.last_seq + 1}"
            )
            yield Item(shown, where, _line(shown))
    found = {seq for unit in units for seq in unit.seqs}
    for seq in sorted(set(wanted.get("events", [])) - found):
        where = f"/api/v1/sessions/{session.pk}/events"
        where += f"?after_seq={seq - 1}&before_seq={seq + 1}"
        yield Item({}, where, why="no_message")


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
    lines = {
        "relevant_facts": [f"- {item['fact']}" for item in bundle["relevant_facts"]],
        "events": [_line(message) for message in bundle["events"]],
    }
    untold = {item["kind"] for item in bundle["left_out"]} & {"limits"}
    parts = [bundle["task"]]
    for section, heading in HEADINGS.items():
        if bundle[section] and section not in untold:
            shown = lines.get(section) or [codec.dumps(bundle[section])]
            parts.append("\n".join([heading, *shown]))
    return "\n\n".join(parts)


def _line(message: Message) -> str:
    called = [
        f"{call['name']}({codec.dumps(call['arguments'])})"
        for call in message.get("tool_calls", [])
    ]
    said = _words(message["content"])
    return f"- {message['role']}: {'; '.join([*said, *called])}"


def _words(content: Any) -> list[str]:
    """What a message says, in words: of pictures and files only that they are there."""
    if content is None:
        return []
    if isinstance(content, str):
        return [content]
    if not isinstance(content, list):
        return [codec.dumps(content)]
    return [
        str(part["text"])
        if isinstance(part, dict) and isinstance(part.get("text"), str)
        else f"[{part.get('type', 'part') if isinstance(part, dict) else 'part'}]"
        for part in content
    ]
