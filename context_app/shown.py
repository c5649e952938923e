"""Putting a chosen context together, with the manifest of what it is made of."""

from typing import Any

from context_app.choice import Choice, Costs, ordered
from context_app.forms import system_text, unique_ids, with_own_ids
from context_app.material import Material
from context_app.note import (
    left_out_text,
    note_message,
    open_calls_text,
    summary_text,
)
from context_app.shorten import Shortener
from context_app.tokens import count_messages
from context_app.units import CallState, Message, Unit
from sessions_app import event_types as types
from sessions_app.log import StoredEvent

type Range = tuple[int, int]


class Shown:
    """A context: `messages`, the `system` text beside them where the form has one, and
    what the manifest tells. All is computed here; nothing is read."""

    def __init__(self, material: Material, choice: Choice, costs: Costs) -> None:
        self.material = material
        self.choice = choice
        self.costs = costs
        self.cuts: dict[int, tuple[int, int]] = {}
        self.seqs: set[int] = set()
        self.empty: set[int] = set()
        self.thoughts: set[int] = set()  # that the form has no place for
        instructions = self._messages(choice.instructions, choice.instructions_cap)
        conversation = self._conversation()
        self.left_out = self._left_out()
        self.note = self._note()
        self._render(instructions, conversation)

    def _messages(self, units: list[Unit], cap: int | None) -> list[Message]:
        groups = [self._unit(unit, cap) for unit in units]
        return [message for group in groups for message in group]

    def _unit(self, unit: Unit, cap: int | None) -> list[Message]:
        shortener = Shortener(self.costs.count, cap, self.cuts)
        messages = unit.messages(shortener, self.costs.tools)
        if not messages:
            self.empty.update(unit.seqs)
            return []
        hidden = {
            thought.seq
            for thought in unit.thoughts
            if not self.costs.form.shows_thought(thought.payload.get("content"))
        }
        self.thoughts |= hidden
        self.seqs.update(set(unit.seqs) - hidden)
        return messages

    def _conversation(self) -> list[Message]:
        groups = [
            self._unit(unit, self.choice.cap) for unit in ordered(self.choice.units)
        ]
        if self.costs.form.ids_are_global:
            return unique_ids(groups)
        return [m for group in groups for m in with_own_ids(group, set())]

    def _render(self, instructions: list[Message], conversation: list[Message]) -> None:
        form = self.costs.form
        texts = [text for _, text in self.note]
        note = [note_message(texts)] if texts else []
        before = [] if form.system_apart else instructions
        self.messages = form.join(form.render([*before, *note, *conversation]))
        apart = system_text(instructions) if form.system_apart else ""
        self.system = apart or None
        count = self.costs.count
        self.note_tokens = count_messages(form.render(note), count)
        self.instructions_tokens = count_messages(
            self.system or form.render(before), count
        )
        self.total = count_messages(self.messages, count)
        if self.system:
            self.total += self.instructions_tokens

    # What is in the note

    def _note(self) -> list[tuple[str, str]]:
        """The note's texts, each with the name it has in the manifest."""
        parts: list[tuple[str, str]] = []
        if self.left_out:
            events = sum(high - low + 1 for low, high in self.left_out)
            first, last = self.left_out[0][0], self.left_out[-1][1]
            parts.append(("left_out", left_out_text(first, last, events)))
        parts += [("summaries", summary_text(t)) for _, t in self.choice.summaries]
        parts += [(s.name, s.text(count)) for s, count in self.choice.sections]
        if unpaired := self._unpaired_calls():
            parts.append(("open_calls", open_calls_text(unpaired)))
        return parts

    def _unpaired_calls(self) -> list[CallState]:
        calls = self.material.open_calls
        return [call for call in calls if call.call_seq not in self.seqs]

    # What is left out

    def _left_out(self) -> list[Range]:
        """The ranges of the log whose messages are neither here nor in a summary."""
        unread = self.material.unread
        runs = _without(unread, self.seqs) if unread else []
        runs += _runs(self._read_seqs(unread), self.seqs | self.empty | self.thoughts)
        told = dict(self.choice.summaries)
        for summary in self.material.active.summaries:
            if summary.seq not in told:
                whole = (summary.from_seq, summary.up_to_seq)
                runs += _without(whole, self.seqs)
        kept = [seq for seq in self.material.kept_unread if seq not in self.seqs]
        runs += [(seq, seq) for seq in kept]
        return _touching_joined(sorted(runs), self.seqs)

    def _read_seqs(self, unread: Range | None) -> list[int]:
        """What was read of the conversation and is under no summary."""
        material = self.material
        units = ordered(material.timeline, material.kept, material.late)
        summaries = material.active.summaries
        return sorted(
            seq
            for unit in units
            for seq in unit.seqs
            if not (unread and unread[0] <= seq <= unread[1])
            and not any(summary.covers(seq) for summary in summaries)
        )

    # The manifest

    def manifest(self) -> dict[str, Any]:
        return {
            "at_seq": self.material.reader.at_seq,
            "tokens": self._tokens(),
            "seqs": sorted(self.seqs),
            "covered": self._covered(),
            "left_out": [self._left_out_json(*each) for each in self.left_out],
            "not_shown": self._not_shown(),
            "told_as_text": self._told_as_text(),
            "shortened": self._shortened(),
            "open_calls": self._open_calls(),
            "facts": self._told("pinned_facts", "recalled_facts"),
            "plan": next(iter(self._told("plan")), None),
            "working_memory": self._told("working_memory"),
        }

    def _tokens(self) -> dict[str, int]:
        """The total and its parts, which sum to it.

        What joining adds or saves is the note's, where that joins its texts, or else
        the conversation's.
        """
        parts: dict[str, int] = {}
        for name, text in self.note:
            parts[name] = parts.get(name, 0) + self.costs.count(text)
        if self.note:
            parts["note"] = self.note_tokens - sum(parts.values())
        known = self.instructions_tokens + self.note_tokens
        return {
            "total": self.total,
            "instructions": self.instructions_tokens,
            "conversation": self.total - known,
            **parts,
        }

    def _covered(self) -> list[dict[str, Any]]:
        return [
            {
                "by": summary.seq,
                "from_seq": summary.from_seq,
                "up_to_seq": summary.up_to_seq,
                "whole": sorted(
                    seq
                    for seq in self.seqs
                    if summary.from_seq <= seq <= summary.up_to_seq
                ),
                "summary": self._summary_is(summary.seq, summary.text),
            }
            for summary in self.material.active.summaries
        ]

    def _summary_is(self, seq: int, text: str) -> str:
        shown = dict(self.choice.summaries).get(seq)
        if shown is None:
            return "left_out"
        return "whole" if shown == text else "shortened"

    def _left_out_json(self, low: int, high: int) -> dict[str, Any]:
        return {
            "from_seq": low,
            "to_seq": high,
            "events": high - low + 1,
            "fetch": self._fetch(low, high),
        }

    def _fetch(self, low: int, high: int) -> str:
        return (
            f"/api/v1/sessions/{self.material.reader.session.pk}/events"
            f"?after_seq={low - 1}&before_seq={high + 1}"
        )

    def _not_shown(self) -> list[dict[str, Any]]:
        """What says nothing to a model, of what is not hidden anyway."""
        summaries = self.material.active.summaries
        reasons = dict.fromkeys(self.empty, "empty")
        reasons |= dict.fromkeys(self.thoughts, "reasoning")
        for event in self._loose_events():
            is_result = event.type == types.TOOL_RESULT
            reasons[event.seq] = "no_open_call" if is_result else "reasoning"
        return [
            {"seq": seq, "reason": reason}
            for seq, reason in sorted(reasons.items())
            if not any(low <= seq <= high for low, high in self.left_out)
            and not any(summary.covers(seq) for summary in summaries)
        ]

    def _loose_events(self) -> list[StoredEvent]:
        """Events of the timeline that belong to no unit."""
        material = self.material
        units = ordered(
            material.timeline, material.needed, material.kept, material.late
        )
        in_units = {seq for unit in units for seq in unit.seqs}
        first = material.unread[1] if material.unread else material.start_seq
        return [
            event
            for seq, event in material.reader.events.items()
            if seq > first and seq not in in_units
        ]

    def _told_as_text(self) -> list[dict[str, Any]]:
        """Calls of tools that the reader does not have."""
        tools = self.costs.tools
        return [
            {"seq": call.event.seq, "name": call.state.name}
            for unit in ordered(self.choice.units)
            for call in unit.calls
            if tools is not None and call.state.name not in tools
        ]

    def _shortened(self) -> list[dict[str, Any]]:
        return [
            {
                "seq": seq,
                "tokens": before,
                "shown_tokens": after,
                "fetch": self._fetch(seq, seq),
            }
            for seq, (before, after) in sorted(self.cuts.items())
        ]

    def _open_calls(self) -> list[dict[str, Any]]:
        return [
            {
                "seq": call.call_seq,
                "tool_call_id": call.tool_call_id,
                "name": call.name,
                "status": call.status,
                "shown": "stand_in" if call.call_seq in self.seqs else "note",
            }
            for call in sorted(self.material.open_calls, key=lambda c: c.call_seq)
        ]

    def _told(self, *names: str) -> list[Any]:
        return [
            told
            for section, count in self.choice.sections
            if section.name in names
            for told in section.told[:count]
        ]


def _without(whole: Range, shown: set[int]) -> list[Range]:
    """Cut what is shown out of a range."""
    low, high = whole
    runs: list[Range] = []
    for seq in sorted(s for s in shown if low <= s <= high):
        if low < seq:
            runs.append((low, seq - 1))
        low = seq + 1
    return [*runs, (low, high)] if low <= high else runs


def _runs(seqs: list[int], shown: set[int]) -> list[Range]:
    """Ranges of the seqs that are not shown; one goes on until one is shown."""
    runs: list[Range] = []
    goes_on = False
    for seq in seqs:
        if seq in shown:
            goes_on = False
        elif goes_on:
            runs[-1] = (runs[-1][0], seq)
        else:
            runs.append((seq, seq))
            goes_on = True
    return runs


def _touching_joined(runs: list[Range], shown: set[int]) -> list[Range]:
    """Join ranges between which nothing is shown."""
    joined: list[Range] = []
    for low, high in runs:
        if joined and not any(joined[-1][1] < seq < low for seq in shown):
            joined[-1] = (joined[-1][0], max(joined[-1][1], high))
        else:
            joined.append((low, high))
    return joined
