"""The search over a whole project, in the database."""

from datetime import UTC, datetime

import pytest
from django.db import connection, transaction

from memory_app.embedding.embedders import PACKAGED_MODEL, embed_texts
from memory_app.models import FactEmbedding
from memory_app.recall import wide, words
from memory_app.recall.search import Query, recall, search
from memory_app.recall.together import LOOKUPS, Together
from memory_app.recall.wide import nearest
from memory_app.recall.words import Scope
from tests.memory_app.calls import forget, remember, texts
from tests.memory_app.test_recall import remember_many
from tests.queries import CallQueries


@pytest.fixture
def through_the_index(monkeypatch):
    monkeypatch.setattr(wide, "EXACT_ROWS", 0)


def near(project, text, limit=10, subject=None):
    vector = embed_texts(PACKAGED_MODEL, [text])[0]
    scope = Scope(
        "m.project_id = %s AND m.status = 'active' AND m.status = 'active'",
        [project.id],
    )
    found = nearest(
        project.id, scope, subject, vector, PACKAGED_MODEL, limit, exact=False
    )
    return [each.fact.id for each in found]


def standing(project):
    """How many rows each vector of the project has in the index."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT vector_key, count(*) FILTER (WHERE stands_for_vector)"
            " FROM agent_memory_embeddings WHERE project_id = %s AND is_current"
            " GROUP BY vector_key",
            [project.id],
        )
        return sorted(count for _, count in cursor.fetchall())


def test_what_all_say_alike_does_not_hide_the_rest(api, project, through_the_index):
    """Equal points are neighbours of one another alone: a search must not be caught."""
    for n in range(60):
        remember(api, "Prefers window seats on trains", subject=f"u-{n}")
    remember_many(api, "other", [f"Keeps {n} bees in the garden" for n in range(20)])
    assert standing(project) == [1] * 21
    found = search(project.id, Query("who keeps bees?", 20, "vector")).hits
    assert all("bees" in hit.fact.fact for hit in found)
    assert len(found) == 20
    alike = search(project.id, Query("window seats", 30, "vector")).hits
    assert {hit.fact.fact for hit in alike} == {"Prefers window seats on trains"}
    assert len({hit.fact.subject for hit in alike}) == 30


def test_one_takes_the_place_of_one_that_goes(api, project, through_the_index):
    made = [remember(api, "Likes tea", subject=f"u-{n}") for n in range(3)]
    for gone in made[:2]:
        forget(api, gone["id"])
        assert standing(project) == [1]
    assert [str(id_) for id_ in near(project, "tea")] == [made[2]["id"]]
    # Corrected, superseded, rejected: it stands for its new vector, or for none.
    changed = api.patch(
        f"/api/v1/memory/{made[2]['id']}",
        {"fact": "Likes coffee", "expected_version": 1},
    )
    assert changed.status_code == 200
    assert standing(project) == [1]
    again = remember(api, "Likes coffee", subject="u-9")
    rejected = api.post(
        f"/api/v1/memory/{made[2]['id']}/reject", {"expected_version": 2}
    )
    assert rejected.status_code == 200
    assert standing(project) == [1]
    assert [str(id_) for id_ in near(project, "coffee")] == [again["id"]]


def test_a_filter_starves_nobody_who_says_the_same(api, project, through_the_index):
    """The one that stands for a vector may be another's: theirs is found through it."""
    for n in range(30):
        remember(api, "Likes tea", subject=f"u-{n}")
    mine = remember(api, "Likes tea", subject="mine")
    assert [str(id_) for id_ in near(project, "tea", 1, "mine")] == [mine["id"]]
    scoped = search(project.id, Query("tea", 10, "vector"), subject="mine").hits
    assert [str(hit.fact.id) for hit in scoped] == [mine["id"]]


def test_other_projects_neither_stand_in_nor_show(
    api, other_api, project, through_the_index
):
    theirs = remember(other_api, "Likes tea")
    mine = remember(api, "Likes tea")
    assert standing(project) == [1]
    assert [str(id_) for id_ in near(project, "tea")] == [mine["id"]]
    hits = search(project.id, Query("tea")).hits
    assert theirs["id"] not in [str(hit.fact.id) for hit in hits]


@pytest.fixture
def many_facts(project):
    """Writes facts past the services; what these did not write goes with the test."""
    from bench.facts import Texts, load

    def write(count, subject_of):
        load(project.id, count, Texts(5), subject_of)

    yield write
    with connection.cursor() as cursor:
        for table in ("agent_memory_embeddings", "agent_memory"):
            cursor.execute(f"DELETE FROM {table} WHERE project_id = %s", [project.id])


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_rc_04_five_facts_beside_half_a_million(api, project, many_facts):
    """Each subject gets its limit, the small one and the big one, in every mode."""
    many_facts(500_000, lambda number: "big")
    few = ["Likes tea", "Has a dog", "Lives in Oslo", "Plays chess", "Is a nurse"]
    remember_many(api, "small", few)
    for mode in ("hybrid", "vector"):
        found = recall(project.id, "small", Query("invoices on Monday", 5, mode))
        assert sorted(hit.fact.fact for hit in found.hits) == sorted(few)
        found = search(
            project.id, Query("invoices on Monday", 5, mode), subject="small"
        )
        assert sorted(hit.fact.fact for hit in found.hits) == sorted(few)
        big = recall(project.id, "big", Query("invoices on Monday", 100, mode))
        assert len(big.hits) == 100
    assert len(recall(project.id, "small", Query("", 5)).hits) == 5


def test_common_words_are_looked_up_together(api, project, monkeypatch):
    """Where every word is common, what holds several of them is found all the same."""
    monkeypatch.setattr(words, "TAKEN", 5)
    filler = [f"Green boxes, number {n}" for n in range(30)]
    filler += [f"Heavy doors, number {n}" for n in range(30)]
    remember_many(api, "u-1", [*filler, "Heavy green curtains"])
    best = search(project.id, Query("heavy green", 3, "text")).hits
    assert best[0].fact.fact == "Heavy green curtains"


LOOKED_UP = {"a": 1_000.0, "b": 2_000.0, "c": 40_000.0}


def together(**counts):
    counts = counts or LOOKED_UP
    worth = {word: 1_000 / count for word, count in counts.items()}
    return Together(counts, worth, 100_000, 250)


def test_a_rare_pair_answers_for_all_that_hold_it():
    plan = together()
    assert plan.next(0.0, 1) == [["a", "b"]]  # 20 by chance
    plan.looked_up(["a", "b"], 7)
    # Not all three, which that has covered; each once, the most telling first.
    assert plan.next(0.0, 9) == [["a", "c"], ["a"], ["b", "c"], ["b"], ["c"]]


def test_words_that_go_together_are_looked_up_whole():
    plan = together()
    assert plan.next(0.0, 1) == [["a", "b"]]
    plan.looked_up(["a", "b"], 250)  # more than could be taken
    assert plan.next(0.0, 1) == [["a", "b", "c"]]
    plan.looked_up(["a", "b", "c"], 250)
    assert plan.next(0.0, 1) == [["a", "c"]]


def test_what_cannot_reach_the_best_is_not_looked_up():
    plan = together()
    assert plan.next(1.9, 9) == []
    assert plan.next(1.5, 9) == [["a", "b"]]
    plan.looked_up(["a", "b"], 7)
    assert plan.next(1.5, 9) == []


def test_lookups_are_bounded():
    plan = together(**{f"w{n}": 50_000.0 + n for n in range(40)})
    asked = []
    while more := plan.next(0.0, 5):
        asked += more
        for each in more:
            plan.looked_up(each, 250)
    assert len(asked) == LOOKUPS


def test_a_large_project_is_searched_as_if_each_fact_were_compared(
    project, through_the_index, many_facts, monkeypatch
):
    """With so few taken of each word, most words count as common here."""
    from bench.facts import Texts
    from bench.recall_speed import agreement

    many_facts(3_000, lambda number: f"u-{number % 100}")
    monkeypatch.setattr(words, "TAKEN", 60)
    monkeypatch.setattr(words, "_statistics", {})
    asked = Texts(6)
    by_vector, hybrid = agreement(project.id, [asked.question() for _ in range(20)])
    assert by_vector >= 0.95
    assert hybrid >= 0.95


def test_a_wide_search_ranks_as_a_subject_is_recalled(api, project):
    given = [
        "Prefers invoices as PDF",
        "Sends invoices to the accountant every Monday",
        "Has a cat called Invoice",
        "Likes tea with lemon",
        "The PDF reader is broken",
    ]
    remember_many(api, "u-1", given)
    wanted = [
        h.fact.fact for h in recall(project.id, "u-1", Query("pdf invoices")).hits
    ]
    found = [h.fact.fact for h in search(project.id, Query("pdf invoices")).hits]
    assert found == wanted
    assert texts(api.get("/api/v1/memory/search", params={"q": "pdf"}).json["items"])


def test_a_time_asked_about_shows_what_was_superseded(api, project, through_the_index):
    """What is past has indexes of its own, beside those of current facts."""
    old = {"subject": "u-1", "key": "drink", "fact": "Drinks tea in the morning"}
    old = api.post("/api/v1/memory", {**old, "valid_from": "2025-01-01T00:00:00Z"})
    new = {"subject": "u-1", "key": "drink", "fact": "Drinks coffee in the morning"}
    api.post("/api/v1/memory", {**new, "valid_from": "2026-01-01T00:00:00Z"})
    remember_many(api, "u-2", [f"Keeps {n} bees" for n in range(5)])
    then = datetime(2025, 6, 1, tzinfo=UTC)
    for mode in ("hybrid", "text", "vector"):
        query = Query("drinks in the morning", 1, mode)
        [now] = search(project.id, query).hits
        assert now.fact.fact == new["fact"]
        [past] = search(project.id, query._replace(as_of=then)).hits
        assert str(past.fact.id) == old.json["id"]
    assert len(search(project.id, Query("", 10, as_of=then)).hits) == 1


def test_past_facts_have_indexes(project):
    """However many are current, a search among the past ones does not read these."""
    vectors = plan(
        "SELECT memory_id FROM agent_memory_embeddings e WHERE e.project_id = %s"
        " AND e.model = 'potion-base-8M' AND NOT e.is_current",
        project.id,
    )
    assert "memory_vectors_past" in vectors
    pinned = plan(
        "SELECT id FROM agent_memory m WHERE m.pinned AND m.project_id = %s"
        " ORDER BY m.id DESC LIMIT 20",
        project.id,
    )
    assert "memory_pinned" in pinned


def plan(statement, *values):
    with transaction.atomic(), connection.cursor() as cursor:
        # The tables of tests are small: reading them whole would be faster.
        cursor.execute("SET LOCAL enable_seqscan = off")
        cursor.execute(f"EXPLAIN {statement}", values)
        return "\n".join(line for [line] in cursor.fetchall())


def test_a_search_costs_the_same_number_of_queries(api, project, monkeypatch):
    monkeypatch.setattr(words, "STATISTICS_SECONDS", float("inf"))
    remember_many(api, "u-1", [f"fact {n} on tea and cake" for n in range(3)])
    search(project.id, Query("tea cake"))  # which may read the statistics
    counted = count_queries(lambda: search(project.id, Query("tea cake")))
    remember_many(api, "u-2", [f"fact {n} on tea and cake" for n in range(60)])
    assert count_queries(lambda: search(project.id, Query("tea cake"))) == counted
    assert FactEmbedding.objects.filter(project_id=project.id).count() == 63


def count_queries(call):
    with CallQueries() as captured:
        call()
    return len(captured)
