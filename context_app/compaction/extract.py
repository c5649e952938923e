"""A summary without a model: the beginning, what was decided and done, and the end.

The same passage always gives the same summary.
"""

import re

from context_app.compaction.passage import Line, Passage
from context_app.shorten import shortened
from context_app.tokens import Counter
from sessions_app import event_types as types

LINE_TOKENS = 80
BEGINNING, END = 0.25, 0.3  # of the summary's tokens; what was decided gets the rest

DECISION = re.compile(
    r"\b(?:decid|agree|confirm|approv|reject|prefer|cancel|chang|correct|instead|"
    r"actually|must|always|never|please|want|booked|refund|will|won't|cannot|can't|"
    r"yes|no)",
    re.IGNORECASE,
)


def extract_summary(passage: Passage, max_tokens: int, count: Counter) -> str:
    """Return a summary of about `max_tokens`."""
    talk = [line for line in passage.lines if line.type in types.MESSAGE_TYPES]
    beginning = _fitting(talk, max_tokens * BEGINNING, count)
    last = _fitting(talk[::-1], max_tokens * END, count)[::-1]
    told = {line.seq for line in [*beginning, *last]}
    between = [x for x in passage.lines if x.seq not in told and _is_decision(x)]
    room = max_tokens * (1 - BEGINNING - END)
    decided = _fitting(between[::-1], room, count)[::-1]
    sections = [
        ("How it began", beginning),
        ("What was decided and done", decided),
        ("How it went on", [x for x in last if x not in beginning]),
    ]
    return "\n\n".join(
        "\n".join([f"{title}:", *(_shown(line, count) for line in lines)])
        for title, lines in sections
        if lines
    )


def _is_decision(line: Line) -> bool:
    if line.type in (types.TOOL_CALL, types.TOOL_RESULT):
        return line.type == types.TOOL_CALL
    return bool(DECISION.search(line.text))


def _fitting(lines: list[Line], room: float, count: Counter) -> list[Line]:
    """The first lines that fit; at least one."""
    found: list[Line] = []
    for line in lines:
        room -= count(_shown(line, count))
        if room < 0 and found:
            break
        found.append(line)
    return found


def _shown(line: Line, count: Counter) -> str:
    text = " ".join(line.text.split())
    return f"- {line.speaker}: {shortened(text, line.seq, LINE_TOKENS, count)}"


def with_ledger(summary: str, passage: Passage) -> str:
    """Add what the summary does not tell and must: identifiers, facts, open calls."""
    losses = passage.losses(summary)
    titles = {"pinned_fact": "Holds for certain", "open_call": "Calls without a result"}
    groups: dict[str, list[str]] = {}
    for loss in losses:
        title = titles.get(loss["kind"], "Also mentioned")
        groups.setdefault(title, []).append(loss["value"])
    lines = [f"{title}: {', '.join(values)}" for title, values in groups.items()]
    return "\n\n".join([part for part in [summary, "\n".join(lines)] if part])
