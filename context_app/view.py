"""What a model sees of a session: messages ready to send, and what they are made of.

The rules are told in docs/context.md.
"""

from dataclasses import dataclass
from functools import partial

from context_app.beside import Section
from context_app.choice import (
    Costs,
    everything,
    is_enough,
    page_size,
    selection,
    too_small,
)
from context_app.forms import FORMS
from context_app.material import Material, gather
from context_app.shown import Shown
from context_app.tokens import Counter, remembering
from sessions_app.models import Session
from sessions_app.replay import check_seq

TRIES = 4


@dataclass(frozen=True)
class Wanted:
    """What the caller asks for. `tools` None: the reader has all of them."""

    budget: int
    form: str = "neutral"
    at_seq: int | None = None
    tools: frozenset[str] | None = None
    keep: frozenset[int] = frozenset()


def build_context(
    session: Session, wanted: Wanted, sections: list[Section], counter: Counter
) -> Shown:
    """Return the context of `session`, at most `wanted.budget` tokens as `counter`
    counts them. Raises BudgetTooSmall, SeqNotShown, SeqNotFound."""
    at_seq = session.last_seq if wanted.at_seq is None else wanted.at_seq
    check_seq(session, at_seq)
    costs = Costs(FORMS[wanted.form], remembering(counter), wanted.tools)
    material = gather(
        session,
        at_seq,
        wanted.keep,
        sections,
        page_size(wanted.budget),
        partial(is_enough, costs=costs, budget=wanted.budget),
    )
    whole = everything(material)
    if whole is not None:
        shown = Shown(material, whole, costs)
        if shown.total <= wanted.budget:
            return shown
    return _selected(material, costs, wanted.budget)


def _selected(material: Material, costs: Costs, budget: int) -> Shown:
    """Select until what was selected, counted as a whole, is within the budget.

    With the estimate that is the first time. A real tokenizer may find a token or two
    more in joined texts than in their parts.
    """
    room = budget
    for _ in range(TRIES):
        shown = Shown(material, selection(material, costs, room), costs)
        if shown.total <= budget:
            return shown
        room -= shown.total - budget
    raise too_small(budget, shown.total)
