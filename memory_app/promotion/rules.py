"""The extractor without a model: what people plainly say about themselves.

It reads the user's own messages alone, sentence by sentence, and takes what says so in
so many words: "remember that…", "my … is…", "I prefer…", "call me…", "from now on…",
"no, it is…". Requests, questions, guesses and what holds for this one transaction are
left; so is everything that an agent, a tool or a system prompt says.
"""

import re
from collections.abc import Callable, Iterator

from memory_app.policy import Policy
from memory_app.promotion.candidates import Candidate, Extraction
from memory_app.promotion.reading import ASSISTANT, USER, Utterance
from memory_app.text import PERSONS, derive_key

type Found = Candidate | None
type Rule = Callable[["re.Match[str]", int, str], Found]

FACT_MAX = 400  # characters; a longer sentence is a story, not a fact
# Things of one transaction: what they are today says nothing about tomorrow.
PASSING_LIST = """
    reservation booking reason question problem issue flight trip order ticket request
    confirmation budget concern plan point guess understanding turn mistake bad goal
    response answer choice option preference apologies total cost call case
"""
PASSING = frozenset(PASSING_LIST.split())
LASTING_PLANS = frozenset(("plan", "order", "choice", "preference", "call", "budget"))
# An order to the agent dressed up as something to remember.
COMMANDS = re.compile(
    r"\b(ignore (?:all|any|previous|the)|disregard|system prompt|you are now|you must"
    r"|override|jailbreak|developer mode)\b",
    re.IGNORECASE,
)
HEDGED = re.compile(
    r"\b(i think|i guess|i believe|i thought|maybe|perhaps|probably|not sure"
    r"|pretty sure|not (?:entirely )?certain|was thinking|might be|i assume"
    r"|i suppose)\b",
    re.IGNORECASE,
)
UNCERTAIN = re.compile(r"\b(?:if|whether|chance|in case|assuming)\s*$", re.IGNORECASE)
CONDITIONAL = re.compile(r"^(?:and |but |so )?(?:if|when|unless|suppose|once)\b", re.I)
LEAD = re.compile(
    r"^(?:(?:hi|hello|hey|sure|certainly|ok(?:ay)?|yes|yeah|well|oh|also|and|but|so|thanks"
    r"|thank you|alright|great|please note|by the way|fyi|of course|bonjour|merci"
    r"|in that case|unfortunately)(?: there)?[,!.:]?\s+)+",
    re.IGNORECASE,
)
BULLET = re.compile(r"^\s*(?:[-*•]|\d{1,2}[.)])\s+")
SENTENCES = re.compile(r"(?<=[.!?。！？])\s+(?=[^\s])|\n+|(?<=[。！？])")


def extract(said: list[Utterance], policy: Policy) -> Extraction:
    """Return what the user plainly said, each once, with the event it is from."""
    found: dict[str, Candidate] = {}
    before = ""
    for utterance in said:
        if utterance.role == ASSISTANT:
            before = utterance.text
        if utterance.role != USER:
            continue
        for candidate in _in_message(utterance, before):
            found.setdefault(candidate.text.casefold(), candidate)
    return Extraction(list(found.values()))


def _in_message(utterance: Utterance, before: str) -> Iterator[Candidate]:
    for sentence in sentences(utterance.text):
        risky = COMMANDS.search(sentence) is not None
        for found in _in_sentence(sentence, utterance.seq, before):
            yield _reviewed(found) if risky else found


def sentences(text: str) -> Iterator[str]:
    """Cut a message into sentences, without bullets, greetings and fillers."""
    for part in SENTENCES.split(text):
        sentence = BULLET.sub("", part.strip())
        yield LEAD.sub("", sentence).strip()


def _in_sentence(sentence: str, seq: int, before: str) -> Iterator[Candidate]:
    if not 4 <= len(sentence) <= FACT_MAX or sentence.endswith("?"):
        return
    taken: list[tuple[int, int]] = []
    for pattern, rule in RULES:
        match = pattern.search(sentence)
        if match is None or any(
            a < match.end() and match.start() < b for a, b in taken
        ):
            continue
        if rule is not _remember and _is_unsure(sentence, match):
            continue
        found = rule(match, seq, before)
        if found is not None and 4 <= len(found.text) <= FACT_MAX:
            taken.append(match.span())
            yield found


def _is_unsure(sentence: str, match: "re.Match[str]") -> bool:
    hedged = HEDGED.search(sentence)
    return bool(
        CONDITIONAL.match(sentence)
        or UNCERTAIN.search(sentence[: match.start()])
        or (hedged and hedged.start() <= match.end())
    )


def _reviewed(found: Candidate) -> Candidate:
    return Candidate(
        found.text, found.seqs, found.kind, found.key, "agent", 0.3, wants_review=True
    )


def _remember(match: "re.Match[str]", seq: int, before: str) -> Found:
    inner = _clean(match[1])
    for pattern, rule in RULES[1:]:
        if (nested := pattern.search(inner)) and (found := rule(nested, seq, before)):
            return found
    if len(inner.split()) < 2:
        return None
    return Candidate(_third_person(inner), (seq,), "other")


def _remember_as_said(match: "re.Match[str]", seq: int, before: str) -> Found:
    """Keep it in the user's own words: no grammar of other languages is known here."""
    said = _clean(match[1])
    return Candidate(_capital(said), (seq,), "other", "") if len(said) > 3 else None


def _name(match: "re.Match[str]", seq: int, before: str) -> Found:
    name = _clean(match[1])
    if not name or not name[0].isupper():
        return None
    return Candidate(f"Prefers to be called {name}", (seq,), "preference", "name")


def _own_name(match: "re.Match[str]", seq: int, before: str) -> Found:
    return Candidate(f"Name is {_clean(match[1])}", (seq,), "profile", "full name")


def _handle(match: "re.Match[str]", seq: int, before: str) -> Found:
    return Candidate(f"User ID is {match[1]}", (seq,), "profile", "user id")


def _number(match: "re.Match[str]", seq: int, before: str) -> Found:
    thing = match[1].casefold()
    shown = _capital(thing).replace(" id", " ID")
    return Candidate(f"{shown} is {_clean(match[2])}", (seq,), "profile", thing)


def _my_thing(match: "re.Match[str]", seq: int, before: str) -> Found:
    thing, verb, value = match[1].strip(), match[2], _clean(match[3])
    words = thing.casefold().split()
    if words[0] in ("own", "only", "main") or not value:
        return None
    if _is_passing(words, verb, value):
        return None
    of_person = words[-1] in PERSONS
    text = f"{_capital(thing)} {verb} {_third_person(value, inner=True)}"
    kind = "preference" if words[0] in ("favorite", "favourite") else "profile"
    return Candidate(text, (seq,), kind, "" if of_person else " ".join(words))


def _is_passing(words: list[str], verb: str, value: str) -> bool:
    """Whether this is about the business at hand and not about who speaks."""
    if re.match(r"(?:that|to|if|because|not|how|why|whether|why|very|really)\b", value):
        return words[-1] not in PERSONS
    if re.match(r"(?:a |an |just )?(?:change|delayed|cancel|due|about|for)", value):
        return True
    if len(words) == 1 and words[0] in LASTING_PLANS:
        return len(value.split()) > 3
    return not PASSING.isdisjoint(words)


def _person(match: "re.Match[str]", seq: int, before: str) -> Found:
    told = AND_THEN.split(_clean(match[2]))[0]
    text = f"{_capital(match[1])} {_third_person(told, inner=True)}"
    return Candidate(text, (seq,), "profile", "")


# What the speaker wants because of it is another matter.
AND_THEN = re.compile(r",? (?:and|so|but) I\b", re.IGNORECASE)


def _theirs(match: "re.Match[str]", seq: int, before: str) -> Found:
    text = f"{match[1]}'s {match[2]} is {_clean(match[3])}"
    return Candidate(text, (seq,), "profile")


def _card(match: "re.Match[str]", seq: int, before: str) -> Found:
    return Candidate(f"Has a {match[1]} ending in {match[2]}", (seq,), "profile", "")


def _prefer(match: "re.Match[str]", seq: int, before: str) -> Found:
    verb, value = match[1].casefold(), _clean(match[2])
    if not value or re.match(
        r"(?:not )?(?:to|being|be)\s+(?:be )?(?:transfer|keep|continue|speak|talk|wait|"
        r"proceed|resolve|sort|know|see|thank|discuss|start|start|cancel|book|change)",
        value,
    ):
        return None
    if re.match(r"(?:that|this|it|the (?:first|second|third|one|other))\b", value):
        return None
    text = f"{VERBS.get(verb, _plural(verb))} {_third_person(value, inner=True)}"
    return Candidate(_capital(text), (seq,), "preference", "")


VERBS = {"can't stand": "cannot stand", "enjoy": "enjoys"}


def _refuse(match: "re.Match[str]", seq: int, before: str) -> Found:
    value = _third_person(_clean(match[1]), inner=True)
    return Candidate(f"Does not want to {value}", (seq,), "preference", "")


def _habit(match: "re.Match[str]", seq: int, before: str) -> Found:
    adverb, verb, value = match[1].casefold(), match[2].casefold(), _clean(match[3])
    if verb in ("have", "got", "think", "thought", "had", "be", "am", "get", "receive"):
        return None
    text = f"{adverb} {_plural(verb)} {_third_person(value, inner=True)}"
    return Candidate(_capital(text), (seq,), "preference", "")


def _standing(match: "re.Match[str]", seq: int, before: str) -> Found:
    text = f"From now on: {_third_person(_clean(match[1]), inner=True)}"
    return Candidate(text, (seq,), "decision", "")


def _standing_order(match: "re.Match[str]", seq: int, before: str) -> Found:
    return Candidate(
        _capital(_third_person(_clean(match[0]), inner=True)), (seq,), "preference", ""
    )


def _decision(match: "re.Match[str]", seq: int, before: str) -> Found:
    value = _clean(match[2])
    if len(value.split()) < 2 and not value[:1].isupper():
        return None
    text = f"{match[1].capitalize()} {_third_person(value, inner=True)}"
    return Candidate(text, (seq,), "decision", "")


def _lives(match: "re.Match[str]", seq: int, before: str) -> Found:
    verb, value = match[1].casefold(), _third_person(_clean(match[2]), inner=True)
    text = f"{_capital(_plural(verb))} {value}"
    return Candidate(text, (seq,), "profile")


def _is_a(match: "re.Match[str]", seq: int, before: str) -> Found:
    value = _clean(match[1])
    if re.match(
        r"(?:a|an) (?:bit|little|lot|few|couple|question|problem|big fan|minute)\b",
        value,
    ):
        return None
    text = f"Is {_third_person(value, inner=True)}"
    return Candidate(text, (seq,), "profile", "")


def _assignment(match: "re.Match[str]", seq: int, before: str) -> Found:
    key = match[1].casefold()
    return Candidate(
        f"{_capital(match[1])} is {_clean(match[2])}", (seq,), "profile", key
    )


def _answer(match: "re.Match[str]", seq: int, before: str) -> Found:
    """ "No, it's …" and "it is …" mean what the agent had just named."""
    named = ASKED.findall(before)
    value = _clean(match[2])
    if not named or not value or DONE.match(value):
        return None
    thing = named[-1].strip().casefold()
    if not PASSING.isdisjoint(thing.split()):
        return None
    corrects = bool(match[1])
    if not corrects and not re.fullmatch(r"\S*[\d_@]\S*", value):
        return None  # "it's fine" answers a question, and says nothing of the thing
    kind = "correction" if corrects else "profile"
    thing = thing.replace("user id", "user ID")
    return Candidate(f"{_capital(thing)} is {value}", (seq,), kind, thing.casefold())


DONE = re.compile(
    r"(?:all|everything|fine|ok|okay|good|correct|right|it|enough)\b", re.I
)
ASKED = re.compile(
    r"\byour ((?:[a-z]+ ){0,2}(?:id|[a-z]{3,}))\b(?=\s*(?:is|as|\?|[.,!]|so|to|for|$))",
    re.IGNORECASE,
)

RELATION = (
    r"(?:wife|husband|partner|mother|mom|mum|father|dad|son|daughter|sister|brother"
    r"|child|kid|dog|cat|boss|doctor|friend|girlfriend|boyfriend|grandmother"
    r"|grandfather|aunt|uncle|fianc[eé]e?)s?"
)
# "Remember that …" where nothing else can be meant.
REMEMBER_IN_OTHER_LANGUAGES = [
    r"^(?:bitte )?merke?n? (?:dir|sie sich)(?: bitte)?(?:, dass|[:,])\s+(.+)$",
    r"^(?:retiens|retenez|souviens-toi|souvenez-vous|notez?)(?: bien)?"
    r"(?: que |\s?: )(.+)$",
    r"^(?:por favor,? )?(?:recuerd[ae]|apunt[ae]|ten en cuenta)(?: que|:)\s+(.+)$",
    r"^(?:ricorda(?:ti)?|ricordi|si ricordi)(?: che|:)\s+(.+)$",
    r"^(?:lembre-se|lembra-te|anote)(?: de)?(?: que|:)\s+(.+)$",
    r"^(?:onthoud|onthou)(?: alsjeblieft)?(?: dat|:)\s+(.+)$",
    r"^(?:zapamiętaj|pamiętaj)(?:, że|:)\s+(.+)$",
    r"^(?:запомни|запомните|помни|помните)(?:, что|:)\s+(.+)$",
    r"^(?:请|請)?(?:记住|記住|记得|記得)[，,：:]\s*(.+)$",
    r"^(.+?)(?:こと|の)を(?:覚え|憶え)て(?:おいて)?(?:ください|くださいね|ね)?[。.]?$",
]
# The first that fits decides. "I'd like to" and "I want to" are requests, and no rule.
PATTERNS: list[tuple[str, Rule]] = [
    (
        r"^(?:please |can you |could you |just )*(?:remember|note|keep in mind"
        r"|make a note|bear in mind|don't forget|do not forget"
        r"|for (?:the |your |future )?(?:record|records|reference))"
        r"(?: that|[:,])?\s+(?!to\b)(.+)$",
        _remember,
    ),
    (r"\b(?:please )?call me ([A-Z][\w'-]*)", _name),
    (r"\bI (?:prefer|want|like) to be called ([A-Z][\w'-]*)", _name),
    (r"\bmy name(?:'s| is) ([A-Z][\w'-]+(?: [A-Z][\w'-]+){0,2})", _own_name),
    (
        r"^(?:I'm|I am|this is) ([A-Z][\w'-]+ [A-Z][\w'-]+)(?=[.,!]| and\b|$)",
        _own_name,
    ),
    (r"\bI(?:'m| am) ([a-z]+(?:_[a-z0-9]+)+)\b", _handle),
    (
        rf"\bmy ({RELATION}) ((?:has|had|was|is|are|passed|died|lives|works|moved|loves"
        r"|likes|studies|turns|turned|just|really|recently)\b.+)$",
        _person,
    ),
    (
        r"\b(?:my|the) ((?:[A-Za-z][\w-]*\s){0,2}(?:card|visa|mastercard|account))"
        r" ending in (\w{3,})",
        _card,
    ),
    (
        r"\b(?:my|the) (user id|e-?mail(?: address)?|phone number|account number"
        r"|member(?:ship)? number)(?: is|:|; it's)\s+(\S+)",
        _number,
    ),
    (
        r"\bmy ((?:[A-Za-z][\w'-]*\s){0,3}?[A-Za-z][\w'-]*)\s+(is|are)\s+(?:now\s+)?"
        r"([^,;]+?)(?=[.!;]?$|, (?:and|but|so|not)\b| and (?:the|my)\b|\. )",
        _my_thing,
    ),
    (
        r"\b([A-Z][a-z]+)['’]s ((?:[a-z]+ ){0,3}[a-z]+) is ((?:[^,;]|, \d{4})+)",
        _theirs,
    ),
    (
        r"^(no|nope|wrong|not quite|that's wrong|incorrect)[,.!;:]?\s+(?:actually,? )?"
        r"(?:it(?:'s| is)|that(?:'s| is)|it should be)\s+(.+)$",
        _answer,
    ),
    (r"^(actually,? |sorry,? )?it(?:'s| is)\s+(\S+?)[.!]?$", _answer),
    (
        r"\b(?:from now on|in (?:the )?future|going forward|as a rule|by default)"
        r"[,:]?\s+(?!travel|trip|flight)(.{6,})$",
        _standing,
    ),
    (
        r"^(?:please )?(?:always|never) (?:send|use|call|write|reply|answer|address"
        r"|contact|book|ask|include|deliver|speak|text|email)\b.+$",
        _standing_order,
    ),
    (
        r"\b(?:we|I)(?:'ve| have)? (decided|agreed|settled)"
        r"((?: that| to| on| for)? .+)$",
        _decision,
    ),
    (
        r"\bI (?:really |strongly |much |would |do |generally |also |still )*"
        r"(prefer|love|enjoy|hate|dislike|can't stand)\s+(.+)$",
        _prefer,
    ),
    (r"\bI'd (?:much |really )?(prefer)\s+(.+)$", _prefer),
    (
        r"\bI (?:really |also |do )?(like)\s+(?!to (?:know|see|ask|have|make|get|change"
        r"|book|cancel)\b)(.+)$",
        _prefer,
    ),
    (
        r"\bI (?:really |just )?(?:don['’]t|do not|never) want to"
        r" ((?:fly|travel|sit|eat|drink|receive|be (?:called|contacted|emailed)|stay"
        r"|live|work|use|depart|leave)\b.+)$",
        _refuse,
    ),
    (
        r"\bI (always|never|usually|normally|typically) (\w+) (.+)$",
        _habit,
    ),
    (
        r"\bI (live|work|study|grew up|come from|moved to|was born|speak|own)\s+"
        r"(?!on |with you|for you)(.+)$",
        _lives,
    ),
    (
        r"\bI(?:'m| am) ((?:allergic|intolerant|based|vegetarian|vegan|diabetic"
        r"|left-handed|colou?r-?blind|deaf|blind|pregnant|retired|married|single"
        r"|divorced)\b.*)$",
        _is_a,
    ),
    (
        r"\b(?:I(?:'m| am)|as) ((?:an?) (?:[\w-]+ ){0,4}?"
        r"(?:member|customer|nurse|teacher|engineer|developer|student|doctor|lawyer|designer|manager|vegetarian|vegan"
        r"|writer|pilot|freelancer|parent|founder|accountant|driver|musician|scientist"
        r"|artist))\b",
        _is_a,
    ),
    (r"^([A-Za-z][\w-]*(?: [\w-]+){0,2})\s*(?:=|:=)\s*(\S.*)$", _assignment),
]
RULES: list[tuple["re.Pattern[str]", Rule]] = [
    (re.compile(pattern, re.IGNORECASE if "[A-Z]" not in pattern else 0), rule)
    for pattern, rule in PATTERNS
] + [
    (re.compile(pattern, re.IGNORECASE), _remember_as_said)
    for pattern in REMEMBER_IN_OTHER_LANGUAGES
]
ENDS = re.compile(r"(?:\s*###\w+###|[\s.!,;:。！]+)+$")
SWAPS = [
    (re.compile(pattern, re.IGNORECASE), instead)
    for pattern, instead in (
        (r"\bI['’]m\b|\bI am\b", "they are"),
        (r"\bI['’]ve\b|\bI have\b", "they have"),
        (r"\bI['’]ll\b|\bI will\b", "they will"),
        (r"\bI['’]d\b|\bI would\b", "they would"),
        (r"\bI was\b", "they were"),
        (r"\bmyself\b", "themselves"),
        (r"\bmine\b", "theirs"),
        (r"\bmy\b", "their"),
        (r"\bme\b", "them"),
        (r"\bI\b", "they"),
    )
]


def _clean(text: str) -> str:
    return ENDS.sub("", text.strip())


def _third_person(text: str, *, inner: bool = False) -> str:
    """Say of somebody what they said of themselves. `inner`: no sentence of its own."""
    for pattern, instead in SWAPS:
        text = pattern.sub(instead, text)
    return text if inner else _capital(text)


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _plural(verb: str) -> str:
    """The verb as it goes with a third person: "prefer" to "prefers"."""
    first, *rest = verb.split(" ", 1)
    irregular = {"was": "was", "grew": "grew", "moved": "moved", "have": "has"}
    if first in irregular:
        first = irregular[first]
    elif first.endswith(("s", "sh", "ch", "x", "z", "o")):
        first += "es"
    elif first.endswith("y") and first[-2:-1] not in "aeiou":
        first = first[:-1] + "ies"
    else:
        first += "s"
    return " ".join([first, *rest])


def key_of(candidate: Candidate) -> str:
    """The key a candidate's fact gets."""
    return derive_key(candidate.text) if candidate.key is None else candidate.key
