"""The part of a log that a summary is to stand for: read once, page by page."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from agentstate import codec
from context_app.compaction.identifiers import Inventory, identifiers, texts_in
from context_app.reading import LogReader
from context_app.units import CallState
from memory_app.models import Fact
from sessions_app import event_types as types
from sessions_app.log import StoredEvent, read_log
from sessions_app.models import Session

PAGE = 500
# An event with more identifiers than this is data rather than talk, a pasted log or a
# table: it is carried as it is, and no summary has to repeat it.
BULK_IDENTIFIERS = 200
SPEAKERS = {
    types.MESSAGE_USER: "user",
    types.MESSAGE_ASSISTANT: "assistant",
    types.MESSAGE_SYSTEM: "system",
}


@dataclass(frozen=True)
class Line:
    """One event of the passage in words."""

    seq: int
    type: str
    speaker: str
    text: str

    def __str__(self) -> str:
        return f"[{self.seq}] {self.speaker}: {self.text}"


@dataclass
class Passage:
    """What a summary of `from_seq` to `up_to_seq` has to tell.

    `lines` leave out what is in `keep`, and reasoning.
    """

    from_seq: int
    up_to_seq: int
    lines: list[Line] = field(default_factory=list)
    inventory: Inventory = field(default_factory=Inventory)
    keep: set[int] = field(default_factory=set)
    open_calls: list[CallState] = field(default_factory=list)
    pinned: list[tuple[str, list[int]]] = field(default_factory=list)

    def losses(self, summary: str) -> list[dict[str, Any]]:
        """What `summary` does not tell, each with the seqs where it stands."""
        found = [
            {"kind": kind, "value": value, "seqs": seqs}
            for kind, value, seqs in self.inventory.missing_in(summary)
        ]
        lowered = " ".join(summary.lower().split())
        found += [
            {"kind": "pinned_fact", "value": fact, "seqs": seqs}
            for fact, seqs in self.pinned
            if " ".join(fact.lower().split()) not in lowered
        ]
        found += [
            {"kind": "open_call", "value": call.name, "seqs": [call.call_seq]}
            for call in self.open_calls
            if call.name.lower() not in lowered
            and call.tool_call_id.lower() not in lowered
        ]
        return found


def read_passage(
    session: Session,
    from_seq: int,
    up_to_seq: int,
    *,
    keep: set[int],
    preserve_tools: bool = False,
) -> Passage:
    """Read what a summary is to stand for. `keep` are seqs that stay as they are, with
    the calls or results that belong to them."""
    reader = LogReader(session, session.last_seq)
    passage = Passage(from_seq, up_to_seq)
    passage.keep = _whole_units(reader, keep, passage)
    leading = {event.seq for event in reader.leading_system()}
    for event in _events(session, from_seq, up_to_seq):
        if event.seq in leading:
            continue
        is_tool = event.type in (types.TOOL_CALL, types.TOOL_RESULT)
        if preserve_tools and is_tool:
            passage.keep.add(event.seq)
        if event.seq not in passage.keep:
            _take(passage, event)
    if bulky := passage.keep - keep:
        passage.keep |= _whole_units(reader, bulky, passage)
        passage.lines = [x for x in passage.lines if x.seq not in passage.keep]
    _add_open_calls(reader, passage)
    _add_pinned(session, passage)
    return passage


def _events(session: Session, from_seq: int, up_to_seq: int) -> Iterator[StoredEvent]:
    after, more = from_seq - 1, True
    while more:
        events, more = read_log(
            session,
            after_seq=after,
            before_seq=up_to_seq + 1,
            types=types.CONVERSATION_TYPES,
            limit=PAGE,
        )
        yield from events
        after = events[-1].seq if events else after


def _whole_units(reader: LogReader, seqs: set[int], passage: Passage) -> set[int]:
    """The seqs with those of their units, within the passage."""
    units = reader.units_at(seqs) if seqs else []
    found = {seq for unit in units for seq in unit.seqs}
    return {s for s in found if passage.from_seq <= s <= passage.up_to_seq}


def _take(passage: Passage, event: StoredEvent) -> None:
    """Add an event: what must be told of it, and its words."""
    payload = event.payload
    if event.type == types.REASONING:
        return
    content = payload.get("arguments" if event.type == types.TOOL_CALL else "content")
    found = [f for text in texts_in(content) for f in identifiers(text)]
    if len({(f.kind, f.normal) for f in found}) > BULK_IDENTIFIERS:
        passage.keep.add(event.seq)
        return
    passage.inventory.add(found, event.seq)
    text = content if isinstance(content, str) else _words(content)
    if event.type == types.TOOL_CALL:
        line = Line(event.seq, event.type, f"call of {payload.get('name')}", text)
    elif event.type == types.TOOL_RESULT:
        line = Line(event.seq, event.type, "result", text)
    else:
        line = Line(event.seq, event.type, SPEAKERS[event.type], text)
    if line.text.strip():
        passage.lines.append(line)


def _words(content: Any) -> str:
    """A content that is no text, in one."""
    if content is None:
        return ""
    if isinstance(content, list):
        texts = [p.get("text") for p in content if isinstance(p, dict)]
        if texts and all(isinstance(text, str) for text in texts):
            return "\n".join(str(text) for text in texts)
    return codec.dumps(content)


def _add_open_calls(reader: LogReader, passage: Passage) -> None:
    passage.open_calls = [
        call
        for call in reader.open_calls()
        if passage.from_seq <= call.call_seq <= passage.up_to_seq
        and call.call_seq not in passage.keep
    ]


def _add_pinned(session: Session, passage: Passage) -> None:
    """Pinned facts that were said in the passage, and not in what is kept of it."""
    facts = (
        Fact.objects.in_project(session.project_id)
        .filter(source_session=str(session.pk), pinned=True)
        .live()
        .order_by("id")
        .values_list("fact", "source_seqs")
    )
    for fact, seqs in facts:
        here = [s for s in seqs if passage.from_seq <= s <= passage.up_to_seq]
        if here and not passage.keep & set(here):
            passage.pinned.append((fact, here))
