"""How fast recall is, and how near the search over a whole project comes to the truth.

Times are of `recall` and `search` inside a process of the server's kind, against the
Postgres of the running server: from the call to the facts, without HTTP. Beside the
time that passed stands the processor time of this thread and of its Postgres process,
which is what the time comes to on a machine that does nothing else.

The exact answer to a search scores every fact of the project, in memory, by the same
formula. Facts that tie with the last of the exact answer count as right.
"""

import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

if TYPE_CHECKING:
    from bench.__main__ import Report
    from bench.stack import Stack

SUBJECTS = 1000
QUERIES = 200
LIMIT = 20
PAGE = 10_000
ROUNDING = 1e-3  # of scores up to 2


class Timed(NamedTuple):
    """Milliseconds of each call: what passed, and what processors worked on it."""

    passed: list[float]
    worked: list[float]

    def figures(self) -> dict[str, float]:
        found: dict[str, float] = {}
        for name, values in (("", self.passed), ("processor_", self.worked)):
            cuts = statistics.quantiles(values, n=20)
            found |= {f"{name}p50_ms": cuts[9], f"{name}p95_ms": cuts[18]}
        return found


def measure_recall(
    stack: "Stack", report: "Report", *, facts: int = 10_000, wide: int = 100_000
) -> None:
    set_up(stack)
    one_subject(report, facts)
    whole_project(report, wide)


def set_up(stack: "Stack") -> None:
    """Make this process one of the running server's own."""
    os.environ |= {
        "DJANGO_SETTINGS_MODULE": "agentstate.settings",
        "DATABASE_URL": stack.database_url,
        "REDIS_URL": stack.redis_url,
        "AGENTSTATE_DATA_DIR": stack.folder,
    }
    import django

    django.setup()


def one_subject(report: "Report", count: int) -> None:
    from access_app.services import create_project
    from bench.facts import Texts, load
    from memory_app.recall.search import Query, recall
    from memory_app.services import NewFact, remember

    project = create_project("one subject")
    texts = Texts(1)
    load(project.id, count, texts, lambda number: "u-1")
    report.section(f"recall for a subject of {count:,} facts (ms)")

    def ask() -> None:
        recall(project.id, "u-1", Query(texts.question(), LIMIT))

    started = time.perf_counter()
    ask()
    report.note("the first, which reads them", ms=(time.perf_counter() - started) * 1e3)
    report.note("after that", **timed(lambda: ask).figures())

    def write_then_ask() -> Callable[[], None]:
        remember(project.id, NewFact("u-1", texts.fact()), actor="bench")
        return ask

    report.note("right after a write", **timed(write_then_ask).figures())


def whole_project(report: "Report", count: int) -> None:
    from access_app.services import create_project
    from bench.facts import Texts, load

    project = create_project("whole project")
    report.section(f"search over a project of {count:,} facts")
    seconds = load(project.id, count, Texts(2), lambda number: f"u-{number % SUBJECTS}")
    report.note("loaded and indexed", seconds=seconds)
    search_figures(report, project.id)


def search_figures(report: "Report", project_id: UUID) -> None:
    """Time the search of a project that is there, and compare it with the exact one."""
    from bench.facts import Texts
    from memory_app.recall.search import Query, search

    texts = Texts(3)
    questions = [texts.question() for _ in range(QUERIES)]
    for question in questions[:20]:
        search(project_id, Query(question, LIMIT))
    for mode in ("hybrid", "text", "vector"):
        asked = iter(questions)

        def ask(mode: str = mode, asked: Any = asked) -> Callable[[], None]:
            query = Query(next(asked), LIMIT, mode)
            return lambda: void(search(project_id, query))

        report.note(f"search, {mode}", **timed(ask).figures())
    vectors, all_parts = agreement(project_id, questions)
    report.note(
        f"share of the exact answer @{LIMIT}", by_vector=vectors, hybrid=all_parts
    )


def void(value: object) -> None:
    """Drop a value that was only to be computed."""


def agreement(project_id: UUID, questions: list[str]) -> tuple[float, float]:
    """The share of the exact answers' facts that are found: by vector, and in all."""
    import numpy as np

    from memory_app.embedding.embedders import PACKAGED_MODEL, embed_texts
    from memory_app.recall.ranking import Filters, Weights, mask_of, score_parts
    from memory_app.recall.search import Query, search
    from memory_app.recall.tokens import query_terms

    index = everything(project_id)
    blends = {
        "vector": Weights(0, 0, 0.8, 0, 0, 0, 0),
        "hybrid": Weights(neighbour=0, session=0, speaker=0, recency=0),
    }
    shares: dict[str, list[float]] = {mode: [] for mode in blends}
    filters = Filters(at=time.time())
    mask = mask_of(index, filters)
    for question in questions:
        vector = embed_texts(PACKAGED_MODEL, [question])[0]
        terms = query_terms(question)
        for mode, weights in blends.items():
            parts = score_parts(
                index, question, terms, vector, mask, filters.at, weights
            )
            exact = np.sum(list(parts.values()), axis=0)
            last = np.partition(exact, -LIMIT)[-LIMIT]
            hits = search(project_id, Query(question, LIMIT, mode)).hits
            scores = [exact[index.row_of[hit.fact.id]] for hit in hits]
            # The vectors of the index have half the precision.
            right = sum(bool(score >= last - ROUNDING) for score in scores)
            shares[mode].append(right / LIMIT)
    return statistics.mean(shares["vector"]), statistics.mean(shares["hybrid"])


def everything(project_id: UUID) -> Any:
    """Return an index of all facts of the project, whatever their number."""
    from django.db import connection

    from memory_app.embedding.embedders import PACKAGED_MODEL
    from memory_app.recall.cache import READ, SUBJECT_FACTS, read_row
    from memory_app.recall.index import SubjectIndex

    statement = READ.replace(
        "AND m.subject = %s AND m.subject_version > %s", ""
    ).replace(
        f"ORDER BY m.id LIMIT {SUBJECT_FACTS + 1}",
        "AND m.id > %s ORDER BY m.id LIMIT %s",
    )
    index, after = SubjectIndex(256), UUID(int=0)
    while True:
        with connection.cursor() as cursor:
            cursor.execute(statement, [PACKAGED_MODEL, project_id, after, PAGE])
            rows = [read_row(values) for values in cursor.fetchall()]
        if not rows:
            return index
        index.put(rows)
        after = rows[-1].id


def timed(prepare: Callable[[], Callable[[], None]]) -> Timed:
    """Time QUERIES calls, each of what `prepare` returns."""
    passed, worked = [], []
    for _ in range(QUERIES):
        call = prepare()
        at, own, theirs = time.perf_counter(), time.thread_time(), _of_postgres()
        call()
        passed.append((time.perf_counter() - at) * 1e3)
        own_ms = (time.thread_time() - own) * 1e3
        worked.append(own_ms + _of_postgres() - theirs)
    return Timed(passed, worked)


def _of_postgres() -> float:
    """Milliseconds that this connection's process has worked; 0 where none can tell."""
    from django.db import connection

    connection.ensure_connection()
    path = Path(f"/proc/{connection.connection.info.backend_pid}/schedstat")
    try:
        return int(path.read_text().split()[0]) / 1e6
    except OSError:
        return 0.0
