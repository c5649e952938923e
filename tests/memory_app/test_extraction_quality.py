"""How good the rules are: precision and recall on labelled talk.

Two samples. Real transcripts (beside the project, where they are): a label is the place
of the message and a piece that the fact must hold. And talk of our own below, of other
kinds than what the transcripts have. A label is what a careful reader would keep about
the user for later sessions; the business at hand is not.
"""

import pytest

from memory_app.management.commands.list_candidates import EPOCH, candidates_of
from memory_app.policy import Policy
from memory_app.promotion.reading import Utterance
from memory_app.promotion.rules import extract

# transcript: [(message, piece of the fact)]
LABELS = {
    0: [(3, "mia_li_3668"), (5, "7447"), (11, "11 AM")],
    4: [(3, "omar_rossi_1241"), (21, "Omar Rossi")],
    12: [(5, "amelia_sanchez_4739")],
    20: [(5, "james_taylor_7043")],
    24: [(7, "yara_garcia_1905@"), (17, "after 8 am")],
    28: [(3, "amelia_davis_8890")],
    32: [(3, "sophia_silva_7557"), (11, "April 12, 2001")],
    40: [(1, "Gold member"), (3, "sophia_silva_7557")],
    48: [(3, "lucas_brown_4047"), (9, "Wife passed away")],
    52: [(3, "omar_davis_3817")],
    56: [(3, "aarav_garcia_1177")],
    60: [(3, "mia_kim_4397")],
    64: [(3, "chen_lee_6825"), (25, "Gold member")],
    68: [(3, "amelia_rossi_1297")],
    72: [(5, "ivan_rossi_8555")],
    76: [(3, "aarav_ahmed_6699"), (27, "7334")],
    80: [(3, "sophia_martin_4574")],
    84: [(3, "daiki_muller_1116")],
    92: [(3, "anya_garcia_5901")],
    96: [(3, "noah_muller_9847")],
    100: [(3, "mia_li_3668"), (5, "economy")],
    104: [(3, "omar_rossi_1241"), (31, "6437")],
    112: [(5, "amelia_sanchez_4739")],
    120: [(5, "james_taylor_7043")],
    124: [(3, "yara_garcia_1905"), (13, "after 8am")],
    128: [(3, "amelia_davis_8890")],
    132: [(5, "sophia_silva_7557@"), (15, "2001-04-12")],
    140: [(1, "Sophia Silva"), (1, "Gold member"), (3, "sophia_silva_7557")],
    148: [(3, "lucas_brown_4047"), (7, "Wife passed away")],
    152: [(3, "omar_davis_3817")],
    156: [(3, "aarav_garcia_1177")],
    160: [(5, "mia_kim_4397")],
    164: [(3, "chen_lee_6825"), (7, "Gold member")],
    168: [(3, "amelia_rossi_1297"), (9, "loyal customer")],
    172: [(1, "Mom is really sick")],
    176: [(3, "aarav_ahmed_6699"), (21, "7334")],
    180: [(3, "sophia_martin_4574")],
    184: [(3, "daiki_muller_1116")],
    192: [(3, "anya_garcia_5901")],
    196: [(3, "noah_muller_9847"), (35, "2076")],
}

# What is said, and what is to be kept of it; nothing where there is nothing.
TALK = [
    ("Please call me Lex, not Alexander.", ["Prefers to be called Lex"]),
    ("Remember that I'm allergic to peanuts.", ["allergic to peanuts"]),
    ("Remember to send the report tomorrow.", []),
    ("My plan is Basic.", ["Plan is Basic"]),
    ("My plan is to finish this by noon and then go home.", []),
    ("My favourite colour is green, but today I want blue.", ["colour is green"]),
    ("From now on, send my invoices as PDF.", ["invoices as PDF"]),
    ("I prefer window seats.", ["window seats"]),
    ("I'd like to book two window seats.", []),
    ("Could you find a hotel? I always stay near the station.", ["near the station"]),
    ("We decided to ship on Fridays only.", ["ship on Fridays"]),
    ("I think we might decide tomorrow.", []),
    ("I live in Oslo.", ["Oslo"]),
    ("I work at a small clinic in Graz.", ["clinic in Graz"]),
    ("If I live in Oslo by then, we will see.", []),
    ("I'm vegetarian and I never eat fish.", ["vegetarian"]),
    ("Step 3 of 5 complete, continuing with step 4.", []),
    ("My daughter is seven and loves dinosaurs.", ["Daughter is seven"]),
    ("My question is whether this works offline.", []),
    ("Always answer in German, please.", ["answer in German"]),
    ("Never call me before nine.", ["before nine"]),
    ("I hate long e-mails.", ["long e-mails"]),
    ("Thanks, I really like that idea.", []),
    ("My e-mail is kim@example.com and my order is late.", ["kim@example.com"]),
    ("My package is delayed again.", []),
    ("timezone = Europe/Vienna", ["Europe/Vienna"]),
    ("I'm a nurse, so nights are fine.", ["nurse"]),
    ("I'm a bit late.", []),
    ("Yes, that works for me.", []),
    ("I want to cancel my trip to Rome.", []),
    ("I don't want to fly with a stopover.", ["stopover"]),
    ("For future reference: the spare keys hang in room 3.", ["room 3"]),
    # In other languages only what can mean nothing else, in the user's own words.
    ("Merk dir, dass ich gegen Nüsse allergisch bin.", ["gegen Nüsse allergisch"]),
    ("Merk dir den Termin, wir sprechen morgen darüber.", []),
    ("Retiens que je préfère le train.", ["je préfère le train"]),
    ("Recuerda que soy vegetariano.", ["soy vegetariano"]),
    ("Ricordati che vivo a Torino.", ["vivo a Torino"]),
    ("Запомни, что я живу в Риге.", ["я живу в Риге"]),
    ("请记住，我对花生过敏。", ["我对花生过敏"]),
    ("コーヒーは飲まないことを覚えておいてください。", ["コーヒーは飲まない"]),
    ("Ich hätte gern zwei Fensterplätze.", []),
    ("Je voudrais annuler mon voyage.", []),
]


def holds(fact, piece):
    return piece.casefold() in fact.casefold()


def figures(found, wanted):
    """Return precision and recall of facts `(place, text)` against `(place, piece)`."""
    right = [
        (place, text)
        for place, text in found
        if any(place == at and holds(text, piece) for at, piece in wanted)
    ]
    met = [
        (at, piece)
        for at, piece in wanted
        if any(place == at and holds(text, piece) for place, text in found)
    ]
    return len(right) / len(found), len(met) / len(wanted)


def show(name, wanted, precision, recall):
    print(
        f"\n{name}: {len(wanted)} labels, "
        f"precision {precision:.3f}, recall {recall:.3f}"
    )


@pytest.mark.shared
def test_transcripts(shared_dir, capsys):
    path = shared_dir / "transcripts" / "airline.jsonl"
    found = [
        ((int(name.rpartition("-")[2]), candidate.seqs[0]), candidate.text)
        for name, candidate in candidates_of(path, "rules")
    ]
    wanted = [
        ((transcript, message), piece)
        for transcript, labels in LABELS.items()
        for message, piece in labels
    ]
    assert len(wanted) >= 60
    precision, recall = figures(found, wanted)
    with capsys.disabled():
        show("transcripts", wanted, precision, recall)
    assert precision >= 0.95
    assert recall >= 0.85


@pytest.mark.shared
def test_every_fact_of_the_transcripts_is_in_its_event(shared_dir):
    """No fact without its words: names and numbers stand in the message it cites."""
    import json
    import re

    path = shared_dir / "transcripts" / "airline.jsonl"
    messages = {
        transcript["id"]: transcript["messages"]
        for transcript in map(json.loads, path.read_text().splitlines())
    }
    for name, candidate in candidates_of(path, "rules"):
        [seq] = candidate.seqs
        message = messages[name][seq]
        assert message["role"] == "user"
        for telling in re.findall(r"\S*\d\S*", candidate.text):
            assert telling.strip(".,") in message["content"]


def test_talk_of_our_own(capsys):
    found, wanted = [], []
    for place, (text, facts) in enumerate(TALK):
        said = [Utterance(1, "user", text, EPOCH)]
        found += [(place, c.text) for c in extract(said, Policy()).candidates]
        wanted += [(place, piece) for piece in facts]
    precision, recall = figures(found, wanted)
    with capsys.disabled():
        show("own talk", wanted, precision, recall)
    assert precision >= 0.9, found
    assert recall >= 0.9, found
