"""What must not get lost in a summary: account numbers, ids, e-mails, amounts, dates.

Found by their look, in any text. Two ways of writing one thing are the same: `$1,200`
and `1200 USD`, `May 20th` and `2024-05-20`; but a year that was said must be told.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from agentstate import codec
from agentstate.errors import AppError

EMAIL, AMOUNT, DATE, NUMBER, CODE = "email", "amount", "date", "number", "code"

CURRENCIES = {
    "$": "usd", "usd": "usd", "dollar": "usd", "dollars": "usd", "us$": "usd",
    "€": "eur", "eur": "eur", "euro": "eur", "euros": "eur",
    "£": "gbp", "gbp": "gbp", "pound": "gbp", "pounds": "gbp",
    "¥": "jpy", "jpy": "jpy", "yen": "jpy", "chf": "chf", "francs": "chf",
}  # fmt: skip
MONTHS = [
    "jan", "feb", "mar", "apr", "may", "jun",
    "jul", "aug", "sep", "oct", "nov", "dec",
]  # fmt: skip

_MONTH = rf"(?:{'|'.join(MONTHS)})[a-z]*\.?"
_DAY = r"\d{1,2}(?:st|nd|rd|th)?"
_SIGN = r"US\$|[$€£¥]"
_UNIT = r"(?:USD|EUR|GBP|JPY|CHF|dollars?|euros?|pounds?|yen|francs)\b|[$€£¥]"
_SUM = r"\d[\d.,]*\d|\d"

PATTERN = re.compile(
    rf"""
    (?P<email>[\w.+-]+@[\w-]+(?:\.[\w-]+)+)
  | (?P<iso>\b\d{{4}}-\d\d-\d\d)(?!\d)
  | (?P<month_first>\b{_MONTH}\s+{_DAY}\b(?:,?\s+\d{{4}}\b)?)
  | (?P<day_first>\b{_DAY}\s+(?:of\s+)?{_MONTH}(?:,?\s+\d{{4}}\b)?)
  | (?P<numeric_date>\b\d{{1,2}}[./]\d{{1,2}}[./]\d{{2,4}}\b)
  | (?P<sign_first>(?:{_SIGN}|\b(?:USD|EUR|GBP|JPY|CHF))\s?(?:{_SUM}))
  | (?P<unit_last>(?<![\w.,])(?:{_SUM})\s?(?:{_UNIT}))
  | (?P<spaced>(?<![\w+])\+?\d[\d]*(?:[ ()-]{{1,2}}\d+){{2,}}(?!\w))
  | (?P<word>\#?[A-Za-z0-9](?:[\w-]*[A-Za-z0-9])?)
    """,
    re.VERBOSE | re.IGNORECASE,
)
ORDINARY = re.compile(
    r"\d+(?:st|nd|rd|th|am|pm|h|hrs?|min|s|ms|kg|g|km|m|cm|mm|mb|gb|kb|px|x|k)\Z", re.I
)


class Found(NamedTuple):
    """An identifier: what kind, in one way of writing, and as it was written."""

    kind: str
    normal: str
    shown: str


@dataclass
class Inventory:
    """Identifiers, each with the seqs at which it stands."""

    seqs: dict[tuple[str, str], list[int]] = field(default_factory=dict)
    shown: dict[tuple[str, str], str] = field(default_factory=dict)

    def add(self, found: Iterable[Found], seq: int) -> None:
        for each in found:
            key = (each.kind, each.normal)
            seqs = self.seqs.setdefault(key, [])
            if not seqs or seqs[-1] != seq:
                seqs.append(seq)
            self.shown.setdefault(key, each.shown)

    def missing_in(self, text: str) -> list[tuple[str, str, list[int]]]:
        """Kind, writing and seqs of what `text` does not hold, as first met."""
        there = {(found.kind, found.normal) for found in identifiers(text)}
        dates = {normal for kind, normal in there if kind == DATE}
        lowered = text.lower()
        return [
            (key[0], self.shown[key], seqs)
            for key, seqs in self.seqs.items()
            if key not in there
            and not (key[0] == DATE and _is_told(key[1], dates))
            and not _stands_in(self.shown[key].lower(), lowered)
        ]


def _is_told(date: str, dates: set[str]) -> bool:
    """A day without a year is told by the same day with one."""
    return date.startswith("-") and any(other.endswith(date) for other in dates)


def _stands_in(text: str, whole: str) -> bool:
    at = whole.find(text)
    while at >= 0:
        before, after = whole[at - 1 : at], whole[at + len(text) : at + len(text) + 1]
        if not (before.isalnum() or after.isalnum()):
            return True
        at = whole.find(text, at + 1)
    return False


def identifiers(text: str) -> Iterator[Found]:
    """Yield the identifiers in a text, in order."""
    for match in PATTERN.finditer(text):
        found = _read(match.lastgroup or "", match.group())
        if found is not None:
            yield found


def _read(group: str, text: str) -> Found | None:
    match group:
        case "email":
            return Found(EMAIL, text.lower().rstrip("."), text.rstrip("."))
        case "iso" | "month_first" | "day_first":
            return _date(text)
        case "numeric_date":
            return Found(DATE, re.sub(r"[./]", "/", text), text)
        case "sign_first" | "unit_last":
            return _amount(text)
        case "spaced":
            digits = re.sub(r"\D", "", text)
            return Found(NUMBER, digits, text.strip()) if len(digits) >= 7 else None
    return _word(text)


def _date(text: str) -> Found:
    if re.match(r"\d{4}-", text):
        return Found(DATE, text, text)
    words = re.findall(r"[a-z]+|\d+", text.lower())
    month = next(MONTHS.index(w[:3]) + 1 for w in words if w[:3] in MONTHS)
    numbers = [w for w in words if w.isdigit()]
    year = next((n for n in numbers if len(n) == 4), "")
    day = next(n for n in numbers if len(n) <= 2)
    return Found(DATE, f"{year}-{month:02}-{int(day):02}", text)


def _amount(text: str) -> Found:
    number = re.search(_SUM, text)
    assert number is not None
    unit = (text[: number.start()] + text[number.end() :]).strip().lower()
    return Found(AMOUNT, f"{_plain(number.group())} {CURRENCIES[unit]}", text.strip())


def _plain(number: str) -> str:
    """`1,234.50` and `1.234,5` as `1234.5`."""
    decimal = re.search(r"[.,](\d{1,2})\Z", number)
    whole = number[: decimal.start()] if decimal else number
    digits = re.sub(r"\D", "", whole).lstrip("0") or "0"
    fraction = decimal.group(1).rstrip("0") if decimal else ""
    return f"{digits}.{fraction}" if fraction else digits


def _word(text: str) -> Found | None:
    """Digits of some length, or letters and digits together."""
    bare = text.lstrip("#")
    digits = sum(c.isdigit() for c in bare)
    if bare.isdigit():
        is_id = digits >= 5 or (text.startswith("#") and digits >= 2)
        return Found(NUMBER, bare, text) if is_id else None
    letters = any(c.isalpha() for c in bare)
    if not digits or not letters or len(bare) < 3 or ORDINARY.match(bare):
        return None
    return Found(CODE, bare.lower(), text)


def texts_in(value: Any) -> Iterator[str]:
    """Yield every text in a JSON value; text that is itself JSON is looked into."""
    if isinstance(value, str):
        inner = _as_json(value)
        if inner is None:
            yield value
        else:
            yield from texts_in(inner)
    elif isinstance(value, dict):
        for item in value.values():
            yield from texts_in(item)
    elif isinstance(value, list):
        for item in value:
            yield from texts_in(item)
    elif value is not None and not isinstance(value, bool):
        yield str(value)


def _as_json(text: str) -> Any:
    if not text.lstrip().startswith(("{", "[")):
        return None
    try:
        value = codec.loads(text)
    except AppError:
        return None
    return value if isinstance(value, dict | list) else None
