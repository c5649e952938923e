"""How the texts of facts are compared: the same text, the same words, the same key."""

import hashlib
import hmac
import re
import unicodedata

from django.conf import settings

from memory_app.recall.tokens import STOP_WORDS, content_terms, fold

NAME = re.compile(r"[^\W\d_][\w'’-]*")
# "NAME: what was said", as transcripts are written.
SPEAKER = re.compile(r"([^\s:.!?][^:\n.!?]{0,39}):\s")


def compared(text: str) -> str:
    """Return `text` without what does not change it: case, spaces, its last mark."""
    folded = unicodedata.normalize("NFKC", text).casefold()
    return " ".join(folded.split()).rstrip(" .!。．…")


def content_hash(text: str) -> bytes:
    return hashlib.sha256(compared(text).encode()).digest()


def signature(text: str) -> bytes:
    """Hash the words of `text` wherever it begins with them; its names in their order.

    "The keys hang in room 3" and "Room 3 is where the keys hang" are one: one half
    went before the other. "Ann likes Bob" and "Bob likes Ann" are not, nor are "tea
    rather than coffee" and "coffee rather than tea".
    """
    words = _turned(content_terms(text))
    parts = "\x1f".join([*words, "", *_names(text)])
    return hashlib.sha256(parts.encode()).digest()


def _turned(words: list[str]) -> list[str]:
    """Return of all the ways to begin the round of `words` elsewhere the first."""
    if not words:
        return []
    first = min(words)
    begins = [at for at, word in enumerate(words) if word == first]
    return min(words[at:] + words[:at] for at in begins[:MOST_TURNS])


# Of a text that repeats itself without end; each turn costs its length.
MOST_TURNS = 50


def _names(text: str) -> list[str]:
    if text.isupper():
        return []
    names = [fold(word) for word in NAME.findall(text) if word[0].isupper()]
    telling = [name for name in names if name not in STOP_WORDS]
    return telling if len(telling) > 1 else []


def secret_hash(*parts: str | bytes) -> bytes:
    """Hash with the server's key: comparable here, no use to anybody else."""
    digest = hmac.new(settings.SECRET_KEY.encode(), digestmod=hashlib.sha256)
    for part in parts:
        raw = part.encode() if isinstance(part, str) else part
        digest.update(len(raw).to_bytes(8))
        digest.update(raw)
    return digest.digest()


def speaker_of(text: str) -> str:
    """Return who says `text`, folded, where it begins with "NAME: "; else nothing."""
    found = SPEAKER.match(text)
    return fold(found[1]).strip() if found else ""


# What somebody has one of at a time. Group 1 (and 2) name the key.
ONE_AT_A_TIME = [
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        # "my plan is Pro", "Alex's plan is Pro", "the plan = Pro"
        r"(?:my|the (?:user|customer|client)'s|[\w-]+['’]s)\s+"
        r"((?:[\w-]+\s+){0,3}[\w-]+?)\s+(?:is|are)\s+(?:now\s+)?(?!not\b)\S",
        r"([\w-]+(?:\s[\w-]+){0,2})\s*(?:=|:=)\s*\S",
        # "Alex commutes by car", "I live in Oslo", "works at Acme"
        r"(?:[\w'’-]+\s+){0,3}?(commut(?:e|es|ing)\s+by|liv(?:e|es|ing)\s+in"
        r"|work(?:s|ing)?\s+(?:at|for|as)|mov(?:ed|es)\s+to)\s+\S",
        # "prefers to be called Lex", "is called Lex", "call me Lex"
        r"(?:[\w'’-]+\s+){0,3}?(?:(?:to be|is|am) (call)ed|(call) me|is (name)d)\s+\S",
    )
]
ONE_KEY = {
    "commut": "commutes by",
    "liv": "lives in",
    "work": "works",
    "mov": "lives in",
    "call": "name",
    "name": "name",
}


# Much is true of a person at a time: "my wife is…" names no key.
PERSON_LIST = """
    wife husband partner mother mom mum father dad parents son daughter sister brother
    child kid kids children dog cat boss doctor friend girlfriend boyfriend fiance
    fiancee grandmother grandfather aunt uncle family team colleague
"""
PERSONS = frozenset(PERSON_LIST.split())


def derive_key(text: str) -> str:
    """Return what a fact answers, where its wording says so; else nothing.

    Cautious: only for what one person has one of. Two facts of one key contradict each
    other, so a wrong key would retire a true fact.
    """
    for pattern in ONE_AT_A_TIME:
        if found := pattern.match(text.strip()):
            name = next(group for group in found.groups() if group)
            words = name.casefold().split()
            return "" if words[-1] in PERSONS else _named_key(" ".join(words))
    return ""


def _named_key(name: str) -> str:
    for beginning, key in ONE_KEY.items():
        if name.startswith(beginning) and " " in name + " ":
            return key
    return name
