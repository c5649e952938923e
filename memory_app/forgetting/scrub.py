"""What a value becomes when it is forgotten: pure functions, the same everywhere.

The log and what is derived from it go through the same function, so that a replay of
the forgotten log gives the forgotten rows.
"""

import re
import unicodedata
from collections.abc import Callable, Iterable
from typing import Any

from agentstate import codec
from memory_app.recall.tokens import UNSPACED

MARK = "[forgotten]"
BLANK: dict[str, Any] = {"forgotten": True}

# Of a payload these say how the log hangs together, not what was said.
STRUCTURE_NAMES = """
    tool_call_id name tool awaiting is_error synthetic version up_to_seq at seq seqs run
    step session attempt worker lease_token state status kind effect index plan_version
    parent forked_from_seq promotion extractor facts id ids artifact size sha256
    media_type forgotten
"""
STRUCTURE = frozenset(STRUCTURE_NAMES.split())
# In events of runs, these hold what a client sent; their columns go the same way.
CONTENT_NAMES = """
    args arguments input output result error request response body payload data context
    task summary task_summary reason note comment message text labels metadata title
    details inline
"""
CONTENT = frozenset(CONTENT_NAMES.split())
BUNDLE_KEPT = frozenset(("limits", "last_seq", "budget_tokens", "tokens"))
EMPTY_OBJECTS = frozenset(("labels", "metadata"))
EMPTY_TEXTS = frozenset(("reason", "note", "comment", "title"))


def blank_event(event_type: str, payload: dict[str, Any]) -> dict[str, Any]:
    """Return the payload without anything that was said."""
    if event_type.startswith(("run.", "step.", "handoff.")):
        return blank_run_event(event_type, payload)
    if event_type == "state.changed":
        whole = {"op": "replace", "path": "", "value": {}}
        return {"version": payload.get("version"), "patch": [whole]}
    if event_type.startswith("session."):
        return blank_session(payload)
    if event_type.startswith("memory."):
        return payload
    if event_type.startswith("artifact."):
        return blank_artifact(payload)
    kept = {name: payload[name] for name in STRUCTURE if name in payload}
    if "content" in payload and payload["content"] is not None:
        kept["content"] = MARK
    if event_type == "tool.call":
        kept["arguments"] = {}
    if event_type == "context.compacted":
        kept["summary"] = MARK
    return kept if kept.keys() - {"name"} else kept | BLANK


def blank_artifact(payload: dict[str, Any]) -> dict[str, Any]:
    """Blank what a client said of a file, and the digest of its bytes."""
    changed = dict(payload)
    for name in ("name", "media_type", "sha256", "reason"):
        if name in changed:
            changed[name] = ""
    if "metadata" in changed:
        changed["metadata"] = {}
    return changed


def blank_run_event(event_type: str, payload: dict[str, Any]) -> dict[str, Any]:
    """Blank what a client sent of a run or step, and the names that it gave them."""
    changed = blank_content(payload)
    assert isinstance(changed, dict)
    for step in changed.get("steps") or ():
        if isinstance(step, dict) and "name" in step:
            step["name"] = ""
    if event_type == "run.created" and "key" in changed:
        changed["key"] = None
    if isinstance(payload.get("bundle"), dict):
        changed["bundle"] = blank_bundle(payload["bundle"])
    return changed


def blank_bundle(bundle: dict[str, Any]) -> dict[str, Any]:
    """Blank what a handoff carried. Its shape and its sizes stay: it can be read on."""
    return {
        name: value if name in BUNDLE_KEPT else _emptied(value)
        for name, value in bundle.items()
    }


def _emptied(value: Any) -> Any:
    if isinstance(value, str):
        return MARK
    return type(value)() if isinstance(value, list | dict) else None


def blank_content(value: Any) -> Any:
    """Blank the fields named in CONTENT, at any depth; the rest stays."""
    if isinstance(value, list):
        return [blank_content(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        name: blanked(name, item) if name in CONTENT else blank_content(item)
        for name, item in value.items()
    }


def blanked(name: str, value: Any) -> Any:
    """Return what stands in the place of a client's value, by the field's name."""
    if value in (None, "", {}, []):
        return value
    if name in EMPTY_OBJECTS:
        return {}
    if isinstance(value, str) or name in EMPTY_TEXTS:
        return "" if name in EMPTY_TEXTS else MARK
    return dict(BLANK)


def blank_session(payload: dict[str, Any]) -> dict[str, Any]:
    """Blank what a session.* event says of the session itself."""
    changed = dict(payload)
    for name in ("title", "reason"):
        if name in changed:
            changed[name] = ""
    for name in EMPTY_OBJECTS:
        if name in changed:
            changed[name] = {}
    if "changes" in changed:
        changed["changes"] = blank_session(changed["changes"])
    return changed


class Needles:
    """Texts to take out of whatever holds them, in any case and spacing.

    `texts` are the fact's own words. Beside them, what identifies in them is looked for
    alone: numbers, codes, addresses, and a value of several words behind "is".
    """

    def __init__(self, texts: Iterable[str]) -> None:
        found: set[str] = set()
        for text in texts:
            found |= set(telling_parts(text))
        self.parts = sorted(found, key=lambda part: (-len(part), part))
        joined = "|".join(_pattern(part) for part in self.parts)
        self._plain = re.compile(joined, re.IGNORECASE) if joined else None

    def __bool__(self) -> bool:
        return self._plain is not None

    def are_in(self, text: str) -> bool:
        return self._plain is not None and self._plain.search(text) is not None

    def clean(self, text: str) -> str:
        return self._plain.sub(MARK, text) if self._plain else text

    def clean_json(self, value: Any) -> Any:
        """Return the value with its strings and its keys cleaned."""
        return map_strings(value, self.clean)

    def clean_event(self, event_type: str, payload: dict[str, Any]) -> dict[str, Any]:
        cleaned = self.clean_json(payload)
        assert isinstance(cleaned, dict)
        return cleaned

    def are_in_json(self, text: str) -> bool:
        """Whether JSON text holds one, escapes and all."""
        if self.are_in(text):
            return True
        if "\\" not in text:
            return False
        value = codec.loads(text, max_depth=10_000)
        return bool(self.clean_json(value) != value)


def map_strings(value: Any, clean: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, list):
        return [map_strings(item, clean) for item in value]
    if isinstance(value, dict):
        return {clean(key): map_strings(item, clean) for key, item in value.items()}
    if isinstance(value, bool) or value is None:
        return value
    # A number that is what was to be forgotten: an account, a badge.
    shown = codec.dumps(value)
    return value if clean(shown) == shown else 0


# A character of a word, but of no script without spaces: there, words have no bounds,
# and one of another script ends where they begin.
LETTER = rf"[^\W{UNSPACED}]"
BEGINS, ENDS = rf"(?<!{LETTER})", rf"(?!{LETTER})"
# An address, or a code: letters and digits that no word is made of.
LETTERS = rf"(?:{LETTER}|[.+-])+"
CODE = rf"{BEGINS}(?=(?:{LETTER}|-)*\d){LETTER}(?:{LETTER}|-){{2,}}(?<=\w){ENDS}"
IDENTIFIER = re.compile(
    rf"{LETTERS}@{LETTER}(?:{LETTER}|-)*\.{LETTERS}|\+?\d[\d ().-]{{5,}}\d|{CODE}"
)
# Several such one after another: "XX00 TEST 1234".
CODE_RUN = re.compile(rf"{BEGINS}(?:[A-Z0-9]{{2,}}[ -])+[A-Z0-9]{{2,}}{ENDS}")
# However it is grouped: 4111 1111, 4111-1111, 41111111.
NUMBER = re.compile(r"\+?\d(?:[\s().-]*\d){5,}")
WIDER = ord("！") - ord("!")  # from a character of ASCII to its wide form
WITHOUT_SPACES = re.compile(f"[{UNSPACED}]")
VALUE = re.compile(r"(?:\b(?:is|are|was)\b|[:=])\s+(.{8,})$", re.IGNORECASE)


def telling_parts(text: str) -> list[str]:
    """Return what of a fact's text is to be looked for elsewhere."""
    whole = text.strip().rstrip(".!。！")
    least = 3 if WITHOUT_SPACES.search(whole) else 4
    parts = [whole] if len(whole) >= least else []
    parts += CODE_RUN.findall(text)
    parts += [part for part in IDENTIFIER.findall(text) if len(part) >= 4]
    if (found := VALUE.search(whole)) and " " in found[1]:
        parts.append(found[1].strip())
    runs = [part for part in CODE_RUN.findall(text) if any(c.isdigit() for c in part)]
    for run in runs:
        words = run.split()
        # A part of it gives it away as well.
        parts += [" ".join(words[: i + 2]) for i in range(len(words) - 1)]
    return list(dict.fromkeys(parts))


def _bounds(character: str) -> bool:
    return character.isalnum() and not WITHOUT_SPACES.match(character)


def _pattern(part: str) -> str:
    begins = BEGINS if _bounds(part[:1]) else ""
    ends = ENDS if _bounds(part[-1:]) else ""
    if NUMBER.fullmatch(part):
        digits = [_spelled(c) for c in part if c.isdigit()]
        return rf"{BEGINS}\+?" + r"[\s().-]{0,2}".join(digits) + ends
    words = [_spelled(word) for word in unicodedata.normalize("NFC", part).split()]
    return begins + r"\s+".join(words) + ends


def _spelled(word: str) -> str:
    """Match a word with its accents composed or not, its characters wide or not."""
    return "".join(_forms(character) for character in word)


def _forms(character: str) -> str:
    forms = {character, unicodedata.normalize("NFD", character)}
    forms.add(unicodedata.normalize("NFKC", character))
    if "!" <= character <= "~":
        forms.add(chr(ord(character) + WIDER))
    # The longer first: an accent of its own must not be left behind.
    ordered = sorted(forms, key=lambda form: (-len(form), form))
    joined = "|".join(re.escape(form) for form in ordered)
    return joined if len(ordered) == 1 else f"(?:{joined})"
