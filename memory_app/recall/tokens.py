"""From text to the terms it is found by, in any language, without a dictionary.

Words are folded and lightly stemmed. Scripts written without spaces give single
characters and pairs, so that any two neighbouring characters of a query are found. What
holds a symbol (`100%`, `file_name`, `a@b`) is a term of its own beside its parts, so
that it can be looked for to the letter.
"""

import unicodedata
from collections.abc import Iterator
from functools import lru_cache

# What joins letters to one literal; other symbols stand alone.
JOINING = frozenset("%_\\@#+=$€£¥₹°§")
MAX_TERM = 64  # characters; longer runs are data, not words

WORD, PAIRED, JOINER, SYMBOL, GAP, MARK = range(6)

# Scripts without spaces between words, by their code points.
PAIRED_RANGES = (
    (0x0E00, 0x0EFF),  # Thai, Lao
    (0x1000, 0x109F),  # Myanmar
    (0x1780, 0x17FF),  # Khmer
    (0x3040, 0x30FF),  # Hiragana, Katakana
    (0x31F0, 0x31FF),
    (0x3400, 0x4DBF),  # Han
    (0x4E00, 0x9FFF),
    (0xAC00, 0xD7AF),  # Hangul: its endings make whole words rare
    (0xF900, 0xFAFF),
    (0x20000, 0x3134F),
)
# The same, for within the brackets of a regular expression.
UNSPACED = "".join(f"{chr(first)}-{chr(last)}" for first, last in PAIRED_RANGES)
# Marks that a reader may leave out: accents, Arabic and Hebrew vowels.
DROPPED_MARKS = (
    (0x0300, 0x036F),
    (0x0591, 0x05C7),
    (0x0610, 0x061A),
    (0x0640, 0x0640),
    (0x064B, 0x065F),
    (0x0670, 0x0670),
    (0xFE00, 0xFE0F),
)

# Words that say nothing of what a fact is about. Negations are not among them.
STOP_WORD_LIST = """
    a about all am an and any are as at be been being but by can could d did do does
    doing for from had has have having he her hers him his how i if in into is it its
    just ll m me more most my of on or our ours re s same she should so some such t
    than that the their theirs them then there these they this those to too us ve very
    was we were what when where which who whom whose why will with would you your yours
"""
STOP_WORDS = frozenset(STOP_WORD_LIST.split())


def fold(text: str) -> str:
    """Return `text` in one form for comparing: case, width and accents gone."""
    decomposed = unicodedata.normalize("NFKD", text)
    kept = "".join(c for c in decomposed if not _in(ord(c), DROPPED_MARKS))
    return unicodedata.normalize("NFKC", kept.casefold())


def fact_terms(text: str) -> list[str]:
    """Return the terms that `text` is indexed by, repeated as often as they occur."""
    terms: list[str] = []
    for kind, run in _runs(fold(text)):
        if kind == PAIRED:
            terms += run
            terms += _pairs(run)
        elif kind == JOINER:
            terms.append(run[:MAX_TERM])
            terms += _parts_of(run)
        else:
            terms += _stemmed(run)
    return terms


def query_terms(text: str, *, literal: bool = False) -> dict[str, float]:
    """Return the terms to look for and how much each counts.

    A run with a symbol is looked for as it is written; unless `literal`, its parts
    count half beside it.
    """
    wanted: dict[str, float] = {}
    for kind, run in _runs(fold(text)):
        if kind == PAIRED:
            found = dict.fromkeys(_pairs(run) or [run], 1.0)
        elif kind == JOINER:
            found = {run[:MAX_TERM]: 1.0}
            if not literal:
                found |= dict.fromkeys(_words_of(run), 0.5)
        else:
            found = dict.fromkeys(_stemmed(run), 1.0)
        for term, weight in found.items():
            wanted[term] = max(weight, wanted.get(term, 0.0))
    # A query of nothing but such words means them.
    telling = {t: w for t, w in wanted.items() if t not in STOP_TERMS}
    return telling or wanted


def content_terms(text: str) -> list[str]:
    """The terms that carry what `text` says, for comparing two facts."""
    return [term for term in fact_terms(text) if term not in STOP_TERMS]


def _runs(text: str) -> Iterator[tuple[int, str]]:
    """Cut folded text into runs of one kind: WORD, PAIRED, JOINER or SYMBOL.

    A JOINER run is letters and symbols without a gap; what is written in pairs ends it,
    so that a Latin word beside CJK is a word.
    """
    start, kind = 0, GAP
    for at, character in enumerate(text):
        here = _kind(character)
        if here == MARK:
            here = WORD if kind == GAP else kind
        if here == kind and here != SYMBOL:
            continue
        if {here, kind} == {WORD, JOINER}:
            kind = JOINER
            continue
        if kind != GAP:
            yield kind, text[start:at]
        start, kind = at, here
    if kind != GAP:
        yield kind, text[start:]


@lru_cache(maxsize=8192)
def _kind(character: str) -> int:
    code = ord(character)
    if character in JOINING:
        return JOINER
    if _in(code, PAIRED_RANGES):
        return PAIRED
    category = unicodedata.category(character)
    if category[0] in "LN":
        return WORD
    if category[0] == "M":
        return MARK
    return SYMBOL if category[0] == "S" else GAP


def _in(code: int, ranges: tuple[tuple[int, int], ...]) -> bool:
    return any(first <= code <= last for first, last in ranges)


def _pairs(run: str) -> list[str]:
    return [run[i : i + 2] for i in range(len(run) - 1)]


def _parts_of(run: str) -> list[str]:
    """The words and the symbols that a literal is made of."""
    symbols = [c for c in run if c in JOINING] if len(run) > 1 else []
    return _words_of(run) + symbols


def _words_of(run: str) -> list[str]:
    words = "".join(" " if c in JOINING else c for c in run).split()
    return [term for word in words for term in _stemmed(word)]


def _stemmed(word: str) -> list[str]:
    return [_stem(word[:MAX_TERM])]


@lru_cache(maxsize=65536)
def _stem(word: str) -> str:
    """Cut what English, and Arabic's article, put around a word.

    Light on purpose: a word of another language that ends so is cut everywhere alike.
    """
    if word.startswith("ال") and len(word) > 4:
        return word[2:]
    if len(word) < 4 or not word.isascii() or not word.isalpha():
        return word
    for ending, instead in ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            return _undouble(word[: len(word) - len(ending)] + instead)
    return word


ENDINGS = (
    ("ational", "ate"),
    ("ization", "ize"),
    ("fulness", "ful"),
    ("iness", "i"),
    ("ingly", ""),
    ("edly", ""),
    ("ies", "i"),
    ("ied", "i"),
    ("ing", ""),
    ("sses", "ss"),
    ("ed", ""),
    ("ly", ""),
    ("es", ""),
    ("ss", "ss"),
    ("us", "us"),
    ("s", ""),
    ("e", ""),
    ("y", "i"),
)


def _undouble(stem: str) -> str:
    if len(stem) > 3 and stem[-1] == stem[-2] and stem[-1] not in "lsz":
        return stem[:-1]
    if stem.endswith("e") and len(stem) > 3:
        return stem[:-1]
    return stem


STOP_TERMS = frozenset(_stem(word) for word in STOP_WORDS)
