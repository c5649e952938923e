"""Facts for the benchmarks of recall: made of templates, embedded and copied in bulk.

They are written past the services, as a restore would, with all that hangs on them. The
texts are of many kinds that differ in few words, as facts about many people are: near
one another in clusters, and close to what is asked about.
"""

import random
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from uuid import UUID

import numpy as np

CHUNK = 20_000
MANY = 5_000  # facts, from which on the large indexes are made anew
EPOCH_2000 = 946_684_800_000_000  # microseconds, where Postgres' time begins
DAY = 86_400_000_000  # microseconds

WORDS_OF = """
name: Ann Ben Carla Dov Elif Farid Greta Hugo Ines Jonas Kaya Luca Mina Noor Olga
  Pavel Quim Rosa Sven Tara Umar Vera Wim Xenia Yusuf Zoe Amara Bilal Chloe Dmitri
  Esme Felix Goran Hana Ivo Jun Keiko Leon Mara Nils Oona Petra Rafi Sana Tomas
relation: wife husband brother sister mother father daughter son neighbour colleague
  manager doctor accountant landlord teacher cousin
city: Oslo Lisbon Graz Turin Porto Gdansk Leeds Malmo Bern Nantes Aarhus Tartu Kyoto
  Quito Dakar Hanoi Perth Austin Denver Boston Chicago Toronto Lima Bogota Nairobi
  Accra Tunis Izmir Tbilisi Almaty Busan Osaka Pune Jaipur Cairo Athens Split Zagreb
  Brno Lviv Riga Bergen Tampere Ghent Lyon Seville Bari Cork Derby
food: peanuts shellfish gluten lactose sesame strawberries mushrooms garlic tofu
  lentils salmon olives coriander espresso oolong rooibos kombucha cider rye oats
  mango papaya pistachios cashews soy mustard celery eggs honey ginger turmeric
thing: invoices receipts contracts reports newsletters tickets statements reminders
  drafts summaries offers quotes schedules minutes backups exports dashboards alerts
format: PDF paper spreadsheet plain-text e-mail fax CSV letter SMS voicemail
day: Monday Tuesday Wednesday Thursday Friday Saturday Sunday weekdays weekends
colour: green teal crimson navy amber violet grey ivory olive maroon
hobby: chess sailing pottery climbing knitting birdwatching fencing gardening
  calligraphy surfing rowing origami beekeeping astronomy karaoke archery judo
  woodworking embroidery kayaking skating yoga badminton cricket curling geocaching
job: nurse welder architect translator beekeeper plumber pilot baker surveyor notary
  librarian physiotherapist carpenter geologist midwife tailor optician
pet: dog cat parrot tortoise rabbit ferret hamster gecko pony goldfish
device: laptop phone tablet router printer camera thermostat speaker monitor scanner
  dishwasher boiler charger headset projector keyboard
plan: Basic Pro Team Business Enterprise Family Student Trial
product: Aurora Basalt Cobalt Delta Ember Fjord Granite Harbor Indigo Juniper
  Krypton Lumen Meridian Nimbus Onyx Pelican Quartz Ridge Summit Tundra
part: screen battery hinge fan cable firmware license adapter case lens pump
state: broken slow noisy loose overheating outdated cracked missing unreliable
seat: window aisle front-row exit-row quiet-zone upper-deck
vehicle: train bus bicycle tram ferry car scooter plane
month: January February March April May June July August September October November
  December
language: German French Turkish Polish Danish Arabic Japanese Korean Hindi Czech
sickness: asthma migraine diabetes insomnia vertigo hay-fever eczema arthritis
""".strip()
TEMPLATES = """
Prefers {thing} as {format} every {day}
Lives in {city} and works as a {job}
Is allergic to {food} and avoids {food}
Moved from {city} to {city} in {month}
Has a {pet} called {name} that is afraid of the {device}
The {relation}, {name}, lives in {city} and likes {hobby}
Wants a {seat} seat on the {vehicle} to {city}
Does {hobby} on {day} with {name}
Favourite colour is {colour}, never {colour}
Asked for the {product} {device} with a new {part}
The {part} of the {product} {device} is {state}
Is on the {plan} plan since {month} and wants to move to {plan}
Commutes by {vehicle} from {city} on {day}
Speaks {language} at home and {language} at work
Takes medicine for {sickness} before breakfast
Never call before {hour} on {day}
Order {number} of the {product} {device} goes to {city}
Drinks {food} with {name} after {hobby}
Send {thing} about {product} to {name}, the {relation}
Decided with {name} to ship {product} in {month}
Teaches {hobby} to children in {city} on {day}
Had {sickness} in {month} and could not do {hobby}
Is learning {language} because {name} lives in {city}
The {device} in the {colour} room belongs to {name}
Corrected: the {relation} is called {name}, not {name}
Keeps the {device} key with {name} at number {number}
Would rather travel by {vehicle} than by {vehicle} to {city}
Does not want {thing} from the {product} team on {day}
Renewed the {product} license {number} for {name} in {month}
Cooks {food} with {food} whenever {name} visits
""".strip().splitlines()
QUESTIONS = """
How should {thing} about {product} be sent?
Who lives in {city} and likes {hobby}?
What is {name} allergic to, {food}?
When did they move to {city}?
Which seat on the {vehicle} to {city}?
What is wrong with the {product} {device}?
Who does {hobby} on {day}?
Which {language} speaker has a {relation} in {city}?
What happened to order {number}?
Does {name} take medicine for {sickness}?
What was decided about {product} with {name} for {month}?
Who has a {pet} called {name}?
Which plan came after {plan} in {month}?
May I call before {hour} on {day}?
Who cooks {food} and {food}?
""".strip().splitlines()


def read_words(listed: str) -> dict[str, list[str]]:
    """Read lines of "slot: words"; an indented line goes on with the slot before."""
    found: dict[str, list[str]] = {}
    for line in listed.splitlines():
        slot, colon, words = line.partition(":")
        if not colon:
            slot, words = list(found)[-1], line
        found.setdefault(slot, []).extend(words.split())
    return found


class Texts:
    """Facts and questions, the same ones for the same seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._words = read_words(WORDS_OF)

    def fact(self) -> str:
        return self._filled(TEMPLATES)

    def question(self) -> str:
        return self._filled(QUESTIONS)

    def _filled(self, templates: Sequence[str]) -> str:
        template = self._random.choice(templates)
        while "{" in template:
            before, _, rest = template.partition("{")
            slot, _, after = rest.partition("}")
            template = f"{before}{self._word(slot)}{after}"
        return template

    def _word(self, slot: str) -> str:
        if slot == "number":
            return str(self._random.randrange(1, 1_000_000))
        if slot == "hour":
            return f"{self._random.randrange(6, 12)} o'clock"
        # The first words of a list are the common ones, as in language.
        words = self._words[slot]
        return words[int(len(words) * self._random.random() ** 1.6)]


def load(
    project_id: UUID, count: int, texts: Texts, subject_of: Callable[[int], str]
) -> float:
    """Write `count` facts of the project; return the seconds it took."""
    from django.db import connection

    started = time.perf_counter()
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE agent_memory DISABLE TRIGGER USER")
        dropped = _drop_large_indexes(cursor) if count >= MANY else []
        for first in range(0, count, CHUNK):
            numbers = range(first, min(first + CHUNK, count))
            _load_chunk(cursor, project_id, numbers, texts, subject_of)
        for definition in dropped:
            cursor.execute(definition)
        cursor.execute("ALTER TABLE agent_memory ENABLE TRIGGER USER")
        cursor.execute(f"ANALYZE {', '.join(TABLES)}")
    return time.perf_counter() - started


TABLES = ("agent_memory", "agent_memory_embeddings", "agent_memory_subjects")
LARGE_INDEXES = ("gin", "hnsw")


def _drop_large_indexes(cursor: Any) -> list[str]:
    """Drop the indexes that are much faster made over the whole; return how to."""
    cursor.execute(
        "SELECT indexname, indexdef FROM pg_indexes WHERE tablename = ANY(%s)"
        " AND indexdef ~ %s",
        [list(TABLES), f"USING ({'|'.join(LARGE_INDEXES)}) "],
    )
    found = cursor.fetchall()
    for name, _ in found:
        cursor.execute(f'DROP INDEX "{name}"')
    cursor.execute("SET maintenance_work_mem = '2GB'")
    return [definition for _, definition in found]


FACT_COLUMNS = (
    "id, project_id, subject, fact, key, kind, status, source_kind, source_session,"
    " source_agent, source_seqs, metadata, valid_from, note, settled_by, content_hash,"
    " signature, terms, embedding_error, subject_version, created_by, created_at,"
    " confidence, pinned, seen_count, version"
)


def _load_chunk(
    cursor: Any,
    project_id: UUID,
    numbers: range,
    texts: Texts,
    subject_of: Callable[[int], str],
) -> None:
    from agentstate.clock import db_now
    from agentstate.ids import new_id
    from memory_app.embedding.embedders import PACKAGED_MODEL, embed_texts
    from memory_app.recall.tokens import fact_terms
    from memory_app.text import content_hash, signature

    said = [texts.fact() for _ in numbers]
    subjects = [subject_of(number) for number in numbers]
    ids = [new_id() for _ in numbers]
    now = db_now()
    cursor.execute("SELECT nextval('agent_memory_versions')")
    [version] = cursor.fetchone()
    cursor.executemany(
        "INSERT INTO agent_memory_subjects (project_id, subject, version,"
        " erased_version) VALUES (%s, %s, %s, 0) ON CONFLICT (project_id, subject)"
        " DO UPDATE SET version = excluded.version",
        [(project_id, subject, version) for subject in sorted(set(subjects))],
    )
    with cursor.copy(f"COPY agent_memory ({FACT_COLUMNS}) FROM STDIN") as copy:
        for id_, subject, text, number in zip(
            ids, subjects, said, numbers, strict=True
        ):
            copy.write_row(
                (
                    id_, project_id, subject, text, "", "other", "active", "user", "",
                    "", [], "{}", now, "", "", content_hash(f"{text} {number}"),
                    signature(f"{text} {number}"), fact_terms(text), "", version,
                    "bench", now, 1.0, False, 1, 1,
                )
            )  # fmt: skip
    vectors = embed_texts(PACKAGED_MODEL, said)
    with cursor.copy(
        "COPY agent_memory_embeddings (project_id, subject, memory_id, model,"
        " is_current, embedding, created_at) FROM STDIN (FORMAT binary)"
    ) as copy:
        for piece in _binary_rows(project_id, subjects, ids, PACKAGED_MODEL, vectors):
            copy.write(piece)


def _binary_rows(
    project_id: UUID,
    subjects: Sequence[str],
    ids: Sequence[UUID],
    model: str,
    vectors: Any,
) -> Iterator[bytes]:
    """The rows in Postgres' own form: writing numbers as text would take minutes."""
    count, size = vectors.shape
    at = int(time.time() * 1e6) - EPOCH_2000
    name = model.encode()
    tail = np.zeros(
        count,
        dtype=[("bytes", ">i4"), ("size", ">i2"), ("zero", ">i2"), ("x", ">f4", size)],
    )
    tail["bytes"], tail["size"], tail["x"] = 4 + 4 * size, size, vectors
    begin = (7).to_bytes(2) + (16).to_bytes(4) + project_id.bytes
    middle = len(name).to_bytes(4) + name + (1).to_bytes(4) + b"\x01"
    end = (8).to_bytes(4) + at.to_bytes(8)
    yield b"PGCOPY\n\xff\r\n\x00" + bytes(8)
    for subject, id_, vector in zip(subjects, ids, tail, strict=True):
        about = subject.encode()
        yield (
            begin
            + len(about).to_bytes(4)
            + about
            + (16).to_bytes(4)
            + id_.bytes
            + middle
            + vector.tobytes()
            + end
        )
    yield b"\xff\xff"
