"""Choosing what goes into a context: everything if it fits, else by rank.

What must survive comes first, its texts shortened if need be: instructions, what is
known for certain, calls that wait for a human, the newest unit. Then summaries, what
they kept, what was asked for, and the newest conversation with what room is left.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from context_app.beside import Section
from context_app.errors import BudgetTooSmall
from context_app.forms import Form, with_own_ids
from context_app.material import Material
from context_app.note import (
    LEFT_OUT_MOST,
    SEPARATOR_TOKENS,
    note_message,
    open_calls_text,
    summary_text,
)
from context_app.shorten import Shortener
from context_app.tokens import Counter, count_messages
from context_app.units import Unit

PAGE_MIN, PAGE_MAX = 32, 500  # events that are read at once
TOKENS_AN_EVENT = 40  # what a short one costs: how many to read for a budget
TEXT_SHARE = 4  # one text may fill a quarter of a budget that is too small for all
SUMMARY_SHARE = 2  # summaries may fill half of the room that is left
TURN_SHARE = 4  # a quarter of the room may go for a cut between two turns


@dataclass
class Choice:
    """What goes in. `cap`: the most tokens of each text; None leaves all whole.

    `sections` come with the number of their lines, `summaries` are seq and text.
    """

    cap: int | None
    instructions: list[Unit]
    units: list[Unit]
    sections: list[tuple[Section, int]]
    summaries: list[tuple[int, str]] = field(default_factory=list)

    @property
    def instructions_cap(self) -> int | None:
        """Instructions may be longer than other texts."""
        return None if self.cap is None else self.cap * 3 // 2


@dataclass
class Costs:
    """What each thing costs in a form. Upper bounds: joining makes nothing dearer."""

    form: Form
    count: Counter
    tools: frozenset[str] | None
    known: dict[tuple[int, int | None], int] = field(default_factory=dict)

    def unit(self, unit: Unit, cap: int | None) -> int:
        if cap is not None and (whole := self.unit(unit, None)) <= cap:
            return whole  # none of its texts can be longer
        key = (unit.first_seq, cap)
        if key not in self.known:
            messages = unit.messages(Shortener(self.count, cap), self.tools)
            # Where ids are global any may have to be replaced by a longer one.
            repeated = None if self.form.ids_are_global else set[str]()
            rendered = self.form.render(with_own_ids(messages, repeated))
            self.known[key] = count_messages(rendered, self.count)
        return self.known[key]

    def units(self, units: Iterable[Unit], cap: int | None) -> int:
        return sum(self.unit(unit, cap) for unit in units)

    def text(self, text: str) -> int:
        return self.count(text) + SEPARATOR_TOKENS

    @property
    def note_head(self) -> int:
        return count_messages(self.form.render([note_message([])]), self.count)


def page_size(budget: int) -> int:
    return min(PAGE_MAX, max(PAGE_MIN, budget // TOKENS_AN_EVENT))


def is_enough(units: list[Unit], costs: Costs, budget: int) -> bool:
    return costs.units(units, budget // TEXT_SHARE) > budget


def everything(material: Material) -> Choice | None:
    """All of it, whole; None if it was too much to be read."""
    if not material.is_complete:
        return None
    return Choice(
        None,
        material.instructions,
        ordered(material.needed, material.kept, material.late, material.timeline),
        [(section, len(section.lines)) for section in material.sections],
        [(summary.seq, summary.text) for summary in material.active.summaries],
    )


def selection(material: Material, costs: Costs, budget: int) -> Choice:
    """The best that fits into `budget`. Raises BudgetTooSmall."""
    return _Selection(material, costs, budget).made()


def ordered(*groups: list[Unit]) -> list[Unit]:
    """The units of all groups, each once, as they stand in the log."""
    units = {unit.first_seq: unit for group in groups for unit in group}
    return [units[seq] for seq in sorted(units)]


def _newest_first(*groups: list[Unit]) -> list[Unit]:
    return sorted(ordered(*groups), key=lambda unit: -unit.last_seq)


class _Selection:
    def __init__(self, material: Material, costs: Costs, budget: int) -> None:
        self.material = material
        self.costs = costs
        self.budget = budget
        self.lasting = [section for section in material.sections if section.must]
        self.must = ordered(material.needed, self._newest())
        self.choice = Choice(
            budget // TEXT_SHARE,
            material.instructions,
            list(self.must),
            [(section, len(section.lines)) for section in self.lasting],
        )
        self.room = 0

    def made(self) -> Choice:
        self.room = self.budget - self._fit_must()
        self._add_summaries()
        self._add_kept()
        self._add_sections()
        self._add_newest()
        return self.choice

    def _newest(self) -> list[Unit]:
        """The unit that the model is to answer; it is never left out."""
        units = _newest_first(self.material.timeline, self.material.late)
        newest = next((unit for unit in units if self.costs.unit(unit, None)), None)
        return [] if newest is None else [newest]

    def _fit_must(self) -> int:
        """Find the cap with which all fits that must; return what that costs."""
        while (least := self._must_cost()) > self.budget:
            if not self.choice.cap:
                raise too_small(self.budget, least)
            self.choice.cap //= 2
        return least

    def _must_cost(self) -> int:
        """Instructions, units that must survive, and the note at its longest."""
        texts = [section.text() for section in self.lasting]
        texts += [LEFT_OUT_MOST, open_calls_text(self.material.open_calls)]
        return (
            self.costs.units(self.must, self.choice.cap)
            + self.costs.units(self.choice.instructions, self.choice.instructions_cap)
            + self.costs.note_head
            + sum(self.costs.text(text) for text in texts if text)
        )

    def _add_summaries(self) -> None:
        """The newest first: what is further back matters less."""
        left = self.room // SUMMARY_SHARE
        frame = self.costs.text(summary_text(""))
        for summary in reversed(self.material.active.summaries):
            shortener = Shortener(self.costs.count, max(left - frame, 0))
            text = shortener.text(summary.text, summary.seq)
            cost = self.costs.text(summary_text(text))
            if cost > left:
                break
            self.choice.summaries.insert(0, (summary.seq, text))
            left -= cost
            self.room -= cost

    def _add_kept(self) -> None:
        for unit in _newest_first(self.material.kept):
            cost = self.costs.unit(unit, self.choice.cap)
            if cost <= self.room:
                self.choice.units.append(unit)
                self.room -= cost

    def _add_sections(self) -> None:
        for section in self.material.sections:
            if section.must:
                continue
            share = min(self.room, int(self.budget * section.share))
            count = len(section.lines)
            while count and self.costs.text(section.text(count)) > share:
                count -= 1
            if count:
                self.choice.sections.append((section, count))
                self.room -= self.costs.text(section.text(count))

    def _add_newest(self) -> None:
        """Add units, the newest first, until one does not fit."""
        candidates = _newest_first(self.material.timeline, self.material.late)
        added: list[Unit] = []
        left = self.room
        is_all = self.material.is_complete
        for unit in candidates:
            if unit in self.must:
                continue
            left -= self.costs.unit(unit, self.choice.cap)
            if left < 0:
                is_all = False
                break
            added.append(unit)
        self.choice.units += added if is_all else self._cut_between_turns(added)

    def _cut_between_turns(self, added: list[Unit]) -> list[Unit]:
        """Drop the rest of a turn whose beginning is left out, if that is little."""
        given_up, at = 0, len(added)
        while at and not added[at - 1].begins_turn:
            at -= 1
            given_up += self.costs.unit(added[at], self.choice.cap)
        is_little = given_up * TURN_SHARE <= self.room
        return added[:at] if is_little and (at or self._newest_begins_turn) else added

    @property
    def _newest_begins_turn(self) -> bool:
        return bool(self.must) and self.must[-1].begins_turn


def too_small(budget: int, least: int) -> BudgetTooSmall:
    return BudgetTooSmall(
        f"budget_tokens: {budget} is too small, the least that works is {least}",
        least_tokens=least,
        errors=[
            {
                "path": "budget_tokens",
                "code": "budget_too_small",
                "detail": f"must be at least {least} for this session",
            }
        ],
    )
