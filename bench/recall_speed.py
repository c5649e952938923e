"""How fast recall is: python bench/recall_speed.py [--facts N] [--wide N].

Times, inside the server's process, recall for one subject of `--facts` facts (warm and
after each write), and the search over a project of `--wide` facts, whose hits by vector
are compared with those of an exact scan. Facts are made of random words.
"""

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
os.environ["DJANGO_SETTINGS_MODULE"] = "agentstate.settings"

WORDS = 4000
SUBJECTS = 1000
CHUNK = 5000
QUERIES = 200


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--facts", type=int, default=10_000)
    parser.add_argument("--wide", type=int, default=1_000_000)
    options = parser.parse_args()
    from tests import services

    services.start()
    try:
        services.make_database("speed")
        import django

        django.setup()
        from django.core.management import call_command

        call_command("migrate", verbosity=0, interactive=False)
        one_subject(options.facts)
        if options.wide:
            whole_project(options.wide)
    finally:
        services.stop()


class Texts:
    """Sentences of words whose frequency falls as in language."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        letters = list("abcdefghijklmnoprstuvw")
        self.words = [
            "".join(self.rng.choice(letters, size=self.rng.integers(3, 9)))
            for _ in range(WORDS)
        ]
        rank = np.arange(1, WORDS + 1)
        self.shares = (1 / rank) / (1 / rank).sum()

    def sentence(self, length: int) -> str:
        return " ".join(self.rng.choice(self.words, size=length, p=self.shares))


def one_subject(count: int) -> None:
    from access_app.services import create_project
    from memory_app.recall.search import Query, recall
    from memory_app.services import NewFact, remember

    project = create_project("one subject")
    texts = Texts(1)
    load(project.id, count, texts, lambda n: "u-1")
    started = time.perf_counter()
    recall(project.id, "u-1", Query(texts.sentence(5)))
    print(f"first recall of {count} facts: {time.perf_counter() - started:.2f} s")

    def ask() -> None:
        recall(project.id, "u-1", Query(texts.sentence(6)))

    show("warm", timed(ask))

    def write_and_ask() -> Callable[[], None]:
        remember(project.id, NewFact("u-1", texts.sentence(9)), actor="bench")
        return ask

    show("after a write", timed_after(write_and_ask))


def whole_project(count: int) -> None:
    from django.db import connection

    from access_app.services import create_project
    from memory_app.embedding.embedders import PACKAGED_MODEL, embed_texts
    from memory_app.recall.search import Query, search
    from memory_app.recall.wide import Scope, nearest

    project = create_project("whole project")
    texts = Texts(2)
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT indexdef FROM pg_indexes"
            " WHERE indexname = 'memory_vectors_packaged'"
        )
        [definition] = cursor.fetchone()
        cursor.execute("DROP INDEX memory_vectors_packaged")
    load(project.id, count, texts, lambda n: f"u-{n % SUBJECTS}")
    started = time.perf_counter()
    with connection.cursor() as cursor:
        cursor.execute("SET maintenance_work_mem = '2GB'")
        cursor.execute(definition)
        cursor.execute("RESET maintenance_work_mem")
        cursor.execute("ANALYZE")
    print(f"index over {count} facts: {time.perf_counter() - started:.0f} s")
    scope = Scope(
        "m.project_id = %s AND m.status = 'active' AND m.status = 'active'",
        [project.id],
    )
    shares = []
    for _ in range(30):
        vector = embed_texts(PACKAGED_MODEL, [texts.sentence(6)])[0]
        exact, found = (
            nearest(project.id, scope, None, vector, PACKAGED_MODEL, 10, exact=each)
            for each in (True, False)
        )
        shares.append(len(exact.keys() & found.keys()) / len(exact))
    print(f"vector hits @10 that the exact scan has: {statistics.mean(shares):.3f}")

    def ask() -> None:
        search(project.id, Query(texts.sentence(6), limit=10))

    ask()
    show(f"search over {count} facts", timed(ask))


def load(project_id: Any, count: int, texts: Texts, subject: Any) -> None:
    """Write facts past the services, as a restore would, with what hangs on them."""
    from django.db import connection, transaction

    from memory_app.embedding.embedders import PACKAGED_MODEL, embed_texts
    from memory_app.models import Fact, FactEmbedding, FactRevision, Subject

    started = time.perf_counter()
    for first in range(0, count, CHUNK):
        facts = list(
            made(project_id, range(first, min(first + CHUNK, count)), texts, subject)
        )
        vectors = embed_texts(PACKAGED_MODEL, [fact.fact for fact in facts])
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("SELECT nextval('agent_memory_versions')")
            [version] = cursor.fetchone()
            for fact in facts:
                fact.subject_version = version
            Subject.objects.bulk_create(
                [
                    Subject(project_id=project_id, subject=name, version=version)
                    for name in {fact.subject for fact in facts}
                ],
                update_conflicts=True,
                unique_fields=["project", "subject"],
                update_fields=["version"],
            )
            Fact.objects.bulk_create(facts)
            FactRevision.objects.bulk_create(
                [
                    FactRevision(
                        project_id=project_id,
                        subject=fact.subject,
                        memory=fact,
                        version=1,
                        action="remembered",
                        changes={},
                        actor="bench",
                    )
                    for fact in facts
                ]
            )
            FactEmbedding.objects.bulk_create(
                [
                    FactEmbedding(
                        project_id=project_id,
                        subject=fact.subject,
                        memory=fact,
                        model=PACKAGED_MODEL,
                        is_current=True,
                        embedding=vector,
                    )
                    for fact, vector in zip(facts, vectors, strict=True)
                    if vector.any()
                ]
            )
    print(f"{count} facts loaded in {time.perf_counter() - started:.0f} s", flush=True)


def made(project_id: Any, numbers: range, texts: Texts, subject: Any) -> Iterator[Any]:
    from agentstate.clock import db_now
    from memory_app.models import Fact
    from memory_app.recall.tokens import fact_terms
    from memory_app.text import content_hash, signature

    now = db_now()
    for number in numbers:
        text = f"{texts.sentence(10)} {number}"
        yield Fact(
            project_id=project_id,
            subject=subject(number),
            fact=text,
            content_hash=content_hash(text),
            signature=signature(text),
            terms=fact_terms(text),
            subject_version=0,
            valid_from=now,
            created_by="bench",
        )


def timed(call: Callable[[], None]) -> list[tuple[float, float]]:
    """Return wall and own processor time of each call, in milliseconds."""
    return timed_after(lambda: call)


def timed_after(prepare: Callable[[], Callable[[], None]]) -> list[tuple[float, float]]:
    found = []
    for _ in range(QUERIES):
        call = prepare()
        wall, own = time.perf_counter(), time.thread_time()
        call()
        found.append(
            (
                (time.perf_counter() - wall) * 1000,
                (time.thread_time() - own) * 1000,
            )
        )
    return found


def show(name: str, found: list[tuple[float, float]]) -> None:
    walls = statistics.quantiles([wall for wall, _ in found], n=20)
    owns = statistics.quantiles([own for _, own in found], n=20)
    print(
        f"{name:<28} wall p50 {walls[9]:.1f} ms, p95 {walls[18]:.1f} ms; "
        f"own processor time p50 {owns[9]:.1f} ms, p95 {owns[18]:.1f} ms",
        flush=True,
    )


if __name__ == "__main__":
    main()
