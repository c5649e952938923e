"""Shortening what is too long for a budget, by reference to the event that holds it."""

from dataclasses import dataclass, field
from typing import Any

from context_app.tokens import Counter, count_value

HEAD_SHARE = 0.7  # of what is kept, the rest is the end


@dataclass
class Shortener:
    """Shortens the texts of messages to `cap` tokens each; None leaves all whole.

    `cuts` maps the seqs that were touched to their tokens before and after.
    """

    count: Counter
    cap: int | None = None
    cuts: dict[int, tuple[int, int]] = field(default_factory=dict)

    def text(self, text: str, seq: int) -> str:
        if self.cap is None:
            return text
        found = shortened(text, seq, self.cap, self.count)
        if found is not text:
            self._cut(seq, self.count(text), self.count(found))
        return found

    def content(self, content: Any, seq: int) -> Any:
        """Shorten a message's content: its text, or each of its parts."""
        if isinstance(content, str):
            return self.text(content, seq)
        if isinstance(content, list) and self.cap is not None:
            return [self._part(part, seq) for part in content]
        return content

    def _part(self, part: Any, seq: int) -> Any:
        cap = self.cap or 0
        if isinstance(part, dict) and isinstance(part.get("text"), str):
            return {**part, "text": self.text(part["text"], seq)}
        tokens = count_value(part, self.count)
        note = f"[A part of event {seq} is left out]"
        if tokens <= max(cap, self.count(note)):
            return part
        self._cut(seq, tokens, self.count(note))
        return {"type": "text", "text": note}

    def _cut(self, seq: int, before: int, after: int) -> None:
        had = self.cuts.get(seq, (0, 0))
        self.cuts[seq] = (had[0] + before, had[1] + after)


def shortened(text: str, seq: int, cap: int | None, count: Counter) -> str:
    """Return `text` itself if it has at most `cap` tokens, else its ends around a note.

    The note alone if no more fits, even where that is above `cap`; but never more
    tokens than the text has.
    """
    total = count(text)
    if cap is None or total <= cap:
        return text
    note = f"[… {len(text)} characters; whole in event {seq} …]"
    room = cap - count(note) - 2
    while room > 8:
        kept = int(len(text) * room / total)
        head = int(kept * HEAD_SHARE)
        found = f"{text[:head]}\n{note}\n{text[len(text) - (kept - head) :]}"
        if count(found) <= cap:
            return found
        room = room * 3 // 4
    return note if count(note) < total else text
